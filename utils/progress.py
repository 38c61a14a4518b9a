"""Progress of a long task: a bar in a terminal, a few plain lines in log files, pipes and notebooks."""

import os
import sys
from typing import Any

from tqdm import tqdm

EVERY = 60  # seconds between two plain lines


class PlainLines:
    """A file for tqdm that prints each state of a bar as a line, and nothing when the bar is cleared."""

    def write(self, text: str) -> None:
        """Prints a text if it is not blank."""
        if text.strip():
            print(text.strip(), flush=True)

    def flush(self) -> None:
        """Does nothing: each line is flushed."""


def progress_bar(
    items: Any, title: str, visible: bool = True, begun: int = 0, total: int | None = None, delay: float = 0
) -> tqdm:
    """Returns the progress over `items`, or over `total` items that are counted by `update`.

    It is a bar if standard error is a terminal, or if the environment has THAW_PROGRESS=1; elsewhere it is a plain line per
    minute. The bar appears after `delay` seconds. `begun`: the number of items that an earlier start has done.
    """
    shown: dict[str, Any] = {"dynamic_ncols": True, "delay": delay}
    unit = ""
    if items is not None:
        total, unit = len(items), "it"
    if not sys.stderr.isatty() and os.environ.get("THAW_PROGRESS") != "1":
        left = ", ends in {remaining}" if total else " after {elapsed}"
        line = "{desc}: {n_fmt} of {total_fmt}" + left + "{postfix}"
        shown = {"file": PlainLines(), "mininterval": EVERY, "delay": EVERY, "bar_format": line}
    return tqdm(items, title, initial=begun, total=total, leave=False, disable=not visible, unit=unit, **shown)


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
