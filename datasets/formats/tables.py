"""Tables (CSV) with one box per line -> Source."""

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from pathlib import Path

import numpy as np

from datasets.errors import DataError, open_file, raise_any
from datasets.formats.columns import CORNERS, ONE_CLASS, RENAME, SPLIT, Columns, columns_of, is_number
from datasets.formats.file import File, text_lines
from datasets.formats.named_boxes import Box, LabelFile, names_of, side, source_of
from datasets.formats.source import Source
from datasets.formats.splits import SPLITS, add_splits, select_rows, split_of, word_split
from datasets.scan import scan
from datasets.store import Annotations, Split
from utils.images import IMAGE_SUFFIXES
from utils.text import clean_name

VERIFIED = ("ImageID", "LabelName", "Confidence")  # columns of Open Images' verified labels
FLAGS = ("0", "1", "0.0", "1.0", "true", "false", "yes", "no")
ROUNDING = 1e-3  # a sum of rounded fractions, x + width, may be so much above 1


def read(file: File, split: Split) -> Source:
    """Reads a CSV file with one box per line, with or without a header. Raises DataError.

    A line with empty fields instead of a box makes its image a background, unless other lines have boxes of it."""
    path = file.path
    lines = _rows(path)
    number, first = next(lines, (0, []))
    columns = columns_of(f"{path}:{number}", first)
    if columns.classes:
        columns = _with_class(path, columns)
    problems: list[str] = []
    images: dict[str, LabelFile] = {}
    others = set(columns.others)  # those with numbers in all rows
    of_splits = dict(columns.unread)  # those with names of splits in all rows
    flags = {name: index for name, index in of_splits.items() if split_of(name)}  # is_train, with 0 or 1 in all rows
    marks: list[tuple[str, str, list[str]]] = []  # image, place, and words of the columns that may have the split
    if not columns.is_header:
        lines = chain([(number, first)], lines)
    for number, row in lines:
        if problem := _misfit(row, max(columns.at.values()) + 1, len(first)):
            problems.append(f"{path}:{number}: {len(row)} fields: {problem}")
            continue
        fields = columns.fields(row)
        labels = images.get(fields["image"])
        if labels is None:
            size = side(fields.get("height", "")), side(fields.get("width", ""))
            labels = images[fields["image"]] = LabelFile("", fields["image"], size, [], line=number)
        if not fields["image"]:
            problems.append(f"{path}:{number}: no image: write its path, or remove the line")
        marks.append((fields["image"], f"{path}:{number}", columns.split_words(row)))
        of_splits = {
            name: index for name, index in of_splits.items() if index < len(row) and word_split(row[index]) in SPLITS
        }
        flags = {
            name: index for name, index in flags.items() if index < len(row) and row[index].strip().lower() in FLAGS
        }
        if any(fields[name] for name in columns.box):
            labels.boxes.append(_box(columns, row, fields, path, number))
            others = {index for index in others if index < len(row) and is_number(row[index])}
    files = list(images.values())
    names = _names_of_codes(path, files)
    if names:
        files = _with_names(files, names)
    if _are_fractions(path, [box for labels in files for box in labels.boxes if box.corners]):
        files = [labels._replace(fractions=True) for labels in files]
    source = _of_split(path, files, marks, list(columns.splits), split, problems)
    fix = "multiply them by its width and height, or give image_root=FOLDER with the images"
    source.sizes_problem = f"the boxes are fractions of the image: {fix}"
    if names is not None:
        _add_verified(source, names)
    if columns.maybe_image_size:
        source.check = partial(_refuse_sizes_of_images, has_others=len(others) > 1)
    for name in of_splits if marks else ():
        source.notes.append(f"{path}: the column {name!r} holds names of splits and is not read: rename it to split")
    for name in flags if marks else ():
        fix = "write train, val or test into a column named split instead"
        source.notes.append(f"{path}: the column {name!r} may tell the split and is not read: {fix}")
    if columns.note:
        source.notes.insert(0, f"{path}: {columns.note}")
    return source


