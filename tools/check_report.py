"""The report of the data check: its splits, the copies of images in them, and what training would refuse or suffer from."""

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np

from datasets.box_sizes import Size
from datasets.classes import similar_names
from datasets.errors import DataError, first_ten
from datasets.flips import mirrored_classes
from datasets.formats.options import ReadOptions
from datasets.groups import frames_in_both
from datasets.similar import copies_text, similar_groups
from datasets.sources import division_of, may_have_splits, require_division, shared_error, unused_splits
from datasets.split import Division, divide
from datasets.store import Annotations
from tools.check_split import Part, examine
from utils.text import amount, first_names

IMBALANCE = 100  # ratio of the boxes of the most frequent class and of the rarest
FEW_ANNOTATED = 0.1  # fraction of the images in which a class is annotated, below which there is a warning


def check(
    data: str,
    val: str | None = None,
    size: Size = (416, 416),
    options: ReadOptions | None = None,
) -> tuple[dict[str, Any], dict[str, Part]]:
    """Returns (report of plain values, the splits "train", "val" and "test" with their images).

    `val` None: the validation split of `data`, if it has one. The test split of `data` is examined too. Raises DataError for
    the problems of train and val together if one cannot be read, or holds no images.

    "train", "val" and "test" are reports of `examine`; "leaks" are the copies in two splits, see `_find_copies`; "frames" the
    frames of one video there, see `_find_frames`; "errors" what training refuses, "warnings" what may harm it, "versions" a
    sentence about copies within a split."""
    options = options or ReadOptions(bad_boxes="drop")
    division = None if val is None else division_of(val)
    require_division(division, options.split_by)
    parts = _read_parts(data, val if division is None else None, val is None, size, options)
    train = parts["train"]
    sources = {name: part.report["source"] for name, part in parts.items()}
    train.report["notes"] += unused_splits(sources, [part.good for part in parts.values()])
    if sided := mirrored_classes(train.good.classes):
        names = " and ".join(map(repr, sided))
        text = f"training will not flip images (flip=0), because a flip makes another class of {names}"
        train.report["notes"].append(text)
    frames = _check_division(train, str(val), division, options.split_by) if division else []
    if val is None and "val" in parts:
        error = shared_error(data, train.paths, parts["val"].paths)
        parts["val"].report["errors"] += filter(None, [error])
    test_warnings = _add_test(parts, data, size, options) if _has_test(parts, data) else []
    outside = _share_range(parts)
    report: dict[str, Any] = {"size": list(size), **{name: part.report for name, part in parts.items()}}
    report["leaks"], report["versions"] = _find_copies(parts)
    report["frames"] = frames + _find_frames({name: part.good for name, part in parts.items()})
    report["errors"] = [error for part in parts.values() for error in part.report["errors"]]
    report["warnings"] = [warning for name, part in parts.items() for warning in _warnings(name, part.report)]
    report["warnings"] += test_warnings + outside
    return report, parts


def _read_parts(data: str, val: str | None, own_val: bool, size: Size, options: ReadOptions) -> dict[str, Part]:
    """Examines the training and the validation data. Raises DataError for the problems of both together.

    `own_val`: the validation split of `data` counts, if it has one."""
    parts: dict[str, Part] = {}
    unread: list[str] = []
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
            unread += [str(error)]
    if unread:
        for part in parts.values():
            unread += [*part.report["errors"], first_ten(part.report["unreadable"])]
        raise DataError("\n".join(filter(None, dict.fromkeys(unread))))
    return parts


def _has_val(train: Annotations, source: str) -> bool:
    """Returns whether a training without val= validates on another split of the source of its training data."""
    return bool(train.other_splits) and may_have_splits(source)


def _has_test(parts: dict[str, Part], source: str) -> bool:
    """Returns whether the source of the training data has a test split that does not serve as validation."""
    own = [part.good for part in parts.values() if part.report["source"] == source]
    return may_have_splits(source) and all("test" in data.other_splits for data in own)


def _add_test(parts: dict[str, Part], source: str, size: Size, options: ReadOptions) -> list[str]:
    """Adds the test split to the parts. Returns its errors, which are warnings: a training does not read it."""
    try:
        part = examine(source, "test", size, replace(options, classes=parts["train"].good.classes))
    except DataError as error:
        return [f"test: cannot be read: {error}"]
    errors, part.report["errors"] = part.report["errors"], []
    parts["test"] = part
    return [f"test: {error}" for error in errors]


def _check_division(train: Part, val: str, division: Division, split_by: str | None) -> list[dict[str, Any]]:
    """Notes that a training divides its images, or why it cannot; returns the frames of one video in the two parts."""
    text = f"val={val}: training splits its validation images off these; images that are copies stay in one split"
    train.report["notes"].append(text)
    try:
        parts = divide(train.good, division, 0, split_by)
    except DataError as error:
        train.report["errors"].append(str(error))
        return []
    return _find_frames({"train": parts[0], f"val={val}": parts[1]})


