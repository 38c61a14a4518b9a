"""What a run does after a fault: a run folder that is in use, files that are missing or damaged. Imported only then."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from utils import checkpoint
from utils.run import RunInUse, read_start, run_id

LOCK_PATIENCE = 3.0  # seconds to wait for the lock of a run folder
RESTART_PATIENCE = 20.0  # the same under torchrun: processes of an earlier start may be about to end


def wait_for_lock(file: BinaryIO, folder: Path, error: OSError) -> BinaryIO:
    """Waits for the lock of a run folder, and returns the open file that holds it. `error`: why the first attempt failed.

    A process of the same torchrun job that keeps the lock is lost: its node was cut off, and torchrun has started another one
    in its place. It loses the folder: before its next save it finds another start in environment.json, and ends.
    """
    from fcntl import LOCK_EX, LOCK_NB, lockf

    end = time.monotonic() + (RESTART_PATIENCE if run_id() else LOCK_PATIENCE)
    while isinstance(error, BlockingIOError | PermissionError):
        if time.monotonic() > end:
            if run_id() is None or read_start(folder, "run") != run_id():
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
    """Returns a message that names the process which has opened a run folder last."""
    host, pid, since = (read_start(folder, key) for key in ("host", "pid", "started"))
    which = f"process {pid} on {host}, which started at {since}" if pid else "another process"
    return f"{folder} is in use by {which}; end that process first, or start a new run with resume=false"


def restore_best(folder: Path, last: Mapping[str, Any], best_epoch: int) -> None:
    """Writes a missing best.pt from last.pt, whose contents are `last`, if both are of the same epoch; else prints a warning."""
    if best_epoch and best_epoch == last["epoch"]:
        checkpoint.save(folder / "best.pt", {key: value for key, value in last.items() if key != "resume"})
        print(f"{folder / 'best.pt'} was missing: written again from last.pt")
    elif best_epoch:
        print(
            f"WARNING: {folder / 'best.pt'} of epoch {best_epoch} is missing; only a better epoch will write it again"
        )
