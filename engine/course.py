"""The course of a run: how many epochs it has, what each of them does, and the learning rate of each step."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from engine.rates import Rates, given_or
from engine.schedule import (
    Plan,
    curve_marks,
    enough_epochs,
    first_fixed_epoch,
    first_no_aug_epoch,
    usual_no_aug_epochs,
    usual_warmup,
)
from engine.state import State
from engine.time_budget import TimeBudget
from utils.processes import Ranks
from utils.text import amount


@dataclass(frozen=True)
class Phase:
    """What one epoch does."""

    epoch: int  # counted from 0
    frozen: bool  # the backbone
    batch_size: int  # images per batch of all ranks
    no_aug: bool  # single letterboxed images, the lowest learning rate, and the L1 loss of YOLOX
    static: bool  # labels are assigned by the positions of anchor points alone, as in the official recipes of PP-YOLOE
    fixed_statistics: bool  # of all batch norms


class Course:
    """The owner of the epochs: how many there are, and what each one does.

    `cfg`: the constants of train.py; `images`: of the training data; `build_schedule`: `Schedule`, or what takes its place.
    `plan` and `schedule` are those of the current number of epochs. Only hours= changes it: at the start (`choose_epochs`) and
    after an epoch (`change_epochs`).
    """

    def __init__(self, cfg: Any, images: int, rates: Rates, budget: TimeBudget, build_schedule: Callable):
        self.rates, self.budget, self.patience, self.kind = rates, budget, cfg.patience, cfg.schedule
        self._build_schedule = build_schedule
        self._batch_sizes = {True: cfg.freeze_batch_size, False: cfg.batch_size}  # frozen -> images per batch
        self._from_scratch = cfg.weights is None
        self._chooses_epochs = cfg.epochs == 0
        epochs = cfg.epochs or enough_epochs(images, cfg.batch_size * cfg.accumulate)
        self.longest = Plan.of(images, epochs, cfg.freeze_epochs, cfg.freeze_batch_size, cfg.batch_size, cfg.accumulate)
        self._written_no_aug = cfg.no_aug_epochs
        self._lengths = cfg.warmup_epochs, cfg.no_aug_epochs  # None: the usual ones of the chosen number of epochs
        self.no_aug_from = torch.tensor(epochs).share_memory_()  # an epoch, which the loader's workers read
        self._begin(epochs)

    def _begin(self, epochs: int) -> None:
        """Sets the number of epochs at the start, and the lengths that depend on it."""
        warmup, no_aug = self._lengths
        self.warmup_epochs = given_or(warmup, usual_warmup(self.longest.cut(epochs)))
        self._set(epochs, given_or(no_aug, usual_no_aug_epochs(epochs)))

    def _set(self, epochs: int, no_aug_epochs: int) -> None:
        """Sets the number of epochs, and everything that follows from it."""
        self.plan, self.no_aug_epochs = self.longest.cut(epochs), no_aug_epochs
        self.first_no_aug = max(epochs - no_aug_epochs, 0)
        self.no_aug_from.fill_(self.first_no_aug)
        self.first_fixed = epochs  # first epoch with fixed batch-norm statistics: none
        if self._from_scratch:
            self.first_fixed = first_fixed_epoch(epochs, self.first_no_aug)
        self.schedule = self._build_schedule(
            plan=self.plan,
            kind=self.kind,
            learning_rate=self.rates.learning_rate,
            min_learning_rate=self.rates.min_learning_rate,
            warmup_epochs=self.warmup_epochs,
            no_aug_epochs=no_aug_epochs,
            power=self.rates.power,
            max_images=self.rates.max_images,
        )

    @property
    def epochs(self) -> int:
        """The current number of epochs."""
        return self.plan.epochs

    @property
    def constants(self) -> dict[str, float]:
        """The constants that this object owns, with their current values."""
        names = ("epochs", "warmup_epochs", "no_aug_epochs")
        return {name: getattr(self, name) for name in names}

    @property
    def marks(self) -> dict[str, int]:
        """The vertical lines of curves.png: name -> first epoch of a phase, counted from 1."""
        return curve_marks(self.plan, self.no_aug_epochs)

    def phase(self, epoch: int) -> Phase:
        """Returns what an epoch (counted from 0) does."""
        frozen = epoch < self.plan.freeze_epochs
        return Phase(
            epoch=epoch,
            frozen=frozen,
            batch_size=self._batch_sizes[frozen],
            no_aug=epoch >= self.first_no_aug,
            static=self._from_scratch and epoch < self.epochs // 3,
            fixed_statistics=epoch >= self.first_fixed,
        )

    def trial(self, frozen: bool) -> Phase:
        """Returns the phase of steps that only measure time."""
        return Phase(0, frozen, self._batch_sizes[frozen], no_aug=False, static=False, fixed_statistics=False)

    def evaluates_after(self, epoch: int) -> bool:
        """Returns whether the model is evaluated after an epoch (counted from 0)."""
        return (epoch + 1) % self.budget.evaluate_every == 0 or epoch + 1 == self.epochs

    def done(self, state: State) -> str | None:
        """Returns why the run is finished, or None if it is not."""
        reason = state.done(self.epochs, self.patience)
        if reason and state.epoch <= self.first_no_aug < self.epochs:
            reason += f", before {amount(self.no_aug_epochs, 'epoch')} without augmentation at the lowest learning rate"
        return reason

    def more(self, state: State) -> str:
        """Returns what extends a run that is finished."""
        if state.epoch < self.epochs:
            return "a larger patience=, or patience=0,"
        return "a larger hours=" if self.epochs < self.longest.epochs else "a larger epochs="

    def seconds_left(self, trained: int) -> float:
        """Returns the expected seconds until the end of the run after `trained` complete epochs."""
        return self.budget.left(self.plan, trained, trained)

    def choose_epochs(
        self, step_seconds: Callable[[Phase], float], val_images: int, state: State, ranks: Ranks
    ) -> None:
        """With hours=, chooses the number of epochs at the start of a run, or of a resumed one with another limit.

        `step_seconds`: measures the steps of a phase; `val_images`: the number of validation images.
        """
        if self.budget.limit:
            self.budget.probe(lambda frozen: step_seconds(self.trial(frozen)), self.longest, val_images)
            self._begin(self.budget.choose(self.longest, state.epoch, ranks))

    def change_epochs(self, done: int, ranks: Ranks) -> str:
        """With hours=, changes the number of epochs to what the measured time allows, after `done` epochs were trained.

        A run that is late keeps its last epochs, those without augmentation. Returns a line to log, or "".
        """
        if not self.budget.limit:
            return ""
        before = self.epochs
        least = done + 1 if done - 1 < self.first_no_aug < before else done
        epochs = self.budget.fit(self.longest, least, done, ranks)
        if epochs == before:
            return ""
        self._set(epochs, epochs - first_no_aug_epoch(epochs, self._written_no_aug, self.first_no_aug, done))
        hours = self.budget.limit / 3600
        return f"hours={hours:g}: {amount(epochs, 'epoch')} instead of {before}, from the measured time"

    def time_text(self, state: State) -> str:
        """Returns a line about how a run with hours= uses its time, "" for other runs."""
        return self.budget.text(self.longest, state.epoch) if self.budget.limit else ""

    def state_dict(self) -> dict[str, Any]:
        """Returns what a resumed run needs, as plain values."""
        return {
            "max_epochs": self.longest.epochs if self._chooses_epochs else 0,
            "warmup_epochs": self.warmup_epochs,
            "no_aug_epochs": self.no_aug_epochs,
            "budget": self.budget.state_dict() if self.budget.limit else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a `state_dict`: the lengths and the time of a saved run, which may now have other numbers of epochs."""
        self._lengths = state["warmup_epochs"], state["no_aug_epochs"]
        if self._chooses_epochs and state["max_epochs"]:
            self.longest = self.longest.cut(state["max_epochs"])
        if state["budget"]:
            self.budget.load_state_dict(state["budget"])
        self._begin(self.longest.epochs)
