"""A clock that a test program can move while a training runs."""

import time
from pathlib import Path

CLOCK = "TORTURE_CLOCK"  # environment variable with the file that `move_clock` reads


def move_clock(file: Path) -> None:
    """Moves the time of day, as Python tells it to this process and its children, by the seconds in a file that may change.

    libfaketime moves it for all code, but a process that is forked while another thread reads the clock inherits its lock, and
    waits forever: processes that load images cannot run under it.
    """
    now, local_time, text = time.time, time.localtime, time.strftime

    def moved() -> float:
        return now() + float(file.read_text() or 0)

    time.time, time.time_ns = moved, lambda: int(moved() * 1e9)
    time.localtime = lambda seconds=None: local_time(moved() if seconds is None else seconds)
    time.strftime = lambda form, when=None: text(form, when or time.localtime())
