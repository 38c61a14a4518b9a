"""Checkpoints: plain containers and tensors only, written atomically, read with `weights_only=True`.

{"format": 2, "config": {...}, "classes": [...], "epoch": 12, "step": 340, "date": "2026-01-31 14:05:00", "metrics": {...},
 "thresholds": {class: confidence of its best F1},
 "value_range": [low, high] of 16-bit images, or None,
 "model": weights for prediction (the moving average),
 "resume": {name of an owner: its state, such as the raw weights ("model"), the optimizer ("updater"), ...}}    # last.pt only
"""

import os
import pickle
import re
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from utils import paddle
from utils.file_checks import CheckpointError, fitting, refuse_non_finite, validated
from utils.files import atomic_write, left_instead, missing_text
from utils.text import brief, first_line

FORMAT = 2
ZIP = b"PK\x03\x04"  # with which the files of PyTorch begin
PADDLE = ".pdparams"  # suffix of the files of PaddlePaddle
STALE = 600  # seconds after which a temporary file is known to be left over from a killed process


class DiskError(OSError):
    """The disk is full or gone. The previous file is intact, and a later attempt may succeed."""


def save(path: str | Path, contents: Mapping[str, Any]) -> None:
    """Writes a checkpoint by `atomic_write`, which must be complete before it replaces the old file.

    Its bytes are not read back: `read` compares its checksums, and refuses a damaged file. The old file stays if an error is
    raised: DiskError if the disk is full, CheckpointError if `contents` holds more than plain containers and tensors or if
    weights or the state of the updater are not finite.
    """
    path = Path(path)
    contents = plain({**contents, "format": FORMAT})
    refuse_non_finite(path, finite_parts(contents))
    try:
        for left in path.parent.glob(f".*{path.suffix}.*.tmp"):  # of every name: best.pt may never be saved again
            if time.time() - left.stat().st_mtime > STALE:
                left.unlink(missing_ok=True)
        with atomic_write(path) as file:
            torch.save(contents, file)
            file.flush()
            if not zipfile.is_zipfile(file.name):  # its directory is the last that is written
                raise CheckpointError("the file is not complete")
    except (OSError, RuntimeError, CheckpointError) as error:
        raise not_saved(path, error) from error


def load(path: str | Path, purpose: str | None = None) -> dict[str, Any]:
    """Reads a checkpoint of this project by `read`.

    Raises CheckpointError for the files of other projects, and for an entry that is wrong, or that is missing although the
    `purpose` ("prediction" or "resuming") needs it.
    """
    contents = read(path)
    if not is_own(contents) or contents["format"] != FORMAT:
        raise other_format(path, contents)
    with fitting(path):
        contents = validated(contents, path, purpose)
        refuse_non_finite(path, finite_parts(contents))
    return contents


def is_own(contents: Any) -> bool:
    """Whether the contents of a file are a checkpoint of this project."""
    return isinstance(contents, dict) and "format" in contents and "model" in contents


