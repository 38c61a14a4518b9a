"""Class lists of YOLO label files, such as classes.txt. A data set may have several lists that differ.

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
from datasets.formats.annotation_file import read_classes
from datasets.formats.typed_json import open_json, rows
from datasets.formats.yolo_config import yaml_config, yaml_names
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

    @property
    def has_names(self) -> bool:
        """Returns whether the list has names, not only their number as a data file may."""
        is_data_file = self.file.lower().endswith((".yaml", ".yml", ".data"))
        return not is_data_file or self.names != tuple(map(str, range(len(self.names))))

    def number_in(self, numbers: Mapping[str, int], label: float) -> float:
        """Returns the number in `numbers` (class name -> number) of the class `label` of this list. Raises ValueError."""
        if label in range(len(self.names)):
            return numbers[self.names[int(label)]]
        if math.isfinite(label) and label == int(label):
            raise ValueError(no_such_class(label, self.file, len(self.names)))
        return label


class ClassLists(NamedTuple):
    """The class names of a data set, and the list of each folder with label files; other folders are read with `names`.

    `unused`: lists in the data set with which no label file is read."""

    names: tuple[str, ...]
    by_folder: Mapping[str, ClassList] = {}
    unused: Sequence[ClassList] = ()

    def notes(self, source: object) -> list[str]:
        """Returns a note if there are lists that differ."""
        lists = list(dict.fromkeys((*self.by_folder.values(), *self.unused)))
        others = [found for found in lists if any(map(found.difference, lists))]
        if not others:
            return []
        shown = ", ".join(f"{found.file} {first_names(found.names)}" for found in others[:5])
        text = f"class lists that differ: {len(others)} ({shown}{', ...' if len(others) > 5 else ''})"
        return [one_line(f"{source}: {text}; each label file is read with the list nearest to it")]


def find_lists(
    top: Path, folders: Mapping[str, Iterable[str]], used: Iterable[str], files: Sequence[str] = ()
) -> ClassLists | None:
    """Returns the class list of each folder with label files, None if there is no list.

    The nearest list counts: in the folder, in the folders above it up to the data set `top`, then in the folders of the
    images, then any in `top`, then above `top`. `folders`: folder of label files -> folders of their images. `used`: folders
    whose label files are read; the others add their names, so that all splits have the same classes. `files`: files in `top`.
    Raises DataError if lists that are equally near differ, or if the only list that is read differs from one farther away:
    each of them may be the right one."""
    used = set(used)
    inside = sorted({os.path.join(top, os.path.dirname(file)) for file in files if is_list(file)})
    found: dict[str, ClassList] = {}
    main = None
    with suppress(DataError):  # it does not matter unless it is the nearest one
        main = list_in(str(top))
    for folder in sorted(folders):
        try:
            nearest = _nearest(top, folder, folders[folder], inside, main)
        except DataError:
            if folder in used:
                raise
            continue
        if nearest:
            found[folder] = nearest
    if not any(folder in found for folder in used):
        return None
    unused = _unused(top, folders, used, found, inside)
    lists = [main, *found.values()] if main else list(found.values())
    return ClassLists(tuple(dict.fromkeys(name for one in lists for name in one.names)), found, unused)


def _unused(
    top: Path,
    folders: Mapping[str, Iterable[str]],
    used: Iterable[str],
    found: Mapping[str, ClassList],
    inside: Iterable[str],
) -> list[ClassList]:
    """Returns the lists with names that no label file is read with, those on the way to the label files `used` and `inside`.

    Raises DataError if such a list on the way differs from the only one that is read. If label files are read with lists that
    differ, each annotator has an own order, and the list may be right for the others."""
    read = {one.names: one for one in found.values() if one.has_names}
    alone = not any(one.difference(other) for one in read.values() for other in read.values())
    near = dict.fromkeys(place for folder in sorted(used) for place in _on_the_way(top, folder, folders[folder]))
    unused = []
    for place in dict.fromkeys((*near, *map(os.path.abspath, inside))):
        others = []
        with suppress(DataError):  # it may be another file of this name
            others = [one for one in _lists_in(place) if one.has_names and one not in found.values()]
        for one in read.values() if alone and place in near else ():
            for other in others:
                _require_equal(one, other)
        unused += others
    return unused


def _on_the_way(top: Path, folder: str, image_folders: Iterable[str]) -> list[str]:
    """Returns where the list of label files may be: in their own folder, in the folders above, in the folders of the images."""
    return list(dict.fromkeys(place for one in (folder, *sorted(image_folders)) for place in _places(one, top)))


def require_agreement(own: ClassList, folders: Mapping[str, Iterable[str]]) -> None:
    """Raises DataError if a class list near label files differs from the one of the data file that names them.

    `folders`: folder of label files -> folders of their images."""
    top = Path(own.file).parent
    places = [place for folder, images in folders.items() for place in _on_the_way(top, folder, images)]
    for place in dict.fromkeys(places):
        for other in _lists_in(place):
            darknet = own.file.endswith(".data") and other.file.endswith(".names")  # which has several in a folder
            if not darknet and os.path.abspath(other.file) != os.path.abspath(own.file):
                _require_equal(own, other)


def names_next_to(path: Path) -> Classes:
    """Returns the names in the class lists next to an annotation file, which must agree, None without any. Raises DataError."""
    files = [file for file in _files_in(str(path.parent)) if file.name.lower() in OWN]
    found = _only([ClassList(str(file), read_classes(str(file))) for file in files])
    return found and found.names


def list_in(folder: str) -> ClassList | None:
    """Returns the class list in a folder, None if there is none. Raises DataError if it has two that differ."""
    return _only(_lists_in(folder))


def is_list(file: str) -> bool:
    """Returns whether a file is a class list by its name."""
    return _kind_of(file) in NAMES


def _kind_of(file: str | Path) -> str:
    """Returns the name of a file in lower case, as it is in NAMES."""
    name = os.path.basename(file).lower()
    return "*.names" if name.endswith(".names") else name


def _files_in(folder: str) -> list[Path]:
    """Returns the files in a folder that are class lists by their names, in the order of NAMES."""
    if not os.path.isdir(folder):
        return []
    found = [Path(folder, name) for name in os.listdir(folder) if is_list(name)]
    found = [path for path in found if not path.is_dir()]
    return sorted(found, key=lambda file: (NAMES.index(_kind_of(file)), file.name))


def _nearest(
    top: Path, folder: str, image_folders: Iterable[str], inside: Sequence[str], main: ClassList | None
) -> ClassList | None:
    """Returns the class list nearest to a folder of label files. Raises DataError if equally near ones differ."""
    if found := _first(_places(folder, top)):
        if main and not _is_inside(folder, top):
            _require_equal(found, main)
        return found
    groups = [_first(_places(place, top)) for place in sorted(image_folders)], map(list_in, inside)
    for group in groups:
        lists = [one for one in group if one]
        for other in lists:
            if difference := lists[0].difference(other):
                which = f"which class list belongs to its label files? {lists[0].file} and {other.file} differ"
                raise DataError(f"{folder}: {which} ({difference}): copy the right one to this folder")
        if lists:
            return _only(lists)
    above = [top, *list(Path(os.path.abspath(top)).parents)[:ABOVE]]
    return _first(str(place) for one in above for place in (one, one / "labels"))


def _first(places: Iterable[str]) -> ClassList | None:
    """Returns the list in the first of these folders that has one."""
    return next(filter(None, map(list_in, places)), None)


def _is_inside(folder: str, top: Path) -> bool:
    path = Path(os.path.abspath(folder))
    return Path(os.path.abspath(top)) in (path, *path.parents)


def _places(folder: str, top: Path) -> list[str]:
    """Returns a folder and those above it, up to `top`; for a folder elsewhere, up to the one that holds both, if it is near."""
    path, end = Path(os.path.abspath(folder)), Path(os.path.abspath(top))
    above = [place for place in (end, *end.parents[:ABOVE]) if place in (path, *path.parents)]
    if not above:
        return [str(path), str(path.parent)]
    return [str(place) for place in (path, *path.parents) if above[0] in (place, *place.parents)]


def _lists_in(folder: str) -> list[ClassList]:
    """Returns the class lists in a folder. A file that is not a class list does not count next to one."""
    found, problems = [], []
    for file in _files_in(folder):
        try:
            names = _names_of(file, alone=not found)
        except DataError as error:
            problems.append(error)
            continue
        if names:
            found.append(ClassList(str(file), tuple(map(clean_name, names))))
    if problems and not found:
        raise problems[0]
    return found


def _names_of(file: Path, alone: bool) -> Classes:
    """Returns the names in a class list; None for notes and data files without any. Raises DataError.

    With `alone`, a data file that only has the number of classes counts too."""
    if _kind_of(file) == "notes.json":
        return _studio_names(str(file))
    if _kind_of(file) == "data.yaml":
        config = yaml_config(file)
        return yaml_names(file, config) if config.get("names") or (alone and config.get("nc")) else None
    return read_classes(str(file))


def _only(lists: Sequence[ClassList]) -> ClassList | None:
    """Returns the longest of lists that agree. Raises DataError for two that differ."""
    for other in lists:
        _require_equal(lists[0], other)
    return max(lists, key=lambda one: len(one.names), default=None)


def _require_equal(one: ClassList, other: ClassList) -> None:
    if difference := one.difference(other):
        fix = "remove the wrong one, or make them equal"
        raise DataError(f"{one.file} and {other.file} name the same classes differently ({difference}): {fix}")


class _Category(msgspec.Struct):
    id: int
    name: str


def _studio_names(path: str) -> Classes:
    """Returns the class names in a notes.json of Label Studio, or None for other notes. Raises DataError."""
    contents, problems = open_json(path), []
    if not (isinstance(contents, dict) and "categories" in contents):
        return None
    found = [row for _, row in rows(contents["categories"], _Category, f"{path}: categories", problems)]
    raise_any(f"{path}: problems: {len(problems)}", problems)
    return tuple(row.name for row in sorted(found, key=lambda row: row.id))
