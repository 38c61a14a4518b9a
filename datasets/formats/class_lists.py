"""The class list, such as classes.txt, that is nearest to a folder of YOLO label files.

LabelImg writes a classes.txt into every folder, in the order in which its user needed the classes. So a number may stand
for another class in each folder, and each label file is read with the list nearest to it.
"""

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from datasets.errors import DataError, one_line, raise_any
from datasets.formats.class_names import read_classes, yaml_config, yaml_names
from datasets.formats.typed_json import open_json, rows
from datasets.store import Classes, no_such_class
from utils.text import clean_name, first_names

ABOVE = 3  # folders above the data set in which a list may be
OWN = ("classes.txt", "_classes.txt")  # names of class lists, also of those next to an annotation file
NAMES = (
    *OWN,
    "*.names",
    "_darknet.labels",
    "labels.txt",
    "notes.json",
    "data.yaml",
)  # in any case; the first ones first


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

    def notes(self, source: object) -> list[str]:
        """Returns a note if label files are read with lists that differ."""
        lists = list(dict.fromkeys(self.by_folder.values()))
        others = [found for found in lists if any(map(found.difference, lists))]
        shown = ", ".join(f"{found.file} {first_names(found.names)}" for found in others[:2])
        text = (
            f"{source}: class lists that differ: {len(others)} ({shown}, ...); each label file is read with the nearest"
        )
        return [one_line(text)] if others else []


def find_lists(top: Path, folders: Mapping[str, Iterable[str]], used: Iterable[str]) -> ClassLists | None:
    """Returns the class list nearest to each folder with label files, None if there is no list.

    `top`: the data set. `folders`: folder of label files -> folders of their images. `used`: folders whose label files are read;
    the others add their names, so that all splits have the same classes. Raises DataError if two lists in a folder differ."""
    used = set(used)
    found: dict[str, ClassList] = {}
    for folder in sorted(folders):
        try:
            nearest = _nearest(top, folder, folders[folder])
        except DataError:
            if folder in used:
                raise
            continue
        if nearest:
            found[folder] = nearest
    if used.isdisjoint(found):
        return None
    lists = list(found.values())
    with suppress(DataError):  # the list of the data set gives the order, if it can be read
        lists = [*filter(None, [list_in(str(top))]), *lists]
    return ClassLists(tuple(dict.fromkeys(name for one in lists for name in one.names)), found)


def _nearest(top: Path, folder: str, image_folders: Iterable[str]) -> ClassList | None:
    """Returns the class list nearest to a folder of label files: in it or above it up to the data set `top`, then in or above
    the folders of its images, then above `top`. Raises DataError if lists that are equally near differ."""
    if found := _first(_places(folder, top)):
        return found
    near_images = (_first(_places(place, top)) for place in sorted(image_folders))
    if found := _only(list(filter(None, near_images))):
        return found
    return _first(map(str, list(Path(os.path.abspath(top)).parents)[:ABOVE]))


def _first(places: Iterable[str]) -> ClassList | None:
    """Returns the list in the first of these folders that has one."""
    return next(filter(None, map(list_in, places)), None)


def _places(folder: str, top: Path) -> list[str]:
    """Returns a folder and those above it, up to `top`; for a folder elsewhere, up to the one that holds both, if it is near."""
    path, end = Path(os.path.abspath(folder)), Path(os.path.abspath(top))
    above = [place for place in (end, *end.parents[:ABOVE]) if place in (path, *path.parents)]
    if not above:
        return [str(path), str(path.parent)]
    return [str(place) for place in (path, *path.parents) if above[0] in (place, *place.parents)]


def list_in(folder: str) -> ClassList | None:
    """Returns the class list in a folder, None if there is none. Raises DataError if it has two that differ.

    A file that is not a class list does not count next to one."""
    found, problems = [], []
    for file in _files_in(folder):
        try:
            names = _names_of(file)
        except DataError as error:
            problems.append(error)
            continue
        if names:
            found.append(ClassList(str(file), tuple(map(clean_name, names))))
    if problems and not found:
        raise problems[0]
    return _only(found)


def names_next_to(path: Path) -> Classes:
    """Returns the names in the class lists next to an annotation file, which must agree, None without any. Raises DataError."""
    files = [file for file in _files_in(str(path.parent)) if file.name.lower() in OWN]
    found = _only([ClassList(str(file), read_classes(str(file))) for file in files])
    return found and found.names


def _only(lists: Sequence[ClassList]) -> ClassList | None:
    """Returns the longest of lists that agree. Raises DataError for two that differ."""
    for other in lists:
        lists[0].require_equal(other)
    return max(lists, key=lambda one: len(one.names), default=None)


def _kind_of(file: str | Path) -> str:
    """Returns the name of a file in lower case, as it is in NAMES."""
    name = os.path.basename(file).lower()
    return "*.names" if name.endswith(".names") else name


def _files_in(folder: str) -> list[Path]:
    """Returns the files in a folder that are class lists by their names, in the order of NAMES."""
    if not os.path.isdir(folder):
        return []
    found = [Path(folder, name) for name in os.listdir(folder) if _kind_of(name) in NAMES]
    found = [path for path in found if not path.is_dir()]
    return sorted(found, key=lambda file: (NAMES.index(_kind_of(file)), file.name))


def _names_of(file: Path) -> Classes:
    """Returns the names in a class list; None for notes and data files without any. Raises DataError."""
    if _kind_of(file) == "notes.json":
        return _label_studio_names(str(file))
    if _kind_of(file) == "data.yaml":
        config = yaml_config(file)
        return yaml_names(file, config) if config.get("names") else None
    return read_classes(str(file))


class _Category(msgspec.Struct):
    id: int
    name: str


def _label_studio_names(path: str) -> Classes:
    """Returns the class names in a notes.json of Label Studio, or None for other notes. Raises DataError."""
    contents = open_json(path)
    problems: list[str] = []
    if not (isinstance(contents, dict) and "categories" in contents):
        return None
    found = [row for _, row in rows(contents["categories"], _Category, f"{path}: categories", problems)]
    raise_any(f"{path}: problems: {len(problems)}", problems)
    return tuple(row.name for row in sorted(found, key=lambda row: row.id))
