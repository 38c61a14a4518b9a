"""Checkpoints: plain containers and tensors only, written atomically, read with `weights_only=True`.

{"format": 1, "config": {...}, "classes": [...], "epoch": 12, "step": 340, "metrics": {...},
 "thresholds": {class: confidence of its best F1},
 "value_range": [low, high] of 16-bit images, or None,
 "model": weights for prediction (the moving average),
 "resume": {"model": raw weights, "updater": {...}, ...}}    # last.pt only
"""

import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

FORMAT = 1
STALE = 600  # seconds after which a temporary file is known to be left over from a killed process


class CheckpointError(ValueError):
    """A file cannot be written or used. The message names the file and the fix."""


class DiskError(CheckpointError):
    """The disk is full or gone. The previous file is intact, and a later attempt may succeed."""


def save(path: str | Path, contents: Mapping[str, Any]) -> None:
    """Writes a checkpoint by `atomic_write`, and reads it back before it replaces the old file.

    The old file stays if an error is raised: DiskError if the disk is full, CheckpointError if `contents` holds more than
    plain containers and tensors or if weights or the state of the updater are not finite.
    """
    path = Path(path)
    contents = plain({**contents, "format": FORMAT})
    resume = contents.get("resume") or {}
    refuse_non_finite(path, [contents.get("model"), resume.get("model"), resume.get("updater")])
    try:
        for left in path.parent.glob(f".*{path.suffix}.*.tmp"):  # of every name: best.pt may never be saved again
            if time.time() - left.stat().st_mtime > STALE:
                left.unlink(missing_ok=True)
        with atomic_write(path) as file:
            torch.save(contents, file)
            file.flush()
            read(Path(file.name))  # compares the checksums
    except (OSError, RuntimeError, CheckpointError) as error:
        from utils import faults

        raise faults.not_saved(path, error) from error


@contextmanager
def atomic_write(path: str | Path) -> Iterator[BinaryIO]:
    """Opens a temporary file that replaces `path` when the block ends without an error.

    At any moment, kill -9 and power cuts included, `path` is the whole old or the whole new file. After an error, also
    KeyboardInterrupt, the temporary file is removed. The folder must exist.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{socket.gethostname()}-{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        if os.name != "nt":  # Windows cannot open folders; elsewhere the rename itself survives a power cut
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def warn_if_disk_fails(errors: list[Exception] | None = None) -> Iterator[None]:
    """Prints disk errors as warnings and appends them to `errors`, so that training continues and can save later."""
    try:
        yield
    except (OSError, DiskError) as error:
        if errors is not None:
            errors.append(error)
        print(f"WARNING: {error}")
        hint = "" if isinstance(error, FileNotFoundError) else "; make room on the disk before it ends"
        print(f"WARNING: training continues and saves again later{hint}")


def load(path: str | Path, purpose: str | None = None) -> dict[str, Any]:
    """Reads a checkpoint of this project by `read`. Tensor names lose the prefixes of wrappers, old constants get new names.

    Raises CheckpointError for the files of other projects, for wrong values, and if one is missing that the `purpose`,
    "prediction" or "resuming", needs.
    """
    from utils import validate

    contents = read(path)
    if not is_own(contents) or type(contents["format"]) is int and contents["format"] != FORMAT:
        from utils import faults

        raise faults.other_format(path, contents)
    resume = validate.validated(contents, path, "checkpoint", purpose).get("resume") or {}
    refuse_non_finite(path, [contents["model"], resume.get("model"), resume.get("updater")])
    for part in (contents, resume):
        if "model" in part:
            part["model"] = strip(part["model"])
    return validate.updated(contents, path)


def is_own(contents: Any) -> bool:
    """Whether the contents of a file are a checkpoint of this project."""
    return isinstance(contents, dict) and "format" in contents and "model" in contents


def strip(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state dict without the prefixes of DDP and DataParallel (`module.`) and of torch.compile (`_orig_mod.`)."""
    return {name.replace("_orig_mod.", "").removeprefix("module."): value for name, value in state.items()}


def plain(value: Any, where: str = "contents") -> Any:
    """A copy made of dicts, lists, tuples, numbers, text and tensors (detached, on the CPU, with their own storage).

    NumPy scalars become Python numbers, NumPy arrays tensors, paths text. Raises CheckpointError for anything else.
    """
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        whole = value.untyped_storage().nbytes() == value.nelement() * value.element_size()
        return value if whole and type(value) is Tensor else value.as_subclass(Tensor).clone()
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    if isinstance(value, Mapping):
        return {plain(key, f"{where} (a key)"): plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        items = [plain(item, f"{where}.{i}") for i, item in enumerate(value)]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return torch.from_numpy(value.copy())
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise CheckpointError(f"{where} is a {type(value).__name__}: checkpoints hold plain containers and tensors only")


def read(path: str | Path, on_disk: bool = False) -> Any:
    """Reads any PyTorch file after comparing its checksums; tensors on the CPU, or with `on_disk` only mapped from the disk.

    Raises CheckpointError for a missing or damaged file, for one that asks for more memory than it fills, and for one that
    holds more than plain containers and tensors (such a file could run code when it is loaded).
    """
    from utils import validate

    path = Path(path)
    zipped = False
    if path.is_file():
        with open(path, "rb") as file:
            zipped = file.read(4) == b"PK\x03\x04"  # as PyTorch decides
    if not zipped:
        from utils import faults

        faults.refuse_missing(path)
        faults.refuse_blank(path)
    try:
        validate.check_file(path, zipped)
        contents = torch.load(path, map_location="cpu", weights_only=True, mmap=on_disk and zipped)
        validate.check_tensors(path, contents)
        return contents
    except Exception as error:  # damaged bytes can raise any kind of error
        from utils import faults

        raise faults.unreadable(path, zipped, error) from error


def refuse_non_finite(path: Any, value: Any) -> None:
    """Raises CheckpointError if a floating-point tensor within `value` holds NaN or infinity."""
    from utils.validate import walk

    tensors = [(name, x) for name, x in walk(value) if isinstance(x, Tensor) and x.is_floating_point()]
    if bad := [name for name, x in tensors if not x.isfinite().all()]:
        what = f"{len(bad)} tensors are not finite (first: {bad[0]})"
        raise CheckpointError(f"{path}: {what}; neither used nor saved: use another copy")
