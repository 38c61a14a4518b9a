"""The annotation file.

A line is `path x1,y1,x2,y2,class x1,y1,x2,y2,class,crowd ...` in pixels of the picture as one sees it (after EXIF); a
relative path is relative to the file; a picture without boxes is a background.
"""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from datasets.store import Annotations, DataError, Packer, check_path

__all__ = ["Annotations", "DataError", "Sample", "annotation_line", "read_annotation_file"]

PICTURE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".jp2", ".ppm", ".pgm")

_BEHIND_A_PICTURE = re.compile(r"\.(?:" + "|".join(s[1:] for s in PICTURE_SUFFIXES) + r")\s+(.*)", re.IGNORECASE)


class Sample(NamedTuple):
    """A picture with its boxes."""

    image: np.ndarray  # uint8 [H, W, 3] BGR
    boxes: np.ndarray  # float32 [n, 4] xyxy, pixels of the picture
    labels: np.ndarray  # int64 [n]


def text_lines(path: str) -> Iterator[tuple[int, str]]:
    """-> (number from 1, line) of a UTF-8 text, with or without a byte order mark."""
    with open(path, "rb") as file:
        for number, raw in enumerate(file, 1):
            try:
                yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise DataError(f"{path}:{number}: not UTF-8 text: save the file as UTF-8") from error


def read_json(path: str) -> Any:
    """The contents of a JSON file. Raises DataError naming file and line."""
    try:
        return json.loads(Path(path).read_bytes().decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text: save the file as UTF-8") from error
    except json.JSONDecodeError as error:
        raise DataError(f"{path}:{error.lineno}: not JSON ({error.msg}): export the file again") from error


def split_line(line: str) -> tuple[str, list[str]]:
    """`"my cat.jpg 1,2,3,4,0 5,6,7,8,1"` -> `("my cat.jpg", ["1,2,3,4,0", "5,6,7,8,1"])`."""
    tokens = line.split()
    count = len(tokens)
    while count and tokens[count - 1].count(",") >= 3 and not tokens[count - 1].lower().endswith(PICTURE_SUFFIXES):
        count -= 1
    if count < 2:
        return check_path("".join(tokens[:count])), tokens[count:]
    name = line.strip().rsplit(None, len(tokens) - count)[0]
    stray = _BEHIND_A_PICTURE.search(name)
    if stray and not name.lower().endswith(PICTURE_SUFFIXES):
        raise ValueError(f"{stray[1]!r} is not boxes: write x1,y1,x2,y2,class without blanks inside a box")
    return check_path(name), tokens[count:]


def read_annotation_file(
    path: str,
    classes: tuple[str, ...] | None = None,
    bad_boxes: str = "error",
    names: tuple[str, ...] | None = None,
) -> Annotations:
    """Reads an annotation file. `names` are the names of its own ids (a classes.txt beside it); without them the ids
    count in `classes`, and without these the names are "0", "1", ... Raises DataError naming file and line."""
    pack = Packer(path, os.path.dirname(path), names, classes)
    if names is not None:
        pack.names_from = "classes.txt"
    for number, line in text_lines(path):
        try:
            name, tokens = split_line(line)
            if not name and not tokens:
                continue
            if not name:
                raise ValueError(f"no picture before the box {tokens[0]!r}: write path x1,y1,x2,y2,class ...")
        except ValueError as error:
            pack.complain(f"{path}:{number}", error)
            continue
        pack.picture(name, line=number)
        for token in tokens:
            try:
                pack.box(*_numbers(token))
            except ValueError as error:
                pack.complain(f"{path}:{number}", error)
    return pack.finish(bad_boxes)


def _numbers(token: str) -> list[float]:
    fields = token.split(",")
    try:
        if len(fields) in (5, 6):
            return [float(field) for field in fields]
    except ValueError:
        pass
    raise ValueError(f"box {token!r} must be five numbers x1,y1,x2,y2,class, and 0 or 1 for crowd as a sixth")


def annotation_line(path: str, boxes: np.ndarray, labels: np.ndarray, crowd: np.ndarray) -> str:
    """The line of a picture, without its end; boxes [n, 4] xyxy pixels. ValueError for a path that cannot come back."""
    if split_line(path) != (path, []):
        raise ValueError(f"the path {path!r} cannot stand in an annotation file: rename the picture")
    rows = zip(boxes.tolist(), labels.tolist(), crowd.tolist(), strict=True)
    words = [",".join([*(f"{v:.6f}".rstrip("0").rstrip(".") for v in b), str(n)] + ["1"] * c) for b, n, c in rows]
    return " ".join([path, *words])
