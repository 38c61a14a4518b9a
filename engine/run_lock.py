"""The lock of a run folder: only a single process writes to it."""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from engine.environment import last_start, run_id

LOCK_PATIENCE = 3.0  # seconds to wait for the lock of a run folder
RESTART_PATIENCE = 20.0  # the same under torchrun: processes of an earlier start may be about to end


class RunInUse(ValueError):
    """Another process writes to the run folder. The message names it."""


def lock(folder: Path) -> BinaryIO:
    """Locks a run folder, and returns the open file that holds the lock. Raises RunInUse if another process keeps it.

    A record lock works on network disks too, and unlike flock (and the package filelock), processes that load images do not
    inherit it. After a network cut, a process of an earlier start of this torchrun job may still hold it. This process replaces
    it and takes the folder; the other one finds this start in environment.json before its next save, and ends.
    """
    file = open(folder / "lock", "ab")
    end = time.monotonic() + (RESTART_PATIENCE if run_id() else LOCK_PATIENCE)
    while error := _error_of_lock(file):
        if not isinstance(error, BlockingIOError | PermissionError):
            print(
                f"note: {folder} cannot be locked ({error}); a second start of this run is noticed at its next save only"
            )
            return file
        if time.monotonic() > end:
            if run_id() is None or last_start(folder).get("run") != run_id():
                raise RunInUse(in_use(folder)) from error
            print(f"WARNING: {in_use(folder)}; it belongs to an earlier start of this job and is replaced")
            os.unlink(folder / "lock")
            file = open(folder / "lock", "ab")
        time.sleep(0.1)
    return file


def _error_of_lock(file: BinaryIO) -> OSError | None:
    """Locks a file. Returns the error if that fails; Windows has no record locks."""
    if os.name != "nt":
        from fcntl import LOCK_EX, LOCK_NB, lockf  # not on Windows

        try:
            lockf(file, LOCK_EX | LOCK_NB)
        except OSError as error:
            return error
    return None


def saved_ns(path: Path) -> int | None:
    """Returns when a file was last written, in nanoseconds; None without the file."""
    return path.stat().st_mtime_ns if path.exists() else None


def in_use(folder: Path) -> str:
    """Returns a message that names the last process that opened a run folder."""
    host, pid, since = map(last_start(folder).get, ("host", "pid", "started"))
    which = f"process {pid} on {host}, which started at {since}" if pid else "another process"
    return f"{folder} is in use by {which}; end that process first, or leave out resume= to start a new run"


def why_unsaved(folder: Path) -> str:
    """Returns why a run has no last.pt: it has not saved yet, or ended before its first save. A process that writes to the
    folder may not ask: it would lose its lock."""
    if (folder / "lock").exists():
        with suppress(OSError), open(folder / "lock", "ab") as file:
            if isinstance(_error_of_lock(file), BlockingIOError | PermissionError):
                return "it is still running and has not saved yet: wait for its first save"
    return "it ended before its first save, or the file was deleted: start it again"
