"""The time limit of a run, hours=: how many epochs fit into it, at the start and after each epoch."""

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from engine.schedule import Plan

MARGIN = 0.1  # fraction of the limit that is left for saves, the report, and epochs that take longer than was measured
EVALUATION = 0.5  # seconds per validation image, as a fraction of the seconds per training image: a forward pass


class TimeBudget:
    """The time of a run. It counts from the construction, and a resumed run adds what the saved run had used.

    `hours`: the limit; 0: none. `clock`: returns seconds.
    """

    def __init__(self, hours: float, clock: Callable[[], float] = time.monotonic):
        self.limit, self.clock = 3600 * hours, clock
        self.epochs = 0  # the number that was chosen; 0: none yet
        self._chosen_for = (0.0, 0)  # the limit, and the largest number of epochs
        self.epoch_seconds = 0.0  # of the last epoch, with its evaluation and its save
        self._began = self._epoch_began = clock()

    @property
    def used(self) -> float:
        """The seconds that the run has taken, over all its starts."""
        return self.clock() - self._began

    def begin_epochs(self) -> None:
        """Starts the time of the first epoch of this start."""
        self._epoch_began = self.clock()

    def end_epoch(self) -> None:
        """Ends the time of an epoch, and starts that of the next one."""
        now = self.clock()
        self.epoch_seconds, self._epoch_began = now - self._epoch_began, now

    def is_chosen(self, max_epochs: int) -> bool:
        """Whether the number of epochs was chosen for these limits, by this start or by the saved run."""
        return self._chosen_for == (self.limit, max_epochs)

    def choose(self, expected_seconds: Callable[[int], float], min_epochs: int, max_epochs: int) -> None:
        """Chooses the largest number of epochs that fits into the time that is left, but at least `min_epochs`.

        `expected_seconds`: number of epochs -> seconds until the end of the run.
        """
        left = (1 - MARGIN) * self.limit - self.used
        fitting = [n for n in range(min_epochs, max_epochs + 1) if expected_seconds(n) <= left]
        self.epochs = max(fitting, default=min_epochs)
        self._chosen_for = (self.limit, max_epochs)

    def epochs_left(self) -> int:
        """Returns how many more epochs like the last one fit into the time that is left."""
        pace = max(self.epoch_seconds, self.clock() - self._epoch_began)
        left = max(self.limit - self.used, 0.0)
        return int(left / pace) if pace else sys.maxsize

    def state_dict(self) -> dict[str, Any]:
        """Returns what a resumed run needs, as plain values."""
        return {"epochs": self.epochs, "chosen_for": self._chosen_for, "used": self.used}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues the time of a saved run."""
        self._began -= state["used"]
        self.epochs, self._chosen_for = state["epochs"], tuple(state["chosen_for"])


def seconds_of_epochs(plan: Plan, done: int, seconds: Mapping[bool, float], evaluation: float, every: int) -> float:
    """Returns the seconds of the epochs of a plan after `done` of them.

    `seconds`: of a step, by whether the backbone is frozen; `evaluation`: seconds of an evaluation, after `every` epochs.
    """
    frozen = max(plan.freeze_epochs - done, 0) * plan.frozen_steps
    thawed = (plan.epochs - max(done, plan.freeze_epochs)) * plan.steps
    evaluations = -(-plan.epochs // every) - done // every
    training = frozen * seconds.get(True, 0.0) + thawed * seconds.get(False, 0.0)
    return training + evaluations * evaluation
