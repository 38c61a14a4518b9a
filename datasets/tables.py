"""Tables (CSV) with one box per line -> Annotations."""

import csv
from collections.abc import Iterator, Mapping

from datasets.annotations import text_lines
from datasets.errors import DataError
from datasets.named_boxes import Box, LabelFile, pack_source, side
from datasets.store import Annotations, Classes

CORNERS = ("x1", "y1", "x2", "y2")
NAMES = {  # of the columns in headers, without case, blanks and "_"
    "image": ("filename", "file", "path", "filepath", "image", "imagename", "imagepath", "imageid", "img", "imgpath"),
    "class": ("class", "label", "classname", "labelname", "category", "name", "categoryname"),
    "x1": ("x1", "xmin", "left", "bboxxmin"),
    "y1": ("y1", "ymin", "top", "bboxymin"),
    "x2": ("x2", "xmax", "right", "bboxxmax"),
    "y2": ("y2", "ymax", "bottom", "bboxymax"),
    "width": ("width", "imagewidth", "imgwidth"),
    "height": ("height", "imageheight", "imgheight"),
}
ORDERS = {  # of the columns without a header
    6: ("image", *CORNERS, "class"),
    8: ("image", "width", "height", "class", *CORNERS),
}
FORMS = "filename,width,height,class,xmin,ymin,xmax,ymax or path,x1,y1,x2,y2,class"


def read_table(path: str, classes: Classes, image_root: str | None, bad_boxes: str) -> Annotations:
    """Reads a CSV file with one box per line, with or without a header. Raises DataError.

    A line with empty fields instead of a box makes its image a background, unless other lines have boxes of it."""
    lines = _rows(path)
    number, first = next(lines, (0, []))
    columns = _header(path, first)
    if columns is None:
        columns = dict(zip(ORDERS.get(len(first), ()), range(len(first)), strict=False))
        if not columns:
            raise DataError(f"{path}:{number}: {len(first)} columns without a known header: write {FORMS}")
        lines = _with_first((number, first), lines)
    problems: list[str] = []
    images: dict[str, LabelFile] = {}
    for number, row in lines:
        if len(row) <= max(columns.values()):
            problem = f"{len(row)} fields: a line needs {max(columns.values()) + 1}"
            problems.append(f"{path}:{number}: {problem}; add what is missing, or remove the line")
            continue
        fields = {name: row[index].strip() for name, index in columns.items()}
        file = images.get(fields["image"])
        if file is None:
            size = side(fields.get("height", "")), side(fields.get("width", ""))
            file = images[fields["image"]] = LabelFile("", fields["image"], size, [], line=number)
        if not fields["image"]:
            problems.append(f"{path}:{number}: no image: write its path, or remove the line")
        if any(fields[name] for name in (*CORNERS, "class")):
            file.boxes.append(_box(fields, f"{path}:{number}"))
    corners = [value for file in images.values() for box in file.boxes for value in box.corners]
    if corners and 0 <= min(corners) < max(corners) <= 1:
        raise DataError(f"{path}: the boxes are fractions of the image: multiply them by its width and height")
    return pack_source(path, list(images.values()), classes, image_root, bad_boxes, problems=problems)


def _with_first(first: tuple, others: Iterator[tuple]) -> Iterator[tuple]:
    yield first
    yield from others


def _rows(path: str) -> Iterator[tuple[int, list[str]]]:
    """Yields (line number, fields) of the lines that are not blank; fields end at commas, semicolons or tabs."""
    with open(path, "rb") as file:
        start = file.readline(100_000)
    delimiter = max((b",", b";", b"\t"), key=start.count).decode()
    reader = csv.reader((line for _, line in text_lines(path)), delimiter=delimiter)
    try:
        yield from ((reader.line_num, row) for row in reader if any(row))
    except csv.Error as error:
        raise DataError(f"{path}:{reader.line_num}: not CSV ({error}): export the table again") from error


def _header(path: str, row: list[str]) -> dict[str, int] | None:
    """Returns {column: its position} of a header, None for a row of values. Raises DataError if a column is missing."""
    words = ["".join(word.lower().replace("_", " ").split()) for word in row]
    found = {name: next((words.index(word) for word in known if word in words), -1) for name, known in NAMES.items()}
    missing = [name for name in ("image", "class", *CORNERS) if found[name] < 0]
    if len(missing) > 3:
        return None
    if missing:
        raise DataError(f"{path}:1: the header has no column for {', '.join(missing)}: write {FORMS}")
    return {name: index for name, index in found.items() if index >= 0}


def _box(fields: Mapping[str, str], place: str) -> Box:
    try:
        return Box(fields["class"], tuple(float(fields[name]) for name in CORNERS), place=place)
    except ValueError:
        values = ",".join(fields[name] for name in CORNERS)
        return Box(fields["class"], (), problem=f"{values!r} is not a box: write x1,y1,x2,y2 as numbers", place=place)
