"""Tables (CSV) with one box per line -> Source. A box is always its corners; those of Open Images are fractions."""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from datasets.errors import DataError, one_line, open_file
from datasets.formats.file import File, text_lines
from datasets.formats.source import FIELDS, Box, LabelFile, Source, angle_problem, crowd_of, is_mark, names_of, side
from datasets.formats.splits import SPLITS, source_of_split, word_split
from datasets.store import Split
from utils.images import IMAGE_SUFFIXES
from utils.text import clean_name, number_of

CORNERS = ("x1", "y1", "x2", "y2")
NO_HEADER = ("image", *CORNERS, "class")  # the columns of a table without a header
FORMS = "filename,width,height,class,xmin,ymin,xmax,ymax or path,x1,y1,x2,y2,class"
NAMES = {  # field -> the names of its column in a header, in lower case
    "image": ("filename", "path", "image", "imageid"),
    "class": ("class", "label", "labelname"),
    "x1": ("xmin", "x1"),
    "y1": ("ymin", "y1"),
    "x2": ("xmax", "x2"),
    "y2": ("ymax", "y2"),
}
OPTIONAL = {
    "width": ("width",),
    "height": ("height",),
    "split": ("split",),
    "other_split": ("set", "subset", "partition", "usage"),  # counts if it names splits and there is no column split
}  # of the image
VERIFIED = ("ImageID", "LabelName", "Confidence")  # columns of Open Images' verified labels
ROUNDING = 1e-3  # of fractions


class Columns(NamedTuple):
    """The positions of the fields in a row."""

    at: dict[str, int]  # field -> position
    width: int  # the number of all columns
    is_header: bool = False  # the first row is no data
    is_open_images: bool = False
    angles: Mapping[str, int] = {}  # name -> position of columns with an angle of the box
    marks: Mapping[str, int] = {}  # and of those that may make it a crowd region
    unread: tuple[str, ...] = ()  # names of the other columns

    def fields(self, row: Sequence[str]) -> dict[str, str]:
        """Returns {field: text} of a row; "" for a field that is missing at its end."""
        return {name: row[index].strip() if index < len(row) else "" for name, index in self.at.items()}

    def misfit(self, row: Sequence[str]) -> str:
        """Returns what is wrong with the number of fields in a row, and the fix; "" if it fits."""
        needed = max(self.at[name] for name in NAMES) + 1
        if len(row) < needed:
            return f"{len(row)} fields: a line needs {needed}; add what is missing, or remove the line"
        if any(word.strip() for word in row[self.width :]):
            fix = "put a name with a comma in quotes, or remove what is too much"
            return f"{len(row)} fields: the first line has {self.width}; {fix}"
        return ""


def columns_of(place: str, row: Sequence[str]) -> Columns:
    """Returns the columns of a table by its first row. Raises DataError, which starts with `place`, with the header to write."""
    words = [word.strip().lower() for word in row]
    found = {name: [i for i, word in enumerate(words) if word in known] for name, known in (NAMES | OPTIONAL).items()}
    missing = [name for name in NAMES if not found[name]]
    if len(missing) > len(NAMES) // 2 and _is_data(row):
        return Columns({name: index for index, name in enumerate(NO_HEADER)}, len(row))
    if missing:
        raise DataError(f"{place}: {_no_columns(row, missing)}")
    if twice := [row[index] for indices in found.values() if len(indices) > 1 for index in indices]:
        raise DataError(
            f"{place}: columns of the same meaning, {', '.join(twice)}: remove those that are not the labels"
        )
    at = {name: indices[0] for name, indices in found.items() if indices}
    read = set(at.values())
    if more := [row[i] for i, word in enumerate(words) if i not in read and re.fullmatch(r"[xy]\d+", word)]:
        raise DataError(f"{place}: more corners than those of a box, {', '.join(more)}: write {FORMS}")
    angles = {row[i].strip(): i for i, word in enumerate(words) if not set(FIELDS).isdisjoint(re.split("[ _]", word))}
    is_open_images = {"imageid", "labelname"} <= set(words)  # which has many more columns
    marks = {row[i].strip(): i for i, word in enumerate(words) if is_mark(word)}
    read |= {*angles.values(), *marks.values()}
    unread = () if is_open_images else tuple(word for i, word in enumerate(row) if i not in read)
    return Columns(at, len(row), True, is_open_images, angles, marks, unread)


def _no_columns(row: Sequence[str], missing: Sequence[str]) -> str:
    """Returns what is wrong with a first row that lacks the columns `missing`, and the fix."""
    there = one_line(",".join(row)[:200])
    problem = f"{len(row)} columns ({there}), but none for {', '.join(missing)}"
    boxes = next((word.strip() for word in row if "box" in word.lower()), "")
    if _has_image(row) or sum(map(_is_number, row)) >= len(CORNERS):
        problem = f"{len(row)} fields with data ({there}), but no names of columns above them"
    elif set(CORNERS) <= set(missing) and {"x", "left"}.isdisjoint(row):
        problem += f", which {boxes} holds as one text" if boxes else "; classes of whole images are not read"
    return f"{problem}: write {FORMS}"


def _has_image(row: Sequence[str]) -> bool:
    return any(word.strip().lower().endswith(IMAGE_SUFFIXES) for word in row)


