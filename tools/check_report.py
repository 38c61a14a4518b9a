"""The report of the data check: counts, sizes and copies of images, and where suspicious boxes are."""

from dataclasses import replace
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from datasets.box_sizes import Size, advice, sides_at
from datasets.check_images import check_images
from datasets.classes import similar_names
from datasets.errors import DataError, first_ten
from datasets.flips import mirrored_classes
from datasets.formats.options import ReadOptions
from datasets.formats.read import read
from datasets.groups import frames_in_both
from datasets.scan import Scan, clipped_boxes, scan
from datasets.similar import copies_text, similar_groups
from datasets.sources import division_of, may_have_splits, require_division, shared_error, unused_splits
from datasets.split import Division, divide
from datasets.store import Annotations
from utils.boxes import area
from utils.text import amount, first_names

COVERING = 0.98  # fraction of the image's area; such a box labels the image rather than an object
THIN = 20  # ratio of the sides
TINY = 2  # pixels of the image; such a box is a slip of the mouse
SMALL = (8, 16, 32)  # pixels of the network's input; the finest stride of the networks is 8
EDGES = (0, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384)  # pixels: bins of the histogram; the last one is open
IMBALANCE = 100  # ratio of the boxes of the most frequent class and of the rarest
FEW_ANNOTATED = 0.1  # fraction of the images in which a class was looked for, below which there is a warning
EXTREMES = 6  # images with the most boxes, and with the smallest
SUSPICIOUS = {
    "covering": "boxes that cover their whole image",
    "thin": f"boxes more than {THIN} times longer than wide",
    "tiny": f"boxes below {TINY} pixels in width or height",
    "twice": "repeated boxes",
    "outside": "boxes that reach outside their images and are clipped",
}


class Part(NamedTuple):
    """One split of the data, "train", "val" or "test", and where its images of interest are."""

    report: dict[str, Any]
    good: Annotations  # what training would use
    paths: list[str]  # of all images, also those that cannot be read
    scanned: Scan  # of `paths`
    groups: np.ndarray  # int64 [images of `good`]: the first of the images that are versions of one image
    rows: dict[str, np.ndarray]  # kind of SUSPICIOUS or "smallest" -> boxes of `good`; "max_boxes" -> images of it


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
    parts, unread, asked = {}, [], {"train": data}
    division = None if val is None else division_of(val)
    require_division(division, options.split_by)
    if val is not None and division is None:
        asked["val"] = val
    for name in ("train", "val"):
        if name == "val" and val is None and "train" in parts and _has_val(parts["train"].good, data):
            asked["val"] = data
        if name not in asked:
            continue
        if "train" in parts:
            options = replace(options, classes=parts["train"].good.classes)
        try:
            parts[name] = examine(asked[name], name, size, options)
        except DataError as error:
            unread += [str(error)]
    if unread:
        for part in parts.values():
            unread += [*part.report["errors"], first_ten(part.report["unreadable"])]
        raise DataError("\n".join(filter(None, dict.fromkeys(unread))))
    sources = {name: part.report["source"] for name, part in parts.items()}
    test_warnings = []
    parts["train"].report["notes"] += unused_splits(sources, [part.good for part in parts.values()])
    if sided := mirrored_classes(parts["train"].good.classes):
        names = " and ".join(map(repr, sided))
        text = f"training will not mirror images (flip=0), because a mirror makes another class of {names}"
        parts["train"].report["notes"].append(text)
    frames = _check_division(parts["train"], val, division, options.split_by) if division else []
    if val is None and "val" in parts:
        error = shared_error(data, parts["train"].paths, parts["val"].paths)
        parts["val"].report["errors"] += filter(None, [error])
    if _has_test(parts, data):
        test_warnings = _add_test(parts, data, size, options)
    outside = _share_range(parts)
    report: dict[str, Any] = {"size": list(size), **{name: part.report for name, part in parts.items()}}
    report["leaks"], report["versions"] = _find_copies(parts)
    report["frames"] = frames + _find_frames({name: part.good for name, part in parts.items()})
    report["errors"] = [error for part in parts.values() for error in part.report["errors"]]
    report["warnings"] = [warning for name, part in parts.items() for warning in _warnings(name, part.report)]
    report["warnings"] += test_warnings + outside
    return report, parts


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