def _share_range(parts: dict[str, Part]) -> list[str]:
    """Gives all images the range of values of the training images, as train.py does; returns what is outside of it."""
    outside = []
    for name in list(parts)[1:]:
        good, notes = parts[name].good.with_range(parts["train"].good.value_range)
        parts[name] = parts[name]._replace(good=good)
        parts[name].report["sixteen_bits"] = good.value_text()
        outside += notes
    return outside


def _find_copies(parts: dict[str, Part]) -> tuple[list[dict[str, Any]], str]:
    """Adds groups of equal ("duplicates") and of nearly same images ("similar") to the reports of the splits.

    Returns (the leaks, a sentence if the copies within the splits are harmless). A leak is two splits with copies of the same
    images: "text", pairs of "equal" images, and groups of "similar" ones by split. Of equal images, a group names the first."""
    paths = [path for part in parts.values() for path in part.paths]
    owner = np.repeat(list(parts), [len(part.paths) for part in parts.values()])
    digests = np.concatenate([part.scanned.digests for part in parts.values()])
    hashes = np.concatenate([part.scanned.hashes for part in parts.values()])
    equal = similar_groups(digests, np.zeros_like(hashes))
    similar = similar_groups(digests, hashes)

    def groups_in(name: str, groups: np.ndarray, rows: np.ndarray) -> list[np.ndarray]:
        rows = rows[owner[rows] == name]
        rows = rows[np.argsort(groups[rows], kind="stable")]
        return np.split(rows, np.flatnonzero(np.diff(groups[rows])) + 1)

    everything = np.arange(len(paths))
    firsts = {name: np.unique(equal[owner == name], return_index=True)[1] + np.argmax(owner == name) for name in parts}
    for name, part in parts.items():
        for key, groups, rows in (("duplicates", equal, everything), ("similar", similar, np.sort(firsts[name]))):
            found = [group for group in groups_in(name, groups, rows) if len(group) > 1]
            part.report[key] = [[paths[i] for i in group] for group in found]
    sides = {name: {similar[group[0]]: group for group in groups_in(name, similar, firsts[name])} for name in parts}
    leaks = []
    for first, second in combinations(parts, 2):
        leak: dict[str, Any] = {"splits": [first, second], "text": "", "equal": [], "similar": []}
        common = sorted(sides[first].keys() & sides[second].keys())
        for one, other in ((sides[first][key], sides[second][key]) for key in common):
            both = {equal[i]: i for i in other}
            leak["equal"] += [[paths[i], paths[both[equal[i]]]] for i in one if equal[i] in both]
            if len({*equal[one], *equal[other]}) > 1:
                leak["similar"].append({first: [paths[i] for i in one], second: [paths[i] for i in other]})
        if common:
            count = int(np.isin(similar[owner == second], common).sum())
            total = len(parts[second].paths)
            leak["text"] = "; ".join(copies_text(first, second, count, total, f"the mAP of {second}"))
            leaks.append(leak)
    return leaks, _versions_text(parts, leaks)


def _find_frames(splits: dict[str, Annotations]) -> list[dict[str, Any]]:
    """Returns a row for each two splits with frames of one video: "splits", "text", and "pairs" of paths."""
    found = []
    for first, second in combinations(splits, 2):
        one, other = splits[first], splits[second]
        indices, frames = frames_in_both(one, other)
        if len(indices):
            texts = copies_text(
                first, second, len(indices), len(other), f"the mAP of {second}", "probable frames of the videos"
            )
            text = "; ".join((*texts, "split_by= with val=.2 keeps a video in one split"))
            pairs = [[one.path(i), other.path(j)] for i, j in zip(frames, indices, strict=True)]
            found.append({"splits": [first, second], "text": text, "pairs": pairs})
    return found


def _versions_text(parts: dict[str, Part], leaks: list[dict[str, Any]]) -> str:
    """Returns a sentence about nearly same images within the splits, "" if there are none or if some are in two splits."""
    names = [name for name, part in parts.items() if part.report["similar"]]
    if not names or leaks:
        return ""
    count = sum(len(parts[name].report["similar"]) for name in names)
    why = "none of them is in two splits"
    if len(parts) == 1:
        why = "val=.2 and tools.convert keep them in one split"
    return f"versions of one image within {' and '.join(names)} are harmless ({amount(count, 'group')}): {why}"


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
        text = f"classes that are annotated in few of the {part['images']} images, and count in these only"
        warnings.append(f"{split}: {text}: {first_names(few)}")
    groups = [" = ".join(map(repr, names)) for names in similar_names(counts)]
    warnings += [f"{split}: class names that differ only in case or spaces: {group}" for group in groups]
    return warnings
