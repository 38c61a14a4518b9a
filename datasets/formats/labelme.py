"""LabelMe folders, with one JSON file per image -> Source."""

import math
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec import Struct

from datasets.errors import DataError
from datasets.formats import image_paths
from datasets.formats.file import Folder, stem_of
from datasets.formats.source import (
    Box,
    Degrees,
    LabelFile,
    Source,
    add_files,
    angle_problem,
    crowd_of,
    names_of,
    points_box,
)
from datasets.formats.splits import add_notes, select_images, select_split
from datasets.formats.typed_json import ABSENT, Side, open_json, optional, rows

AREAS = ("polygon", "rectangle", "circle", "mask", "rotation", "oriented_rectangle")  # shapes that have a box


class Shape(Struct):
    label: str | int | float | None
    points: list[tuple[float, float]]
    shape_type: str | None = None
    group_id: Any = None  # parts of one object have the same
    difficult: Any = None  # of X-AnyLabeling
    flags: dict[str, Any] | None = None
    rotation: Degrees = Degrees()  # the points of a polygon are rotated already, the corners of a rectangle are not
    angle: Degrees = Degrees()
    theta: Degrees = Degrees()


def read_folder(folder: Folder, names: Iterable[str]) -> list[Source]:
    """Reads the JSON files in a folder that belong to its split; every shape becomes its bounding box. Raises DataError.

    Points and lines are left out with a note. An image is where its file says, or else has the name of the file."""
    parts: list[str] = []
    source = read_files(folder, list(names), lambda path, problems: (_label_file(path, problems, parts), ""))
    if parts:
        text = f"shapes with the label and group_id of another one, of whose object they are parts: {len(parts)}"
        source.notes.append(f"{folder.path}: {text}, for example {parts[0]}")
    return [source]


def read_files(
    folder: Folder, every: Sequence[str], read_one: Callable[[str, list[str]], tuple[LabelFile, str]]
) -> Source:
    """Returns the images of a split in a folder with a JSON file for each image.

    `read_one`: path, problems -> what is in the file, and the word that may be its split. Raises DataError."""
    chosen = select_split(folder.path, every, folder.split)
    source = Source(str(folder.path), label_files=[str(folder.path / name) for name in every])
    found = [read_one(os.path.join(folder.path, name), source.problems) for name in chosen]
    files = [file for file, _ in found]
    source.root, images = image_paths.images_of_labels(folder, ".json", [(file.path, file.image) for file in files])
    index, pairs = image_paths.Stems(images, chosen, (file.image for file in files)), []
    for name, file in zip(chosen, files, strict=True):
        written = os.path.join(os.path.dirname(file.path), file.image or f"{os.path.splitext(file.path)[0]}.jpg")
        image = os.path.relpath(written, source.root)
        if folder.image_root or not file.image or not os.path.isfile(written):
            nearest = index.all_nearest(name, os.path.basename(file.image))
            source.problems += image_paths.doubts(file.path, source.root, nearest)
            image = nearest[0] if nearest else image
        elif stem_of(image) != stem_of(name) and (own := index.nearest(name)):  # copied or renamed without its contents
            problem = f"it names {image}, but {own} has its name: correct the name in it, or take one of them out"
            source.problems.append(f"{file.path}: {problem}")
        pairs.append((image, file))
    source.names = names_of(files)
    wanted = select_images(source, [file.path for file in files], [word for _, word in found], folder.split)
    add_files(source, (pair for pair in pairs if pair[1].path in wanted))
    add_notes(source, folder.path, every, folder.split)
    return source


def _label_file(path: str, problems: list[str], parts: list[str]) -> LabelFile:
    try:
        contents = open_json(path)
    except DataError as error:
        problems.append(str(error))
        return LabelFile(path)
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
        key = (box.name, str(group)) if group not in (None, "") and box.corners and not box.problem else index
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
    crowd, problem = crowd_of({"difficult": shape.difficult} | (shape.flags or {}))
    if kind == "circle" and len(xs) == 2:  # its center and a point on it
        radius = math.hypot(xs[1] - xs[0], ys[1] - ys[0])
        return Box(name, (xs[0] - radius, ys[0] - radius, xs[0] + radius, ys[0] + radius), crowd, problem)
    if kind == "rectangle" and len(xs) == 2:
        problem = angle_problem({"rotation": shape.rotation, "angle": shape.angle, "theta": shape.theta}) or problem
    return Box(name, points_box(shape.points), crowd, problem)
