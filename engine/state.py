"""The progress of a run after its last whole epoch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from utils.text import amount


class Outcome(NamedTuple):
    """What `main` of train.py returns."""

    best: float  # mAP50-95 of best.pt
    folder: Path  # of the run, with best.pt, log.csv and curves.png
    rows: tuple[dict[str, Any], ...]  # of log.csv


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
        best = self.best_epoch
        if patience and best is not None and "AP" in self.rows[-1] and self.epoch - best >= patience:
            return f"no better mAP for {amount(patience, 'epoch')} (patience={patience})"
        return None
