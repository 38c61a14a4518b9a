"""Makes annotations of what a reader found: images are found, class names are resolved, and boxes become pixels."""

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from datasets.classes import ids_of
from datasets.errors import MUCH, DataError, note_dropped, raise_any
from datasets.formats.image_paths import ImageFinder
from datasets.formats.options import ReadOptions
from datasets.formats.source import Source
from datasets.scan import scan
from datasets.store import MAX_UNNAMED, Annotations, Classes, Strings, no_such_class, unknown_class
from utils.text import amount, as_spelled, check_class_names, clean_name, first_names, printable

MAX_FRACTION = 1.5  # x + width, where x, y is the center of a box in fractions


def resolve_labels(source: Source, options: ReadOptions, classes: Classes) -> Annotations:
    """Makes annotations of what a reader found: finds the images, scales boxes to pixels and checks them.

    `classes`: class names of the result (None: the classes of the source). A box of any other class is an error. Raises one
    DataError for all problems."""
    names, classes, notes = _class_names(source, classes)
    if source.find_images:
        _find_images(source, options.image_root)
    starts = np.append(np.frombuffer(source.starts, np.int64), len(source.labels))
    sizes, boxes, is_known = _in_pixels(source, np.diff(starts))
    written = np.frombuffer(source.areas)
    with np.errstate(all="ignore"):
        areas = np.where(np.isnan(written), (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]), written)
    notes += _area_notes(source.path, written, boxes)
    indices, problems, without_area = _check_labels_and_areas(source, boxes, areas, is_known, names, classes)
    notes += _report(
        source, [*problems, *_fractions_problem(source, boxes, np.diff(starts))], without_area, options.bad_boxes
    )
    if classes is None:
        classes = tuple(str(index) for index in range(indices.max(initial=-1) + 1))
    ids = source.category_ids
    found = Annotations(
        source=source.path,
        classes=classes,
        category_ids=np.arange(len(classes)) if ids is None else ids_of(names or (), ids, classes),
        image_ids=np.frombuffer(source.image_ids, np.int64),
        sizes=sizes,
        starts=starts,
        boxes=boxes,
        labels=indices,
        crowd=np.frombuffer(source.crowd) == 1,
        areas=areas,
        root=source.root,
        names=source.images,
        lines=np.frombuffer(source.lines, np.int32),
        files=source.files,
        box_lines=np.frombuffer(source.box_lines, np.int32),
        is_coco=source.is_coco,
        other_splits=source.other_splits,
    )
    found = _with_annotated_and_ignored(found, source, options, names)
    if (indices < 0).any():
        found = found.keep_boxes(indices >= 0)
    return replace(found, notes=tuple(map(printable, [*source.notes, *notes])))


def _area_notes(path: str, areas: np.ndarray, boxes: np.ndarray) -> list[str]:
    """Returns a note about written areas (NaN: none) that are 0 or larger than their boxes, as after a resize of the images."""
    with np.errstate(all="ignore"):
        inside = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
        wrong = int(((inside > 0) & ((areas == 0) | (areas > 1.1 * inside))).sum())
    text = f"{path}: areas that are 0 or larger than their boxes: {wrong}; they decide what AP_small, medium and large count"
    return [text] if wrong else []


def _report(source: Source, problems: list[str], without_area: list[str], bad_boxes: str) -> list[str]:
    """Returns a note about the boxes that are left out. Raises DataError for problems, and for bad boxes as `bad_boxes` says."""
    problems = list(dict.fromkeys(source.problems + problems))  # a label file may be that of two images
    if problems and bad_boxes == "error":
        problems += without_area
    if problems:  # so that those of the images are not seen only after these are gone
        named = [i for i in range(len(source)) if source.images[i]]
        problems += dict.fromkeys(scan(_paths(source, named)).problems.values())
    raise_any(f"{source.path}: problems: {len(problems)}", problems)
    question = ""
    if len(without_area) > 1 and len(without_area) >= MUCH * len(source.labels):
        question = " (are these x, y, width, height, or corners in another order?)"
    return note_dropped(f"{source.path}: boxes without area{question}", without_area, len(source.labels), bad_boxes)


