"""LabelMe folders, with one JSON file per image -> Source."""

import math
import os
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from datasets.errors import one_line
from datasets.formats import image_paths, listing
from datasets.formats.file import File
from datasets.formats.image_paths import ImageFinder
from datasets.formats.listing import split_in
from datasets.formats.named_boxes import Box, LabelFile, add_files, names_of, points_box
from datasets.formats.rotation import Degrees, angle_problem
from datasets.formats.source import Source
from datasets.formats.typed_json import ABSENT, Side, open_json, parse, rows
from datasets.store import Split
from utils.images import images_under

NO_BOX = ("point", "points", "line", "linestrip")


class Shape(Struct):
    label: str | int | float | None
    points: list[tuple[float, float]]
    shape_type: str | None = None
    rotation: Degrees = Degrees()  # the points of a polygon are rotated already, the corners of a rectangle are not
    angle: Degrees = Degrees()
    theta: Degrees = Degrees()


def claims(file: File) -> bool:
    """Returns whether a file is one of LabelMe."""
    return "shapes" in file.keys


def read(file: File, split: Split, image_root: str | None) -> Source:
    """Reads a single file with its image. Raises DataError."""
    return _read(Path(file.path).parent, [Path(file.path)], image_root)


def read_folder(folder: Path, files: Sequence[str], split: Split, image_root: str | None) -> Source:
    """Reads the JSON files among `files` in a folder that belong to a split. Raises DataError."""
    source = _read(folder, [folder / file for file in listing.select_split(folder, files, split)], image_root)
    source.label_files += [str(folder / file) for file in files]
    listing.add_notes(source, folder, files, split)
    return source


def _read(folder: Path, files: list[Path], image_root: str | None) -> Source:
    """Reads the JSON files `files` in a folder; every shape becomes its bounding box.

    Points and lines are left out with a note. An image is in `image_root`, where its file says, or next to the file."""
    problems: list[str] = []
    labeled = [_label_file(path, problems) for path in files]
    near: dict[str, list[str]] = {}  # path without suffix -> images
    images = images_under(str(folder))
    for image in images:
        near.setdefault(os.path.splitext(image)[0], []).append(image)
    finder = ImageFinder(str(folder / "labels.json"), (file.image for file in labeled), image_root)
    pairs, used = [], set()
    for path, file in zip(files, labeled, strict=True):
        own = path.relative_to(folder)
        named = os.path.join(own.parent, file.image)
        twins = near.get(own.with_suffix("").as_posix(), [])
        if file.image and os.path.isfile(folder / named):
            twins = [named]
        near_file = next(iter(twins), None)
        image = _in_root(image_root, own.parent, file.image) if image_root and file.image else None
        if not image:
            image = near_file
            problems += image_paths.doubts(path, str(folder), twins)
        if not image:
            name = file.image or own.with_suffix(".jpg").as_posix()
            image = finder.find(name)
            if doubt := finder.doubt(name):
                problems.append(f"{path}: {doubt}")
        pairs.append((image, file))
        used |= {Path(os.path.normpath(place)).as_posix() for place in (near_file, pairs[-1][0]) if place}
    names = names_of(labeled)
    source = Source(str(folder), str(folder), names)
    source.problems += problems
    splits = {split_in(path.relative_to(folder).as_posix()) for path in files}
    if left := [image for image in images if image not in used and split_in(image) in (None, *splits)]:
        text = f"images without a JSON file, left out: {len(left)}, for example {one_line(left[0])}"
        source.notes.append(f"{folder}: {text}")
    add_files(source, pairs)
    return source


def _in_root(image_root: str, folder: Path, image: str) -> str | None:
    """Returns the path of an image in `image_root`, with the subfolder of its JSON file or without it; None if it is not there.

    Of an absolute path, or one with `..`, only the file name is used."""
    if os.path.isabs(image) or ":" in image or ".." in image.split("/"):
        image = image.rpartition("/")[2]
    places = [os.path.abspath(os.path.join(image_root, place)) for place in (folder / image, image)]
    return next(filter(os.path.isfile, places), None)


def _label_file(path: Path, problems: list[str]) -> LabelFile:
    contents = open_json(str(path))
    if not isinstance(contents, dict) or "shapes" not in contents:
        return LabelFile(str(path), problem="not a LabelMe file, it has no shapes: take it out of this folder")
    image, height, width = (
        parse(contents.get(key, ABSENT), kind, f"{path}: {key}", problems)
        for key, kind in (("imagePath", str | None), ("imageHeight", Side | None), ("imageWidth", Side | None))
    )
    shapes = rows(contents["shapes"], Shape, f"{path}: shapes", problems)
    return LabelFile(
        path=str(path),
        image=(image or "").replace("\\", "/"),
        size=(int(height or 0), int(width or 0)),
        boxes=[_box(shape)._replace(place=f"{path}: object {index + 1}") for index, shape in shapes],
    )


def _box(shape: Shape) -> Box:
    name, kind = "" if shape.label is None else str(shape.label), shape.shape_type or "polygon"
    if kind in NO_BOX:
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
