"""LabelMe folders, with one JSON file per image -> Source."""

import math
import os
from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from datasets.formats import image_paths
from datasets.formats.file import Folder
from datasets.formats.source import Box, Degrees, LabelFile, Source, add_files, angle_problem, names_of, points_box
from datasets.formats.splits import add_notes, select_split
from datasets.formats.typed_json import ABSENT, Side, open_json, optional, rows

AREAS = ("polygon", "rectangle", "circle", "mask", "rotation", "oriented_rectangle")  # shapes that have a box


class Shape(Struct):
    label: str | int | float | None
    points: list[tuple[float, float]]
    shape_type: str | None = None
    group_id: Any = None  # parts of one object have the same
    rotation: Degrees = Degrees()  # the points of a polygon are rotated already, the corners of a rectangle are not
    angle: Degrees = Degrees()
    theta: Degrees = Degrees()


def read_folder(folder: Folder, names: Iterable[str]) -> list[Source]:
    """Reads the JSON files in a folder that belong to its split; every shape becomes its bounding box. Raises DataError.

    Points and lines are left out with a note. An image is where its file says, or else has the name of the file."""
    every = list(names)
    chosen = select_split(folder.path, every, folder.split)
    source = Source(str(folder.path), label_files=[str(folder.path / name) for name in every])
    parts: list[str] = []
    files = [_label_file(os.path.join(folder.path, name), source.problems, parts) for name in chosen]
    source.root, images = image_paths.images_of_labels(folder, ".json", [(file.path, file.image) for file in files])
    index = image_paths.Stems(images, chosen, (file.image for file in files))
    pairs = []
    for name, file in zip(chosen, files, strict=True):
        written = os.path.join(os.path.dirname(file.path), file.image)
        if file.image and not folder.image_root and os.path.isfile(written):
            image = os.path.relpath(written, source.root)
        else:
            found = index.all_nearest(name, os.path.basename(file.image))
            source.problems += image_paths.doubts(file.path, source.root, found)
            image = found[0] if found else file.image or f"{os.path.splitext(name)[0]}.jpg"
        pairs.append((image, file))
    source.names = names_of(files)
    add_files(source, pairs)
    if parts:
        text = f"shapes with the label and group_id of another one, of whose object they are parts: {len(parts)}"
        source.notes.append(f"{folder.path}: {text}, for example {parts[0]}")
    add_notes(source, folder.path, every, folder.split)
    return [source]


def _label_file(path: str, problems: list[str], parts: list[str]) -> LabelFile:
    contents = open_json(path)
    if not isinstance(contents, dict) or "shapes" not in contents:
        return LabelFile(path, problem="not a LabelMe file, it has no shapes: take it out of this folder")
    image = optional(contents.get("imagePath", ABSENT), str, f"{path}: imagePath", problems)
    height, width = (
        optional(contents.get(key, ABSENT), Side, f"{path}: {key}", problems) for key in ("imageHeight", "imageWidth")
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
