"""Class names: in files with one per line, such as classes.txt, and in data files of YOLO, data.yaml or obj.data of darknet."""

import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from datasets.errors import DataError, check_path, open_file
from datasets.formats import image_paths
from datasets.formats.file import text_lines
from datasets.store import MAX_UNNAMED
from utils.remote_cache import local_file
from utils.text import check_class_names, clean_name, first_names, split_names

_NUMBERED = re.compile(r"(\d+)(?:\s*[:=,;]\s*|[.)]?\s+)(?=[^\d\s])(.+)")  # "0 cat", "0: cat", "0. cat", "0,cat"
_SURELY_NUMBERED = re.compile(r"\d+\s*[:=,;]\s*[^\d\s]")  # not a name such as "2 wheeler"
PARTS = ("train", "val", "valid", "validation", "test")  # keys of a data file
MAX_YAML, MAX_NESTING = 1 << 20, 100  # bytes, brackets in brackets; a larger file may take minutes to parse
_NESTING = bytes({ord("["): 1, ord("{"): 1, ord("]"): 255, ord("}"): 255}.get(byte, 0) for byte in range(256))


def is_names(classes: str | None) -> bool:
    """Returns whether classes= holds names (cat,dog) and not the path of a file."""
    if not classes:
        return False
    return not (os.path.exists(classes) or "/" in classes or classes.endswith((".txt", ".names")))


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
    found = [_NUMBERED.fullmatch(name) for _, name in lines]
    rows = sorted((int(match[1]), line, match[2]) for match, (line, _) in zip(found, lines, strict=True) if match)
    fix = "write one name per line, in the order of the class numbers; quotes around all names keep them as they are"
    if rows and len(rows) == len(lines) == len({name for *_, name in rows}) and rows[-1][0] <= len(rows):
        if wrong := next((row for expected, row in enumerate(rows) if row[0] != expected), None):
            expected = rows.index(wrong)
            shown = dict(lines)[wrong[1]][:60]
            raise DataError(f"{path}:{wrong[1]}: {shown!r} should have the number {expected}, counted from 0: {fix}")
        return [(line, name) for _, line, name in rows]
    is_list = bool(lines) and all(name.startswith("- ") for _, name in lines)
    for line, name in lines:
        if name.endswith(",") or (len(lines) == 1 and "," in name) or is_list or name == "names:":
            raise DataError(f"{path}:{line}: {name[:60]!r} is no name, or holds several: {fix}")
        if len(rows) < len(lines) and _SURELY_NUMBERED.match(name):
            raise DataError(f"{path}:{line}: {name[:60]!r} has a number, but other lines have none: {fix}")
    return lines


def class_text(names: Sequence[str]) -> str:
    """Returns the text of a file of class names, one per line, in quotes if `read_classes` would change them otherwise."""
    lines = list(enumerate(names, 1))
    try:
        is_same = [name for _, name in _bare_names("", lines)] == list(names)
    except DataError:
        is_same = False
    return "".join(f"{name}\n" if is_same else f'"{name}"\n' for name in names)


# ---- data files of YOLO


def yaml_config(path: Path) -> dict[str, Any]:
    """Returns the contents of a yaml data file, with keys in lower case and all values as text. Raises DataError."""
    with open_file(path) as file:
        data = file.read(MAX_YAML + 1)
    nesting = np.frombuffer(data.translate(_NESTING), np.int8).cumsum()
    if len(data) > MAX_YAML or nesting.max(initial=0) > MAX_NESTING:
        raise DataError(f"{path}: not a YOLO data file, it is too large or nested: write train, val and names")
    try:
        config = yaml.load(data, Loader=yaml.BaseLoader)  # only text: the class "no" is not False
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise DataError(f"{path}: {error}: write paths with / and without quotes") from error
    if not isinstance(config, dict):
        raise DataError(f"{path}: not a YOLO data file: write train, val and names")
    # CVAT writes Train and Validation
    config = {key.lower(): value for key, value in config.items() if isinstance(key, str)}
    for key, value in config.items():
        if key in (*PARTS, "names", "path", "nc") and not _is_text(value, key):
            raise DataError(f"{path}: {key}: write text or numbers, not lists in lists")
    if "kpt_shape" in config:
        raise DataError(f"{path}: labels with key points (kpt_shape) are not boxes: export the data for detection")
    return config


def _is_text(value: Any, key: str) -> bool:
    """Returns whether the value of a key is text, or a list of texts, or, for names, an object with texts."""
    if isinstance(value, dict) and key == "names":
        value = [*value, *value.values()]
    texts = value if isinstance(value, list) and key not in ("path", "nc") else [value]
    return all(isinstance(text, str) for text in texts)


def darknet_config(path: Path) -> dict[str, Any]:
    """Returns the contents of a darknet data file (obj.data), which CVAT calls YOLO 1.1. Raises DataError."""
    pairs = (line.partition("=") for _, line in text_lines(str(path)))
    config: dict[str, Any] = {key.strip().lower(): value.strip() for key, equals, value in pairs if equals}
    names = image_paths.locate(config.get("names", "obj.names"), [str(path.parent)])
    if not os.path.isfile(names):
        raise DataError(f"{path}: there is no {names}: write it, with one class name per line")
    config["names"] = list(read_classes(names))
    return config


def yaml_names(path: Path, config: dict[str, Any]) -> tuple[str, ...]:
    """Returns the class names of a data file: a list, a mapping from 0, 1, ..., or only their number (`nc`, or `classes`)."""
    key = "classes" if path.suffix.lower() == ".data" else "nc"
    names, count = config.get("names"), config.get(key, "").strip()
    if names and isinstance(names, str):
        raise DataError(f"{path}: names: {names[:60]}: write a list, as in names: [cat, dog]")
    if count and not (count.isdecimal() and len(count) < 10 and int(count) <= MAX_UNNAMED):
        raise DataError(f"{path}: {key} is {count[:60]!r}: write the number of names, at most {MAX_UNNAMED}")
    names = names or [str(index) for index in range(int(count or 0))]
    if isinstance(names, dict):
        if set(names) != {str(index) for index in range(len(names))}:
            raise DataError(f"{path}: the keys of names must be 0 to {len(names) - 1}: correct them")
        names = [names[str(index)] for index in range(len(names))]
    if not names or (count and int(count) != len(names)):
        raise DataError(
            f"{path}: {key} is {count or 'not given'}, but there are {len(names)} names: correct one of them"
        )
    if twice := tuple(name for name, count in Counter(map(clean_name, names)).items() if count > 1):
        raise DataError(f"{path}: two classes of the same name {first_names(twice)}: rename one of them")
    return tuple(names)
