"""Boxes with class names, image by image -> Source; and the bounding boxes of drawn shapes.

The formats without class ids share it. Angles are in radians and turn clockwise on the screen.
"""

import math
import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from datasets.errors import first_ten
from datasets.formats.source import Source
from datasets.store import Classes
from utils.text import class_name_problem, clean_name

Corners = tuple[float, float, float, float]  # x1, y1, x2, y2


class Box(NamedTuple):
    """One object of a label file; where it cannot be read, `problem` says why and there are no corners."""

    name: str
    corners: tuple[float, ...]  # x1, y1, x2, y2 in pixels, or in fractions if the LabelFile has them
    crowd: bool = False
    problem: str = ""
    no_box: str = ""  # kind of an object that is not an area, such as a point: it is left out and counted
    place: str = ""  # for messages; "": its number in the file
    line: int = 0  # in a file with one box per line


class LabelFile(NamedTuple):
    """The boxes of one image, from a whole file or a part of a file."""

    path: str  # of the label file, or its part for messages; "" with `line`
    image: str = ""  # name of the image as the file has it
    size: tuple[int, int] = (0, 0)  # height, width
    boxes: Sequence[Box] = ()
    problem: str = ""
    line: int = 0  # in a file with many images
    fractions: bool = False  # the corners are fractions of the image, not pixels


def add_files(source: Source, rows: Iterable[tuple[str, LabelFile]]) -> None:
    """Adds `rows` (path of the image, its label file) to a source. Without class names all boxes have label 0."""
    labels = {clean_name(name): label for label, name in enumerate(source.names or ())}
    left_out = []
    for image, file in rows:
        if file.problem:
            source.problems.append(f"{file.path}: {file.problem}")
        source.add_image(image, file=file.path, size=file.size, line=file.line, fractions=file.fractions)
        for number, box in enumerate(file.boxes, 1):
            place = box.place or f"{file.path}: object {number}"
            name = clean_name(box.name)
            if box.no_box:
                left_out.append(f"{place}: {box.name!r} ({box.no_box})")
            elif box.problem:
                source.problems.append(f"{place}: {box.problem}")
            elif source.names is None:
                source.add_box(place, *box.corners, 0, int(box.crowd), line=box.line)
            elif name in labels:
                source.add_box(place, *box.corners, labels[name], int(box.crowd), line=box.line)
            else:
                source.problems.append(f"{place}: {class_name_problem(box.name)}")
    if left_out:
        source.notes.append(f"{source.path}: objects without a box, left out: {len(left_out)}\n{first_ten(left_out)}")


def source_of(path: str, files: Sequence[LabelFile], names: Classes) -> Source:
    """Returns the images that one file describes, with its class names."""
    source = Source(path, os.path.dirname(path), names, find_images=True)
    add_files(source, ((file.image, file) for file in files))
    return source


def names_of(files: Iterable[LabelFile]) -> tuple[str, ...]:
    """Returns the sorted class names of label files, without blanks at their ends and without those that cannot be used."""
    names = {clean_name(box.name) for file in files for box in file.boxes if not (box.problem or box.no_box)}
    return tuple(sorted(name for name in names if not class_name_problem(name)))


def side(text: str) -> int:
    """Returns the width or height of an image in pixels, 0 if the text is not one."""
    text = text.strip()
    return int(text) if text.isdecimal() and len(text) < 10 else 0


def points_box(points: Iterable[tuple[float, float]]) -> Corners:
    """Returns the bounding box of points x, y, with NaN if a coordinate is NaN. Raises ValueError if there are no points."""
    xs, ys = zip(*points, strict=True)
    box = min(xs), min(ys), max(xs), max(ys)
    return box if sum(xs) + sum(ys) == sum(xs) + sum(ys) else (math.nan,) * 4  # min and max may overlook NaN


def rotated_box(x1: float, y1: float, x2: float, y2: float, angle: float, pivot: tuple[float, float]) -> Corners:
    """Returns the bounding box of a rectangle that is rotated around the point `pivot`."""
    if not angle:
        return x1, y1, x2, y2
    sine, cosine = math.sin(angle), math.cos(angle)
    moved = [(x - pivot[0], y - pivot[1]) for x in (x1, x2) for y in (y1, y2)]
    return points_box((pivot[0] + x * cosine - y * sine, pivot[1] + x * sine + y * cosine) for x, y in moved)


def ellipse_box(x: float, y: float, radius_x: float, radius_y: float, angle: float = 0.0) -> Corners:
    """Returns the bounding box of an ellipse around x, y."""
    sine, cosine = math.sin(angle), math.cos(angle)
    width, height = math.hypot(radius_x * cosine, radius_y * sine), math.hypot(radius_x * sine, radius_y * cosine)
    return x - width, y - height, x + width, y + height
