"""Boxes with class names, image by image -> Annotations; and the bounding boxes of drawn shapes.

The formats without class ids share it. Angles are in radians and turn clockwise on the screen.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from datasets.errors import first_ten
from datasets.formats.image_paths import ImageFinder
from datasets.store import Annotations, Classes, Packer
from utils.text import class_name_problem, clean_name

Corners = tuple[float, float, float, float]  # x1, y1, x2, y2


class Box(NamedTuple):
    """One object of a label file; where it cannot be read, `problem` says why and there are no corners."""

    name: str
    corners: tuple[float, ...]  # x1, y1, x2, y2 in pixels
    crowd: bool = False
    problem: str = ""
    no_box: str = ""  # kind of an object that is not an area, such as a point: it is left out and counted
    place: str = ""  # for messages; "": its number in the file


class LabelFile(NamedTuple):
    """The boxes of one image, from a file of its own or a part of a file."""

    path: str  # of the label file, or its part for messages; "" with `line`
    image: str = ""  # name of the image as the file has it
    size: tuple[int, int] = (0, 0)  # height, width
    boxes: Sequence[Box] = ()
    problem: str = ""
    line: int = 0  # in a file with many images


def pack_files(pack: Packer, names: tuple[str, ...], rows: list[tuple[str, LabelFile]], bad_boxes: str) -> Annotations:
    """Packs `rows` (path of the image, its label file) into annotations with the class names `names`."""
    labels = {clean_name(name): label for label, name in enumerate(names)}
    left_out = []
    for image, file in rows:
        if file.problem:
            pack.problems.append(f"{file.path}: {file.problem}")
        pack.add_image(image, file=file.path, size=file.size, line=file.line)
        for number, box in enumerate(file.boxes, 1):
            place = box.place or f"{file.path}: object {number}"
            if box.no_box:
                left_out.append(f"{place}: {box.name!r} is a {box.no_box}")
                continue
            try:
                name = clean_name(box.name)
                problem = box.problem or ("" if name in labels else class_name_problem(box.name))
                if problem:
                    raise ValueError(problem)
                pack.add_box(*box.corners, labels[name], int(box.crowd))
            except ValueError as error:
                pack.complain(place, error)
    if left_out:
        pack.notes.append(f"{pack.source}: objects without a box, left out: {len(left_out)}\n{first_ten(left_out)}")
    return pack.finish(bad_boxes)


def pack_source(
    source: str,
    files: list[LabelFile],
    classes: Classes,
    image_root: str | None,
    bad_boxes: str,
    names: tuple[str, ...] | None = None,
    problems: Iterable[str] = (),
    notes: Iterable[str] = (),
) -> Annotations:
    """Packs the images that one file describes. `names`: its classes (None: those of the boxes)."""
    names = names_of(files) if names is None else names
    finder = ImageFinder(source, (file.image for file in files), image_root)
    pack = Packer(source, finder.folder, names, classes)
    pack.problems += problems
    pack.notes += notes
    rows = [(finder.find(file.image), file) for file in files]
    pack.notes += finder.notes()
    return pack_files(pack, names, rows, bad_boxes)


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
