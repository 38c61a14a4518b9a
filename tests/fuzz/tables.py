"""Fuzzer of tables (CSV) with one box per line: with all columns, without a class, with extents, fractions and lists."""

import csv
import io
import os
import random
import re
from collections.abc import Sequence
from pathlib import Path

from datasets.formats.columns import NAMES
from datasets.formats.options import ReadOptions
from datasets.formats.read import read

from . import mutate
from .harness import Case, Failure, Fuzzer
from .samples import SIZES, Box, boxes_of, check_annotations, compare, image_files, lines_of

SIDES = ("x1", "y1", "x2", "y2")
HEADERS = (
    ("filename", "width", "height", "class", "xmin", "ymin", "xmax", "ymax"),
    ("filename", "width", "height", "class", "xmin", "ymin", "xmax", "ymax"),
    ("path", "x1", "y1", "x2", "y2", "class"),
    ("image_id", "width", "height", "bbox", "source"),
    ("image_name", "label_name", "bbox_x", "bbox_y", "bbox_width", "bbox_height"),
    ("ImageID", "Source", "LabelName", "XMin", "XMax", "YMin", "YMax", "IsGroupOf"),
    ("Upper Left Corner X", "Image Path", "Upper Left Corner Y", "Lower Right Corner X", "Lower Right Corner Y"),
)
SKU = ("image", "x1", "y1", "x2", "y2", "class", "width", "height")
MAKE_SENSE = ("class", "x", "y", "w", "h", "image", "width", "height")


def make(rng: random.Random) -> Case:
    header, delimiter = rng.random() < 0.7, rng.choice((",", ",", ";", "\t"))
    columns = rng.choice(HEADERS if header else (HEADERS[0], HEADERS[2], SKU, MAKE_SENSE))
    out = io.StringIO()
    table = csv.writer(out, delimiter=delimiter, lineterminator=rng.choice(("\n", "\r\n")))
    if header:
        table.writerow(columns)
    for name in SIZES:
        for box in boxes_of(rng, name) or [None] * (rng.random() < 0.5):
            table.writerow([_cell(rng, column, name, box) for column in columns])
    return {"boxes.csv": mutate.spoil(rng, mutate.data_of(out.getvalue())), **image_files()}


def _cell(rng: random.Random, column: str, name: str, box: Box | None) -> object:
    """Returns the value of a field; without a box the fields of the box are empty."""
    width, height = SIZES[name]
    is_fraction = column[:4] in ("XMin", "XMax", "YMin", "YMax")
    meaning = next((meaning for meaning, words in NAMES.items() if _normal(column) in words), "other")
    values: dict[str, object] = {"image": name, "w": width, "width": width, "height": height, "h": height, "other": "x"}
    if meaning in ("x1", "y1", "x2", "y2", "class", "bbox", "crowd") or column in ("bbox_width", "bbox_height"):
        values = {} if box is None else _of_box(rng, box, (width, height) if is_fraction else (1, 1))
    return values.get(meaning, "")


def _of_box(rng: random.Random, box: Box, size: tuple[int, int]) -> dict[str, object]:
    corners = dict(zip(SIDES, (value / side for value, side in zip(box[:4], size * 2, strict=True)), strict=True))
    w, h = box.x2 - box.x1, box.y2 - box.y1
    rest = {"class": box.name, "crowd": rng.choice((0, 0, 1)), "bbox": [box.x1, box.y1, w, h]}
    return {**corners, **rest, "w": w, "h": h}


def _normal(word: str) -> str:
    return "".join(word.lower().replace("_", " ").split())


def run(folder: Path) -> None:
    source = folder / "boxes.csv"
    found = read(str(source), "all", ReadOptions(bad_boxes="drop"))
    check_annotations(found)
    lines = lines_of(source)
    delimiter = max(",;\t", key=lines[0].count)
    table = [row for row in csv.reader([f"{line}\n" for line in lines], delimiter=delimiter) if any(row)]
    columns, is_header = _columns(table[0] if table else [])
    if is_header and "class" not in columns and not any("no column for the class" in note for note in found.notes):
        raise Failure("wrong", f"a table without a class is read as {found.classes}, with the notes {found.notes}")
    images: dict[str, list[Box]] = {}
    for row in table[is_header:]:
        fields = {name: row[index].strip() for name, index in columns.items()}
        boxes = images.setdefault(fields["image"], [])
        if any(fields.get(side) for side in (*SIDES, "w", "h", "bbox")):
            crowd = fields.get("crowd", "").lower() in ("1", "1.0", "true")
            boxes.append(Box(*_corners(fields), fields.get("class", "object"), crowd))
    values = [value for boxes in images.values() for box in boxes for value in box[:4]]
    if values and 0 <= min(values) < max(values) <= 1:
        paths = [found.path(index) for index in range(len(found))]
        if len(paths) < len(images):  # two names of one image, which are united
            return
        names = [os.path.basename(path) if os.path.exists(path) else "" for path in paths]
        pairs = zip(names, images.items(), strict=True)  # boxes of missing images are left out
        images = {name: _scaled(boxes, SIZES[file]) if file in SIZES else [] for file, (name, boxes) in pairs}
    compare(source, found, images.values(), 1e-4)


def _columns(row: Sequence[str]) -> tuple[dict[str, int], bool]:
    """Returns the positions of what is read, and whether `row` is a header."""
    words = [_normal(word) for word in row]
    at = {}
    for name, known in NAMES.items():
        there = [word for word in known if word in words]
        at |= {name: words.index(there[0])} if there else {}
    if sum(name in at for name in ("image", "class", "bbox", *SIDES)) >= 3 or "image" in at and "bbox" in at:
        extent, box = ("x1", "y1", "w", "h"), SIDES
        if "x2" not in at and "y2" not in at:
            box = extent if all(name in at for name in extent) else ("bbox",)
        return {name: at[name] for name in ("image", "class", "crowd", *box) if name in at}, True
    columns = HEADERS[2] if len(row) == 6 else HEADERS[0]
    if len(row) == 8 and words[5].endswith(".png") and not any(word.endswith(".png") for word in words[:5]):
        columns = MAKE_SENSE
    elif len(row) == 8 and _is_number(row[3]) and not _is_number(row[5]):
        columns = SKU
    names = {"filename": "image", "path": "image", "xmin": "x1", "ymin": "y1", "xmax": "x2", "ymax": "y2"}
    return {names.get(name, {"x": "x1", "y": "y1"}.get(name, name)): i for i, name in enumerate(columns)}, False


def _is_number(word: str) -> bool:
    try:
        return float(word) is not None
    except ValueError:
        return False


def _corners(fields: dict[str, str]) -> tuple[float, ...]:
    if "x2" in fields:
        return tuple(float(fields[side]) for side in SIDES)
    words = [fields[name] for name in ("x1", "y1", "w", "h")] if "w" in fields else []
    x, y, w, h, *more = map(float, words or re.sub(r"[\[\](),]", " ", fields["bbox"]).split())
    if more:
        points = [x, y, w, h, *more]
        return min(points[::2]), min(points[1::2]), max(points[::2]), max(points[1::2])
    return x, y, x + w, y + h


def _scaled(boxes: Sequence[Box], size: tuple[int, int]) -> list[Box]:
    return [Box(b.x1 * size[0], b.y1 * size[1], b.x2 * size[0], b.y2 * size[1], b.name, b.crowd) for b in boxes]


FUZZERS = (Fuzzer("csv", make, run),)
