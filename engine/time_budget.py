"""The time budget of a run, `hours`: how many epochs fit into it, from the time that steps, evaluations and saves take."""

import copy
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from engine.schedule import Plan
from utils.processes import Ranks
from utils.text import amount

TOLERANCE = 0.03  # of the budget: a run may take so much longer, and its number of epochs stays within it
RECENT = 3  # laps of a kind that are remembered: one outlier, as the first epoch with its compilation, is passed over
EVALUATION = 0.5  # time per validation image relative to a training image: a guess until the first evaluation


class TimeBudget:
    """Measures a run in laps, and computes the number of epochs that fit into its time.

    The time counts from the construction, and a resumed run adds what the saved run had used. `clock`: returns seconds.
    """

    def __init__(self, hours: float, evaluate_every: int = 1, clock: Callable[[], float] = time.monotonic):
        self.limit, self.evaluate_every, self.clock = 3600 * hours, evaluate_every, clock
        self.epochs = 0  # chosen; 0: not yet
        self._chosen_for = (0.0, 0)  # the time limit and the most epochs
        # Seconds: of a step, "frozen" or "thawed", of an "evaluation" and of a "save", which everything after it is part of.
        self.laps: dict[str, list[float]] = {}
        self.guesses: dict[str, float] = {}  # of laps, before the first one
        self._began = self._lap_began = clock()

    @property
    def used(self) -> float:
        """The seconds that the run has taken, over all its starts."""
        return self.clock() - self._began

    def lap(self, kind: str | None = None, count: int = 1) -> None:
        """Ends a lap: the time since the last one was for `count` steps or epochs of this kind. None: for something else."""
        now = self.clock()
        if kind and count:
            self.laps[kind] = [*self.laps.get(kind, ()), (now - self._lap_began) / count][-RECENT:]
        self._lap_began = now

    @contextmanager
    def measured(self, frozen: bool, updater: Any) -> Iterator[None]:
        """Measures the time of the steps that `updater` performs, as a lap of the frozen or of the thawed phase."""
        self.lap()
        before = updater.step_number
        yield
        self.lap("frozen" if frozen else "thawed", updater.step_number - before)

    def seconds(self, kind: str) -> float:
        """Returns the expected seconds of a lap."""
        if kind in self.laps:
            return statistics.median_low(self.laps[kind])
        return self.guesses.get(kind, 0.0)

    def expected(self, plan: Plan, done: int) -> float:
        """Returns the expected seconds of the whole run. Of `done` epochs, the last is trained, but not evaluated and saved."""
        return self.used + self.left(plan, done, max(done - 1, 0))

    def left(self, plan: Plan, trained: int, complete: int) -> float:
        """Returns the expected seconds until the end of the run: `complete` of the `trained` epochs are evaluated and saved.

        Without a measured step of the thawed phase, it takes as long as a frozen one.
        """
        if complete >= plan.epochs:
            return 0.0
        frozen = max(plan.freeze_epochs - trained, 0)
        thawed = plan.epochs - max(trained, plan.freeze_epochs)
        evaluations = -(-plan.epochs // self.evaluate_every) - complete // self.evaluate_every
        thawed_seconds = self.seconds("thawed") or self.seconds("frozen")
        training = frozen * plan.frozen_steps * self.seconds("frozen") + thawed * plan.steps * thawed_seconds
        return training + evaluations * self.seconds("evaluation") + (plan.epochs - complete) * self.seconds("save")

    def probe(self, step_seconds: Callable[[bool], float], longest: Plan, val_images: int) -> None:
        """Guesses the time of steps and evaluations, unless a saved run has. `step_seconds(frozen)`: seconds of a step."""
        phases = {
            "frozen": (longest.freeze_epochs, longest.frozen_images),
            "thawed": (longest.epochs - longest.freeze_epochs, longest.images),
        }
        for kind, (epochs, images) in phases.items():
            if epochs and kind not in self.guesses:
                self.guesses[kind] = step_seconds(kind == "frozen")
                self.guesses["evaluation"] = EVALUATION * self.guesses[kind] / images * val_images

    def choose(self, longest: Plan, done: int, ranks: Ranks) -> int:
        """Returns the number of epochs at the start: as in the saved run, or as `fit` chooses if the limits have changed."""
        if self._chosen_for != (self.limit, longest.epochs):
            self.epochs = 0
            self.fit(longest, max(done, 1), done, ranks)
        return self.epochs

    def fit(self, longest: Plan, least: int, done: int, ranks: Ranks) -> int:
        """Sets and returns the number of epochs that fill the time, from `least` to the epochs of the plan `longest`.

        The number stays while it fills the time up to the tolerance. Rank 0 decides for all.
        """
        self._chosen_for = (self.limit, longest.epochs)
        self.epochs = ranks.on_main(lambda: self._fitting(longest, least, done))
        return self.epochs

    def _fitting(self, longest: Plan, least: int, done: int) -> int:
        fractions = {}  # of the time, by number of epochs
        for epochs in range(least, longest.epochs + 1):
            fractions[epochs] = self.expected(longest.cut(epochs), done) / self.limit
        if abs(fractions.get(self.epochs, 0) - 1) <= TOLERANCE:
            return self.epochs
        fitting = [epochs for epochs, fraction in fractions.items() if fraction <= 1 + TOLERANCE]
        return min(fitting, key=lambda epochs: abs(fractions[epochs] - 1), default=least)

    def text(self, longest: Plan, done: int) -> str:
        """Describes how the run uses its time, and what to change if it uses too little or too much."""
        hours = self.expected(longest.cut(self.epochs), done) / 3600
        given = f"hours={self.limit / 3600:g}"
        text = f"time       {given}: {self.epochs} of up to {amount(longest.epochs, 'epoch')}, about {hours:.2g} hours in all"
        if hours * 3600 > self.limit * (1 + TOLERANCE):
            return f"WARNING: {given}: too little for {amount(self.epochs, 'epoch')}, about {hours:.2g} hours"
        if self.epochs == longest.epochs and hours * 3600 < self.limit * (1 - TOLERANCE):
            return f"{text}; a larger epochs= would use more of the time"
        return text

    def state_dict(self) -> dict[str, Any]:
        """Returns what a resumed run needs, as plain values."""
        return {
            "epochs": self.epochs,
            "chosen_for": self._chosen_for,
            "used": self.used,
            "laps": copy.deepcopy(self.laps),
            "guesses": dict(self.guesses),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues the time of a saved run."""
        self._began -= state["used"]
        self.laps, self.guesses = copy.deepcopy(state["laps"]), dict(state["guesses"])
        self.epochs, self._chosen_for = state["epochs"], tuple(state["chosen_for"])