def examine(source: str, part: str, size: Size, options: ReadOptions) -> Part:
    """Examines one split of the data. Raises DataError if nothing can be read."""
    found = read(source, part, options)
    if len(found) == 0:
        raise DataError(f"{source}: no images; name an annotation file or a folder with images")
    paths = [found.path(i) for i in range(len(found))]
    scanned, errors = scan(paths), []
    try:
        good, notes = check_images(found, ReadOptions(bad_boxes="drop"))
    except DataError as error:
        errors.append(str(error).partition("\n")[0])
        good, notes = check_images(found, ReadOptions(bad_boxes="drop", bad_images="skip"))
    groups = similar_groups(good.digests, good.hashes)
    boxes, rows = _boxes(good, size, groups)
    if part != "train":
        boxes["advice"] = ""  # one image size is chosen, by the training images
    report = {
        "source": source,
        "images": len(found),
        "unreadable": [scanned.problems[i] for i in sorted(scanned.problems)],
        "turned_by_exif": int((scanned.orientations > 1).sum()),
        "sixteen_bits": good.value_text(),
        "backgrounds": int((np.diff(good.starts) == 0).sum()),
        "classes": dict(zip(good.classes, good.boxes_per_class().tolist(), strict=True)),
        **boxes,
        **_annotated_images(good),
        "notes": notes,  # what was left out, and what is unusual
        "errors": errors if len(good.boxes) else [*errors, f"{source}: no boxes at all: is it the right file?"],
    }
    return Part(report, good, paths, scanned, groups, rows)


def _annotated_images(data: Annotations) -> dict[str, dict[str, int]]:
    """Returns in how many images each class was looked for; nothing if all of them were in all images."""
    if data.annotated is None:
        return {}
    return {"annotated": dict(zip(data.classes, data.annotated_mask().sum(0).tolist(), strict=True))}


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


def _boxes(annotations: Annotations, size: Size, groups: np.ndarray) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Counts and sizes of all boxes except crowd regions, and the rows of suspicious and small ones, by kind.

    `groups` [N]: of the images that are versions of one image, one is listed."""
    rows = np.flatnonzero(~annotations.crowd)
    boxes, written = clipped_boxes(annotations)[rows], annotations.boxes[rows]
    images, labels = annotations.image_of_boxes()[rows], annotations.labels[rows]
    shape = annotations.sizes[images].astype(float)  # height, width
    sides = sides_at(annotations, size)
    width, height = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    keys = np.column_stack([images, labels, written])
    first, same = np.unique(keys, axis=0, return_index=True, return_inverse=True)[1:]
    masks = {
        "covering": area(boxes) >= COVERING * shape.prod(1),
        "thin": np.maximum(width / height, height / width) > THIN,
        "tiny": np.minimum(width, height) < TINY,
        "twice": first[same.reshape(-1)] != np.arange(len(rows)),
        "outside": (np.abs(boxes - written) > 0.01).any(1),
    }
    found = {kind: rows[mask] for kind, mask in masks.items()}
    counts = np.bincount(images, minlength=len(annotations))
    versions = np.bincount(groups, minlength=len(groups))[groups]
    by_count = np.argsort(-counts, kind="stable")
    found["max_boxes"] = by_count[one_per_group(groups[by_count], EXTREMES)]
    by_size = np.argsort(sides, kind="stable")
    smallest = by_size[one_per_group(groups[images[by_size]], EXTREMES)]
    found["smallest"] = rows[smallest]

    def place(row: int) -> str:
        return f"{annotations.where_box(row)}: " + ",".join(f"{value:g}" for value in annotations.boxes[row])

    # an open region is there once for each class
    places = np.column_stack([annotations.image_of_boxes(), annotations.boxes])
    report = {
        "boxes": len(rows),
        "crowd": len(np.unique(places[annotations.crowd], axis=0)),
        "class_images": [len(np.unique(images[labels == label])) for label in range(len(annotations.classes))],
        "class_sides": [_median(sides[labels == label]) for label in range(len(annotations.classes))],
        "smaller_than": {str(side): int((sides < side).sum()) for side in SMALL},
        "histogram": np.histogram(sides, (*EDGES, np.inf))[0].tolist(),
        "median_side": _median(sides),
        "advice": advice(sides, size).text,
        "clipped": len(found["outside"]),
        "suspicious": {kind: [place(row) for row in found[kind]] for kind in SUSPICIOUS},
        "max_boxes": [[annotations.path(i), int(counts[i]), int(versions[i])] for i in found["max_boxes"]],
        "smallest": [
            [place(row), round(float(sides[i]), 1), int(versions[images[i]])]
            for row, i in zip(found["smallest"], smallest, strict=True)
        ],
    }
    return report, found


def one_per_group(groups: np.ndarray, count: int) -> np.ndarray:
    """Returns the first positions of at most `count` groups in an array of group numbers, in their order."""
    return np.sort(np.unique(groups, return_index=True)[1])[:count]


def _median(values: np.ndarray) -> float:
    return round(float(np.median(values)), 1) if len(values) else 0.0


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
        text = f"classes that were looked for in few of the {part['images']} images, and count in these only"
        warnings.append(f"{split}: {text}: {first_names(few)}")
    groups = [" = ".join(map(repr, names)) for names in similar_names(counts)]
    warnings += [f"{split}: class names that differ only in case or spaces: {group}" for group in groups]
    return warnings
