"""Progress of a long task: a bar in a terminal, a few plain lines in log files, pipes and notebooks."""

import os
import sys
import time
from collections.abc import Iterator
from typing import Any, TypeAlias

from tqdm import tqdm

TENTHS = 10  # lines of a task that is neither short nor long
SHORT, LONG = 30, 300  # seconds between two lines: at least, and at most


class PlainLines:
    """Prints progress as plain lines, with the part of tqdm's interface that this project uses.

    A line comes after each tenth of the task, but not sooner than SHORT and not later than LONG seconds after the line before,
    so a task of less than SHORT seconds prints nothing. `begun`: what an earlier start of the task has done.
    """

    def __init__(self, items: Any, title: str, total: int | None, begun: int = 0):
        self.items, self.title, self.total, self.done = items, title, total, begun
        self.begun, self.tenth, self.postfix = begun, begun * TENTHS // (total or 1), ""
        self.start = self.printed = time.monotonic()

    def __iter__(self) -> Iterator:
        for item in self.items:
            yield item
            self.update()

    def __enter__(self) -> "PlainLines":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def set_postfix_str(self, text: str, refresh: bool = False) -> None:
        """Sets the end of the next line."""
        self.postfix = text

    def write(self, text: str) -> None:
        """Prints a line of something else."""
        print(text, flush=True)

    def update(self, count: int = 1) -> None:
        """Counts `count` more items as done, and prints a line if it is time for one."""
        self.done += count
        now, tenth = time.monotonic(), 0
        if self.total:
            tenth = self.done * TENTHS // self.total
        waited = now - self.printed
        if waited >= LONG or (waited >= SHORT and tenth > self.tenth):
            print(self.text(now - self.start), flush=True)
            self.printed, self.tenth = now, tenth

    def text(self, seconds: float) -> str:
        """Returns the line after this time since the start."""
        if not self.total:
            return f"{self.title}: {self.done} after {duration(seconds)}"
        left = seconds / (self.done - self.begun) * (self.total - self.done)
        parts = [f"{self.title}: {self.done} of {self.total}", f"ends in {duration(left)}", self.postfix]
        return ", ".join(filter(None, parts))


Progress: TypeAlias = "tqdm | PlainLines"


def progress_bar(
    items: Any, title: str, visible: bool = True, begun: int = 0, total: int | None = None, delay: float = 0
) -> Progress:
    """Returns the progress over `items`, or over `total` items that are counted by `update`.

    It is a bar if standard error is a terminal, or if the environment has THAW_PROGRESS=1; elsewhere it is plain lines. The
    bar appears after `delay` seconds. `begun`: the number of items that an earlier start has done.
    """
    unit = ""
    if items is not None:
        total, unit = len(items), "it"
    if visible and not sys.stderr.isatty() and os.environ.get("THAW_PROGRESS") != "1":
        return PlainLines(items, title, total, begun)
    shown: dict[str, Any] = {
        "dynamic_ncols": True,
        "leave": False,
        "disable": not visible,
        "delay": delay,
        "unit": unit,
    }
    return tqdm(items, title, initial=begun, total=total, **shown)


def duration(seconds: float) -> str:
    """Returns a time as text with one unit or two: 40 s, 12 min, 3 h 5 min, 2 d 4 h."""
    seconds = round(seconds)
    if seconds < 100:
        return f"{seconds} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"
