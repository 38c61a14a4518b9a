"""Checkpoints: plain containers and tensors only, written atomically, read with `weights_only=True`.

{"format": 1, "config": {...}, "classes": [...], "epoch": 12, "step": 340, "metrics": {...},
 "thresholds": {class: confidence of its best F1},
 "model": weights for prediction (the moving average),
 "resume": {"model": raw weights, "updater": {...}, ...}}    # last.pt only
"""

import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor, nn

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
    _refuse_non_finite(path, [contents.get("model"), resume.get("model"), resume.get("updater")])
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
    _refuse_non_finite(path, [contents["model"], resume.get("model"), resume.get("updater")])
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


@dataclass(frozen=True)
class MatchReport:
    """Which tensors of a file fit a model, by name. Parts are the top-level modules of the model: backbone, neck, head."""

    sizes: dict[str, int]  # tensor of the model -> number of its values
    taken: tuple[str, ...]  # copied into the model
    mismatched: dict[str, str]  # of another shape -> both shapes
    missing: tuple[str, ...]  # in the model but not in the file
    unused: tuple[str, ...]  # in the file but not in the model

    def counts(self, part: str) -> tuple[int, int, int, int]:
        """Counts of a part: tensors taken, all tensors, values taken and all values."""
        names = [name for name in self.sizes if name.startswith(f"{part}.")]
        taken = [name for name in names if name in self.taken]
        return len(taken), len(names), sum(self.sizes[name] for name in taken), sum(self.sizes[name] for name in names)

    def fraction(self, part: str) -> float:
        """The fraction of a part that was taken: of its tensors or of its values, whichever is smaller.

        Most tensors belong to batch norms and most values to convolutions, so either alone would hide a mismatch.
        """
        taken, tensors, taken_values, values = self.counts(part)
        return min(taken / tensors, taken_values / values)

    def text(self) -> str:
        """One line per part, then the names that were not taken, by reason."""
        lines = []
        for part in dict.fromkeys(name.partition(".")[0] for name in self.sizes):
            taken, tensors, taken_values, values = self.counts(part)
            fraction = f"{taken_values / values:.1%} of {values / 1e6:.3f} M values"
            lines.append(f"{part:9} {taken} of {tensors} tensors taken, {fraction}")
        shapes = [f"{name} ({why})" for name, why in self.mismatched.items()]
        reasons = {"different shape": shapes, "not in the file": self.missing, "not in the model": self.unused}
        for reason, names in reasons.items():
            if names:
                more = f", and {len(names) - 3} more" if len(names) > 3 else ""
                lines.append(f"{reason}: {', '.join(names[:3])}{more}")
        return "\n".join(lines)

    def require(self, **fractions: float) -> "MatchReport":
        """Raises CheckpointError if less than this fraction of a part was taken: `require(backbone=.8)`."""
        for part, least in fractions.items():
            if self.fraction(part) < least:
                raise CheckpointError(
                    f"only {self.fraction(part):.0%} of the {part} fits, but {least:.0%} must. Is model= the model of "
                    f"this file? Use another one, or weights=none to train from scratch.\n{self.text()}"
                )
        return self


def load_matching(model: nn.Module, state: Mapping[str, Any]) -> MatchReport:
    """Copies every tensor of `state` that has the name and the shape of a tensor of `model` into it.

    The step counters of batch norms are copied but not counted. Raises CheckpointError for weights that are not finite.
    """
    state, own = strip(state), model.state_dict()
    fits = {n: v for n, v in state.items() if n in own and isinstance(v, Tensor) and v.shape == own[n].shape}
    fits = {n: v for n, v in fits.items() if v.is_floating_point() == own[n].is_floating_point()}
    _refuse_non_finite("the weights", fits)
    model.load_state_dict(fits, strict=False)
    sizes = {name: value.numel() for name, value in own.items() if not name.endswith("num_batches_tracked")}
    different = [name for name in sizes if name in state and name not in fits]
    kinds = [[f"{list(getattr(x, 'shape', []))}" for x in (state[name], own[name])] for name in different]
    shapes = [f"file {one}, model {other}" if one != other else "another type of numbers" for one, other in kinds]
    return MatchReport(
        sizes,
        taken=tuple(name for name in sizes if name in fits),
        mismatched=dict(zip(different, shapes, strict=True)),
        missing=tuple(name for name in sizes if name not in state),
        unused=tuple(name for name in state if name not in own),
    )


def read(path: str | Path) -> Any:
    """Reads any PyTorch file after comparing its checksums; tensors on the CPU.

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
        contents = torch.load(path, map_location="cpu", weights_only=True)
        validate.check_tensors(path, contents)
        return contents
    except Exception as error:  # damaged bytes can raise any kind of error
        from utils import faults

        raise faults.unreadable(path, zipped, error) from error


def _refuse_non_finite(path: Any, value: Any) -> None:
    """Raises CheckpointError if a floating-point tensor within `value` holds NaN or infinity."""
    from utils.validate import walk

    tensors = [(name, x) for name, x in walk(value) if isinstance(x, Tensor) and x.is_floating_point()]
    if bad := [name for name, x in tensors if not x.isfinite().all()]:
        what = f"{len(bad)} tensors are not finite (first: {bad[0]})"
        raise CheckpointError(f"{path}: {what}; neither used nor saved: use another copy")