def _with_class(path: str, columns: Columns) -> Columns:
    """Returns the columns with the one that has the class, of several whose names fit: the only one that is not numbers, or
    the first one if each value of it goes with one value of the others. Raises DataError if either may be the class."""
    pairs: dict[str, set[tuple[str, ...]]] = {name: set() for name in columns.classes}
    places = list(columns.classes.values())
    for _, row in islice(_rows(path), 1, None):
        words = tuple(row[index].strip() if index < len(row) else "" for index in places)
        for name, word in zip(pairs, words, strict=True):
            pairs[name].add((word, *words))
    counts = {len({value for value, *_ in found}) for found in pairs.values()} | {
        len(found) for found in pairs.values()
    }
    texts = [name for name, found in pairs.items() if not all(is_number(value) for value, *_ in found if value)]
    names = texts if len(texts) == 1 else list(pairs) if len(counts) == 1 else []
    if not names:
        shown = " or ".join(
            f"{name} ({', '.join(sorted({value for value, *_ in found})[:3])})" for name, found in pairs.items()
        )
        raise DataError(
            f"{path}:1: the class may be in the columns {shown}: remove or rename those that are not the class"
        )
    others = ", ".join(name for name in pairs if name != names[0])
    note = f"the class is in the column {names[0]}; not read: {others}"
    at = columns.at | {"class": columns.classes[names[0]]}
    return columns._replace(at=at, note="; ".join(filter(None, [columns.note, note])))


def _of_split(
    path: str,
    files: Sequence[LabelFile],
    marks: Sequence[tuple[str, str, list[str]]],
    columns: Sequence[str],
    split: Split,
    problems: list[str],
) -> Source:
    """Returns the images of a split with the classes of all splits. Raises DataError.

    `marks`: image, place and words of each row in the `columns` that may have the split. A column of another name than split
    counts if one of its words is a split."""
    every = [{words[index] for *_, words in marks} for index in range(len(columns))]
    known = (index for index, name in enumerate(columns) if name == SPLIT or every[index] & set(SPLITS))
    column = next(known, None)
    words = ["" if column is None else row[column] for *_, row in marks]
    places = [(image, place) for image, place, _ in marks]
    chosen, splits, notes = select_rows(path, places, words, split, problems)
    source = source_of(path, [file for file in files if file.image in chosen], names_of(files))
    add_splits(source, path, splits, split)
    source.notes += notes
    source.problems = problems + source.problems
    return source


def _misfit(row: list[str], least: int, most: int) -> str:
    """Returns what is wrong with the number of fields in a row, and the fix; "" if it fits. Empty fields at its end fit."""
    if len(row) < least:
        return f"a line needs {least}; add what is missing, or remove the line"
    if any(word.strip() for word in row[most:]):
        return f"the first line has {most}; put a name with a comma in quotes, or remove what is too much"
    return ""


def is_table(file: File) -> bool:
    """Returns whether a file is a table with boxes, not one of class names or of predictions.

    A table whose header is not known counts if its next row has an image and the numbers of a box."""
    with suppress(DataError):
        rows = _rows(file.path)
        try:
            number, first = next(rows, (0, []))
            columns_of(f"{file.path}:{number}", first)
            return True
        except DataError:
            _, words = next(rows, (0, []))
            has_image = any(word.strip().lower().endswith(IMAGE_SUFFIXES) for word in words)
            return has_image and sum(map(is_number, words)) >= len(CORNERS)
    return False


def image_names(path: str) -> set[str]:
    """Returns the names of the images in a table. Raises DataError."""
    lines = _rows(path)
    number, first = next(lines, (0, []))
    columns = columns_of(f"{path}:{number}", first)
    at = columns.at["image"]
    every = lines if columns.is_header else chain([(number, first)], lines)
    return {row[at].strip() for _, row in every if len(row) > at}


def _refuse_sizes_of_images(found: Annotations, has_others: bool) -> None:
    """Raises DataError if the boxes are all as large as their images, but do not all start at the corner of the image.

    With `has_others`, the size of the boxes may be in other columns. Then it does not matter where they start."""
    labeled = np.flatnonzero(np.diff(found.starts))
    sides = []
    for index in labeled:
        boxes = found.boxes_of(index)[0]
        sides.append({tuple(size) for size in np.round(boxes[:, [3, 2]] - boxes[:, [1, 0]], 3).tolist()})
    moved = bool(found.boxes[:, :2].any())
    if not (moved or has_others) or any(len(different) > 1 for different in sides):
        return
    sizes = scan([found.path(index) for index in labeled]).sizes.tolist()
    known = [(size, different) for size, different in zip(sizes, sides, strict=True) if all(size)]
    if known and all(tuple(size) in different for size, different in known):
        raise DataError(
            f"{found.source}: the columns width and height are the sizes of the images, not of the boxes: {RENAME}"
        )


