"""The annotation file.

A line is `path x1,y1,x2,y2,class x1,y1,x2,y2,class,crowd ...` in pixels of the image after EXIF rotation. A relative path
starts at the folder of the file. An image without boxes is a background.
"""

import os
import re
from collections.abc import Iterator, Sequence

import numpy as np

from datasets.errors import DataError, check_path, open_file
from datasets.formats.source import Source
from datasets.store import Classes
from utils.images import IMAGE_SUFFIXES
from utils.remote_cache import local_file
from utils.text import check_class_names, clean_name, number_of, split_names

_NUMBERED = re.compile(r"(\d+)(?:\s*[:=,;]\s*|[.)]?\s+)(?=[^\d\s])(.+)")  # "0 cat", "0: cat", "0. cat", "0,cat"
_NUMBER_BEHIND = re.compile(r"(.*\S)\s*[:=;\s]\s*(\d+)")  # "cat 0", "cat: 0"
_SURELY_NUMBERED = re.compile(r"\d+\s*[:=,;]\s*[^\d\s]")  # not a name such as "2 wheeler"
_TEXT_AFTER_IMAGE = re.compile(r"\.(?:" + "|".join(s[1:] for s in IMAGE_SUFFIXES) + r")\s+(.*)", re.IGNORECASE)


def text_lines(path: str) -> Iterator[tuple[int, str]]:
    """Yields (line number from 1, line) of a UTF-8 file, with or without a byte order mark. Raises DataError."""
    with open_file(path) as file:
        for number, raw in enumerate((row for line in file for row in line.rstrip(b"\r\n").splitlines() or [b""]), 1):
            try:
                yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                how = " (in Excel: Save As, CSV UTF-8)" if str(path).lower().endswith(".csv") else ""
                raise DataError(f"{path}:{number}: not UTF-8 text: save the file as UTF-8{how}") from error


def split_line(line: str) -> tuple[str, list[str]]:
    """Splits a line: `"my cat.jpg 1,2,3,4,0 5,6,7,8,1"` -> `("my cat.jpg", ["1,2,3,4,0", "5,6,7,8,1"])`. Raises DataError."""
    tokens = line.split()
    count = len(tokens)
    while count and tokens[count - 1].count(",") >= 3 and not tokens[count - 1].lower().endswith(IMAGE_SUFFIXES):
        count -= 1
    if count < 2:
        return check_path("".join(tokens[:count])), tokens[count:]
    name = line.strip().rsplit(None, len(tokens) - count)[0]
    stray = _TEXT_AFTER_IMAGE.search(name)
    if stray and not name.lower().endswith(IMAGE_SUFFIXES):
        raise DataError(f"{stray[1]!r} is not boxes: write x1,y1,x2,y2,class without spaces inside a box")
    return check_path(name), tokens[count:]


def read(path: str, names: Classes = None) -> Source:
    """Reads an annotation file. `names`: the names of its class numbers, if there is a list of them. Raises DataError."""
    source = Source(path, os.path.dirname(path), names)
    if names is not None:
        source.names_from = "classes.txt"
    for number, line in text_lines(path):
        try:
            name, tokens = split_line(line)
            if tokens and not name:
                raise ValueError(f"no image before the box {tokens[0]!r}: write path x1,y1,x2,y2,class ...")
        except ValueError as error:
            source.problems.append(f"{path}:{number}: {error}")
            continue
        if name:
            source.add_image(name, line=number)
        for token in tokens:
            try:
                source.add_box(f"{path}:{number}", *_numbers(token))
            except ValueError as error:
                source.problems.append(f"{path}:{number}: {error}")
    return source


def _numbers(token: str) -> list[float]:
    fields = token.split(",")
    try:
        if len(fields) in (5, 6):
            return [number_of(field) for field in fields]
    except ValueError:
        pass
    raise ValueError(f"box {token!r} must be five numbers x1,y1,x2,y2,class, and 0 or 1 for crowd as a sixth")


def annotation_line(path: str, boxes: np.ndarray, labels: np.ndarray, crowd: np.ndarray) -> str:
    """Returns the line of an image, without the line end. Raises DataError for a path that would be read back changed."""
    if split_line(path) != (path, []):
        raise DataError(f"the path {path!r} cannot be written to an annotation file: rename the image")
    rows = zip(boxes.tolist(), labels.tolist(), crowd.tolist(), strict=True)
    words = [",".join([*(f"{v:.6f}".rstrip("0").rstrip(".") for v in b), str(n)] + ["1"] * c) for b, n, c in rows]
    return " ".join([path, *words])


