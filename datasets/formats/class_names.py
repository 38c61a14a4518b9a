"""Class names: in files with one per line, such as classes.txt, and in data files of YOLO, data.yaml or obj.data of darknet."""

import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from datasets.errors import DataError, check_path, open_file
from datasets.formats import image_paths
from datasets.formats.file import text_lines
from datasets.formats.splits import SPLIT_NAMES
from datasets.store import MAX_UNNAMED, no_such_class
from utils.remote_cache import local_file
from utils.text import check_class_names, clean_name, first_names, split_names

_NUMBERED = re.compile(r"(\d+)(?:\s*[:=,;]\s*|[.)]?\s+)(?=[^\d\s])(.+)")  # "0 cat", "0: cat", "0. cat", "0,cat"
_NUMBER = re.compile(r"\d+\s*[:=,;]\s*[^\d\s]")  # not a name such as "2 wheeler"
PARTS = ("train", "val", "valid", "validation", "test")  # keys of a data file
INSIDE = {"images", "labels", *SPLIT_NAMES}  # in names of folders of a data set, above which its list may be
OWN = ("classes.txt", "_classes.txt")  # names of class lists, also of those next to an annotation file
NAMES = (*OWN, "*.names", "_darknet.labels", "labels.txt", "data.yaml")  # in any case; the first ones first
MAX_YAML, MAX_NESTING = 1 << 20, 100  # bytes, brackets in brackets; a larger file may take minutes to parse
_NESTING = bytes({ord("["): 1, ord("{"): 1, ord("]"): 255, ord("}"): 255}.get(byte, 0) for byte in range(256))


def is_names(classes: str | None) -> bool:
    """Returns whether classes= holds names (cat,dog) and not the path of a file."""
    if not classes:
        return False
    return not (os.path.exists(classes) or "/" in classes or classes.endswith((".txt", ".names")))


def read_classes(path: str) -> tuple[str, ...]:
    """Reads class names from a file, one per line; `cat,dog` are names themselves, those with a comma in double quotes.

    Numbers from 0 before all names, and quotes around all names, are no part of them. Raises DataError for names that are
    blank, repeated or unusable, and for other forms than a name per line."""
    if isinstance(path, str) and is_names(check_path(path)):
        names = split_names(path)
        check_class_names(names, f"classes={path}", DataError)
        if len(set(names)) < len(names):
            raise DataError(f"classes={path}: a class is named twice: name it once")
        return tuple(names)
    if os.path.isdir(path):
        raise DataError(f"classes={path}: is a folder: give a file with a name per line, or the names, as in cat,dog")
    try:
        names = [clean_name(line) for _, line in text_lines(local_file(check_path(os.fspath(path))))]
    except OSError as error:
        raise DataError(f"{path}: {error}: correct the path") from error
    while names and not names[-1]:
        names.pop()
    seen: dict[str, int] = {}
    for number, name in enumerate(_bare_names(path, names), 1):
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


def _bare_names(path: str, names: list[str]) -> list[str]:
    """Returns the names in the order of the class numbers, without quotes and numbers around all of them. Raises DataError."""
    if names and all(len(name) > 2 and name[0] == name[-1] == '"' for name in names):
        return [clean_name(name[1:-1]) for name in names]
    rows = sorted((int(match[1]), match[2]) for match in map(_NUMBERED.fullmatch, names) if match)
    if [number for number, _ in rows] == list(range(len(names))) and len({name for _, name in rows}) == len(rows):
        return [name for _, name in rows]
    is_list = all(name.startswith("- ") for name in names)
    for line, name in enumerate(names, 1):
        if (
            name.endswith(",")
            or (len(names) == 1 and "," in name)
            or is_list
            or _NUMBER.match(name)
            or name == "names:"
        ):
            fix = "write one name per line, in the order of the class numbers; quotes around all names keep them as they are"
            raise DataError(f"{path}:{line}: {name[:60]!r} is no name, has a number, or holds several: {fix}")
    return names


def class_text(names: Sequence[str]) -> str:
    """Returns the text of a file of class names, one per line, in quotes if `read_classes` would change them otherwise."""
    try:
        is_same = _bare_names("", list(names)) == list(names)
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
        if problem := _repeated_yaml_key(yaml.compose(data, Loader=yaml.BaseLoader)):
            raise DataError(f"{path}:{problem}")
        config = yaml.load(data, Loader=yaml.BaseLoader)  # only text: the class "no" is not False
    except DataError:
        raise
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


def _repeated_yaml_key(node: yaml.Node | None) -> str:
    """Returns the line and the problem of a key that is there twice in a yaml file, or in a value such as `names`."""
    values = [value for _, value in node.value] if isinstance(node, yaml.MappingNode) else []
    for mapping in (one for one in (node, *values) if isinstance(one, yaml.MappingNode)):
        keys = [key for key, _ in mapping.value if isinstance(key, yaml.ScalarNode)]
        counts = Counter(key.value for key in keys)
        if twice := next((key for key in reversed(keys) if counts[key.value] > 1), None):
            return f"{twice.start_mark.line + 1}: the key {twice.value[:60]!r} is there twice: remove the wrong one"
    return ""


def _is_text(value: Any, key: str) -> bool:
    """Returns whether the value of a key is text, or a list of texts, or, for names, an object with texts."""
    if isinstance(value, dict) and key == "names":
        value = [*value, *value.values()]
    texts = value if isinstance(value, list) and key not in ("path", "nc") else [value]
    return all(isinstance(text, str) for text in texts)