def _are_fractions(path: str, boxes: list[Box]) -> bool:
    """Returns whether boxes are fractions of the image. Raises DataError with the lines of those that are not, if most are."""
    inside = [all(-ROUNDING <= value <= 1 + ROUNDING for value in box.corners) for box in boxes]
    parts = [any(0 < value < 1 for value in box.corners) for box in boxes]
    if all(inside):
        return any(any(box.corners) for box in boxes)
    values = [value for box in boxes for value in box.corners]
    few = sum(not 0 <= value <= 1 for value in values) <= 0.1 * len(values)
    some_in_pixels = any(min(box.corners[2:]) > 2 for box in boxes)  # one wrong value makes no box of pixels
    if 2 * sum(map(all, zip(inside, parts, strict=True))) < len(boxes) or (some_in_pixels and not few):
        return False  # boxes in pixels, of which hardly any lies within the first pixel of the image
    problem = "is not in fractions of the image, as most of the boxes are: correct it, or remove the line"
    wrong = [box for box, fits in zip(boxes, inside, strict=True) if not fits]
    problems = [f"{box.place}: box {','.join(f'{value:g}' for value in box.corners)} {problem}" for box in wrong]
    raise_any(f"{path}: problems: {len(problems)}", problems)
    return False


def _names_of_codes(path: str, files: Sequence[LabelFile]) -> dict[str, str] | None:
    """Returns the class names of Open Images, whose boxes have codes such as /m/01yrx; None for other tables."""
    if not any(box.name.startswith("/m/") for file in files[:100] for box in file.boxes):
        return None
    lists = sorted(Path(path).parent.glob("*class-descriptions*.[cC][sS][vV]"))
    return {row[0]: row[1] for text in lists for _, row in _rows(str(text)) if len(row) == 2}


def _with_names(files: Iterable[LabelFile], names: Mapping[str, str]) -> list[LabelFile]:
    return [
        file._replace(boxes=[box._replace(name=names.get(box.name, box.name)) for box in file.boxes]) for file in files
    ]


def _add_verified(source: Source, names: Mapping[str, str]) -> None:
    """Adds the classes of which people verified for Open Images that an image has none, if their files are next to the table.

    These and the classes with boxes were looked for. Of a class that is only verified to be there, there may be no boxes."""
    lists = sorted(Path(source.path).parent.glob("*human-imagelabels*.[cC][sS][vV]"))
    if not lists:
        return
    labels = {name: label for label, name in enumerate(source.names)}
    source.annotated = {index: [] for index in range(len(source))}
    images, are_there = {name: index for index, name in enumerate(source.images)}, False
    for path in map(str, lists):
        rows = _rows(path)
        _, header = next(rows, (1, []))
        if missing := [name for name in VERIFIED if name not in header]:
            raise DataError(f"{path}:1: no column {', '.join(missing)}: download the file again, or move it away")
        image, code, confidence = map(header.index, VERIFIED)
        for number, row in rows:
            if len(row) < len(header) or not is_number(row[confidence]):
                raise DataError(
                    f"{path}:{number}: a column is missing, or its Confidence is no number: correct the line"
                )
            label = labels.get(clean_name(names.get(row[code], row[code])))
            are_there = are_there or row[image] in images
            if row[image] in images and label is not None and float(row[confidence]) == 0:
                source.annotated[images[row[image]]].append(label)
    shown = ", ".join(path.name for path in lists)
    if not are_there:
        fix = "download the list of its split, or move the list away"
        raise DataError(f"{source.path}: {shown} has no line about an image of this table: {fix}")
    source.notes.append(f"{source.path}: the classes that were verified for each image are read from {shown}")


def _rows(path: str) -> Iterator[tuple[int, list[str]]]:
    """Yields (line number, fields) of the lines that are not blank; fields end at commas, semicolons or tabs."""
    with open_file(path) as file:
        start = file.readline(100_000)
    delimiter = max((b",", b";", b"\t"), key=start.count).decode()
    reader = csv.reader((f"{line}\n" for _, line in text_lines(path)), delimiter=delimiter)
    try:
        yield from ((reader.line_num, row) for row in reader if any(row))
    except csv.Error as error:
        raise DataError(f"{path}:{reader.line_num}: not CSV ({error}): export the table again") from error


def _box(columns: Columns, row: Sequence[str], fields: dict[str, str], path: str, line: int) -> Box:
    place, name = f"{path}:{line}", fields.get("class", ONE_CLASS)
    try:
        return Box(
            name, columns.corners(fields), columns.is_crowd(fields), columns.angle_problem(row), place=place, line=line
        )
    except ValueError as error:
        return Box(name, (), problem=str(error), place=place)