def _fractions_problem(source: Source, boxes: np.ndarray, counts: np.ndarray) -> list[str]:
    """Returns a problem if all boxes of an image in a format in pixels look like fractions of it; whole numbers are pixels."""
    with np.errstate(invalid="ignore"):
        is_small = (boxes.max(1, initial=-1) <= MAX_FRACTION) & (boxes[:, :2].max(1, initial=-1) < 1)
        sides = boxes[:, 2:] - boxes[:, :2]
        is_small &= sides.max(1, initial=-1) <= 1  # a box of a pixel in the corner may be larger
        is_whole = (boxes % 1 == 0).all(1)
    image = np.repeat(np.arange(len(counts)), counts)
    small, whole = (np.bincount(image[rows], minlength=len(counts)) for rows in (is_small, is_small & is_whole))
    is_doubtful = (small == counts) & (whole < counts) & ~np.frombuffer(source.are_fractions, bool)
    rows = np.flatnonzero(is_doubtful[image]).tolist()
    if not rows:
        return []
    box = "{:g},{:g},{:g},{:g}".format(*boxes[rows[0]])
    fix = "multiply them by width and height, or use a format that has fractions (YOLO)"
    what = f"looks like fractions of the image, as {len(rows)} of {len(boxes)} boxes do, but this format is in pixels"
    return [f"{source.places[rows[0]]}: box {box} {what}: {fix}"]


def _with_annotated_and_ignored(
    found: Annotations, source: Source, options: ReadOptions, names: Classes
) -> Annotations:
    """Returns the annotations with their ignore regions and annotated classes. `names`: class names by label."""
    is_ignored = np.zeros(len(found.labels), bool)
    is_ignored[list(source.ignored_rows)] = True
    if "crowd" in options.ignore_regions:
        is_ignored |= found.crowd
    if is_ignored.any():
        found = replace(found, is_ignored=is_ignored)
    if options.all_labeled or not source.annotated or names is None:
        return found
    order = {name: index for index, name in enumerate(found.classes)}
    annotated = np.ones((len(found), len(order)), bool)
    for image, labels in source.annotated.items():
        annotated[image] = False
        annotated[image, [order[names[label]] for label in labels if names[label] in order]] = True
    has_class = found.labels >= 0
    annotated[found.image_of_boxes()[has_class], found.labels[has_class]] = True
    return found.with_annotated(annotated)


def _class_names(source: Source, classes: Classes) -> tuple[Classes, Classes, list[str]]:
    """Returns (class names by label, class names of the result, notes); None: "0", "1", ... Raises DataError."""
    names = source.names
    if names is None and source.needs_classes and (classes is None or (source.one_class and len(classes) != 1)):
        raise DataError(f"{source.path}: {source.needs_classes}")
    check_class_names((*(names or ()), *(classes or ())), source.path, DataError)
    if classes is not None:
        classes = tuple(map(str.strip, classes))  # as in classes.txt; else those of a checkpoint stay as they are
    if names is None:
        return classes, classes, []
    names, notes = tuple(map(clean_name, names)), []
    if source.names_are_numbers and not classes:
        notes.append(f"{source.path}: the classes are numbers; classes=FILE names them, one per line")
    elif source.names_are_numbers and classes and not all(map(str.isdecimal, classes)):
        if set(names) <= set(classes):
            problem = f"{first_names(names)} may be names or positions in the list of classes {first_names(classes)}"
            raise DataError(f"{source.path}: the classes {problem}: write class names instead of numbers")
        names = tuple(classes[int(name)] if int(name) < len(classes) else name for name in names)
    if twice := tuple(name for name, number in Counter(names).items() if number > 1):
        raise DataError(f"{source.path}: two classes of the same name {first_names(twice)}: rename one of them")
    return (names, names, notes) if classes is None else (tuple(as_spelled(names, classes)), classes, notes)


def _find_images(source: Source, image_root: str | None) -> None:
    """Replaces the names of images by their paths, and adds names that several images have to the problems."""
    names = [source.images[index] for index in range(len(source))]
    finder = ImageFinder(source.path, names, image_root)
    source.images = Strings(finder.find(name) if name else "" for name in names)
    for index, name in enumerate(names):
        if doubt := finder.doubts.get(name):
            line = source.lines[index]
            place = f"{source.path}:{line}" if line else source.files[index] or source.path
            source.problems.append(f"{place}: {doubt}")


