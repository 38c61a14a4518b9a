"""Checkpoints: plain containers and tensors only, written atomically, read with `weights_only=True`.

{"format": 1, "config": {...}, "classes": [...], "epoch": 12, "step": 340, "metrics": {...},
 "model": weights to predict with,
 "resume": {"model": raw weights, "updater": {...}, ...}}    # last.pt only
"""

import os
import pickle
import socket
import time
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

FORMAT = 1
STALE = 600  # seconds after which a temporary file is known to be left over from a killed process


class CheckpointError(RuntimeError):
    """A file that cannot be written or used; the message names it and the cure."""


class DiskError(CheckpointError):
    """The disk is full or gone: the previous file is still there, and a later try may succeed."""


def save(path: str | Path, contents: Mapping[str, Any]) -> None:
    """Writes `contents` so that `path` is at any moment, kill -9 and power cuts included, the old or the new file.

    A temporary file in the same folder is written, flushed to the disk, read back and renamed. With the old file untouched
    raises DiskError when the disk is full, CheckpointError when `contents` holds more than plain containers and tensors,
    or when weights or the state of the updater are not finite.
    """
    path = Path(path)
    contents = plain({**contents, "format": FORMAT})
    resume = contents.get("resume") or {}
    _refuse_non_finite(path, [contents.get("model"), resume.get("model"), resume.get("updater")])
    temporary = path.with_name(f".{path.name}.{socket.gethostname()}-{os.getpid()}.tmp")
    try:
        for left in path.parent.glob(f".*{path.suffix}.*.tmp"):  # of every name: best.pt may never be saved again
            if time.time() - left.stat().st_mtime > STALE:
                left.unlink(missing_ok=True)
        with open(temporary, "wb") as file:
            torch.save(contents, file)
            file.flush()
            os.fsync(file.fileno())
        if not _same(_read(temporary), contents):
            raise OSError("what was read back differs from what was written")
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except (OSError, RuntimeError) as error:
        kept = "the previous one is kept" if path.exists() else "there is no previous one"
        why: BaseException = error
        while why.__context__:  # PyTorch's writer raises its own error after that of the disk
            why = why.__context__
        raise DiskError(f"{path} was not saved ({why}); {kept}. Is there space left in {path.parent}?") from error
    finally:
        temporary.unlink(missing_ok=True)


def load(path: str | Path) -> dict[str, Any]:
    """The contents of a checkpoint of ours, tensors on the CPU, names without the prefixes of wrappers.

    Raises CheckpointError for a missing, damaged or foreign file, and for one that holds more than plain containers
    and tensors (such a file could run code when loaded).
    """
    contents = _read(Path(path))
    if not isinstance(contents, dict) or "format" not in contents or "model" not in contents:
        raise CheckpointError(
            f"{path} is no checkpoint of this project. Weights of another one may be given as weights={path} for "
            f"training, or to evaluate.py together with model= and classes="
        )
    if contents["format"] != FORMAT:
        raise CheckpointError(
            f"{path} has format {contents['format']}, known is {FORMAT}: use the version that wrote it"
        )
    for part in (contents, contents.get("resume") or {}):
        if "model" in part:
            part["model"] = strip(part["model"])
    return contents


