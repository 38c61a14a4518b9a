"""Small data sets to start from, and what every successful reading must hold."""

import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np

from datasets.errors import DataError
from datasets.formats.options import ReadOptions
from datasets.formats.read import read
from datasets.store import Annotations
from utils.text import class_name_problem

from .harness import Failure, check_text

SIZES = {"a.png": (40, 30), "b 1.png": (64, 48), "鸟.png": (20, 20)}  # name of the image -> width, height
CLASSES = ("cat", "small dog", "鸟")


def lines_of(path: Path) -> list[str]:
    """Returns the lines of a text file as an oracle reads them, with line ends of any system."""
    return re.split("\r*\n|\r", path.read_bytes().decode("utf-8-sig"))


class Box(NamedTuple):
    """A box as an oracle reads it."""

    x1: float
    y1: float
    x2: float
    y2: float
    name: str
    crowd: bool = False

    def has_area(self) -> bool:
        return self.x2 > self.x1 and self.y2 > self.y1


@cache
def png(width: int, height: int) -> bytes:
    """Returns an image file."""
    image = np.full((height, width, 3), width, np.uint8)
    image[: height // 2, : width // 3] = 200
    return cv2.imencode(".png", image)[1].tobytes()


def image_files(folder: str = "") -> dict[str, bytes]:
    """Returns the files of the images."""
    return {folder + name: png(*size) for name, size in SIZES.items()}


def boxes_of(rng: random.Random, name: str) -> list[Box]:
    """Returns up to three boxes within an image."""
    width, height = SIZES[name]
    found = []
    for _ in range(rng.randrange(4)):
        x1, y1 = rng.randrange(width - 4), rng.randrange(height - 4)
        x2, y2 = rng.randrange(x1 + 2, width + 1), rng.randrange(y1 + 2, height + 1)
        found.append(Box(x1 + rng.choice((0, 0, 0.25)), y1, x2, y2, rng.choice(CLASSES)))
    return found


def check_annotations(found: Annotations) -> None:
    """Raises Failure for annotations that no reader may return."""
    for name in found.classes:
        if problem := class_name_problem(name):
            raise Failure("wrong", f"accepted: {problem}")
    if len(set(found.classes)) < len(found.classes):
        raise Failure("wrong", f"accepted classes of the same name: {found.classes[:20]}")
    for note in found.notes:
        check_text(note)
    numbers = (found.boxes, found.areas)
    if not all(np.isfinite(values).all() for values in numbers) or (found.areas < 0).any():
        raise Failure("wrong", f"accepted boxes or areas: {found.boxes.tolist()[:5]} {found.areas.tolist()[:5]}")
    if len(found.labels) and not 0 <= found.labels.min() <= found.labels.max() < len(found.classes):
        raise Failure("wrong", f"labels {found.labels.tolist()[:5]} of {len(found.classes)} classes")
    if len(found.starts) != len(found) + 1 or (np.diff(found.starts) < 0).any() or found.starts[-1] != len(found.boxes):
        raise Failure("wrong", "the boxes are not divided among the images")
    if (found.sizes < 0).any():
        raise Failure("wrong", f"accepted sizes {found.sizes.tolist()[:5]}")
    json.dumps(found.coco(), allow_nan=False)
    found.digest()


def bare(name: str) -> str:
    """A class name without blanks and byte order marks at its ends."""
    while (shorter := name.strip().strip("\ufeff")) != name:
        name = shorter
    return name


def compare(source: Path, found: Annotations, images: Iterable[Sequence[Box]], tolerance: float = 1e-6) -> None:
    """Compares what was read with bad_boxes="drop" with the boxes of each image, as an oracle reads them.

    Boxes without area must be counted in a note, and stop a reading with bad_boxes="error"."""
    images = [[box._replace(name=bare(box.name)) for box in boxes] for boxes in images]
    expected = Counter(_key([box for box in boxes if box.has_area()], tolerance) for boxes in images)
    got = Counter(_key(boxes, tolerance) for boxes in rows(found))
    if any("are united" in note for note in found.notes):  # several rows are one image, and equal boxes are there once
        expected, got = ({box for key in counts for box in key} for counts in (expected, got))
        if expected != got:
            raise Failure("wrong", f"read {list(got - expected)[:3]} instead of {list(expected - got)[:3]}, united")
    if expected != got:
        raise Failure(
            "wrong", f"read {list((got - expected).items())[:3]} instead of {list((expected - got).items())[:3]}"
        )
    dropped = sum(not box.has_area() for boxes in images for box in boxes)
    noted = any(f"left out: {dropped}" in note for note in found.notes)
    if dropped and not noted:
        raise Failure("wrong", f"{dropped} boxes without area are left out, but the notes are {found.notes}")
    if dropped:
        try:
            read(str(source), "all", ReadOptions(bad_boxes="error"))
        except DataError:
            return
        raise Failure("wrong", f"{dropped} boxes without area are accepted with bad_boxes=error")


def rows(found: Annotations) -> list[list[Box]]:
    """Returns the boxes of each image."""
    every = []
    for index in range(len(found)):
        corners, labels, crowd = found.boxes_of(index)
        names = (found.classes[label] for label in labels)
        every.append([Box(*box, name, bool(c)) for box, name, c in zip(corners.tolist(), names, crowd, strict=True)])
    return every


def _key(boxes: Sequence[Box], tolerance: float) -> tuple:
    return tuple(sorted((*(_step(v, tolerance) for v in box[:4]), box.name, box.crowd) for box in boxes))


def _step(value: float, tolerance: float) -> float:
    """Rounds a number to multiples of `tolerance`, a large one to six digits. Round numbers are not at a border."""
    return round(value / tolerance + 0.1234567) if abs(value) < 1e9 else float(f"{value:.6g}")
