"""Checks of checkpoints and ONNX metadata: the entries that the program needs, and tensors without NaN.

PyTorch's reader with `weights_only=True` runs no code of a file, the checksums of the zip archive show damage, and
`load_state_dict` is strict. What is left to check are entries that are missing or have another type.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from utils.text import class_name_problem, first_line, first_of

MAX_ADDED = 64  # heads that were added to a model
MAX_SIDE = 8192  # pixels of the network's input
Check = Callable[[Any], str]  # returns what the value must be, "" if it is that


class CheckpointError(ValueError):
    """A file cannot be written or used. The message names the file and the fix."""


def validated(contents: dict[str, Any], path: str | Path, purpose: str | None = None) -> dict[str, Any]:
    """Returns the contents of a file unchanged. Raises CheckpointError that lists every missing and every wrong entry.

    `purpose`: what the entries are needed for, a key of NEEDED.
    """
    needed, problems = NEEDED.get(purpose, {}), []
    for place, check in (OPTIONAL | needed).items():
        value: Any = contents
        for name in place.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        if value is None and place in needed:
            problems.append(f"{place} is missing")
        elif value is not None and (must := check(value)):
            problems.append(f"{place} must be {must}")
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
        why = first_line(RuntimeError(" ".join(str(error).split())))
        raise CheckpointError(f"{path} does not fit its model ({why}): it is damaged, use another copy") from error


def refuse_non_finite(path: str | Path, value: Any) -> None:
    """Raises CheckpointError if a floating-point tensor within nested containers holds NaN or infinity."""
    tensors = {name: x for name, x in tensors_in(value) if x.is_floating_point() and x.numel()}
    # The largest absolute value is NaN or infinite if any is: one pass, without a tensor of flags, for all in one call.
    largest = torch._foreach_norm(list(tensors.values()), torch.inf) if tensors else []
    bad = [name for name, x in zip(tensors, largest, strict=True) if not math.isfinite(x)]
    if bad:
        what = f"{len(bad)} tensors are not finite (first: {bad[0]})"
        raise CheckpointError(f"{path}: {what}; neither used nor saved: use another copy")


def tensors_in(value: Any) -> Iterator[tuple[str, Tensor]]:
    """Yields the tensors in nested containers with their places, such as model.backbone.weight."""
    items: Any = value.items() if isinstance(value, Mapping) else ()
    if isinstance(value, list | tuple):
        items = enumerate(value)
    for key, item in items:
        if isinstance(item, Tensor):
            yield str(key), item
        for place, tensor in tensors_in(item):
            yield f"{key}.{place}", tensor


def a(*kinds: type) -> Check:
    """Returns a check for a value of one of these types."""
    must = f"a {' or '.join(kind.__name__ for kind in kinds)}"
    return lambda value: "" if isinstance(value, kinds) else must


def one_of(*words: str) -> Check:
    """Returns a check for one of the words."""
    return lambda value: "" if value in words else f"one of {', '.join(words)}"


def class_names(value: Any) -> str:
    """Checks for a list of class names that can be drawn."""
    if not isinstance(value, list | tuple) or not value:
        return "a list of class names"
    return next(filter(None, map(class_name_problem, value)), "")


def input_size(value: Any) -> str:
    """Checks for a height and a width of the network's input."""
    sides = value if isinstance(value, list | tuple) else ()
    fits = len(sides) == 2 and all(type(side) is int and side in range(32, MAX_SIDE + 1, 32) for side in sides)
    return "" if fits else f"height and width, multiples of 32 up to {MAX_SIDE}"


def whole_numbers(value: Any) -> str:
    """Checks for a list of whole numbers."""
    fits = isinstance(value, list | tuple) and all(type(number) is int for number in value)
    return "" if fits else "a list of whole numbers"


def thresholds(value: Any) -> str:
    """Checks for a dict of class names and confidence thresholds."""
    fits = isinstance(value, dict) and all(type(x) in (int, float) and 0 <= x <= 1 for x in value.values())
    return "" if fits else "a dict of class names and numbers from 0 to 1"


OPTIONAL: dict[str, Check] = {
    **dict.fromkeys(("config", "metrics"), a(dict)),
    **dict.fromkeys(("confidence", "metrics.confidence", "metrics.AP"), a(float, int)),
    **{"epoch": a(int), "date": a(str)},
    **dict.fromkeys(("dynamic_size", "clip"), a(bool)),
    **dict.fromkeys(("value_range", "added"), whole_numbers),
    "thresholds": thresholds,
}
NEEDED: dict[str | None, dict[str, Check]] = {
    None: {"model": a(dict)},
    "prediction": {"model": a(dict), "config.model": a(str), "config.image_size": input_size, "classes": class_names},
    "resuming": {
        "config": a(dict),
        **{f"resume.{name}": a(dict) for name in ("model", "updater", "meter", "meter.sums", "rates", "course")},
        "resume.meter.batches": a(int),
        "resume.state.rows": a(list, tuple),
        **{f"resume.origin.{name}": a(dict) for name in ("user_config", "fingerprint")},
    },
    "onnx": {
        "model": a(str),
        "classes": class_names,
        "image_size": input_size,
        "letterbox": one_of("corner", "center", "stretch"),
        "outputs": one_of("raw", "detections"),
    },
}
