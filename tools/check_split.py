"""Examines one split of a data set: counts, sizes of boxes, images that cannot be read, and where suspicious boxes are."""

from typing import Any, NamedTuple

import numpy as np

from datasets.box_sizes import Size, advice, sides_at
from datasets.check_images import check_images
from datasets.errors import WARNING, DataError
from datasets.formats.options import ReadOptions
from datasets.formats.read import read
from datasets.scan import Scan, clipped_boxes, scan
from datasets.store import Annotations
from utils.boxes import area

COVERING = 0.98  # fraction of the image's area; such a box labels the image rather than an object
THIN = 20  # ratio of the sides
TINY = 2  # pixels of the image; such a box is a slip of the mouse
SMALL = (8, 16, 32)  # pixels of the network's input; the finest stride of the networks is 8
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
    rows: dict[str, np.ndarray]  # kind of SUSPICIOUS -> boxes of `good`


def examine(source: str, part: str, size: Size, options: ReadOptions) -> Part:
    """Examines one split of the data. Raises DataError if nothing can be read."""
    found = read(source, part, options)
    if len(found) == 0:
        raise DataError(f"{source}: no images; name an annotation file or a folder with images")
    paths = [found.path(i) for i in range(len(found))]
    scanned, errors = scan(paths), []
    try:
        good, notes = check_images(found, ReadOptions(bad_boxes="drop", bad_images=options.bad_images))
    except DataError as error:
        errors.append(str(error))
        readable = np.setdiff1d(np.arange(len(found)), list(scanned.problems))
        if not len(readable):
            raise
        good, notes = check_images(found.select(readable), ReadOptions(bad_boxes="drop"))
    boxes, rows = _boxes(good, size)
    if part != "train":
        boxes["advice"] = ""  # one image size is chosen, by the training images
    if good.crowd.all():
        empty = f"{source}: no boxes: is it the right file?"
        (errors if part == "train" else notes).append(empty if part == "train" else f"{WARNING}{empty}")
    report = {
        "source": source,
        "images": len(found),
        "unreadable": [scanned.problems[i] for i in sorted(scanned.problems)],
        "turned_by_exif": int((scanned.orientations > 1).sum()),
        "sixteen_bits": good.value_text(),
        "backgrounds": int((np.diff(good.starts) == 0).sum()),
        "classes": dict(zip(good.classes, good.boxes_per_class().tolist(), strict=True)),
        **_annotated_images(good),
        **boxes,
        "notes": notes,  # what was left out, and what is unusual
        "errors": errors,
    }
    return Part(report, good, paths, scanned, rows)


def _annotated_images(data: Annotations) -> dict[str, dict[str, int]]:
    """Returns in how many images each class is annotated; nothing if all of them are in all images."""
    if data.annotated is None:
        return {}
    return {"annotated": dict(zip(data.classes, data.annotated_mask().sum(0).tolist(), strict=True))}


def _boxes(annotations: Annotations, size: Size) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Returns counts and sizes of all boxes except crowd regions, and the rows of suspicious ones, by kind."""
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

    def place(row: int) -> str:
        return f"{annotations.where_box(row)}: " + ",".join(f"{value:g}" for value in annotations.boxes[row])

    # an ignore region is there once for each class
    places = np.column_stack([annotations.image_of_boxes(), annotations.boxes])
    report = {
        "boxes": len(rows),
        "crowd": len(np.unique(places[annotations.crowd], axis=0)),
        "class_images": [len(np.unique(images[labels == label])) for label in range(len(annotations.classes))],
        "class_sides": [_median(sides[labels == label]) for label in range(len(annotations.classes))],
        "smaller_than": {str(side): int((sides < side).sum()) for side in SMALL},
        "median_side": _median(sides),
        "advice": advice(sides, size).text,
        "clipped": len(found["outside"]),
        "suspicious": {kind: [place(row) for row in found[kind]] for kind in SUSPICIOUS},
    }
    return report, found


def _median(values: np.ndarray) -> float:
    return round(float(np.median(values)), 1) if len(values) else 0.0