def darknet_config(path: Path) -> dict[str, Any]:
    """Returns the contents of a darknet data file (obj.data), which CVAT calls YOLO 1.1. Raises DataError."""
    config: dict[str, Any] = {}
    for number, line in text_lines(str(path)):
        key, equals, value = line.partition("=")
        if equals and config.setdefault(key.strip().lower(), value.strip()) != value.strip():
            raise DataError(
                f"{path}:{number}: the key {key.strip()[:60]!r} is there twice: remove the one that is wrong"
            )
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


# ---- class lists of YOLO
# LabelImg writes a classes.txt into every folder, in the order in which its user needed the classes. So a number may stand for
# another class in each folder, and each label file is read with the list nearest to it.


class ClassList(NamedTuple):
    """The class names of label files, in the order of their class numbers."""

    file: str
    names: tuple[str, ...]

    def difference(self, other: "ClassList") -> str:
        """Returns the first number that has different names in two lists, "" if there is none. Case does not count.

        A list agrees with a longer one that begins with it."""
        for number, (one, two) in enumerate(zip(self.names, other.names, strict=False)):
            if one.casefold() != two.casefold():
                return f"class {number} is {one!r} and {two!r}"
        return ""

    def require_equal(self, other: "ClassList") -> None:
        """Raises DataError for a list that differs."""
        if difference := self.difference(other):
            fix = "remove the wrong one, or make them equal"
            raise DataError(f"{self.file} and {other.file} name the same classes differently ({difference}): {fix}")

    def number_in(self, numbers: Mapping[str, int], label: float) -> float:
        """Returns the number in `numbers` (class name -> number) of the class `label` of this list. Raises ValueError."""
        if label in range(len(self.names)):
            return numbers[self.names[int(label)]]
        if math.isfinite(label) and label == int(label):
            raise ValueError(no_such_class(label, self.file, len(self.names)))
        return label


class ClassLists(NamedTuple):
    """The class names of a data set, and the list of each folder with label files; other folders are read with `names`."""

    names: tuple[str, ...]
    by_folder: Mapping[str, ClassList] = {}

    def notes(self, source: str) -> list[str]:
        """Returns a note for each list that is not in the folder that the user names, or in that of the file."""
        folder = os.path.abspath(source if os.path.isdir(source) else os.path.dirname(source))
        files = sorted({one.file for one in self.by_folder.values()})
        return [f"{source}: class names: {file}" for file in files if not Path(file).is_relative_to(folder)]


def find_lists(top: Path, labels: Iterable[str], used: Iterable[str]) -> ClassLists | None:
    """Returns the class list nearest to each folder with label files, None if there is no list.

    It is in the folder or above it up to the data set `top`; above that only if `top` is called images, labels or as a split,
    because a neighbor may have left a list there. `used`: the label files that are read; the others add their names, so that
    all splits have the same classes. Raises DataError if two lists in a folder differ."""
    read = set(map(os.path.dirname, filter(os.path.exists, used)))
    end = Path(os.path.abspath(top))
    found: dict[str, ClassList] = {}
    for folder in sorted(read.union(map(os.path.dirname, labels))):
        path = Path(os.path.abspath(folder))
        inside = [place for place in (path, *path.parents) if end in (place, *place.parents)]
        places = [*(inside or _places(path)), *_places(end)]
        try:
            nearest = next(filter(None, map(list_in, map(str, places))), None)
        except DataError:
            if folder in read:
                raise
            continue
        if nearest:
            found[folder] = nearest
    if read.isdisjoint(found):
        return None
    lists = list(found.values())
    with suppress(DataError):  # the list of the data set gives the order, if it can be read
        lists = [*filter(None, [list_in(str(top))]), *lists]
    return ClassLists(tuple(dict.fromkeys(name for one in lists for name in one.names)), found)


def _places(folder: Path) -> list[Path]:
    """Returns a folder, and those above it as far as they are of the same data set."""
    places = [folder]
    while not INSIDE.isdisjoint(re.findall("[a-z]+", places[-1].name.lower())):  # train2017, obj_train_data
        places.append(places[-1].parent)
    return places


def list_in(folder: str, kinds: Sequence[str] = NAMES) -> ClassList | None:
    """Returns the class list in a folder, None if there is none. Raises DataError if it has two that differ.

    A file that is not a class list does not count next to one."""
    files = [
        Path(folder, name) for name in (os.listdir(folder) if os.path.isdir(folder) else ()) if _kind_of(name) in kinds
    ]
    found, problems = [], []
    for file in sorted(files, key=lambda file: (kinds.index(_kind_of(file)), file.name)):
        try:
            if not file.is_dir() and (one := _list_of(file)):
                found.append(one)
        except DataError as error:
            problems.append(error)
    if problems and not found:
        raise problems[0]
    for other in found:
        found[0].require_equal(other)
    return max(found, key=lambda one: len(one.names), default=None)


def _kind_of(file: str | Path) -> str:
    """Returns the name of a file in lower case, as it is in NAMES."""
    name = os.path.basename(file).lower()
    return "*.names" if name.endswith(".names") else name


def data_file_list(file: Path) -> ClassList | None:
    """Returns the class names in a yaml data file, None without any. Raises DataError."""
    config = yaml_config(file)
    return ClassList(str(file), tuple(map(clean_name, yaml_names(file, config)))) if config.get("names") else None


def _list_of(file: Path) -> ClassList | None:
    return data_file_list(file) if _kind_of(file) == "data.yaml" else ClassList(str(file), read_classes(str(file)))
