"""LabelMe folders, with one JSON file per image -> Annotations."""

import os
from pathlib import Path
from typing import Any

from datasets.annotations import read_json
from datasets.store import Annotations, Classes, Packer
from datasets.voc import Box, LabelFile, names_of, pack_files
from utils.images import images_under


def read_labelme(folder: Path, files: list[Path], classes: Classes, bad_boxes: str) -> Annotations:
    """Reads a LabelMe folder with the JSON files `files`; every shape becomes its bounding box. Raises DataError."""
    rows = []
    for path in files:
        file = _labelme_file(path)
        image = file.image or f"{path.stem}.jpg"
        if not os.path.exists(folder / image):  # the files were moved: the image is next to its JSON file
            near = (path.with_suffix(f".{suffix}") for suffix in ("jpg", "jpeg", "png", "bmp"))
            image = next((place.name for place in near if place.exists()), image)
        rows.append((image, file))
    names = names_of([file for _, file in rows])
    pack = Packer(str(folder), str(folder), names, classes)
    left = len(set(images_under(str(folder))) - {image for image, _ in rows})
    if left:
        pack.notes.append(f"{folder}: {left} images without a JSON file are left out")
    return pack_files(pack, names, rows, bad_boxes)


def _labelme_file(path: Path) -> LabelFile:
    data = read_json(str(path))
    if not isinstance(data, dict) or "shapes" not in data:
        return LabelFile(str(path), problem="not a LabelMe file, it has no shapes: take it out of this folder")
    return LabelFile(
        path=str(path),
        image=str(data.get("imagePath") or "").replace("\\", "/"),
        size=(int(data.get("imageHeight") or 0), int(data.get("imageWidth") or 0)),
        boxes=[_labelme_box(shape) for shape in data["shapes"]],
    )


def _labelme_box(shape: dict[str, Any]) -> Box:
    name, kind = str(shape.get("label", "")), shape.get("shape_type") or "polygon"
    try:
        xs, ys = zip(*((float(x), float(y)) for x, y in shape["points"]), strict=True)
    except (KeyError, TypeError, ValueError):
        return Box(name, (), problem=f"{name!r} needs points [x, y]")
    if kind in ("point", "points", "line", "linestrip"):
        problem = f"{name!r} is a {kind}, which has no box: draw a rectangle or a polygon, or remove it"
        return Box(name, (), problem=problem)
    if kind == "circle" and len(xs) == 2:  # its center and a point on it
        radius = ((xs[1] - xs[0]) ** 2 + (ys[1] - ys[0]) ** 2) ** 0.5
        return Box(name, (xs[0] - radius, ys[0] - radius, xs[0] + radius, ys[0] + radius))
    return Box(name, (min(xs), min(ys), max(xs), max(ys)))
