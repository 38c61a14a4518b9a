"""The report of the data check: its splits, the copies of images in them, and what training would refuse or suffer from."""

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from datasets.box_sizes import Size
from datasets.classes import class_notes
from datasets.errors import MUCH, WARNING, DataError, together
from datasets.flips import flip_reason
from datasets.formats.options import ReadOptions
from datasets.groups import frames_in_both
from datasets.similar import copies_text, similar_groups
from datasets.sources import division_of, may_have_splits, require_division, shared_error, unused_splits
from datasets.split import Division, divide
from datasets.store import Annotations
from engine.evaluation import MAX_DETECTIONS
from report.analysis import limit_notes
from tools.check_split import SUSPICIOUS, Part, examine
from utils.text import amount, first_names

IMBALANCE = 100  # ratio of the boxes of the most frequent class and of the rarest
FEW_ANNOTATED = 0.1  # fraction of the images in which a class is annotated, below which there is a warning


def check(
    data: str, val: str | None = None, size: Size = (416, 416), options: ReadOptions | None = None
) -> tuple[dict[str, Any], dict[str, Part]]:
    """Returns (report of plain values, the splits "train", "val" and "test" with their images).

    `val` None: the validation split of `data`, if it has one. The test split of `data` is examined too. Raises DataError for
    the problems of train and val together if one cannot be read, or holds no images.

    "train", "val" and "test" are reports of `examine`; "leaks" are the copies in two splits, see `_find_copies`; "errors" what
    training refuses, "damage" what is wrong with a large part of the data, "warnings" what may harm the training."""
    options = options or ReadOptions(bad_boxes="drop")
    division = None if val is None else division_of(val)
    require_division(division, options.split_by)
    parts = _read_parts(data, val if division is None else None, val is None, size, options)
    train = parts["train"]
    sources = {name: part.report["source"] for name, part in parts.items()}
    train.report["notes"] += unused_splits(sources, [part.good for part in parts.values()])
    if reason := flip_reason(train.good.classes):
        train.report["notes"].append(f"training will not flip images (flip=0): {reason}")
    splits = {name: part.good for name, part in parts.items()}
    if division and (divided := _check_division(train, str(val), division, options.split_by)):
        splits = dict(zip(("train", f"val={val}"), divided, strict=True))
    if val is None and "val" in parts and (error := shared_error(data, train.paths, parts["val"].paths)):
        parts["val"].report["errors"].append(error)
    measured = [name for name in parts if name != "train"] or ["train"]
    warnings = class_notes(train.good.classes)
    warnings += [f"{name}: {note}" for name in measured for note in limit_notes(parts[name].good, MAX_DETECTIONS)]
    if _has_test(parts, data):
        warnings += _add_test(parts, data, size, options)
    warnings += _share_range(parts)
    report: dict[str, Any] = {"size": list(size), **{name: part.report for name, part in parts.items()}}
    report["leaks"] = _find_copies(parts) + _find_frames(splits)
    report["errors"] = [error for part in parts.values() for error in part.report["errors"]]
    report["damage"] = [text for name, part in parts.items() for text in _damage(name, part.report)]
    report["is_damaged"] = bool(report["damage"]) or any(leak["fraction"] >= MUCH for leak in report["leaks"])
    report["warnings"] = [
        warning for name, part in parts.items() for warning in _warnings(name, part.report)
    ] + warnings
    return report, parts


def _read_parts(data: str, val: str | None, own_val: bool, size: Size, options: ReadOptions) -> dict[str, Part]:
    """Examines the training and the validation data. Raises DataError for the problems of both together.

    `own_val`: the validation split of `data` counts, if it has one."""
    parts: dict[str, Part] = {}
    unread: list[DataError] = []
    for name, source in (("train", data), ("val", val)):
        if name == "val" and own_val and "train" in parts and _has_val(parts["train"].good, data):
            source = data
        if source is None:
            continue
        if "train" in parts:
            options = replace(options, classes=parts["train"].good.classes)
        try:
            parts[name] = examine(source, name, size, options)
        except DataError as error:
            unread.append(error)
    if unread:
        raise together(unread)
    return parts


def _has_val(train: Annotations, source: str) -> bool:
    """Returns whether a run without val= validates on another split of the source of its training data."""
    return bool(train.other_splits) and may_have_splits(source)


def _has_test(parts: dict[str, Part], source: str) -> bool:
    """Returns whether the source of the training data has a test split that does not serve as validation."""
    own = [part.good for part in parts.values() if part.report["source"] == source]
    return may_have_splits(source) and all("test" in data.other_splits for data in own)


def _add_test(parts: dict[str, Part], source: str, size: Size, options: ReadOptions) -> list[str]:
    """Adds the test split to the parts. Returns its errors, which are warnings: a run does not read it."""
    try:
        part = examine(source, "test", size, replace(options, classes=parts["train"].good.classes))
    except DataError as error:
        return [f"test: cannot be read: {error}"]
    errors, part.report["errors"] = part.report["errors"], []
    parts["test"] = part
    return [f"test: {error}" for error in errors]


