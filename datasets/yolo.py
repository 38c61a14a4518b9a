"""YOLO data -> Annotations: a yaml file, a folder, or a list of images, with one label file per image.

A label is `class x y width height` (center and size) or `class x1 y1 x2 y2 x3 y3 ...` (a polygon, which becomes its
bounding box), in fractions of the image's width and height.
"""

import os
from pathlib import Path
from typing import Any

import yaml

from datasets.annotations import text_lines
from datasets.errors import DataError, check_path
from datasets.scan import scan
from datasets.store import Annotations, Classes, Packer, Part
from utils.images import images_under


def read_yolo_yaml(path: Path, part: Part, classes: Classes, bad_boxes: str) -> Annotations:
    """Reads the first part of a data yaml whose name is in `part` (empty: all parts together). Raises DataError."""
    try:
        config = yaml.load(path.read_bytes(), Loader=yaml.BaseLoader)  # only text: the class "no" is not False
    except yaml.YAMLError as error:
        raise DataError(f"{path}: {error}: write paths with / and without quotes") from error
    if not isinstance(config, dict):
        raise DataError(f"{path}: not a YOLO data file: train, val and names are expected")
    if "kpt_shape" in config:
        raise DataError(f"{path}: labels with key points (kpt_shape) are not boxes: export the data for detection")
    keys = [key for key in ("train", "val", "valid", "test") if config.get(key)]
    chosen = [key for key in part if key in keys][:1] if part else keys
    if not chosen:
        raise DataError(f"{path}: no entry {' or '.join(part) or 'train'}: add it, with a folder or a list of images")
    images = []
    for key in chosen:
        entries = config[key] if isinstance(config[key], list) else [config[key]]
        for entry in entries:
            images += _images(path, config.get("path"), key, entry)
    return read_yolo_images(str(path), images, _yaml_names(path, config), classes, bad_boxes)


def _yaml_names(path: Path, config: dict[str, Any]) -> tuple[str, ...]:
    """Returns the class names of a data yaml: a list, a mapping from 0, 1, ..., or only their number `nc`."""
    names = config.get("names") or [str(index) for index in range(int(config.get("nc", 0)))]
    if isinstance(names, dict):
        if set(names) != {str(index) for index in range(len(names))}:
            raise DataError(f"{path}: the keys of names must be 0 to {len(names) - 1}")
        names = [names[str(index)] for index in range(len(names))]
    if not names or ("nc" in config and config["nc"] != str(len(names))):
        raise DataError(f"{path}: nc is {config.get('nc')}, but there are {len(names)} names: correct one of them")
    return tuple(names)


def _images(path: Path, root: str | None, key: str, entry: str) -> list[str]:
    """Returns the paths of the images of one entry: a folder, a list of images, or one image.

    Some labeling services export `../train/images` for `train/images`."""
    try:
        bare = check_path(entry).replace("\\", "/")
        check_path(root or "")
    except ValueError as error:
        raise DataError(f"{path}: {key}: {error}") from error
    while bare.startswith("../"):
        bare = bare[3:]
    bases = [path.parent / root, path.parent] if root else [path.parent]
    places = [base / name for base in bases for name in (entry, bare)]
    place = next((place for place in places if place.exists()), None)
    if place is None:
        raise DataError(f"{path}: {key}: there is no {places[0]}: correct the entry or `path`")
    if place.is_dir():
        names = images_under(str(place))
        if not names:
            raise DataError(f"{path}: {key}: no images in {place}: correct the entry")
        return [os.path.join(place, name) for name in names]
    if place.suffix.lower() != ".txt":
        return [str(place)]
    found = []
    for line in (line.strip() for _, line in text_lines(str(place))):
        if line:
            here, there = os.path.join(place.parent, line), os.path.join(bases[0], line)
            found.append(there if not os.path.exists(here) and os.path.exists(there) else here)
    return found


def read_yolo_folder(folder: Path, part: Part, names: Classes, classes: Classes, bad_boxes: str) -> Annotations:
    """Reads a folder with images/ (possibly with train/ and val/ inside) and labels/, or with images and labels together."""
    top = folder / "images" if (folder / "images").is_dir() else folder
    place = next((top / name for name in part if (top / name).is_dir()), top)
    images = [os.path.join(place, name) for name in images_under(str(place))]
    return read_yolo_images(str(folder), images, names, classes, bad_boxes)


def is_in_labels(image: str) -> bool:
    """Returns whether an image in images/ has a label file in labels/."""
    path = label_file(image)
    return os.path.dirname(path) != os.path.dirname(image) and os.path.exists(path)


def label_file(image: str) -> str:
    """Returns the path of an image's label file: in labels/ if the image is in images/, otherwise next to the image."""
    stem = os.path.splitext(image)[0]
    parts = stem.replace(os.sep, "/").split("/")
    if "images" in parts[:-1]:
        last = len(parts) - 2 - parts[-2::-1].index("images")
        path = "/".join([*parts[:last], "labels", *parts[last + 1 :]]) + ".txt"
        if os.path.exists(path) or not os.path.exists(f"{stem}.txt"):
            return path
    return f"{stem}.txt"


def read_yolo_images(source: str, images: list[str], names: Classes, classes: Classes, bad_boxes: str) -> Annotations:
    """Reads the label files of `images`; without `names` the labels are positions in `classes`. Raises DataError.

    An image without a label file is a background; at least one image must have one. An image that cannot be read has no
    size and is kept without boxes; `scan.prepare` reports it."""
    if names is None and classes is None:
        raise DataError(f"{source}: no class names: write classes.txt next to it, or give classes=FILE")
    labels = [label_file(image) for image in images]
    if not any(os.path.exists(path) for path in labels):
        expected = f"{len(images)} images" + (f", for example {labels[0]}" if labels else "")
        raise DataError(f"{source}: no label file for any of {expected}: put labels/ next to images/")
    pack = Packer(source, "", names, classes)
    for image, path, (height, width) in zip(images, labels, scan(images).sizes.tolist(), strict=True):
        known = os.path.exists(path)
        pack.add_image(image, file=path if known else image, size=(height, width))
        for number, line in text_lines(path) if known and width else ():
            if line.strip():
                try:
                    pack.add_box(*_label(line, width, height))
                except ValueError as error:
                    pack.complain(f"{path}:{number}", error)
    return pack.finish(bad_boxes)


def _label(line: str, width: int, height: int) -> tuple[float, ...]:
    """Returns x1, y1, x2, y2 in pixels, label of one line. Raises ValueError."""
    try:
        label, *values = (float(word) for word in line.split())
    except ValueError as error:
        raise ValueError(f"{line.strip()[:60]!r} is not numbers: write class x y width height") from error
    if len(values) != 4 and (len(values) < 6 or len(values) % 2):
        expected = "write class x y width height, or class and the corners of a polygon"
        raise ValueError(f"{1 + len(values)} numbers: {expected}")
    if max(map(abs, values)) > 1.5:
        raise ValueError(f"{max(values, key=abs):g} is not a fraction of the image: divide by its width and height")
    if len(values) == 4:
        x, y, w, h = values
        xs, ys = (x - w / 2, x + w / 2), (y - h / 2, y + h / 2)
    else:
        xs, ys = values[::2], values[1::2]
    return min(xs) * width, min(ys) * height, max(xs) * width, max(ys) * height, label
