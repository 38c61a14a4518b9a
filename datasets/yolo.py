"""YOLO data: a yaml, or a folder, or a list of pictures, with a text file of labels for every picture.

A label is `class x y width height` (centre and size) or `class x1 y1 x2 y2 x3 y3 ...` (a polygon, of which the box
around it is taken), in fractions of the picture.
"""

import os
from pathlib import Path
from typing import Any

import yaml

from datasets.annotations import text_lines
from datasets.images import pictures_under, scan
from datasets.store import Annotations, DataError, Packer, check_path

Classes = tuple[str, ...] | None


def read_yolo_yaml(path: Path, part: tuple[str, ...], classes: Classes, bad_boxes: str) -> Annotations:
    """The part of a data yaml that goes by one of the names `part` (empty: all parts together). Raises DataError."""
    try:
        config = yaml.load(path.read_bytes(), Loader=yaml.BaseLoader)  # all words: the class "no" is not False
    except yaml.YAMLError as error:
        raise DataError(f"{path}: {error}: write paths with / and without quotes") from error
    if not isinstance(config, dict):
        raise DataError(f"{path}: no YOLO data file: train, val and names are expected")
    if "kpt_shape" in config:
        raise DataError(f"{path}: labels with key points (kpt_shape) are not boxes: export the data for detection")
    keys = [key for key in ("train", "val", "valid", "test") if config.get(key)]
    chosen = [key for key in part if key in keys][:1] if part else keys
    if not chosen:
        raise DataError(
            f"{path}: no entry {' or '.join(part) or 'train'}: add it, a folder of pictures or a list of them"
        )
    pictures = []
    for key in chosen:
        entries = config[key] if isinstance(config[key], list) else [config[key]]
        for entry in entries:
            pictures += _pictures(path, config.get("path"), key, entry)
    return read_yolo_pictures(str(path), pictures, _yaml_names(path, config), classes, bad_boxes)


def _yaml_names(path: Path, config: dict[str, Any]) -> tuple[str, ...]:
    names = config.get("names") or [str(index) for index in range(int(config.get("nc", 0)))]
    if isinstance(names, dict):
        if set(names) != {str(index) for index in range(len(names))}:
            raise DataError(f"{path}: the keys of names must be 0 to {len(names) - 1}")
        names = [names[str(index)] for index in range(len(names))]
    if not names or ("nc" in config and config["nc"] != str(len(names))):
        raise DataError(f"{path}: nc is {config.get('nc')}, but there are {len(names)} names: correct one of them")
    return tuple(names)


def _pictures(path: Path, root: str | None, key: str, entry: str) -> list[str]:
    """The pictures of one entry: a folder, a list of pictures, or one picture. Exports of labelling services say
    `../train/images` where `train/images` is meant."""
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
        names = pictures_under(str(place))
        if not names:
            raise DataError(f"{path}: {key}: no pictures in {place}: correct the entry")
        return [os.path.join(place, name) for name in names]
    if place.suffix.lower() != ".txt":
        return [str(place)]
    found = []
    for line in (line.strip() for _, line in text_lines(str(place))):
        if line:
            here, there = os.path.join(place.parent, line), os.path.join(bases[0], line)
            found.append(there if not os.path.exists(here) and os.path.exists(there) else here)
    return found


def read_yolo_folder(
    folder: Path, part: tuple[str, ...], names: Classes, classes: Classes, bad_boxes: str
) -> Annotations:
    """A folder with images/ (perhaps with train/ and val/ inside) and labels/, or with both kinds of files together."""
    top = folder / "images" if (folder / "images").is_dir() else folder
    place = next((top / name for name in part if (top / name).is_dir()), top)
    pictures = [os.path.join(place, name) for name in pictures_under(str(place))]
    return read_yolo_pictures(str(folder), pictures, names, classes, bad_boxes)


def is_in_labels(picture: str) -> bool:
    """Whether the picture, in images/, has its labels in labels/."""
    path = label_file(picture)
    return os.path.dirname(path) != os.path.dirname(picture) and os.path.exists(path)


def label_file(picture: str) -> str:
    """Where the labels of a picture are: in labels/ where the path says images/, or else beside the picture."""
    stem = os.path.splitext(picture)[0]
    parts = stem.replace(os.sep, "/").split("/")
    if "images" in parts[:-1]:
        last = len(parts) - 2 - parts[-2::-1].index("images")
        path = "/".join([*parts[:last], "labels", *parts[last + 1 :]]) + ".txt"
        if os.path.exists(path) or not os.path.exists(f"{stem}.txt"):
            return path
    return f"{stem}.txt"


def read_yolo_pictures(
    source: str, pictures: list[str], names: Classes, classes: Classes, bad_boxes: str
) -> Annotations:
    """`pictures` with their label files; names None: the labels count in `classes`. A picture without a label file is a
    background, but all of them without one are a DataError. Sizes come from a scan; a picture that has none (it cannot
    be read) is kept without boxes, for `images.prepare` to deal with."""
    if names is None and classes is None:
        raise DataError(f"{source}: no names of the classes: write classes.txt beside it, or give classes=FILE")
    labels = [label_file(picture) for picture in pictures]
    if not any(os.path.exists(path) for path in labels):
        looked = f", for example {labels[0]}" if labels else ""
        raise DataError(
            f"{source}: no label file for any of {len(pictures)} pictures{looked}: put labels/ beside images/"
        )
    pack = Packer(source, "", names, classes)
    for picture, path, (height, width) in zip(pictures, labels, scan(pictures).sizes.tolist(), strict=True):
        known = os.path.exists(path)
        pack.picture(picture, file=path if known else picture, size=(height, width))
        for number, line in text_lines(path) if known and width else ():
            if line.strip():
                try:
                    pack.box(*_label(line, width, height))
                except ValueError as error:
                    pack.complain(f"{path}:{number}", error)
    return pack.finish(bad_boxes)


def _label(line: str, width: int, height: int) -> tuple[float, ...]:
    """-> x1, y1, x2, y2 in pixels, label."""
    try:
        label, *values = (float(word) for word in line.split())
    except ValueError as error:
        raise ValueError(f"{line.strip()[:60]!r} is not numbers: write class x y width height") from error
    if len(values) != 4 and (len(values) < 6 or len(values) % 2):
        raise ValueError(
            f"{1 + len(values)} numbers: write class x y width height, or class and the corners of a polygon"
        )
    if max(map(abs, values)) > 1.5:
        raise ValueError(f"{max(values, key=abs):g} is no fraction of the picture: divide by its width and height")
    if len(values) == 4:
        x, y, w, h = values
        xs, ys = (x - w / 2, x + w / 2), (y - h / 2, y + h / 2)
    else:
        xs, ys = values[::2], values[1::2]
    return min(xs) * width, min(ys) * height, max(xs) * width, max(ys) * height, label