def finite_parts(contents: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what must not hold NaN in a checkpoint: both sets of weights, and the state of the updater."""
    resume = contents.get("resume") or {}
    states = {f"resume.{name}": resume.get(name) for name in ("model", "updater")}
    return {"model": contents.get("model"), **states}


def about(contents: Mapping[str, Any]) -> dict[str, Any]:
    """Returns epoch, mAP50-95 in its run, and date of a checkpoint, as far as it knows them: reports name them."""
    known = {
        "epoch": contents.get("epoch"),
        "AP": (contents.get("metrics") or {}).get("AP"),
        "date": contents.get("date"),
    }
    return {name: value for name, value in known.items() if value is not None}


def plain(value: Any, where: str = "contents", copy: bool = False) -> Any:
    """A copy made of dicts, lists, tuples, numbers, text and tensors (detached, on the CPU, with their own storage).

    NumPy scalars become Python numbers, NumPy arrays tensors, paths text. Tensors that are so already are copied only with
    `copy`. Raises CheckpointError for anything else.
    """
    if isinstance(value, Tensor):
        value = value.detach().to("cpu", copy=copy)
        whole = value.untyped_storage().nbytes() == value.nelement() * value.element_size()
        return value if whole and type(value) is Tensor else value.as_subclass(Tensor).clone()
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    if isinstance(value, Mapping):
        return {plain(key, f"{where} (a key)"): plain(item, f"{where}.{key}", copy) for key, item in value.items()}
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        items = [plain(item, f"{where}.{i}", copy) for i, item in enumerate(value)]
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

    With `on_disk`, the checksums are not compared. A file whose name ends with .pdparams is one of PaddlePaddle, which has no
    checksums; see utils/paddle.py. Raises CheckpointError for a missing or damaged file, and for one with more than plain
    containers and tensors (such a file could run code when it is loaded).
    """
    path = Path(path)
    refuse_missing(path)
    head = b""
    try:
        with open(path, "rb") as file:
            head = file.read(100)
        zipped = head.startswith(ZIP)
        if path.suffix == PADDLE:
            return paddle.read(path)
        if zipped and not on_disk:
            with zipfile.ZipFile(path) as archive:  # PyTorch's reader does not compare the checksums
                if archive.testzip() is not None:
                    raise zipfile.BadZipFile("checksums differ")
        return torch.load(path, map_location="cpu", weights_only=True, mmap=on_disk and zipped)
    except Exception as error:  # damaged bytes can raise any kind of error
        raise unreadable(path, head, error) from error


def not_saved(path: Path, error: BaseException) -> DiskError:
    """Returns the error of a checkpoint that could not be written."""
    kept = "the previous file is kept" if path.exists() else "there is no previous file"
    why: BaseException | None = error
    while why and not isinstance(why, OSError):  # PyTorch's writer raises its own error after the disk's
        why = why.__context__
    return DiskError(f"{path} was not saved ({why or error}); {kept}. Is there space left in {path.parent}?")


def refuse_missing(path: Path) -> None:
    """Raises CheckpointError for a path without a file."""
    if path.is_file():
        return
    inside = next((path / name for name in ("best.pt", "last.pt") if (path / name).is_file()), None)
    if path.is_dir() and not inside:
        raise CheckpointError(f"{path} is a folder without a checkpoint, not a file; use another checkpoint")
    hint = f"did you mean {inside}?" if inside else f"{missing_text(str(path))}; train.py writes runs/NAME/best.pt"
    raise CheckpointError(f"there is no checkpoint {path}: {hint}")


def unreadable(path: Path, head: bytes, error: Exception) -> CheckpointError:
    """Returns the error of a file that the reader refuses. `head`: its first bytes."""
    if isinstance(error, PermissionError):
        return CheckpointError(f"{path}: {error.strerror}: correct its permissions")
    if what := left_instead(head):
        return CheckpointError(f"{path} is {what}")
    zipped = head.startswith(ZIP)
    if path.suffix in (".onnx", ".tflite"):
        return CheckpointError(f"{path} is an exported file, not weights: name the .pt file that it came from")
    if re.search(r"GLOBAL (ultralytics|models\.yolo)\.", str(error)):
        return CheckpointError(
            f"{path} is a checkpoint of Ultralytics or YOLOv5, whose networks have another architecture: its weights fit "
            f"no model of this project. Use weights=coco, the official weights of model=, or weights=none"
        )
    if path.suffix == PADDLE:
        why = first_line(error)
        return CheckpointError(f"{path} is damaged or not a file of PaddlePaddle ({why}): use another copy")
    if zipped and isinstance(error, pickle.UnpicklingError):
        what = "holds Python objects; they could run code when loaded: refused. Save its state dict alone"
        return CheckpointError(f"{path} {what}")
    why = f" ({first_line(error)})" if zipped else ""
    best = path.with_name("best.pt")
    fix = f"did you mean {best}?" if best.is_file() and path.suffix != best.suffix else "use another copy"
    return CheckpointError(f"{path} is empty, damaged or not a PyTorch file{why}: {fix}")


def other_format(path: str | Path, contents: Any) -> CheckpointError:
    """Returns the error of a file that is not a checkpoint of this project, or one of another version."""
    if is_own(contents):
        form = brief(repr(contents["format"]), 20)
        return CheckpointError(f"{path} has format {form}, and this version reads format {FORMAT}: use its own version")
    return CheckpointError(
        f"{path} is not a checkpoint of this project. If it holds weights of another one, name their model, as in "
        f"model=yolox_s (classes=FILE if they have other classes than COCO's 80); train.py takes them as weights={path}"
    )
