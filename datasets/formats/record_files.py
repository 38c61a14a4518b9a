"""Reads JSON and JSON Lines with one record per image. The types of the records are in records.py."""

import os
import re
from collections.abc import Iterable

from msgspec import Raw, Struct

from datasets.errors import open_file
from datasets.formats import image_paths
from datasets.formats.file import File, Folder, text_lines
from datasets.formats.named_boxes import Box, LabelFile, add_files, names_of, source_of
from datasets.formats.records import (
    Datumaro,
    Record,
    Scalabel,
    Supervisely,
    Ultralytics,
)
from datasets.formats.source import Source
from datasets.formats.splits import add_notes, add_splits, select_images, select_rows, select_split
from datasets.formats.typed_json import BOM, parse
from datasets.store import Split
from utils.text import first_names

IN_ANN = re.compile(r"(^|/)ann/[^/]+$", re.IGNORECASE)


def read_lines(kind: type[Record], file: File, split: Split) -> Source:
    """Reads a file of JSON Lines, whose records are of one kind. Raises DataError."""
    return _source(file.path, kind, _lines(file.path), split, None, [])


class _Dataset(Struct, frozen=True):
    """The first line of Ultralytics' NDJSON."""

    class_names: dict[str, str]


def read_ultralytics(file: File, split: Split) -> Source:
    """Reads NDJSON of Ultralytics, which begins with the names of its classes. Raises DataError."""
    (place, raw), *lines = _lines(file.path)
    problems: list[str] = []
    head = parse(raw, _Dataset, place, problems)
    return _source(file.path, Ultralytics, lines, split, head.class_names if head else {}, problems)


def _lines(path: str) -> list[tuple[str, Raw]]:
    """Returns (place, JSON) of the lines that are not blank."""
    return [(f"{path}:{number}", Raw(line.encode())) for number, line in text_lines(path) if line.strip()]


def is_scalabel(file: File) -> bool:
    """Returns whether a JSON file holds frames of Scalabel or BDD100K: a list, or an object with one."""
    return not {"frames", "[].labels.box2d"}.isdisjoint(file.keys) or {"[].name", "[].labels"} <= file.keys


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
    chosen, splits, notes = select_rows(source, places, words, split, problems)
    found = source_of(source, [file for file in files if file.image in chosen], order)
    found.names_are_numbers = are_numbers
    found.problems = problems + found.problems
    found.notes = notes + found.notes
    add_splits(found, source, splits, split)
    return found


def _named(box: Box, names: dict[str, str]) -> Box:
    """Returns a box whose name is a number in the file with the name of its class."""
    if box.problem or box.no_box:
        return box
    if box.name not in names:
        fix = "correct it, or add the name of the class"
        return box._replace(problem=f"class {box.name!r}, but the classes are {first_names(tuple(names))}: {fix}")
    return box._replace(name=names[box.name])


def is_supervisely(file: File) -> bool:
    """Returns whether a JSON file holds the objects of one image as Supervisely writes them, or none."""
    below = [key for key in file.keys if key.startswith("objects.")]
    return "objects.classTitle" in file.keys or ("objects" in file.keys and not below)


def read_supervisely(folder: Folder, names: Iterable[str]) -> list[Source]:
    """Reads a project of Supervisely: one JSON file per image, in folders named ann, or anywhere. Raises DataError."""
    problems: list[str] = []
    names = list(names)
    files = [name for name in names if IN_ANN.search(name)] or names  # others may be old versions
    index = image_paths.Stems(folder.images)
    pairs, words = [], []
    for file in select_split(folder.path, files, folder.split):
        place, image = str(folder.path / file), os.path.splitext(file)[0]
        with open_file(place) as opened:
            raw = Raw(opened.read().removeprefix(BOM))
        record = parse(raw, Supervisely, place, problems) or Supervisely(objects=[])
        images = index.all_nearest(image, image.rpartition("/")[2])
        problems += image_paths.doubts(place, folder.image_folder, images)
        images.append(re.sub("(^|/)ann/", r"\1img/", image))  # where it should be
        pairs.append((images[0], LabelFile(place, image, boxes=list(record.boxes()))))
        words.append(record.split_word())
    source = Source(str(folder.path), folder.image_folder, names_of(file for _, file in pairs), problems=problems)
    chosen = select_images(source, [file.path for _, file in pairs], words, folder.split)
    add_files(source, ((image, file) for image, file in pairs if file.path in chosen))
    source.label_files += [str(folder.path / file) for file in files]
    add_notes(source, folder.path, files, folder.split)
    return [source]
