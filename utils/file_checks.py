"""Checks of files from elsewhere: checksums of weights, contents of checkpoints, metadata of ONNX files.

PyTorch's reader with `weights_only=True` runs no code of a file. These checks do the rest: every value that the program uses has
the type and the range that this program writes.

The checks are plain functions and not types of msgspec, which reads the annotation files: msgspec 0.22.0 ends the process with a
segmentation fault where a value may be text with a pattern or a list of such texts, as constants are; it takes sets for lists.
"""

import math
import re
import reprlib
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from utils.text import _UNPRINTABLE, class_name_problem, first_of

MAX_CLASSES = 10_000
MAX_ADDED = 64  # heads that were added to a model: each takes memory before its weights are read
MAX_SIDE = 8192  # pixels of the network's input
MAX_VALUES = 300_000  # numbers, texts and containers in a file
MAX_DEPTH = 50  # of containers within containers
_CONTROL = re.compile("[\x00-\x1f\x7f]")
_PLAIN = (type(None), bool, int, float, str, bytes, list, tuple, dict, OrderedDict, Tensor, torch.nn.Parameter)
_NUMBERS = (bool, int, float)
_MISSING = object()
_SHORT = reprlib.Repr()  # of nested lists, too, which may share their items
_SHORT.maxstring = 60

Check = Callable[[Any], str]  # returns what the value must be, "" if it is that


def check_archive(path: Path) -> None:
    """Raises BadZipFile for a PyTorch file whose checksums differ, which PyTorch's own reader does not compare."""
    with zipfile.ZipFile(path) as archive:
        if archive.testzip() is not None:
            raise zipfile.BadZipFile("checksums differ")


def walk(contents: Any) -> Iterator[tuple[str, Any]]:
    """Yields (place, value) of everything in nested containers. Raises ValueError for too many values or levels, or cycles."""
    yield "", contents
    open_, count = [("", _items(contents))], 1  # places and values of the containers that are being walked
    while open_:
        where, items = open_[-1]
        for key, value in items:
            count += 1
            place = f"{where}.{str(key)[:80]}"
            if count > MAX_VALUES or len(open_) > MAX_DEPTH:
                raise ValueError(f"{place[:80]} is nested too deeply, or there are too many values")
            yield place[1:], value
            if isinstance(value, Mapping | list | tuple | set):
                open_.append((place, _items(value)))
                break
        else:
            open_.pop()


def _items(value: Any) -> Iterator[tuple[Any, Any]]:
    """Returns the keys and values of a container, none of another value."""
    if isinstance(value, Mapping):
        return iter(value.items())
    return iter(enumerate(value if isinstance(value, list | tuple | set) else ()))


def validated(contents: dict[str, Any], path: str | Path, kind: str, purpose: str | None = None) -> dict[str, Any]:
    """Returns the contents of a file unchanged. Raises CheckpointError that lists every missing and every wrong value.

    `kind`: "checkpoint" or "onnx". `purpose`: None or a key of REQUIRED."""
    required, problems = REQUIRED.get(purpose, ()), []
    try:
        for where, value in walk(contents):
            keys_fit = not isinstance(value, dict) or all(type(key) in (str, int) for key in value)
            if type(value) not in _PLAIN or not keys_fit:
                problems.append(f"{where} is a {type(value).__name__}, which no such file holds")
            elif isinstance(value, Tensor) and not _is_usual(value):
                problems.append(f"{where} is a tensor that is sparse, quantized, complex or without values")
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}. It is not from this program: use another copy") from error
    for place, check in SCHEMAS[kind].items():
        value = contents
        for part in place.split("."):
            value = value.get(part, _MISSING) if isinstance(value, dict) else _MISSING
        if value is _MISSING:
            problems += [f"{place} is missing"] if place in required else []
        elif must := check(value):
            problems.append(must if must.startswith("class name") else f"{place} is {_brief(value)}, it must be {must}")
    if problems:
        fix = "it is damaged or not from this program: use another copy"
        raise CheckpointError(f"{path}: {'; '.join(first_of(problems, 10))}. {fix}")
    return contents


@contextmanager
def fitting(path: str | Path) -> Iterator[None]:
    """Turns the errors of weights and states that do not fit their model into a CheckpointError that names the file."""
    try:
        yield
    except CheckpointError as error:
        raise error if str(path) in str(error) else CheckpointError(f"{path}: {error}") from error
    except torch.cuda.OutOfMemoryError:
        raise
    except (RuntimeError, LookupError, TypeError, AttributeError, ValueError) as error:
        why = _UNPRINTABLE.sub("?", " ".join(str(error).split())[:300])
        raise CheckpointError(f"{path} does not fit its model ({why}): it is damaged, use another copy") from error


