"""Saving a run, and finding and restoring an interrupted one, on one node or several."""

import copy
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

import nets
from engine import model_card
from engine.environment import last_start, run_id
from engine.epoch import Meter
from engine.optimizer import Updater
from engine.run_folder import Run, date_and_number, run_of, runs, tensorboard_scalars
from engine.time_budget import TimeBudget
from utils import checkpoint
from utils.config import ConfigError, show
from utils.file_checks import fitting
from utils.files import warn_if_disk_fails
from utils.migration import with_new_names
from utils.processes import Interrupted, Ranks, copy_files
from utils.script import command_line
from utils.signals import StopSignal
from utils.text import amount


@dataclass(frozen=True, order=True)
class Progress:
    """How far a run folder is. Runs are sorted by it: of several, the largest is the newest one with the most progress."""

    date: str
    number: int  # of the runs of that date
    epochs: int  # done; -1 without last.pt
    batches: int  # done in the current epoch
    name: str  # of the folder

    @property
    def has_checkpoint(self) -> bool:
        """Whether the folder has a last.pt."""
        return self.epochs >= 0


@dataclass
class Previous:
    """The run to resume: its folder, and the entry "resume" of its last.pt. Both are None for a new run."""

    folder: Path | None = None
    saved: dict[str, Any] | None = None  # None also if nothing was saved yet

    @property
    def batch_sizes(self) -> dict[str, int] | None:
        """The batch sizes of both phases by the names of their constants, None if nothing was saved."""
        if self.saved is None:
            return None
        return dict(zip(("freeze_batch_size", "batch_size"), self.saved["batch_sizes"], strict=True))

    @property
    def epochs(self) -> int:
        """The number of epochs done."""
        return State(**self.saved["state"]).epoch if self.saved else 0


@dataclass(frozen=True)
class State:
    """Progress of a run after its last whole epoch, as the rows of its log. There is no random state to save.

    The first row may be epoch 0: an evaluation of the initial weights.
    """

    rows: tuple[dict[str, Any], ...] = ()
    thresholds: Mapping[str, float] = field(default_factory=dict)  # by class name, if the last epoch was evaluated

    @property
    def epoch(self) -> int:
        """Number of epochs done."""
        return self.rows[-1]["epoch"] if self.rows else 0

    @property
    def best(self) -> float:
        """The best mAP50-95; 0 before the first evaluation, and if validation images have no boxes."""
        return max((0.0, *(row["AP"] for row in self.rows if "AP" in row)))

    @property
    def best_epoch(self) -> int | None:
        """The first epoch (counted from 1) with the highest mAP; 0: the initial weights; None before the first evaluation.

        If the validation images have no boxes (mAP -1), it is the last evaluated epoch.
        """
        best = (None, 0.0)
        for row in self.rows:
            if "AP" in row and (row["AP"] > best[1] or best[0] is None or row["AP"] < 0):
                best = row["epoch"], row["AP"]
        return best[0]

    def after(self, row: dict[str, Any]) -> "State":
        """Returns the state after the epoch of this row, which may also hold the thresholds of classes."""
        columns = {name: value for name, value in row.items() if name != "thresholds"}
        return State((*self.rows, columns), row.get("thresholds", {}))

    def done(self, epochs: int, patience: int) -> str | None:
        """Returns why the run is finished, or None if it is not."""
        if self.epoch > epochs:
            return f"{amount(self.epoch, 'epoch')} are trained, more than epochs={epochs}"
        if self.epoch == epochs:
            return f"all {epochs} epochs are trained" if epochs > 1 else "its only epoch is trained"
        evaluated = self.best_epoch is not None and "AP" in self.rows[-1]
        if patience and evaluated and self.epoch - self.best_epoch >= patience:
            return f"no better mAP for {amount(patience, 'epoch')} (patience={patience})"
        return None


