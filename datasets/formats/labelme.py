"""LabelMe folders, with one JSON file per image -> Source."""

import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from datasets.formats import image_paths
from datasets.formats.file import File, Folder, images_of
from datasets.formats.image_paths import ImageFinder
from datasets.formats.named_boxes import Box, LabelFile, add_files, names_of, points_box
from datasets.formats.rotation import Degrees, angle_problem
from datasets.formats.source import Source
from datasets.formats.splits import add_notes, select_split
from datasets.formats.typed_json import ABSENT, Side, open_json, parse, rows
from datasets.store import Split

AREAS = ("polygon", "rectangle", "circle", "mask", "rotation", "oriented_rectangle")  # shapes that have a box


class Shape(Struct):
    label: str | int | float | None
    points: list[tuple[float, float]]
    shape_type: str | None = None
    group_id: Any = None  # parts of one object have the same
    rotation: Degrees = Degrees()  # the points of a polygon are rotated already, the corners of a rectangle are not
    angle: Degrees = Degrees()
    theta: Degrees = Degrees()


def read(file: File, split: Split) -> Source:
    """Reads a single file with its image. Raises DataError."""
    return _read(Folder(Path(file.path).parent, split, file.image_root), [file.name])


def read_folder(folder: Folder, names: Iterable[str]) -> list[Source]:
    """Reads the JSON files in a folder that belong to its split. Raises DataError."""
    names = list(names)
    source = _read(folder, select_split(folder.path, names, folder.split))
    source.label_files += [str(folder.path / name) for name in names]
    add_notes(source, folder.path, names, folder.split)
    return [source]


def _read(folder: Folder, names: Sequence[str]) -> Source:
    """Reads JSON files in a folder; every shape becomes its bounding box.

    Points and lines are left out with a note. An image is in `image_root`, where its file says, or next to the file."""
    source = Source(str(folder.path), str(folder.path))
    parts: list[str] = []
    labeled = [_label_file(os.path.join(folder.path, name), source.problems, parts) for name in names]
    near: dict[str, list[str]] = {}  # path without suffix -> images
    for image in images_of(folder.files):
        near.setdefault(os.path.splitext(image)[0], []).append(image)
    finder = ImageFinder(str(folder.path / "labels.json"), (file.image for file in labeled), folder.image_root)
    pairs = []
    for name, file in zip(names, labeled, strict=True):
        place = os.path.dirname(name)
        named = os.path.join(place, file.image)
        twins = near.get(os.path.splitext(name)[0], [])
        if file.image and os.path.isfile(os.path.join(folder.path, named)):
            twins = [named]
        image = _in_root(folder.image_root, place, file.image) if folder.image_root and file.image else None
        if not image and twins:
            image = twins[0]
            source.problems += image_paths.doubts(folder.path / name, str(folder.path), twins)
        if not image:
            wanted = file.image or f"{os.path.splitext(name)[0]}.jpg"
            image = finder.find(wanted)
            if doubt := finder.doubt(wanted):
                source.problems.append(f"{folder.path / name}: {doubt}")
        pairs.append((image, file))
    source.names = names_of(labeled)
    add_files(source, pairs)
    if parts:
        text = f"shapes with the label and group_id of another one, of whose object they are parts: {len(parts)}"
        source.notes.append(f"{folder.path}: {text}, for example {parts[0]}")
    return source


def _in_root(image_root: str, folder: str, image: str) -> str | None:
    """Returns the path of an image in `image_root`, with the subfolder of its JSON file or without it; None if it is not there.

    Of an absolute path, or one with `..`, only the file name is used."""
    if os.path.isabs(image) or ":" in image or ".." in image.split("/"):
        image = image.rpartition("/")[2]
    places = [os.path.abspath(os.path.join(image_root, place)) for place in (os.path.join(folder, image), image)]
    return next(filter(os.path.isfile, places), None)


def _label_file(path: str, problems: list[str], parts: list[str]) -> LabelFile:
    contents = open_json(path)
    if not isinstance(contents, dict) or "shapes" not in contents:
        return LabelFile(path, problem="not a LabelMe file, it has no shapes: take it out of this folder")
    image, height, width = (
        parse(contents.get(key, ABSENT), kind, f"{path}: {key}", problems)
        for key, kind in (("imagePath", str | None), ("imageHeight", Side | None), ("imageWidth", Side | None))
    )
    shapes = rows(contents["shapes"], Shape, f"{path}: shapes", problems)
    boxes = [(shape.group_id, _box(shape)._replace(place=f"{path}: object {index + 1}")) for index, shape in shapes]
    return LabelFile(
        path=path,
        image=(image or "").replace("\\", "/"),
        size=(int(height or 0), int(width or 0)),
        boxes=_merge_parts(boxes, parts),
    )


def _merge_parts(boxes: list[tuple[Any, Box]], parts: list[str]) -> list[Box]:
    """Returns the boxes of (group, box), with one around all parts of an object, which have its label and its group.

    Adds the places of further parts to `parts`."""
    found: dict[Any, Box] = {}
    for index, (group, box) in enumerate(boxes):
        key = (box.name, str(group)) if group is not None and box.corners and not box.problem else index
        if key in found:
            parts.append(box.place)
            (x1, y1, x2, y2), (x3, y3, x4, y4) = found[key].corners, box.corners
            box = found[key]._replace(corners=points_box([(x1, y1), (x2, y2), (x3, y3), (x4, y4)]))
        found[key] = box
    return list(found.values())


def _box(shape: Shape) -> Box:
    name, kind = "" if shape.label is None else str(shape.label), shape.shape_type or "polygon"
    if kind not in AREAS:
        return Box(name, (), no_box=kind)
    if shape.label is None:
        return Box(name, (), problem="the label is null: give the shape a label in LabelMe, or remove it")
    if not shape.points:
        return Box(name, (), problem=f"{name!r} needs points [x, y]: draw it again, or remove it")
    xs, ys = zip(*shape.points, strict=True)
    if kind == "circle" and len(xs) == 2:  # its center and a point on it
        radius = math.hypot(xs[1] - xs[0], ys[1] - ys[0])
        return Box(name, (xs[0] - radius, ys[0] - radius, xs[0] + radius, ys[0] + radius))
    problem = ""
    if kind == "rectangle" and len(xs) == 2:
        problem = angle_problem({"rotation": shape.rotation, "angle": shape.angle, "theta": shape.theta})
    return Box(name, points_box(shape.points), problem=problem)
