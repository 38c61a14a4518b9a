"""The course of a run: how many epochs it has, what each of them does, and the learning rate of each step."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from engine.rates import Rates, given_or
from engine.schedule import (
    Plan,
    Schedule,
    curve_marks,
    enough_epochs,
    first_fixed_epoch,
    usual_no_aug_epochs,
    usual_warmup,
)
from engine.state import State
from engine.time_budget import EVALUATION, TimeBudget, seconds_of_epochs
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


class Follower(Protocol):
    """An owner that depends on the number of epochs."""

    def follow(self, course: "Course") -> None: ...


class Course:
    """The owner of the epochs: how many there are, and what each one does.

    `cfg`: the constants of train.py; `images`: of the training data; `build_schedule`: `Schedule`, or what takes its place.
    `plan` and `schedule` are those of the current number of epochs, which only hours= changes: it is chosen at the start, and a
    run that is late is shortened once.
    """

    def __init__(
        self, cfg: Any, images: int, rates: Rates, budget: TimeBudget, build_schedule: Callable[..., Schedule]
    ):
        self.rates, self.budget, self.patience, self.kind = rates, budget, cfg.patience, cfg.schedule
        self.evaluate_every = cfg.evaluate_every
        self._build_schedule = build_schedule
        self._batch_sizes = {True: cfg.freeze_batch_size, False: cfg.batch_size}  # frozen -> images per batch
        self._from_scratch = cfg.weights is None
        self._chooses_epochs = cfg.epochs == 0
        epochs = cfg.epochs or enough_epochs(images, cfg.batch_size * cfg.accumulate)
        self.max_plan = Plan.of(
            images, epochs, cfg.freeze_epochs, cfg.freeze_batch_size, cfg.batch_size, cfg.accumulate
        )
        self._lengths = cfg.warmup_epochs, cfg.no_aug_epochs  # None: the usual ones of the chosen number of epochs
        self.no_aug_from = torch.tensor(epochs)  # an epoch, which the loader's workers read
        if cfg.workers:
            self.no_aug_from.share_memory_()
        self.time_text = ""  # a line to log about the number of epochs that hours= has chosen
        self._begin(epochs)

    def _begin(self, epochs: int) -> None:
        """Sets the number of epochs at the start, and the lengths that depend on it."""
        warmup, no_aug = self._lengths
        self.warmup_epochs = given_or(warmup, usual_warmup(self.max_plan.shortened(epochs)))
        self._chosen_no_aug = usual_no_aug_epochs(epochs) if no_aug is None else no_aug
        self._set(epochs, self._chosen_no_aug)

    def _set(self, epochs: int, no_aug_epochs: int) -> None:
        """Sets the number of epochs, and everything that follows from it."""
        self.plan, self.no_aug_epochs = self.max_plan.shortened(epochs), no_aug_epochs
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
    def constants(self) -> dict[str, Any]:
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

    def probe(self, frozen: bool) -> Phase:
        """Returns the phase of steps that only measure time."""
        return Phase(0, frozen, self._batch_sizes[frozen], no_aug=False, static=False, fixed_statistics=False)

    def evaluates_after(self, epoch: int) -> bool:
        """Returns whether the model is evaluated after an epoch (counted from 0)."""
        return (epoch + 1) % self.evaluate_every == 0 or epoch + 1 == self.epochs

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
        return "a larger hours=" if self.epochs < self.max_plan.epochs else "a larger epochs="

    def seconds_left(self, trained: int) -> float:
        """Returns the expected seconds until the end of the run after `trained` epochs; 0 before the thaw, when it is unknown."""
        if trained < self.plan.freeze_epochs < self.epochs:
            return 0.0
        return (self.epochs - trained) * self.budget.pace(self.evaluate_every)

    def choose_epochs(
        self,
        step_seconds: Callable[[Phase], float],
        val_images: int,
        done: int,
        ranks: Ranks,
        followers: Sequence[Follower] = (),
    ) -> None:
        """With hours=, chooses how many epochs fit, unless the run to resume has chosen it for the same limits.

        `step_seconds`: measures a step of a phase; `val_images`: number of validation images; `done`: epochs trained before;
        `followers`: owners that depend on the number of epochs.
        """
        plan, limit = self.max_plan, self.budget.limit
        if not limit or self.budget.is_chosen(plan.epochs):
            return
        kinds = {True: plan.freeze_epochs > 0, False: plan.freeze_epochs < plan.epochs}  # the phases of the run
        seconds = {frozen: step_seconds(self.probe(frozen)) for frozen, exists in kinds.items() if exists}
        step, images = (seconds[False], plan.images) if kinds[False] else (seconds[True], plan.frozen_images)
        evaluation = EVALUATION * step / images * val_images

        def expected(epochs: int) -> float:
            return seconds_of_epochs(plan.shortened(epochs), done, seconds, evaluation, self.evaluate_every)

        self.budget.choose(expected, max(done, 1), plan.epochs)
        self._begin(ranks.on_main(lambda: self.budget.epochs))
        self.budget.epochs = self.epochs
        self.time_text = self._chosen_text(self.budget.used + expected(self.epochs))
        for owner in followers:
            owner.follow(self)

    def _chosen_text(self, seconds: float) -> str:
        """Returns a line about the number of epochs that hours= has chosen. `seconds`: the expected time of the whole run."""
        given = f"hours={self.budget.limit / 3600:g}"
        if seconds > self.budget.limit:
            return f"WARNING: {given}: too little for {amount(self.epochs, 'epoch')}, about {seconds / 3600:.2g} hours"
        text = f"time       {given}: {self.epochs} of up to {amount(self.max_plan.epochs, 'epoch')}"
        text += f", about {seconds / 3600:.2g} hours in all"
        if self.epochs == self.max_plan.epochs:
            text += "; a larger epochs= would use more of the time"
        return text

    def shorten_if_late(self, trained: int, ranks: Ranks, followers: Sequence[Follower]) -> None:
        """After the steps of an epoch: with hours=, sends a run that is late to its last epochs, those without augmentation.

        This happens at most once. `trained`: number of epochs; `followers`: owners that depend on the number of epochs.
        """
        self.budget.end_training()
        if not self.budget.limit or trained >= self.first_no_aug:
            return
        fitting = ranks.on_main(lambda: self.budget.epochs_left(self.evaluate_every))
        if fitting > self.no_aug_epochs:
            return
        before, last = self.epochs, min(self.no_aug_epochs, max(fitting, 1))
        self._set(trained + last, last)
        self.budget.epochs = self.epochs
        for owner in followers:
            owner.follow(self)
        hours = self.budget.limit / 3600
        ranks.log(f"hours={hours:g}: the run is late, so it has {amount(self.epochs, 'epoch')} instead of {before}")

    def state_dict(self) -> dict[str, Any]:
        """Returns what a resumed run needs, as plain values."""
        return {
            "max_epochs": self.max_plan.epochs if self._chooses_epochs else 0,
            "warmup_epochs": self.warmup_epochs,
            "no_aug_epochs": self._chosen_no_aug,
            "last_epochs": self.no_aug_epochs,  # fewer if the run was late
            "budget": self.budget.state_dict() if self.budget.limit else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a `state_dict`: the lengths and the time of a saved run, which may now have other numbers of epochs."""
        self._lengths = state["warmup_epochs"], state["no_aug_epochs"]
        if self._chooses_epochs and state["max_epochs"]:
            self.max_plan = self.max_plan.shortened(state["max_epochs"])
        if state["budget"]:
            self.budget.load_state_dict(state["budget"])
        is_chosen = self.budget.is_chosen(self.max_plan.epochs)
        self._begin(self.budget.epochs if is_chosen else self.max_plan.epochs)
        if is_chosen:
            self._set(self.epochs, state.get("last_epochs", self.no_aug_epochs))
