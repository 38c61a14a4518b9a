"""The lock of a run folder: one process writes to it."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from engine.environment import last_start, run_id

LOCK_PATIENCE = 3.0  # seconds to wait for the lock of a run folder
RESTART_PATIENCE = 20.0  # the same under torchrun: processes of an earlier start may be about to end


def lock(folder: Path) -> BinaryIO:
    """Locks a run folder, and returns the open file that holds the lock. The system frees it when this process ends.

    A record lock works on network disks too, and unlike flock, processes that load images do not inherit it. Closing any
    file object of that file would free it. Raises RunInUse if another process keeps the lock for some seconds.
    """
    file = open(folder / "lock", "ab")
    if os.name != "nt":
        from fcntl import LOCK_EX, LOCK_NB, lockf

        try:
            lockf(file, LOCK_EX | LOCK_NB)
        except OSError as error:
            return wait_for_lock(file, folder, error)
    return file


class RunInUse(ValueError):
    """Another process writes to the run folder. The message names it."""


def wait_for_lock(file: BinaryIO, folder: Path, error: OSError) -> BinaryIO:
    """Waits for the lock of a run folder, and returns the open file that holds it. `error`: why the first attempt failed.

    After a network cut, a process of an earlier start of this torchrun job may still hold the lock. This process replaces it
    and takes the folder; the other one finds this start in environment.json before its next save, and ends.
    """
    from fcntl import LOCK_EX, LOCK_NB, lockf

    end = time.monotonic() + (RESTART_PATIENCE if run_id() else LOCK_PATIENCE)
    while isinstance(error, BlockingIOError | PermissionError):
        if time.monotonic() > end:
            if run_id() is None or last_start(folder).get("run") != run_id():
                raise RunInUse(in_use(folder)) from error
            print(f"WARNING: {in_use(folder)}; it belongs to an earlier start of this job and is replaced")
            os.unlink(folder / "lock")
            file = open(folder / "lock", "ab")
        time.sleep(0.1)
        try:
            lockf(file, LOCK_EX | LOCK_NB)
            return file
        except OSError as again:
            error = again
    print(
        f"note: {folder} cannot be locked ({error}); a second start of this run would be noticed at the next save only"
    )
    return file


def in_use(folder: Path) -> str:
    """Returns a message that names the last process that opened a run folder."""
    host, pid, since = map(last_start(folder).get, ("host", "pid", "started"))
    which = f"process {pid} on {host}, which started at {since}" if pid else "another process"
    return f"{folder} is in use by {which}; end that process first, or start a new run with resume=false"


def check_folder(folder: Path, reopen: Callable[[], None]) -> None:
    """Reopens a run folder that is gone. Raises RunInUse if another process has opened it."""
    if not folder.is_dir():
        print(f"WARNING: {folder} was moved or deleted: a new folder of that name gets what is saved from now on")
        reopen()
    elif last_start(folder):  # else environment.json was deleted
        raise RunInUse(f"{in_use(folder)}; this process ends without a save")
