"""Where a run stands, and how one that was interrupted is found and put back there."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from utils import checkpoint
from utils.config import ConfigError, show
from utils.optim import Updater
from utils.run import newest


@dataclass(frozen=True)
class State:
    """Where a run stands after an epoch."""

    epoch: int = 0  # epochs done
    best: float = 0.0  # mAP50-95
    best_epoch: int = 0  # epochs done when it was reached

    def after(self, row: Mapping[str, Any]) -> "State":
        """The state after the epoch of this row of the log."""
        if "AP" in row and (row["AP"] > self.best or self.best_epoch == 0 or row["AP"] < 0):  # -1: nothing to measure
            return State(row["epoch"], max(row["AP"], 0.0), row["epoch"])
        return replace(self, epoch=row["epoch"])

    def done(self, epochs: int, patience: int) -> str | None:
        """Why the run is over; None: it is not."""
        if self.epoch >= epochs:
            return f"all {epochs} epochs are done"
        if patience and self.best_epoch and self.epoch - self.best_epoch >= patience:
            return f"no better mAP for {patience} epochs (patience={patience})"
        return None


def find(resume: bool | str, output: str, name: str, constants: Mapping[str, Any]) -> tuple[Path | None, dict | None]:
    """The folder to go on in, and what its last.pt holds under "resume"; None, None for a new run.

    `resume`: True for the newest run of that name, or a folder. `constants` decide what is trained: raises ConfigError
    that names those that differ from the ones under "constants" there.
    """
    if not resume:
        return None, None
    folder = newest(output, name) if resume is True else Path(resume)
    if resume is True and (folder is None or not (folder / "last.pt").exists()):
        return None, None
    if folder.suffix == ".pt" and folder.name != "last.pt":
        raise ConfigError(f"resume={folder}: of the checkpoints only last.pt can be resumed; name the run folder")
    folder = folder.parent if folder.name == "last.pt" else folder
    earlier = checkpoint.load(folder / "last.pt")["resume"]
    before = earlier["constants"]
    changed = [n for n, v in constants.items() if n in before and show(before[n]) != show(v)]
    if changed:
        says = ", ".join(f"{n}={show(constants[n])} (was {show(before[n])})" for n in changed)
        raise ConfigError(f"{folder} was trained with other constants: {says}. Set them back, or start a new run")
    return folder, earlier


def restore(earlier: Mapping[str, Any] | None, model: nn.Module, updater: Updater) -> State:
    """Puts model and updater where the earlier run was saved."""
    if earlier is None:
        return State()
    model.load_state_dict(earlier["model"])
    updater.load_state_dict(earlier["updater"])
    return State(**earlier["state"])
