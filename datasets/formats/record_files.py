"""Reads JSON and JSON Lines with one record per image. The types of the records are in records.py."""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Raw, Struct

from datasets.errors import open_file
from datasets.formats import image_paths, listing
from datasets.formats.annotation_file import text_lines
from datasets.formats.file import File
from datasets.formats.named_boxes import Box, LabelFile, add_files, names_of, source_of
from datasets.formats.records import (
    CrowdHuman,
    Datumaro,
    Grounding,
    HuggingFace,
    Record,
    Scalabel,
    Supervisely,
    Ultralytics,
)
from datasets.formats.refusals import error_of_lines
from datasets.formats.source import Source
from datasets.formats.typed_json import BOM, parse
from datasets.store import Split
from utils.files import files_under
from utils.text import first_names

JSON_LINES = (".jsonl", ".ndjson", ".odgt", ".manifest")


def claims_lines(file: File) -> bool:
    """Returns whether a file holds JSON Lines."""
    return file.suffix in JSON_LINES


def read_lines(file: File, split: Split) -> Source:
    """Reads a file of JSON Lines, whose format is recognized by the first two lines. Raises DataError."""
    path = file.path
    lines = [(f"{path}:{number}", Raw(line.encode())) for number, line in text_lines(path) if line.strip()]
    head = b"".join(bytes(raw) for _, raw in lines[:2])
    kind, names, problems = _kind_of_lines(head), None, []
    if kind is None:
        raise error_of_lines(path, head)
    if kind is Ultralytics and lines:
        head = parse(lines.pop(0)[1], _Dataset, f"{path}:1", problems)
        names = head.class_names if head else {}
    return _source(path, kind, lines, split, names, problems)


class _Dataset(Struct, frozen=True):
    """The first line of Ultralytics' NDJSON."""

    class_names: dict[str, str]


def _kind_of_lines(head: bytes) -> type[Record] | None:
    """Returns the record type of JSON Lines that begin with `head`, None if no reader knows them."""
    kinds = {
        (b'"gtboxes"',): CrowdHuman,
        (b'"class_names"', b'"dataset"'): Ultralytics,
        (b'"detection"', b'"instances"'): Grounding,
        (b'"file_name"', b'"objects"'): HuggingFace,
    }
    return next((kind for words, kind in kinds.items() if all(word in head for word in words)), None)


def is_label_file(file: File, has_image: bool = False) -> bool:
    """Returns whether a file holds JSON Lines of a format that is read."""
    return claims_lines(file) and _kind_of_lines(b"".join(file.head.split(b"\n", 2)[:2])) is not None


def claims_scalabel(file: File) -> bool:
    """Returns whether a JSON file holds frames of Scalabel or BDD100K: a list, or an object with one."""
    if file.suffix != ".json" or isinstance(file.json, dict):
        return "frames" in file.keys
    return any(b'"box2d"' in bytes(row) for row in file.json)


def read_scalabel(file: File, split: Split) -> Source:
    """Reads a JSON file of Scalabel or BDD100K. Raises DataError."""
    source, frames, problems = file.path, file.json, []
    if isinstance(frames, dict):
        frames = parse(frames["frames"], list[Raw], f"{source}: frames", problems) or []
    places = [(f"{source}: [{index}]", raw) for index, raw in enumerate(frames)]
    return _source(source, Scalabel, places, (), None, problems)


class _Label(Struct, frozen=True):
    name: str


class _Labels(Struct, frozen=True):
    labels: list[_Label]


class _Categories(Struct, frozen=True):
    label: _Labels


def claims_datumaro(file: File) -> bool:
    """Returns whether a file is one of Datumaro."""
    return {"items", "categories"} <= file.keys


def read_datumaro(file: File, split: Split) -> Source:
    """Reads a JSON file of Datumaro. Raises DataError."""
    source, contents, problems = file.path, file.json, []
    categories = parse(contents["categories"], _Categories, f"{source}: categories", problems)
    names = {str(index): label.name for index, label in enumerate(categories.label.labels if categories else ())}
    rows = parse(contents["items"], list[Raw], f"{source}: items", problems) or []
    places = [(f"{source}: items[{index}]", raw) for index, raw in enumerate(rows)]
    return _source(source, Datumaro, places, (), names, problems)


def _source(
    source: str,
    kind: type[Record],
    rows: Iterable[tuple[str, Raw]],
    split: Split,
    names: dict[str, str] | None,
    problems: list[str],
) -> Source:
    """Returns the records in `rows` (place, JSON) that belong to a split. `names`: {number in the file: class name}."""
    records = [(place, record) for place, raw in rows if (record := parse(raw, kind, place, problems)) is not None]
    files = []
    for place, record in records:
        height, width = record.size()
        boxes = [box if names is None else _named(box, names) for box in record.boxes()]
        name = record.image()
        files.append(
            LabelFile(place, name, (int(height), int(width)), boxes, "" if name else "no image: export it again")
        )
    order = names_of(files) if names is None else tuple(names.values())  # of all splits, which have the same classes
    are_numbers = names is None and bool(order) and all(map(str.isdecimal, order))
    if are_numbers:
        order = tuple(sorted(order, key=int))
    words = [record.split_word() for _, record in records]
    places = [(file.image, file.path) for file in files]
    chosen, splits, notes = listing.select_rows(source, places, words, split, problems)
    found = source_of(source, [file for file in files if file.image in chosen], order)
    found.names_are_numbers = are_numbers
    found.problems = problems + found.problems
    found.notes = notes + found.notes
    listing.add_splits(found, source, splits, split)
    return found


def _named(box: Box, names: dict[str, str]) -> Box:
    """Returns a box whose name is a number in the file with the name of its class."""
    if box.problem or box.no_box:
        return box
    if box.name not in names:
        fix = "correct it, or add the name of the class"
        return box._replace(problem=f"class {box.name!r}, but the classes are {first_names(tuple(names))}: {fix}")
    return box._replace(name=names[box.name])


def read_supervisely(folder: Path, files: Sequence[str], split: Split, image_root: str | None) -> Source:
    """Reads a project of Supervisely: `files`, one JSON file per image, in folders named ann. Raises DataError."""
    problems: list[str] = []
    chosen = listing.select_split(folder, files, split)
    root = image_root or str(folder)
    index = image_paths.Stems(listing.images_of(files_under(root)))
    pairs = []
    for file in chosen:
        place, image = str(folder / file), os.path.splitext(file)[0]
        with open_file(place) as opened:
            raw = Raw(opened.read().removeprefix(BOM))
        record = parse(raw, Supervisely, place, problems) or Supervisely(objects=[])
        images = index.all_nearest(image, image.rpartition("/")[2])
        problems += image_paths.doubts(place, root, images)
        images.append(re.sub("(^|/)ann/", r"\1img/", image))  # where it should be
        pairs.append((images[0], LabelFile(place, image, boxes=list(record.boxes()))))
    source = Source(str(folder), root, names_of(file for _, file in pairs), problems=problems)
    add_files(source, pairs)
    source.label_files += [str(folder / file) for file in files]
    listing.add_notes(source, folder, files, split)
    return source


def is_supervisely(file: str) -> bool:
    """Returns whether a file has the name of an annotation of Supervisely, such as ds0/ann/a.jpg.json."""
    return re.search(r"(^|/)ann/[^/]+\.json$", file, re.IGNORECASE) is not None