def _brief(value: Any) -> str:
    """Returns a value as text of one line and at most 60 characters."""
    if isinstance(value, Tensor | dict | list | tuple) and not (isinstance(value, list | tuple) and len(value) < 5):
        return f"a {type(value).__name__}"
    text = _SHORT.repr(value).encode("ascii", "backslashreplace").decode()
    return text if len(text) <= 60 else f"{text[:57]}..."


def number(least: float, most: float) -> Check:
    """Returns a check for finite numbers between two limits, both included."""
    must = f"a number from {least:g} to {most:g}"
    return lambda value: "" if type(value) in (int, float) and least <= value <= most else must


def whole(least: int = 0, most: float = math.inf) -> Check:
    """Returns a check for whole numbers between two limits, both included."""
    must = f"a whole number of at least {least}" + (f" and at most {most}" if most < math.inf else "")
    return lambda value: "" if type(value) is int and least <= value <= most else must


def one_of(*values: Any) -> Check:
    """Returns a check for one of the values, of exactly its type."""
    must = " or ".join(map(repr, values))
    return lambda value: "" if any(type(value) is type(one) and value == one for one in values) else must


def text_or_none(value: Any) -> str:
    """Checks for None, or text without control characters, as in `config.check`. File names may be other than UTF-8."""
    fits = value is None or (type(value) is str and not _CONTROL.search(value))
    return "" if fits else "text without control characters"


def class_names(value: Any) -> str:
    """Checks for a list of class names that can be drawn."""
    names = type(value) in (list, tuple) and all(isinstance(one, str) for one in value)
    if not names or not 1 <= len(value) <= MAX_CLASSES:
        return f"a list of 1 to {MAX_CLASSES} class names"
    return next(filter(None, map(class_name_problem, value)), "")


def input_size(value: Any) -> str:
    """Checks for a height and a width of the network's input."""
    side = whole(32, MAX_SIDE)
    fits = type(value) in (list, tuple) and len(value) == 2 and not any(side(one) or one % 32 for one in value)
    return "" if fits else f"height and width, multiples of 32 up to {MAX_SIDE}"


def _is_usual(value: Any) -> bool:
    """Whether a value is a tensor as this program writes them, and not sparse, quantized, complex or without values."""
    dense = isinstance(value, Tensor) and value.layout is torch.strided and value.device.type == "cpu"
    return dense and not value.is_quantized and not value.is_complex()


def state_dict(value: Any) -> str:
    """Checks for a dict of names and usual tensors: on the CPU, dense, not quantized, and no complex numbers."""
    fits = isinstance(value, dict) and all(type(name) is str and _is_usual(one) for name, one in value.items())
    return "" if fits else "a dict of tensors"


def constants_dict(value: Any) -> str:
    """Checks for a dict of constants: names, and plain values that can be printed."""
    if not isinstance(value, dict) or not all(type(name) is str for name in value):
        return "a dict of constants"
    wrong = [name for name, one in value.items() if _check_constant(name) or _check_constant(one)]
    return f"constants; {wrong[0][:40]!r} has no plain value" if wrong else ""


def _check_constant(value: Any) -> str:
    """Checks for text, a number, a truth value or None, or a list of these."""
    if type(value) in (list, tuple):
        return next(filter(None, (text_or_none(one) for one in value if type(one) not in _NUMBERS)), "")
    return "" if type(value) in _NUMBERS else text_or_none(value)


def head_counts(value: Any) -> str:
    """Checks for the numbers of classes of the heads that were added to a model."""
    count = whole(1, MAX_CLASSES)
    fits = type(value) in (list, tuple) and len(value) <= MAX_ADDED and not any(map(count, value))
    return "" if fits else f"a list of at most {MAX_ADDED} numbers of classes"


def value_range(value: Any) -> str:
    """Checks for None, or the range of values of 16-bit images; see utils/value_range.py."""
    pair = type(value) in (list, tuple) and len(value) == 2 and not any(map(whole(0, 65535), value))
    fits = value is None or (pair and value[0] < value[1])
    return "" if fits else "null or two whole numbers from 0 to 65535, the smaller one first"


def thresholds(value: Any) -> str:
    """Checks for a dict of class names and confidence thresholds."""
    fits = isinstance(value, dict) and all(type(k) is str and not number(0, 1)(v) for k, v in value.items())
    return "" if fits else "a dict of class names and numbers from 0 to 1"