def find(resume: bool | str, output: str, name: str, constants: Mapping[str, Any], ranks: Ranks) -> Previous:
    """Finds the run to resume.

    `resume`: True for the newest run of that name, or a folder. False for a new run, unless torchrun has
    restarted this one. Without a common disk, the last.pt of the node with the most progress is copied to the others.
    Raises ConfigError that names the `constants` (of what is trained) that differ from the earlier run.
    """
    loaded: dict[Path, dict] = {}  # by this process already: the contents of last.pt by folder
    answers = ranks.gather(ranks.once_per_node(lambda: _find_here(resume, output, name, loaded)))
    if not any(answers):
        if isinstance(resume, str):
            checkpoint.load(folder_of(resume) / "last.pt")  # raises the error that names the file
        if resume and ranks.is_main:
            print(f"resume=true: no last.pt in the newest run of name={name} in output={output}; a new run starts")
        return Previous()
    newest = max(answer for answer in answers if answer)
    folder = folder_of(resume) if isinstance(resume, str) else Path(output) / newest.name
    if not newest.has_checkpoint:
        return Previous(folder)
    missing = ranks.is_node_main and answers[ranks.rank] != newest
    if any(ranks.gather(missing)):
        # last.pt comes last: a node that has it has best.pt too, also if a process died in between.
        copy_files(ranks, folder, ("best.pt", "last.pt"), answers.index(newest), missing)
        loaded.clear()

    last = loaded.get(folder) or checkpoint.load(folder / "last.pt", "resuming")
    saved = last["resume"]
    check_constants(folder, saved, constants)
    if ranks.is_node_main and not (folder / "best.pt").exists():
        saved["write_best"] = partial(restore_best, folder, last, State(**saved["state"]).best_epoch)
    return Previous(folder, saved)


def to_continue(script: str, folder: Path, ranks: Ranks) -> str:
    """Returns the command that resumes the run in this folder, on a separate line that can be copied. `script`: train.py.

    Empty on all ranks but the first, and before the first save.
    """
    if not ranks.is_main or not (folder / "last.pt").exists():
        return ""
    nodes = ", on every node" if len(ranks.node_ranks) < ranks.world_size else ""
    return f"To continue{nodes}:\n{command_line(script, [f'resume={folder}'])}"


def with_resume(argv: Sequence[str]) -> list[str]:
    """Returns the words of a command that starts a run again, or resumes what it has saved."""
    if any(word.startswith("resume=") for word in argv):
        return list(argv)
    return [*argv, "resume=true"]


def folder_of(resume: str) -> Path:
    """Returns the run folder of `resume`, which may also name its last.pt."""
    path = Path(resume)
    if path.suffix == ".pt" and path.name != "last.pt":
        raise ConfigError(f"resume={path}: only last.pt can be resumed, no other checkpoint; name the run folder")
    return path.parent if path.name == "last.pt" else path


