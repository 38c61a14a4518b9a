"""Confidence thresholds of a Detector: one for each class, and an explanation of the one in use."""

from collections.abc import Sequence

import torch
from torch import Tensor

from deploy.formats import is_exported
from deploy.load import Loaded
from utils.text import as_spelled, brief, nearest


def threshold_of(loaded: Loaded, confidence: float | str | None) -> float | Tensor:
    """Returns the confidence threshold, the one stored in the file for None, or for "per_class" those of the classes.

    These are float32 [C]; classes without one get the common threshold. Raises ValueError for other words.
    """
    if confidence is None:
        return loaded.confidence
    if not isinstance(confidence, str):
        return confidence
    if confidence != "per_class":
        raise ValueError(f"confidence={confidence}: write a number from 0 to 1, or per_class, or none")
    if not loaded.thresholds.keys() & set(loaded.classes):
        raise ValueError(
            f"confidence=per_class: {loaded.path} stores no thresholds of classes. Checkpoints of train.py and files exported "
            f"from them do, if the last validation found objects: leave confidence= out, or give a number"
        )
    return torch.tensor([loaded.thresholds.get(name, loaded.confidence) for name in loaded.classes])


def only_classes(threshold: float | Tensor, classes: Sequence[str], only: str | Sequence[str] | None) -> float | Tensor:
    """Returns thresholds that the classes other than `only` never reach, float32 [C]; None: all classes, `threshold` itself.

    Raises ValueError for a name that is no class, with the nearest name.
    """
    if only is None:
        return threshold
    only = as_spelled([only] if isinstance(only, str) else only, classes)
    for name in only:
        if name not in classes:
            near = nearest(name, classes) or brief(", ".join(classes))
            raise ValueError(f"only={brief(name)}: the model has no such class; it has {near}")
    if not only:
        raise ValueError("only= names no class: leave it out for all classes")
    wanted = torch.tensor([name in only for name in classes])
    return torch.as_tensor(threshold, dtype=torch.float32).expand(len(classes)).where(wanted, torch.inf)


def threshold_text(loaded: Loaded, threshold: float | Tensor) -> str:
    """Explains the confidence threshold in use, or those of the classes, for the console: which, why, and how to change it."""
    if isinstance(threshold, Tensor):
        rows = sorted(zip(threshold.tolist(), loaded.classes, strict=True))
        (low, lowest), (high, highest) = rows[0], rows[-1]
        span = f"{low:g} ({lowest}) to {high:g} ({highest})"
        return f"confidence {span}: the best F1 of each class on the validation data"
    if is_exported(loaded.path):
        why = "the default of the exported file"
    elif loaded.measured:
        why = "the best mean F1 of the classes on the validation data of this run"
    else:
        why = "the default for files without the best F1 of a validation"
    text = f"confidence {threshold:g}: {why}. A lower one, as confidence={threshold / 2:.2g}, detects more, with more errors"
    if loaded.thresholds:
        text += "; confidence=per_class takes the best one of each class"
    return text