def log_rows(value: Any) -> str:
    """Checks for the log of a run: one dict of numbers per epoch, in order. The first epoch is 1, or 0: the initial weights."""
    listed = type(value) in (list, tuple)
    first = 0 if listed and value and isinstance(value[0], dict) and value[0].get("epoch") == 0 else 1
    fits = listed and all(
        isinstance(row, dict)
        and row.get("epoch") == epoch
        and all(type(one) in (int, float, type(None), str, bool) for one in row.values())
        and not number(-1, 1)(row.get("AP", 0))
        for epoch, row in enumerate(value, first)
    )
    return "" if fits else "the rows of all epochs"


def a_dict(value: Any) -> str:
    """Checks for a dict with any values."""
    return "" if isinstance(value, dict) else "a dict"


def a_dict_with(*names: str) -> Callable[[Any], str]:
    """Returns a check for a dict that has these names."""
    return lambda value: (
        "" if isinstance(value, dict) and value.keys() >= set(names) else f"a dict with {', '.join(names)}"
    )


def none_or(check: Check) -> Check:
    """Returns a check for None, or for a value that fits `check`."""
    return lambda value: "" if value is None else check(value)


def text(value: Any) -> str:
    """Checks for text without control characters."""
    return text_or_none(value) if isinstance(value, str) else "text"


_NAMES = dict.fromkeys(("train", "val", "classes", "merge", "image_root", "bad_boxes", "bad_images"), text_or_none)
_CHECKPOINT = {
    "format": whole(),
    "config": constants_dict,
    **{f"config.{name}": check for name, check in _NAMES.items()},
    "config.model": text,
    "config.image_size": input_size,
    "classes": class_names,
    "epoch": whole(),
    "step": whole(),
    "metrics": a_dict,
    "metrics.confidence": number(-1, 1),
    "thresholds": thresholds,
    "value_range": value_range,
    "model": state_dict,
    "resume": a_dict,
    "resume.model": state_dict,
    **dict.fromkeys(("resume.updater", "resume.meter"), a_dict),
    "resume.meter.batches": whole(),
    "resume.meter.seconds": number(0, math.inf),
    "resume.meter.sums": a_dict,
    "resume.state": a_dict,
    "resume.state.rows": log_rows,
    "resume.state.thresholds": thresholds,
    "resume.origin": a_dict,
    "resume.origin.written": constants_dict,
    "resume.origin.facts": constants_dict,
    "resume.origin.trained": none_or(a_dict_with("model", "classes", "image_size")),
    "resume.origin.trained.model": text,
    "resume.origin.trained.classes": class_names,
    "resume.origin.trained.image_size": input_size,
    "resume.origin.trained.value_range": value_range,
    "resume.origin.trained.thresholds": thresholds,
    "resume.rates": a_dict,
    **dict.fromkeys(("resume.rates.power", "resume.rates.max_images", "resume.rates.clip"), number(0, math.inf)),
    "resume.course": a_dict,
    "resume.course.max_epochs": whole(),
    "resume.course.warmup_epochs": number(0, math.inf),
    "resume.course.no_aug_epochs": whole(),
    "resume.course.budget": none_or(a_dict_with("epochs", "chosen_for", "used")),
}
_ONNX = {
    "model": text,
    "classes": class_names,
    "added": head_counts,
    "image_size": input_size,
    "dynamic_size": one_of(True, False),
    "letterbox": one_of("corner", "center", "stretch"),
    "outputs": one_of("raw", "detections"),
    "confidence": number(0, 1),
    "thresholds": thresholds,
    "nms_iou": number(0, 1),
    "max_detections": whole(1, 10**6),
    "padding": whole(0, 255),
    "clip": one_of(True, False),
    "value_range": value_range,
}
SCHEMAS = {"checkpoint": _CHECKPOINT, "onnx": _ONNX}
_FOR_RESUMING = (
    *("model", "updater", "meter.batches", "state.rows", "origin.written", "origin.facts"),
    *("rates.power", "rates.max_images", "rates.clip"),
    *("course.max_epochs", "course.warmup_epochs", "course.no_aug_epochs", "course.budget"),
)
REQUIRED = {
    "prediction": ("config.model", "config.image_size", "classes"),
    "resuming": tuple(f"resume.{name}" for name in _FOR_RESUMING),
}


class CheckpointError(ValueError):
    """A file cannot be written or used. The message names the file and the fix."""


def refuse_non_finite(path: Any, value: Any) -> None:
    """Raises CheckpointError if a floating-point tensor within `value` holds NaN or infinity."""
    tensors = [(name, x) for name, x in walk(value) if isinstance(x, Tensor) and x.is_floating_point()]
    if bad := [name for name, x in tensors if not x.isfinite().all()]:
        what = f"{len(bad)} tensors are not finite (first: {bad[0]})"
        raise CheckpointError(f"{path}: {what}; neither used nor saved: use another copy")