def run_here(resume: bool | str, output: str, name: str) -> Path | None:
    """Returns the folder of the run to resume on this node; None for a new run. For the arguments see `find`."""
    if isinstance(resume, str):
        folder = folder_of(resume)
        if not (folder / "last.pt").exists():  # the name of a run, or of its folder
            folder = run_of(output, resume) or folder
        return folder if (folder / "last.pt").exists() else None
    candidates = runs(output, name)[::-1]
    has_id = os.environ.get("TORCHELASTIC_RUN_ID", "none") != "none"  # of --rdzv_id; the same after a restart
    # torchrun: a restart, or a start with the same --rdzv_id, resumes the run that was started under this id.
    if run_id() and (has_id or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"):
        started_here = [path for path in candidates if last_start(path).get("run") == run_id()]
        if started_here or not resume:
            return started_here[0] if started_here else None
    if resume and candidates and (candidates[0] / "last.pt").exists():
        return candidates[0]
    return None


def trained_before(resume: bool | str, output: str, name: str) -> nets.Trained | None:
    """Returns what the last.pt of the run to resume keeps of the model that its classes are added to. None if there is none.

    For the arguments see `find`.
    """
    folder = run_here(resume, output, name)
    if folder is None or not (folder / "last.pt").exists():
        return None
    saved = checkpoint.load(folder / "last.pt", "resuming")["resume"]
    return nets.trained_from(saved["trained"]) if "trained" in saved else None


def _find_here(resume: bool | str, output: str, name: str, loaded: dict[Path, dict]) -> Progress | None:
    """Finds the run on this node. Returns its `_progress`, and adds the contents of its last.pt to `loaded`."""
    folder = run_here(resume, output, name)
    return _progress(folder, loaded) if folder else None


def _progress(folder: Path, loaded: dict[Path, dict]) -> Progress:
    """Returns the progress of a run folder, and adds the contents of its last.pt to `loaded`."""
    epochs, batches = -1, -1
    if (folder / "last.pt").exists():
        loaded[folder] = checkpoint.load(folder / "last.pt", "resuming")
        saved = loaded[folder]["resume"]
        epochs, batches = State(**saved["state"]).epoch, saved["meter"]["batches"]
    date, number = date_and_number(folder)
    return Progress(date, number, epochs, batches, folder.name)


def with_saved_range(saved: Mapping[str, Any] | None, train: Any, val: Any) -> tuple[Any, Any]:
    """Returns the annotations of both splits with the range of 16-bit values of the saved run, if there is one."""
    if saved is None:
        return train, val
    value_range = saved.get("value_range")  # tests/golden/kept has none
    if value_range is not None:
        value_range = tuple(value_range)
    return train.with_range(value_range)[0], val.with_range(value_range)[0]


def restore(saved: Mapping[str, Any] | None, model: nn.Module, updater: Updater) -> tuple[State, Mapping | None]:
    """Loads a saved run into model and updater. Returns its state, and the `Meter.state_dict` of the epoch that it had begun."""
    if saved is None:
        return State(), None
    with fitting("last.pt"):
        model.load_state_dict(saved["model"])
        updater.load_state_dict(saved["updater"])
    if "write_best" in saved:  # not earlier: only now last.pt has shown to be in order
        saved["write_best"]()
    return State(**saved["state"]), saved["meter"]


@dataclass
class Saver:
    """Writes the log, best.pt, a checkpoint every `save_every` epochs, and last.pt. All processes call it.

    The order (log, best.pt, last.pt) makes a kill at any moment harmless. A file that cannot be written, for example because
    the disk is full, never stops the others from being written: it is reported and tried again at every later save. If it
    is still missing at the last save of a run, that is an error.
    """

    run: Run | None  # None in processes that write nothing
    ranks: Ranks
    updater: Updater
    stop: StopSignal
    config: Mapping[str, Any]  # for every checkpoint
    data: Sequence[Any]  # annotations of training, whose classes go into every checkpoint, and of validation
    resume: Mapping[str, Any]  # for last.pt: values that a resumed run needs and that no step changes
    budget: TimeBudget
    save_every: int = 0  # epochs
    save_minutes: float = 0.0  # between saves within an epoch
    defaults: Mapping[str, Any] = field(default_factory=dict)  # the constants that config differs from, for card.md
    thresholds: Mapping[str, float] = field(default_factory=dict)  # of classes that are not trained
    pending: dict[str, dict] = field(default_factory=dict)  # checkpoints, by file name, that could not be written yet

    def change(self, constants: Mapping[str, Any], marks: Mapping[str, int]) -> None:
        """Changes constants of the training in progress, and the vertical lines of its curves."""
        self.config = {**self.config, **constants}
        self.resume = {name: constants.get(name, value) for name, value in self.resume.items()}
        if self.run:
            self.run.change(self.config, marks)

    def after_epoch(self, state: State, last: bool = False) -> None:
        """Saves the end of an epoch: its row of the log, best.pt if it is the best, and last.pt. `last`: no save follows."""
        names = ["best.pt"] * (state.best_epoch == state.epoch)
        if self.save_every and state.epoch and state.epoch % self.save_every == 0:
            names.append(f"epoch_{state.epoch:04}.pt")
        self._save(state, Meter(), last, state.rows[-1], names)

    def within_epoch(self, state: State, meter: Meter, last: bool = False) -> None:
        """Saves last.pt within an epoch. `state`: after the last whole epoch; `meter`: of the current epoch."""
        self._save(state, meter, last)

    def between_steps(self, state: State, meter: Meter) -> None:
        """Saves if `save_minutes` have passed. Raises Interrupted in all processes if one was asked to stop."""
        if self.stop.orphaned():
            raise SystemExit("torchrun has ended without its processes; training stops, what was saved remains")
        due = self.ranks.is_main and 0 < 60 * self.save_minutes < time.monotonic() - self.run.saved
        to_save, to_stop = self.ranks.any(due, self.stop.received)
        if to_stop:
            raise Interrupted
        if to_save:
            self.within_epoch(state, meter)

    def _save(
        self, state: State, meter: Meter, last: bool, row: Mapping | None = None, names: Sequence[str] = ()
    ) -> None:
        """Saves while the timer of `stop` waits, in all processes until the slowest has written its files."""
        self.stop.saving = True
        self.updater.average_statistics(self.ranks)
        errors = self._write(state, meter, row, names) if self.run else []
        self.ranks.gather(None)
        self.stop.saving = last
        if last and errors:
            raise errors[-1]

    def _write(self, state: State, meter: Meter, row: Mapping | None, names: Sequence[str]) -> list[Exception]:
        """Writes the row of the log and the checkpoints. Returns the errors of files that could not be written."""
        errors: list[Exception] = []
        with warn_if_disk_fails(errors):
            self.run.check_folder()
        if row and self.ranks.is_main:
            with warn_if_disk_fails(errors):
                self.run.log(row)
                model_card.write(self.updater.model, self.run, state, self.data, self.defaults)
            self.run.scalars(tensorboard_scalars(row), state.epoch)
        contents = {
            "config": self.config,
            "classes": list(self.data[0].classes),
            "epoch": state.epoch,
            "step": self.updater.step_number,
            "metrics": {name: value for name, value in (state.rows or ({},))[-1].items() if name != "epoch"},
            "thresholds": {**self.thresholds, **state.thresholds},
            "value_range": self.data[0].value_range,
            "model": self.updater.ema.model.state_dict(),
        }
        self.pending |= dict.fromkeys(names, contents)
        for name in list(self.pending):
            with warn_if_disk_fails(errors):
                self.run.save(name, self.pending[name])
                del self.pending[name]
        self.pending = copy.deepcopy(checkpoint.plain(self.pending))  # training will change the tensors
        rest = {"model": self.updater.model.state_dict(), "updater": self.updater.state_dict()}
        rest |= {"meter": meter.state_dict(), "state": asdict(state), "classes": contents["classes"], **self.resume}
        rest["value_range"] = contents["value_range"]
        if self.budget.limit:
            rest["time_budget"] = self.budget.state_dict()
        with warn_if_disk_fails(errors):
            self.run.save("last.pt", {**contents, "resume": rest})
        return errors


def check_constants(folder: Path, saved: Mapping[str, Any], constants: Mapping[str, Any]) -> None:
    """Raises ConfigError that names the constants whose values differ from the `saved` run."""
    before = with_new_names(saved["constants"])
    changed = [key for key, value in constants.items() if key in before and show(before[key]) != show(value)]
    text = ", ".join(f"{key}={show(constants[key])} (was {show(before[key])})" for key in changed)
    if changed:
        raise ConfigError(f"{folder} was trained with other constants: {text}. Set them back, or start a new run")


def restore_best(folder: Path, last: Mapping[str, Any], best_epoch: int | None) -> None:
    """Writes a missing best.pt from last.pt, whose contents are `last`, if that was saved right after `best_epoch`, before the
    next epoch began; otherwise prints a warning."""
    if best_epoch is None:
        return
    if best_epoch == last["epoch"] and not last["resume"]["meter"]["batches"]:
        checkpoint.save(folder / "best.pt", {key: value for key, value in last.items() if key != "resume"})
        print(f"{folder / 'best.pt'} was missing: written again from last.pt")
    else:
        print(
            f"WARNING: {folder / 'best.pt'} of epoch {best_epoch} is missing; only a better epoch will write it again"
        )
