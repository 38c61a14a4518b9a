"""Handling of faults: messages for errors, a run folder that is in use or gone, files that are missing or damaged.

Imported only when a fault happens.
"""

import json
import os
import pickle
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import torch
import torch.distributed as dist

from utils import checkpoint
from utils.checkpoint import CheckpointError
from utils.config import PAUSE, ConfigError, show
from utils.run import last_start, run_id
from utils.validate import first_line

LOCK_PATIENCE = 3.0  # seconds to wait for the lock of a run folder
RESTART_PATIENCE = 20.0  # the same under torchrun: processes of an earlier start may be about to end


class RunInUse(ValueError):
    """Another process writes to the run folder. The message names it."""


def wait_for_lock(file: BinaryIO, folder: Path, error: OSError) -> BinaryIO:
    """Waits for the lock of a run folder, and returns the open file that holds it. `error`: why the first attempt failed.

    A process of an earlier start of the same torchrun job, whose node was cut off, may keep the lock. This process replaces it
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


def not_saved(path: Path, error: BaseException) -> checkpoint.DiskError:
    """Returns the error of a checkpoint that could not be written."""
    kept = "the previous file is kept" if path.exists() else "there is no previous file"
    why: BaseException | None = error
    while why and not isinstance(why, OSError):  # PyTorch's writer raises its own error after that of the disk
        why = why.__context__
    return checkpoint.DiskError(f"{path} was not saved ({why or error}); {kept}. Is there space left in {path.parent}?")


def refuse_missing(path: Path) -> None:
    """Raises CheckpointError for a path without a file."""
    if path.is_file():
        return
    inside = next((path / name for name in ("last.pt", "best.pt") if (path / name).is_file()), None)
    if path.is_dir() and not inside:
        raise CheckpointError(f"{path} is a folder without a checkpoint, not a file; use another checkpoint")
    hint = f"did you mean {inside}?" if inside else "train.py writes runs/NAME/best.pt and last.pt"
    raise CheckpointError(f"there is no checkpoint {path}; {hint}")


def check_constants(folder: Path, saved: Mapping[str, Any], constants: Mapping[str, Any]) -> None:
    """Raises ConfigError that names the constants whose values differ from those of the `saved` run."""
    before = dict(saved["constants"])
    if before.get("freeze_epochs", 0) is None:  # older versions chose the number
        before["freeze_epochs"] = saved["freeze_epochs"]
    other_data = "training data" in before and before["training data"] != constants.get("training data")
    if other_data and "split_seed" not in before:
        before["split_seed"] = before.get("seed", 0)  # in older versions `seed` chose the images of val=.2
    changed = [key for key, value in constants.items() if key in before and show(before[key]) != show(value)]
    text = ", ".join(f"{key}={show(constants[key])} (was {show(before[key])})" for key in changed)
    if changed:
        raise ConfigError(f"{folder} was trained with other constants: {text}. Set them back, or start a new run")


def refuse_blank(path: Path) -> None:
    """Raises CheckpointError for a file that is empty or begins with zeros only."""
    with open(path, "rb") as file:
        if not any(file.read(4096)):
            what = "holds only zeros, as after a power failure" if path.stat().st_size else "is empty"
            raise CheckpointError(f"{path} {what}; use another checkpoint")


def unreadable(path: Path, zipped: bool, error: Exception) -> CheckpointError:
    """Returns the error of a file that PyTorch's reader refuses. `zipped`: it has PyTorch's present format."""
    if isinstance(error, pickle.UnpicklingError):
        if re.search(r"GLOBAL (ultralytics|models\.yolo)\.", str(error)):
            return CheckpointError(
                f"{path} is a checkpoint of Ultralytics or YOLOv5, whose networks have another architecture: its weights fit "
                f"no model of this project. Use weights=coco, the official weights of model=, or weights=none"
            )
        what = "holds Python objects" if zipped else "is not a PyTorch file, or an old one with Python objects"
        return CheckpointError(f"{path} {what}; they could run code when loaded: refused. Save its state dict alone")
    why = first_line(error)
    return CheckpointError(f"{path} is damaged or not a PyTorch file ({why}). Use another copy of it")


def other_format(path: str | Path, contents: Any) -> CheckpointError:
    """Returns the error of a file that is not a checkpoint of this project, or one of another version."""
    if not checkpoint.is_own(contents):
        known = re.fullmatch(r"yolox_\w+|yolov9_\w", Path(path).stem)
        name = known[0] if known else "yolox_nano"
        return CheckpointError(
            f"{path} is not a checkpoint of this project. If it holds weights of another one, name their model, as in "
            f"model={name} (classes=FILE if they have other classes than COCO's 80); train.py takes them as weights={path}"
        )
    form = f"format {contents['format']}; this version reads format {checkpoint.FORMAT}"
    return CheckpointError(f"{path} has {form}. Use the version that wrote it")


def restore_best(folder: Path, last: Mapping[str, Any], best_epoch: int | None) -> None:
    """Writes a missing best.pt from last.pt, whose contents are `last`, if that was saved right after `best_epoch`, before the
    next epoch began; otherwise prints a warning."""
    if best_epoch is None:
        return
    if best_epoch == last["epoch"] and not last["resume"]["meter"]["batches"]:
        checkpoint.save(folder / "best.pt", {key: value for key, value in last.items() if key != "resume"})
        print(f"{folder / 'best.pt'} was missing: written again from last.pt")
    else:
        print(
            f"WARNING: {folder / 'best.pt'} of epoch {best_epoch} is missing; only a better epoch will write it again"
        )


def reported(error: BaseException, memory_advice: str, stopped: str) -> str | None:
    """Reports an error to torchrun, after a pause, and returns the message to print; None: no user can fix it."""
    message, pause = _user_error(error, memory_advice, stopped)
    time.sleep(pause)
    _report_to_torchrun(error, message)
    rank = os.environ.get("RANK", "0")
    return None if message is None else "\n" + (f"rank {rank}: " if rank != "0" else "") + message


def _user_error(error: BaseException, memory_advice: str, stopped: str) -> tuple[str | None, float]:
    """The message of an error that a user can fix, or None, and the seconds after which it is printed.

    Local rank 0 goes first, because it reports errors of the whole node. After a lost connection torchrun has time to end
    this process, if it saw another one fail.
    """
    pause = 0 if os.environ.get("LOCAL_RANK", "0") == "0" else PAUSE
    if isinstance(error, SystemExit):
        return error.code, pause
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return f"CUDA out of memory: {memory_advice}", pause
    if isinstance(error, ValueError | OSError):
        return str(error) or type(error).__name__, pause
    if isinstance(error, RuntimeError) and "DataLoader worker" in str(error):
        return _loader_failed(str(error).strip().split("\n"), stopped), pause
    if _lost_connection(error):
        why = str(error).partition("\n")[0]
        advice = "their messages tell why, or one of them took longer than timeout_minutes="
        return f"lost the connection to the other processes; {advice} ({why})", 2 * PAUSE
    return None, 0


def _loader_failed(lines: list[str], stopped: str) -> str | None:
    """The message if a process that loads images was ended or got no shared memory; None: its own code raised the error."""
    if not lines[0].startswith("Caught "):
        advice = "if its memory or shared memory was full, lower workers= or batch_size= (dmesg shows kills for memory)"
        return f"a process that loads images was ended ({lines[0]}); {advice}; {stopped}"
    if "</torch_" in lines[-1]:  # a file of shared memory
        advice = "free some, raise the limit on the size of files (ulimit -f), or lower workers= or batch_size="
        return f"a process that loads images got no shared memory ({lines[-1]}); {advice}; {stopped}"
    return None


def _lost_connection(error: BaseException) -> bool:
    """Whether a collective failed because another rank ended, cannot be reached, or took too long."""
    return dist.is_available() and (
        isinstance(error, dist.DistError) or isinstance(error, RuntimeError) and "gloo" in str(error).lower()
    )


def _report_to_torchrun(error: BaseException, message: str | None) -> None:
    """Writes the error to the file from which torchrun prints the root cause: the message, or without one the traceback."""
    if "TORCHELASTIC_ERROR_FILE" not in os.environ:
        return
    with suppress(OSError):  # the terminal shows the error as well
        if message is None:
            from torch.distributed.elastic.multiprocessing.errors import get_error_handler

            get_error_handler().record_exception(error)
        else:
            report = {"message": message, "extraInfo": {"timestamp": str(int(time.time()))}}
            Path(os.environ["TORCHELASTIC_ERROR_FILE"]).write_text(json.dumps({"message": report}), encoding="utf-8")
