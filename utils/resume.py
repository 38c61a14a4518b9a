"""Where a run stands, and how one that was interrupted is found, on whichever machine, and put back there."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from utils import checkpoint
from utils.config import ConfigError, show
from utils.distributed import Ranks
from utils.optim import Updater
from utils.run import order, runs, started


@dataclass(frozen=True)
class State:
    """Where a run stands after its last whole epoch: the rows of its log. All else that a step depends on is either
    saved with it (weights, optimiser, scaler, average, `Meter`) or a function of the step; no random state is."""

    rows: tuple[dict[str, Any], ...] = ()

    @property
    def epoch(self) -> int:
        """Epochs done."""
        return self.rows[-1]["epoch"] if self.rows else 0

    @property
    def best(self) -> float:
        """The best mAP50-95; 0 before the first, and where there is nothing to measure."""
        return max((0.0, *(row["AP"] for row in self.rows if "AP" in row)))

    @property
    def best_epoch(self) -> int:
        """The epoch, counted from 1, that is the best: the first of the highest mAP; the last one where there is nothing to
        measure (mAP -1). 0: none was evaluated."""
        best = (0, 0.0)
        for row in self.rows:
            if "AP" in row and (row["AP"] > best[1] or best[0] == 0 or row["AP"] < 0):
                best = row["epoch"], row["AP"]
        return best[0]

    def after(self, row: dict[str, Any]) -> "State":
        """The state after the epoch of this row."""
        return State((*self.rows, row))

    def done(self, epochs: int, patience: int) -> str | None:
        """Why the run is over; None: it is not."""
        if self.epoch >= epochs:
            return f"all {epochs} epochs are done"
        if patience and self.best_epoch and self.epoch - self.best_epoch >= patience:
            return f"no better mAP for {patience} epochs (patience={patience})"
        return None


def run_id() -> str | None:
    """What torchrun knows a run by through all its starts: --rdzv_id, or without one its own process on this machine.
    None without torchrun."""
    name = os.environ.get("TORCHELASTIC_RUN_ID")
    return f"{socket.gethostname()}-{os.getppid()}" if name == "none" else name


def _started_before() -> bool:
    """Whether torchrun has started this run before, or may have on another machine, which takes an id of its own."""
    named = os.environ.get("TORCHELASTIC_RUN_ID", "none") != "none"
    return named or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"


def find(
    resume: bool | str, output: str, name: str, constants: Mapping[str, Any], ranks: Ranks
) -> tuple[Path | None, dict | None]:
    """The folder to go on in and what its last.pt holds under "resume", or None where nothing was saved yet; None, None
    for a new run.

    `resume`: True for the newest run of that name, or a folder. False: a new run, unless torchrun has started this one
    again. Machines without a common disk: the furthest last.pt of all is copied to the others. `constants` decide what
    is trained: raises ConfigError that names those that differ from the ones under "constants" there.
    """
    answers = ranks.gather(ranks.once_a_machine(lambda: _here(resume, output, name)))
    found = [(answer, rank) for rank, answer in enumerate(answers) if answer]
    if not found:
        if isinstance(resume, str):
            checkpoint.load(_folder(resume) / "last.pt")  # says what is missing
        return None, None
    (furthest, chosen), source = max(found, key=lambda one: (one[0][0], -one[1]))
    folder = _folder(resume) if isinstance(resume, str) else Path(output) / chosen
    if furthest[-2:] == NOTHING:
        return folder, None
    lacking = ranks.is_first_here and answers[ranks.rank] != (furthest, chosen)
    _bring(folder, ranks, source, lacking)
    earlier = checkpoint.load(folder / "last.pt")["resume"]
    _refuse_changes(folder, constants, earlier["constants"])
    return folder, earlier


NOTHING = (-1, -1)  # the progress of a run that has saved nothing


def _folder(resume: str) -> Path:
    path = Path(resume)
    if path.suffix == ".pt" and path.name != "last.pt":
        raise ConfigError(f"resume={path}: of the checkpoints only last.pt can be resumed; name the run folder")
    return path.parent if path.name == "last.pt" else path


def _here(resume: bool | str, output: str, name: str) -> tuple[tuple, str] | None:
    """What this machine has of the run that is meant: its progress and the name of its folder."""
    folder = _meant(resume, output, name)
    return (_progress(folder), folder.name) if folder else None


def _meant(resume: bool | str, output: str, name: str) -> Path | None:
    if isinstance(resume, str):
        return _folder(resume) if (_folder(resume) / "last.pt").exists() else None
    candidates = [path for _, _, path in sorted(runs(output, name), reverse=True)]
    if run_id() and _started_before():
        mine = [path for path in candidates if started(path, "run") == run_id()]
        if mine or not resume:
            return mine[0] if mine else None
    if not resume or not candidates:
        return None
    return candidates[0] if (candidates[0] / "last.pt").exists() else None


def _progress(folder: Path) -> tuple:
    """Sorts runs: date, number, epochs done, batches of the running epoch."""
    if not (folder / "last.pt").exists():
        return (*order(folder), *NOTHING)
    earlier = checkpoint.load(folder / "last.pt")["resume"]
    return (*order(folder), State(**earlier["state"]).epoch, earlier["meter"]["batches"])


def _bring(folder: Path, ranks: Ranks, source: int, lacking: bool) -> None:
    """Copies what process `source` has saved to the machines that lack it."""
    if any(ranks.gather(lacking)):
        folder.mkdir(parents=True, exist_ok=True)
        saved = ranks.gather([name for name in ("last.pt", "best.pt") if (folder / name).exists()])[source]
        for name in saved:
            ranks.hand_out(folder / name, source, lacking)
        ranks.gather(None)  # nobody reads before all is written


def _refuse_changes(folder: Path, constants: Mapping[str, Any], before: Mapping[str, Any]) -> None:
    changed = [n for n, v in constants.items() if n in before and show(before[n]) != show(v)]
    if changed:
        says = ", ".join(f"{n}={show(constants[n])} (was {show(before[n])})" for n in changed)
        raise ConfigError(f"{folder} was trained with other constants: {says}. Set them back, or start a new run")


def restore(earlier: Mapping[str, Any] | None, model: nn.Module, updater: Updater) -> tuple[State, Mapping | None]:
    """Puts model and updater where the earlier run was saved -> its state, and that of the meter of the running epoch."""
    if earlier is None:
        return State(), None
    model.load_state_dict(earlier["model"])
    updater.load_state_dict(earlier["updater"])
    return State(tuple(earlier["state"]["rows"])), earlier["meter"]