def is_names(classes: str | None) -> bool:
    """Returns whether classes= holds names (cat,dog) and not the path of a file."""
    return bool(classes) and not (os.path.exists(classes) or "/" in classes or classes.endswith((".txt", ".names")))


def read_classes(path: str) -> tuple[str, ...]:
    """Reads class names from a file, one per line; `cat,dog` are names themselves, those with a comma in double quotes.

    Numbers before all names, which count from 0, and quotes around all names are no part of them. Raises DataError for names
    that are blank, repeated or unusable, and for other forms than a name per line."""
    if isinstance(path, str) and is_names(check_path(path)):
        names = split_names(path)
        check_class_names(names, f"classes={path}", DataError)
        if len(set(names)) < len(names):
            raise DataError(f"classes={path}: a class is named twice: name it once")
        return tuple(names)
    if os.path.isdir(path):
        raise DataError(f"classes={path}: is a folder: give a file with a name per line, or the names, as in cat,dog")
    try:
        lines = [(number, clean_name(line)) for number, line in text_lines(local_file(check_path(os.fspath(path))))]
    except OSError as error:
        raise DataError(f"{path}: {error}: correct the path") from error
    while lines and not lines[-1][1]:
        lines.pop()
    seen: dict[str, int] = {}
    for number, name in _bare_names(path, lines):
        if not name:
            raise DataError(f"{path}:{number}: a blank line between the names shifts the classes: remove it")
        if name in seen:
            raise DataError(f"{path}:{number}: class {name!r} is already in line {seen[name]}: remove or rename it")
        if name.startswith("# "):
            raise DataError(f"{path}:{number}: {name[:60]!r} would be the name of a class: remove the comment")
        check_class_names([name], f"{path}:{number}", DataError)
        seen[name] = number
    if not seen:
        raise DataError(f"{path}: no names: write one per line")
    return tuple(seen)


def _bare_names(path: str, lines: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Returns (line number, name) in the order of the class numbers, without quotes and numbers. Raises DataError.

    Numbers whose names repeat, such as 1 euro and 2 euro, are a part of the names."""
    if lines and all(len(name) > 2 and name[0] == name[-1] == '"' for _, name in lines):
        return [(line, clean_name(name[1:-1])) for line, name in lines]
    fix = "write one name per line, in the order of the class numbers; quotes around all names keep them as they are"
    for line, name in lines:
        if name.endswith(",") or (len(lines) == 1 and "," in name):
            raise DataError(
                f"{path}:{line}: {name[:60]!r} holds several names, or a comma that is no part of one: {fix}"
            )
    if form := _other_form([name for _, name in lines]):
        raise DataError(f"{path}:{lines[0][0]}: {lines[0][1][:60]!r}: {form}: {fix}")
    found = [_NUMBERED.fullmatch(name) for _, name in lines]
    if not all(found) or len({match[2] for match in found}) < len(found):
        for line, name in lines:
            if _SURELY_NUMBERED.match(name):
                raise DataError(f"{path}:{line}: {name[:60]!r} has a number, but other lines have none: {fix}")
        return lines
    rows = [(int(match[1]), line, match[2]) for match, (line, _) in zip(found, lines, strict=True)]
    if max((number for number, *_ in rows), default=0) > len(rows):
        return lines
    for expected, (number, line, _) in enumerate(sorted(rows)):
        if number != expected:
            shown = dict(lines)[line][:60]
            raise DataError(
                f"{path}:{line}: {shown!r} should have the number {expected}, as classes count from 0: {fix}"
            )
    return [(line, name) for _, line, name in sorted(rows)]


def _other_form(names: Sequence[str]) -> str:
    """Returns what the lines of a class list are if they are no names but YAML, or names before their numbers; "" otherwise.

    Numbers behind one name, such as type 0 and type 1, are a part of the names."""
    if names and (names[0] == "names:" or all(name.startswith("- ") for name in names)):
        return "this is a list in YAML"
    found = [_NUMBER_BEHIND.fullmatch(name) for name in names]
    if len(found) < 2 or not all(found) or len({match[1] for match in found}) < len(found):
        return ""
    numbers = [int(match[2]) for match in found]
    return (
        "each name has its number behind it"
        if sorted(numbers) in (list(range(len(found))), list(range(1, len(found) + 1)))
        else ""
    )


def class_text(names: Sequence[str]) -> str:
    """Returns the text of a file of class names, one per line, in quotes if `read_classes` would change them otherwise."""
    lines = list(enumerate(names, 1))
    try:
        is_same = [name for _, name in _bare_names("", lines)] == list(names)
    except DataError:
        is_same = False
    return "".join(f"{name}\n" if is_same else f'"{name}"\n' for name in names)