def strip(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state dict without what DDP, DataParallel (`module.`) and torch.compile (`_orig_mod.`) add to names."""
    return {name.replace("_orig_mod.", "").removeprefix("module."): value for name, value in state.items()}


def plain(value: Any, where: str = "contents") -> Any:
    """A copy of dicts, lists, tuples, numbers, text and tensors (detached, on the CPU, with only their own storage).

    NumPy numbers become Python's, NumPy arrays tensors, paths text. Raises CheckpointError naming anything else.
    """
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        whole = value.untyped_storage().nbytes() == value.nelement() * value.element_size()
        return value if whole and type(value) is Tensor else value.as_subclass(Tensor).clone()
    if value is None or isinstance(value, bool | int | float | str | bytes) and type(value).__module__ == "builtins":
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


@dataclass(frozen=True)
class Report:
    """What of a file fits into a model; names of tensors. Shares are of a part (backbone, neck, head) of the model."""

    taken: tuple[str, ...]
    mismatched: dict[str, str]  # name -> both shapes
    missing: tuple[str, ...]  # the model has them, the file does not
    unused: tuple[str, ...]  # the file has them, the model does not
    tensors: dict[str, tuple[int, int]]  # part -> taken, all
    parameters: dict[str, tuple[int, int]]  # the same, counted in numbers

    def share(self, part: str) -> float:
        """The smaller of two shares: most tensors belong to batch norms, most numbers to convolutions."""
        return min(taken / total for taken, total in (self.tensors[part], self.parameters[part]))

    def text(self) -> str:
        """A line for each part, then what was not taken and why."""
        lines = []
        for part, (taken, total) in self.tensors.items():
            numbers, of = self.parameters[part]
            lines.append(
                f"{part:9} {taken} of {total} tensors taken, {100 * numbers / of:.1f} % of {of / 1e6:.3f} M numbers"
            )
        shapes = [f"{name} ({why})" for name, why in self.mismatched.items()]
        reasons = {"other shape": shapes, "not in the file": self.missing, "not in the model": self.unused}
        for reason, names in reasons.items():
            if names:
                more = f", and {len(names) - 3} more" if len(names) > 3 else ""
                lines.append(f"{reason}: {', '.join(names[:3])}{more}")
        return "\n".join(lines)

    def require(self, **shares: float) -> "Report":
        """Raises CheckpointError when less of a part than its share was taken: `require(backbone=.8)`."""
        for part, least in shares.items():
            if self.share(part) < least:
                raise CheckpointError(
                    f"only {100 * self.share(part):.0f} % of the {part} fits, {100 * least:.0f} % are wanted. Does "
                    f"model= name the model of this file? weights=none starts from scratch.\n{self.text()}"
                )
        return self


def load_matching(model: nn.Module, state: Mapping[str, Any]) -> Report:
    """Copies into `model` every tensor of `state` that has the name and the shape of one of its own.

    The counters of batch norms are copied too, but not counted. Raises CheckpointError for weights that are not finite.
    """
    state, own = strip(state), model.state_dict()
    fits = {n: v for n, v in state.items() if n in own and isinstance(v, Tensor) and v.shape == own[n].shape}
    _refuse_non_finite("these weights", fits)
    model.load_state_dict(fits, strict=False)
    names = [name for name in own if not name.endswith("num_batches_tracked")]
    tensors: dict[str, tuple[int, int]] = {}
    parameters: dict[str, tuple[int, int]] = {}
    for name in names:
        for counts, size in ((tensors, 1), (parameters, own[name].numel())):
            taken, total = counts.get(name.partition(".")[0], (0, 0))
            counts[name.partition(".")[0]] = (taken + size * (name in fits), total + size)
    return Report(
        taken=tuple(name for name in names if name in fits),
        mismatched={
            name: f"file {list(getattr(state[name], 'shape', []))}, model {list(own[name].shape)}"
            for name in names
            if name in state and name not in fits
        },
        missing=tuple(name for name in names if name not in state),
        unused=tuple(name for name in state if name not in own),
        tensors=tensors,
        parameters=parameters,
    )


def _read(path: Path) -> Any:
    if not path.is_file():
        inside = next((path / name for name in ("last.pt", "best.pt") if (path / name).is_file()), None)
        cure = f"did you mean {inside}?" if inside else "python train.py writes them to runs/NAME/best.pt and last.pt"
        raise CheckpointError(f"there is no checkpoint {path}; {cure}")
    zipped = zipfile.is_zipfile(path)
    try:
        if zipped:
            with zipfile.ZipFile(path) as archive:  # PyTorch's own reader does not compare the checksums
                if archive.testzip() is not None:
                    raise zipfile.BadZipFile("checksums differ")
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        what = "holds Python objects" if zipped else "is no PyTorch file, or an old one with Python objects"
        raise CheckpointError(f"{path} {what}; they could run code when loaded: refused") from error
    except Exception as error:  # bytes that are no checkpoint can raise anything
        why = str(error).partition("\n")[0]
        raise CheckpointError(f"{path} is damaged or no PyTorch file ({why}). Use another copy of it") from error


def _refuse_non_finite(path: Any, value: Any) -> None:
    bad = [name for name, tensor in _tensors(value) if tensor.is_floating_point() and not tensor.isfinite().all()]
    if bad:
        raise CheckpointError(f"{path}: {len(bad)} tensors are not finite, first {bad[0]}; neither used nor saved")


def _tensors(value: Any, where: str = "") -> list[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        return [(where, value)]
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list | tuple) else ()
    return [found for key, item in items for found in _tensors(item, f"{where}.{key}".lstrip("."))]


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return type(b) is dict and a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, Tensor):
        same_kind = isinstance(b, Tensor) and a.dtype == b.dtype and a.shape == b.shape
        return same_kind and torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))  # NaN too
    return type(a) is type(b) and (a == b or a != a)


def _sync_folder(folder: Path) -> None:
    """Makes the rename itself survive a power cut, where folders can be opened (not on Windows)."""
    if os.name != "nt":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