def _in_pixels(source: Source, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns sizes int32 [N, 2], boxes float64 [K, 4] in pixels, and whether they are in pixels, bool [K].

    Boxes that are fractions of an image are multiplied by its size. `counts`: boxes of each image."""
    sizes = np.array(source.sizes, np.int32).reshape(-1, 2)
    boxes = np.frombuffer(source.boxes).reshape(-1, 4)
    are_fractions = np.frombuffer(source.are_fractions, bool)
    indices = np.flatnonzero(are_fractions)
    if not len(indices):
        return sizes, boxes, np.ones(len(boxes), bool)
    sizes[indices] = scan(_paths(source, indices.tolist())).sizes
    scales = np.where(are_fractions[:, None], sizes[:, [1, 0, 1, 0]], 1)
    with np.errstate(all="ignore"):
        boxes = boxes * np.repeat(scales, counts, axis=0)
    return sizes, boxes, np.repeat(sizes.all(1) | ~are_fractions, counts)


def _paths(source: Source, indices: Iterable[int]) -> list[str]:
    return [os.path.join(source.root, source.images[index]) for index in indices]


def _check_labels_and_areas(
    source: Source, boxes: np.ndarray, areas: np.ndarray, is_known: np.ndarray, names: Classes, classes: Classes
) -> tuple[np.ndarray, list[str], list[str]]:
    """Returns (the class of each box int32 [K], -1: left out; problems; boxes without area).

    Boxes of images that cannot be read, without `is_known`, are left out: the scan reports the images."""
    labels, crowd = np.frombuffer(source.labels), np.frombuffer(source.crowd)
    table = _table_of(names, classes)
    with np.errstate(all="ignore"):
        is_finite = np.isfinite(boxes.sum(1) + labels + areas)
        is_whole = (labels == np.floor(labels)) & ((crowd == 0) | (crowd == 1))
    is_class = is_finite & is_whole & (labels >= 0) & (labels < len(table))
    indices = np.full(len(labels), -1, np.int32)
    indices[is_class] = table[labels[is_class].astype(np.int64)]
    has_area = (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
    unknown = is_known & is_class & (indices < 0)
    problems, without_area = _unknown_classes(source, np.flatnonzero(unknown), names, classes), []
    if source.sizes_problem and not is_known.any():
        problems += [f"{source.places[row]}: {source.sizes_problem}" for row in range(len(labels))]
    for row in np.flatnonzero(is_known & ~unknown & ~((indices >= 0) & has_area)).tolist():
        label = labels[row]
        box = "{:g},{:g},{:g},{:g}".format(*boxes[row])
        if not is_finite[row]:
            problem = f"box {box},{label:g} holds a value that is not a number; draw it again, or remove it"
        elif not is_whole[row]:
            problem = f"class {label:g} must be a whole number, and crowd {crowd[row]:g} must be 0 or 1"
        elif not is_class[row] and names is None:
            fix = f"write classes.txt next to {source.path}, one name per line"
            problem = f"class {int(label)} without a list of names: {fix}"
        elif not is_class[row]:
            problem = no_such_class(label, source.names_from, len(table))
        else:
            without_area.append(f"{source.places[row]}: box {box} has no area (x1,y1,x2,y2 with x1 < x2 and y1 < y2)")
            continue
        problems.append(f"{source.places[row]}: {problem}")
    indices[~(is_known & has_area)] = -1
    return indices, problems, without_area


def _unknown_classes(source: Source, rows: np.ndarray, names: Classes, classes: Classes) -> list[str]:
    """Returns a problem for each class of `names` that is not in `classes`, or one if none is. `rows`: boxes of such classes."""
    if not len(rows) or names is None or classes is None:
        return []
    if set(names).isdisjoint(classes):
        fix = "name other data, or a model or a list of classes that has them"
        return [f"{source.path}: no class of these data {first_names(names)} is in {first_names(classes)}: {fix}"]
    labels, first, counts = np.unique(np.frombuffer(source.labels)[rows], return_index=True, return_counts=True)
    return [
        f"{source.places[rows[at]]}, the first of {amount(count, 'box')}: {unknown_class(names[int(label)], classes)}"
        for label, at, count in zip(labels.tolist(), first.tolist(), counts.tolist(), strict=True)
    ]


def _table_of(names: Classes, classes: Classes) -> np.ndarray:
    """Returns the class of each label, int32, -1 for those not in `classes`; without `names`, the labels themselves."""
    if names is None or classes is None:
        return np.arange(MAX_UNNAMED, dtype=np.int32)
    order = {name: index for index, name in enumerate(classes)}
    return np.array([order.get(name, -1) for name in names], np.int32)
