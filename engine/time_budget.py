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
        self._training: list[float] = []  # seconds of the epochs of this start
        self._rest: list[float] = []  # seconds of what followed each of them: evaluation and save
        self._began = self._part_began = clock()

    @property
    def used(self) -> float:
        """The seconds that the run has taken, over all its starts."""
        return self.clock() - self._began

    def begin_epochs(self) -> None:
        """Starts the time of the first epoch of this start."""
        self._training, self._rest, self._part_began = [], [], self.clock()

    def end_training(self) -> None:
        """Ends the time of the steps of an epoch; its evaluation and save follow."""
        self._end_part(self._training)

    def end_epoch(self) -> None:
        """Ends the time of an epoch, and starts that of the next one."""
        self._end_part(self._rest)

    def _end_part(self, parts: list[float]) -> None:
        now = self.clock()
        parts.append(now - self._part_began)
        self._part_began = now

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

    def pace(self, every: int) -> float:
        """Returns the expected seconds of an epoch; 0 before the first. `every`: epochs from one evaluation to the next.

        Of the last two epochs the faster one counts: a single slow one says nothing about the others.
        """
        rest = self._rest[-every:]
        return min(self._training[-2:], default=0.0) + sum(rest) / max(len(rest), 1)

    def epochs_left(self, every: int) -> int:
        """Returns how many more epochs fit into the time that is left.

        Any number fits before the second epoch, until the time is over: the first one of a start also decodes images.
        """
        left, pace = max(self.limit - self.used, 0.0), self.pace(every)
        if len(self._training) < 2 or not pace:
            return sys.maxsize if left else 0
        return int(left / pace)

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