def _check_division(
    train: Part, val: str, division: Division, split_by: str | None
) -> tuple[Annotations, Annotations] | None:
    """Notes that training divides its images, and returns the two parts; or reports why it cannot."""
    text = f"val={val}: training splits its validation images off these; images that are copies stay in one split"
    train.report["notes"].append(text)
    try:
        return divide(train.good, division, 0, split_by)
    except DataError as error:
        train.report["errors"].append(str(error))
        return None


def _share_range(parts: dict[str, Part]) -> list[str]:
    """Gives all images the range of values of the training images, as train.py does; returns what is outside of it."""
    outside = []
    for name in list(parts)[1:]:
        good, notes = parts[name].good.with_range(parts["train"].good.value_range)
        parts[name] = parts[name]._replace(good=good)
        parts[name].report["sixteen_bits"] = good.value_text()
        outside += notes
    return outside


def _find_copies(parts: dict[str, Part]) -> list[dict[str, Any]]:
    """Adds the groups of equal and nearly same images within a split to its report as "copies", and returns the leaks.

    A leak is two splits with copies of the same images: "kind", "splits", "text", and "groups", whose paths are by split."""
    paths = [(name, path) for name, part in parts.items() for path in part.paths]
    digests = np.concatenate([part.scanned.digests for part in parts.values()])
    hashes = np.concatenate([part.scanned.hashes for part in parts.values()])
    groups: dict[int, dict[str, list[str]]] = {}
    for (name, path), group in zip(paths, similar_groups(digests, hashes).tolist(), strict=True):
        groups.setdefault(group, {}).setdefault(name, []).append(path)
    for name, part in parts.items():
        within = [group[name] for group in groups.values() if name in group]
        part.report["copies"] = [found for found in within if len(found) > 1]
    leaks = []
    for first, second in combinations(parts, 2):
        both = [group for group in groups.values() if first in group and second in group]
        if both:
            count, total = sum(len(group[second]) for group in both), len(parts[second].paths)
            text = "; ".join(copies_text(first, second, count, total, f"the mAP of {second}"))
            shared = [{name: group[name] for name in (first, second)} for group in both]
            leak = {"kind": "copies", "splits": [first, second], "text": text, "groups": shared}
            leaks.append(leak | {"fraction": count / total})
    return leaks


def _find_frames(splits: dict[str, Annotations]) -> list[dict[str, Any]]:
    """Returns the leaks between splits that have frames of one video, as `_find_copies` does."""
    leaks = []
    for first, second in combinations(splits, 2):
        one, other = splits[first], splits[second]
        indices, frames = frames_in_both(one, other)
        if len(indices):
            text = f"{second}: probable frames of the videos of {first}: {len(indices)} of {amount(len(other), 'image')}, so the "
            text += f"mAP of {second} is too high; split_by= with val=.2 keeps a video in one split"
            groups = [{first: [one.path(i)], second: [other.path(j)]} for i, j in zip(frames, indices, strict=True)]
            leak = {"kind": "frames of one video", "splits": [first, second], "text": text, "groups": groups}
            leaks.append(leak | {"fraction": len(indices) / len(other)})
    return leaks


def _damage(split: str, part: dict[str, Any]) -> list[str]:
    """Takes the warnings out of the notes of a split, and returns them with the kinds of suspicious boxes that are many."""
    found = [note for note in part["notes"] if note.startswith(WARNING)]
    part["notes"] = [note for note in part["notes"] if note not in found]
    place = f"{WARNING}{part['source']}: "
    texts = [f"{split}: {note.removeprefix(place).removeprefix(WARNING)}" for note in found]
    for kind, places in part["suspicious"].items():
        count = len(places)
        if kind != "outside" and count > 1 and count >= MUCH * part["boxes"]:
            texts.append(f"{split}: {SUSPICIOUS[kind]}: {count} of {part['boxes']}")
    return texts


def _warnings(split: str, part: dict[str, Any]) -> list[str]:
    counts = part["classes"]
    empty = [name for name, number in counts.items() if not number]
    present = [number for number in counts.values() if number]
    warnings = []
    if empty:
        warnings.append(f"{split}: classes without a box: {', '.join(empty)}")
    if present and max(present) > IMBALANCE * min(present):
        ratio = max(present) / min(present)
        warnings.append(f"{split}: the most frequent class has {ratio:.0f} times the boxes of the rarest one")
    annotated = part.get("annotated", {}).items()
    if few := [f"{name} {images}" for name, images in annotated if images < FEW_ANNOTATED * part["images"]]:
        text = f"classes that are annotated in few of the {part['images']} images"
        warnings.append(f"{split}: {text}: {first_names(few)}")
    return warnings