def _is_data(row: Sequence[str]) -> bool:
    """Returns whether the first row of a table is a box, and not a header: it has an image or a number where they should be."""
    if len(row) != len(NO_HEADER):
        return False
    box = [word.strip() for word in row[1:5]]
    return row[0].strip().lower().endswith(IMAGE_SUFFIXES) or not any(box) or any(map(_is_number, box))


def _is_number(word: str) -> bool:
    try:
        number_of(word)
    except ValueError:
        return False
    return True


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
            return _has_image(words) and sum(map(_is_number, words)) >= len(CORNERS)
    return False


def read(file: File, split: Split) -> Source:
    """Reads a CSV file with one box per line, with or without a header. Raises DataError.

    A line with empty fields instead of a box makes its image a background, unless other lines have boxes of it."""
    path = file.path
    columns, lines = _open(path)
    names = _open_images_names(path) if columns.is_open_images else {}
    problems: list[str] = []
    images: dict[str, LabelFile] = {}
    boxes: dict[str, list[Box]] = {}
    places, words, others = [], [], []  # image and place, and split, of each row
    for number, row in lines:
        place = f"{path}:{number}"
        if problem := columns.misfit(row):
            problems.append(f"{place}: {problem}")
            continue
        fields = columns.fields(row)
        image = fields["image"]
        if not image:
            problems.append(f"{place}: no image: write its path, or remove the line")
        if image not in images:
            size = side(fields.get("height", "")), side(fields.get("width", ""))
            images[image] = LabelFile("", image, size, line=number, fractions=columns.is_open_images)
            boxes[image] = []
        places.append((image, place))
        words.append(word_split(fields.get("split", "")))
        others.append(word_split(fields.get("other_split", "")))
        if any(fields[name] for name in CORNERS):
            boxes[image].append(_box(columns, row, names, place, number))
    if "split" not in columns.at and not set(SPLITS).isdisjoint(others):
        words = others
    files = [labels._replace(boxes=boxes[image]) for image, labels in images.items()]
    source = source_of_split(path, files, names_of(files), words, split, problems, places)
    if columns.is_open_images:
        fix = "multiply them by its width and height, or give image_root=FOLDER with the images"
        source.sizes_problem = f"the boxes are fractions of the image: {fix}"
        _add_verified(source, names)
    if columns.unread:
        source.notes.append(f"{path}: columns that are not read: {', '.join(columns.unread)}")
    return source


def _box(columns: Columns, row: Sequence[str], names: Mapping[str, str], place: str, line: int) -> Box:
    """Returns the box of a row, or what is wrong with it. `names`: {code: class name}."""
    fields = columns.fields(row)
    words = [fields[name] for name in CORNERS]
    crowd, problem = crowd_of({name: row[index] for name, index in columns.marks.items() if index < len(row)})
    angles = {name: row[index].strip() for name, index in columns.angles.items() if index < len(row)}
    problem = angle_problem(angles) or problem
    try:
        corners = tuple(map(number_of, words))
    except ValueError:
        corners, problem = (), f"{','.join(words)!r} is not a box: write x1,y1,x2,y2 as numbers"
    if columns.is_open_images and not all(-ROUNDING <= value <= 1 + ROUNDING for value in corners):
        problem = (
            problem
            or f"box {','.join(words)} is not in fractions of the image, as those of Open Images are: correct it"
        )
    name = names.get(fields["class"], fields["class"])
    return Box(name, corners, crowd, problem, place=place, line=line)


def _open(path: str) -> tuple[Columns, Iterator[tuple[int, list[str]]]]:
    """Returns the columns of a table, and (line number, fields) of the rows below its header. Raises DataError."""
    lines = _rows(path)
    number, first = next(lines, (0, []))
    columns = columns_of(f"{path}:{number}", first)
    return columns, lines if columns.is_header else chain([(number, first)], lines)


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


# ---- Open Images


def _open_images_names(path: str) -> dict[str, str]:
    """Returns {code such as /m/01yrx: class name} of the class descriptions next to a table."""
    lists = sorted(Path(path).parent.glob("*class-descriptions*.[cC][sS][vV]"))
    return {row[0]: row[1] for text in lists for _, row in _rows(str(text)) if len(row) == 2}


def _add_verified(source: Source, names: Mapping[str, str]) -> None:
    """Adds the verified negatives of each image, if their files are next to the table: classes that the image does not have.

    These and the classes with boxes are annotated. Of a class that is only verified to be there, there may be no boxes."""
    lists = sorted(Path(source.path).parent.glob("*human-imagelabels*.[cC][sS][vV]"))
    if not lists:
        return
    labels = {name: label for label, name in enumerate(source.names or ())}
    source.annotated = {index: [] for index in range(len(source))}
    images, are_there = {source.images[index]: index for index in range(len(source))}, False
    for path in map(str, lists):
        rows = _rows(path)
        _, header = next(rows, (1, []))
        if missing := [name for name in VERIFIED if name not in header]:
            raise DataError(f"{path}:1: no column {', '.join(missing)}: download the file again, or move it away")
        image, code, confidence = map(header.index, VERIFIED)
        for number, row in rows:
            if len(row) < len(header) or not _is_number(row[confidence]):
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
