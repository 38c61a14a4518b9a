"""Where the time of a run goes: start, steps, waiting for images, evaluation, saving, log and end."""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from utils.progress import duration

T = TypeVar("T")


class Clock:
    """Measures the time of a run: each second belongs to exactly one part.

    `imports`: seconds of the program before the clock was made. `now`: returns seconds. GPU time counts where the
    host waits for the GPU; no synchronization is added.
    """

    def __init__(self, imports: float = 0.0, now: Callable[[], float] = time.perf_counter):
        self._seconds = {"imports": imports}
        self.now, self._part, self._since = now, "data", now()

    def enter(self, part: str) -> str:
        """Ends the current part and begins another one. Returns the name of the part before."""
        now, before = self.now(), self._part
        self._seconds[before] = self._seconds.get(before, 0.0) + now - self._since
        self._part, self._since = part, now
        return before

    @contextmanager
    def during(self, part: str) -> Iterator[None]:
        """Counts the block as a part of its own."""
        before = self.enter(part)
        try:
            yield
        finally:
            self.enter(before)

    def each(self, part: str, items: Iterable[T]) -> Iterator[T]:
        """Yields the items, and counts the time until each of them comes as a part of its own."""
        with self.during(part):
            iterator = iter(items)
        while True:
            with self.during(part):
                try:
                    item = next(iterator)
                except StopIteration:
                    return
            yield item

    @property
    def seconds(self) -> dict[str, float]:
        """The seconds of each part so far, in the order in which the parts began."""
        self.enter(self._part)
        return dict(self._seconds)

    def text(self, epochs: int, evaluate_every: int) -> str:
        """Returns a line with the fraction of each part, the largest first; parts below half a percent are left out.

        It has advice if evaluations, one after each `evaluate_every` of the `epochs`, take more than a quarter of the time.
        """
        seconds = self.seconds
        total = sum(seconds.values())
        shown = {part: round(100 * value / total) for part, value in seconds.items()}
        parts = [f"{shown[part]} % {part}" for part in sorted(shown, key=lambda part: -seconds[part]) if shown[part]]
        text = f"time        {duration(total)}: {', '.join(parts)}"
        evaluation = seconds.get("evaluation", 0.0)
        if total / 4 < evaluation < total:
            rarer = math.ceil(9 * evaluate_every * evaluation / (total - evaluation))
            if rarer <= epochs:
                text += f"; with evaluate_every={rarer} a tenth would be evaluation"
        return text
