"""Checkpoints: plain containers and tensors only, written atomically, read with `weights_only=True`.

{"format": 2, "config": {...}, "classes": [...], "epoch": 12, "step": 340, "metrics": {...},
 "thresholds": {class: confidence of its best F1},
 "value_range": [low, high] of 16-bit images, or None,
 "model": weights for prediction (the moving average),
 "resume": {name of an owner: its state, such as the raw weights ("model"), the optimizer ("updater"), ...}}    # last.pt only
"""

import os
import pickle
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from utils import file_checks, paddle
from utils.file_checks import CheckpointError, refuse_non_finite
from utils.files import atomic_write, similar_path
from utils.old_checkpoints import upgraded
from utils.text import first_line

FORMAT = 2
PADDLE = ".pdparams"  # suffix of the files of PaddlePaddle
OFFICIAL_STEMS = {  # names of official files, as released and in the cache folder -> the model
    r"((?:yolox|yolov9|ppyoloe|picodet)_(?:nano|tiny|[a-z]))(?:_objects365|_\d+_coco_lcnet)?": r"\1",
    r"ppyoloe_(?:plus_)?crn_([a-z])_.*": r"ppyoloe_\1",
    r"v9-([a-z])": r"yolov9_\1",
}
STALE = 600  # seconds after which a temporary file is known to be left over from a killed process


class DiskError(OSError):
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
        raise not_saved(path, error) from error


def load(path: str | Path, purpose: str | None = None) -> dict[str, Any]:
    """Reads a checkpoint of this project by `read`. Tensor names lose the prefixes of wrappers.

    Raises CheckpointError for the files of other projects, for wrong values, and if one is missing that the `purpose`,
    "prediction" or "resuming", needs.
    """

    contents = read(path)
    if is_own(contents) and contents["format"] == 1:
        contents = upgraded(contents)
    if not is_own(contents) or type(contents["format"]) is int and contents["format"] != FORMAT:
        raise other_format(path, contents)
    resume = file_checks.validated(contents, path, "checkpoint", purpose).get("resume") or {}
    refuse_non_finite(path, [contents["model"], resume.get("model"), resume.get("updater")])
    for part in (contents, resume):
        if "model" in part:
            part["model"] = strip(part["model"])
    return contents


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

    A file whose name ends with .pdparams is one of PaddlePaddle, which has no checksums; see utils/paddle.py. Raises
    CheckpointError for a missing or damaged file, and for one with more than plain containers and tensors (such a file could
    run code when it is loaded).
    """

    path = Path(path)
    zipped = False
    if path.is_file():
        with open(path, "rb") as file:
            zipped = file.read(4) == b"PK\x03\x04"  # as PyTorch decides
    if not zipped:
        refuse_missing(path)
        refuse_blank(path)
    try:
        if path.suffix == PADDLE:
            return paddle.read(path)
        if zipped:
            file_checks.check_archive(path)
        return torch.load(path, map_location="cpu", weights_only=True, mmap=on_disk and zipped)
    except Exception as error:  # damaged bytes can raise any kind of error
        raise unreadable(path, zipped, error) from error


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
    near = inside or similar_path(str(path))
    hint = f"did you mean {near}?" if near else "train.py writes runs/NAME/best.pt and last.pt"
    raise CheckpointError(f"there is no checkpoint {path}; {hint}")


def refuse_blank(path: Path) -> None:
    """Raises CheckpointError for a file that is empty or begins with zeros only."""
    with open(path, "rb") as file:
        if not any(file.read(4096)):
            what = "holds only zeros, as after a power failure" if path.stat().st_size else "is empty"
            raise CheckpointError(f"{path} {what}; use another checkpoint")


def unreadable(path: Path, zipped: bool, error: Exception) -> CheckpointError:
    """Returns the error of a file that PyTorch's reader refuses. `zipped`: it has PyTorch's present format."""
    if path.suffix == PADDLE:
        return CheckpointError(
            f"{path} is damaged or not a file of weights of PaddlePaddle ({first_line(error)}): use another"
        )
    if path.suffix == ".onnx":
        return CheckpointError(
            f"{path} is an exported file, whose weights cannot be read here: name the .pt file that it came from"
        )
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
    if not is_own(contents):
        stem = Path(path).stem
        known = (
            match.expand(name) for pattern, name in OFFICIAL_STEMS.items() if (match := re.fullmatch(pattern, stem))
        )
        name = next(known, "yolox_nano")
        return CheckpointError(
            f"{path} is not a checkpoint of this project. If it holds weights of another one, name their model, as in "
            f"model={name} (classes=FILE if they have other classes than COCO's 80); train.py takes them as weights={path}"
        )
    form = f"format {contents['format']}; this version reads format {FORMAT}"
    return CheckpointError(f"{path} has {form}. Use the version that wrote it")
