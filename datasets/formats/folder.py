"""Reads a folder: chooses its format, reads it, and finds what was not read.

A folder is read in one format, and each image has one label file. One stray file of a format that is tried before the others,
or in the place that is tried first, could hide a whole data set. So label files that are not read are named, and they are an
error if they label more images than the files that are read, unless a data file decides.
"""

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from typing import NamedTuple, NoReturn

from datasets.errors import DataError, first_ten, one_line, raise_any
from datasets.formats import image_paths, texts, yolo
from datasets.formats.annotation_file import text_lines
from datasets.formats.file import CLASS_FILES, File, Folder, images_of, stem_of, unread_notes
from datasets.formats.formats import (
    FORMATS,
    JSON,
    LINES,
    NOT_READ,
    TABLE,
    TEXT,
    UNREADABLE,
    XML,
    YAML,
    YOLO,
    Format,
    format_of,
    problem_of,
    read_file,
    refusal,
)
from datasets.formats.source import Source
from datasets.formats.splits import read_split, split_in
from datasets.store import Annotations
from utils.text import amount

ROWS = {row.name: row for row in (*FORMATS, *NOT_READ, UNREADABLE)}


class Reading(NamedTuple):
    """What was read from a folder, and with which format."""

    folder: Folder
    formats: Callable[[str], Format | None]  # of the files in the folder, by name
    row: Format
    sources: list[Source]  # one, or several files that are joined
    images: image_paths.Stems


def read_folder(folder: Folder) -> Reading:
    """Reads a folder in the first format that claims label files in it. Raises DataError."""
    formats = lru_cache(maxsize=None)(lambda name: format_of(folder.file(name)))
    row, files = _choose(folder, formats)
    sources = row.read_all(folder, files) if row.read_all else read_split(folder, list(files), row.read)
    source = sources[0]
    source.format = source.format or row.name
    source.problems += _damaged(folder, formats, row)
    source.notes += _joined(folder, source)
    return Reading(folder, formats, row, sources, image_paths.Stems(folder.images))


def _choose(folder: Folder, formats: Callable[[str], Format | None]) -> tuple[Format, Iterator[str]]:
    """Returns the format of a folder, and its files. They are recognized as they are asked for: YOLO has one for each image."""
    for row in FORMATS:
        names = folder.of_suffix(row.suffixes)
        if row.suffixes == TEXT and row.images:
            names = [name for name in names if stem_of(name) not in folder.stems]
        claimed = (name for name in names if formats(name) is row)
        if (first := next(claimed, None)) is not None:
            return row, chain([first], claimed)
    images = (os.path.join(folder.image_folder, image) for image in folder.images[:100])
    if not any(formats(name) in NOT_READ for name in folder.of_suffix(TEXT)) and any(map(yolo.has_label, images)):
        return YOLO, iter(())  # a folder of images, whose label files are next to it
    _refuse(folder, formats)


def _refuse(folder: Folder, formats: Callable[[str], Format | None]) -> NoReturn:
    """Raises DataError for a folder without label files that can be read, which names what is in it."""
    files = [name for name in folder.files if not images_of([name])]
    for name in files:
        row = formats(name)
        if row is None and name.lower().endswith(TEXT):
            row = format_of(File(folder.path / name))  # it may be a label file whose image is elsewhere
        if row in NOT_READ:
            raise refusal(folder.path / name, row)
    problems = [problem_of(folder.file(name)) for name in files if formats(name) is UNREADABLE]
    raise_any(f"{folder.path}: no file with boxes, but files that cannot be read: {len(problems)}", problems)
    for name in folder.of_suffix((*TABLE, *XML, *LINES)):
        read_file(folder.path / name, folder.split)  # tells what is wrong with it
    if folder.images and not folder.of_suffix(TEXT):
        what = f"no file with boxes, only images ({len(folder.images)}), for example {folder.images[0]}"
        if others := folder.of_suffix(JSON):
            what += f", and JSON in no known format ({len(others)}), for example {others[0]}"
        raise DataError(f"{folder.path}: {what}: name the file or the folder with the boxes, or label the images first")
    inside = ", ".join(sorted(path.name for path in folder.path.iterdir() if path.is_dir())[:5])
    raise DataError(
        f"{folder.path}: neither data.yaml or label files (YOLO) nor *.xml (VOC, CVAT) nor *.json (COCO, LabelMe) nor *.csv is "
        f"in this folder: name the file, or the folder above or below it{f' ({inside})' if inside else ''}"
    )


def _damaged(folder: Folder, formats: Callable[[str], Format | None], row: Format) -> list[str]:
    """Returns the problems of files in no format, with the name of an image, in a format with one label file per image."""
    if row.images or row.read_all is None or row.suffixes == TEXT:
        return []
    files = (folder.file(name) for name in folder.of_suffix(row.suffixes) if formats(name) in (None, UNREADABLE))
    fix = "export it again, or take it out of this folder"
    return [
        problem_of(file) or f"{file.path}: not a file of {row.name}, as others are: {fix}"
        for file in files
        if file.has_image
    ]


def _joined(folder: Folder, source: Source) -> list[str]:
    """Returns a note about the data sets in a folder, if it holds several that are read together."""
    marks = re.compile(r"(.+?)/(data\.ya?ml|ImageSets/.+\.txt)", re.IGNORECASE)
    places = sorted({found[1] for found in map(marks.fullmatch, folder.files) if found})
    if len(places) < 2 or source.listed is not None:
        return []
    shown = ", ".join(map(one_line, places[:5]))
    return [f"{folder.path}: {len(places)} data sets are read together ({shown}): give one of them to read it alone"]


# ---- what was not read


def left_over(reading: Reading, found: Annotations) -> list[str]:
    """Returns notes about label files and images in a folder that were not read. `found`: what was read.

    With `image_root` the images in the folder do not count. Raises DataError if the label files that are not read, of one
    format, label more images than those that are read, unless a data file decides."""
    folder, sources = reading.folder, reading.sources
    read, listed = sources[0].format, sources[0].listed
    own = {real_path(path) for source in sources for path in (source.path, *source.label_files)}
    own |= {real_path(path) for path in map(found.files.__getitem__, range(len(found))) if path}
    every = _label_files(reading, own)
    mine = [name for name in every[read] if _path(folder, name) in own]
    unread = {kind: sorted(set(names).difference(mine)) for kind, names in every.items()}
    unread = {kind: names for kind, names in unread.items() if names}
    counts = {kind: len(_images(reading, kind, names)) for kind, names in unread.items()}
    if listed is None and counts:
        count = len(_images(reading, read, mine))
        if read != YOLO.name:  # else images without a label file, which are backgrounds, are among those found
            count = max(count, len(found))
        most = max(counts, key=counts.get)
        if counts[most] > count:
            fix = "name the folder or the file of the right one, or move the others out of this folder"
            what = f"{read} ({_some(mine)}) would be read with {amount(count, 'image')}"
            other = f"{most} ({_some(unread[most])}) has {counts[most]}"
            raise DataError(f"{folder.path}: labels in several formats or places: {what}, but {other}: {fix}")
    named = {real_path(path) for source in sources for path in source.named_files}
    unread = {kind: [name for name in names if _path(folder, name) not in named] for kind, names in unread.items()}
    notes = _unread_labels(folder, read, {kind: names for kind, names in unread.items() if names}, counts)
    if read != YOLO.name and listed is None:
        notes += unread_notes(folder.path, folder.files)
    if not folder.image_root and reading.row is not YOLO:  # which reads all images
        notes += _lost_images(reading, every, found, listed)
    return notes


def _label_files(reading: Reading, own: set[str]) -> dict[str, list[str]]:
    """Returns {format: label files} of a folder. `own`: the label files of the format that is read, which are not opened again.

    Data files and lists of images without boxes only lead to labels."""
    folder, images, found = reading.folder, set(images_of(reading.folder.files)), defaultdict(list)
    for name in folder.files:
        if name in images:
            continue
        if _path(folder, name) in own:
            found[reading.sources[0].format].append(name)
            continue
        row = reading.formats(name)
        if row in (None, YAML) or (row.images == texts.images_in and not texts.has_box(folder.file(name))):
            continue
        found[row.name].append(name)
    return found


def _unread_labels(
    folder: Folder, read: str, unread: Mapping[str, Sequence[str]], counts: Mapping[str, int]
) -> list[str]:
    """Returns notes about label files that are not read: how many of each format, their names and the number of images.

    Files that cannot be read are named with the reasons."""
    shown, notes = [], []
    for kind, names in unread.items():
        if kind == UNREADABLE.name:
            problems = [problem_of(folder.file(name)) for name in names]
            notes.append(f"{folder.path}: {kind}, but may hold labels: {len(names)}\n{first_ten(problems)}")
            continue
        images = f" of {counts[kind]} images" if ROWS[kind].images else ""
        shown.append(f"{kind} {len(names)}{images} ({_some(names)})")
    text = f"{folder.path}: label files that are not read, because the folder is read as {read}: {'; '.join(shown)}"
    return [*([text] if shown else []), *notes]


def _some(names: Sequence[str]) -> str:
    """Returns the first of these files in each folder, and the number of the others there."""
    folders = defaultdict(list)
    for name in names:
        folders[os.path.dirname(name)].append(name)
    shown = []
    for there in folders.values():
        more = f" and {len(there) - 1} more" if len(there) > 1 else ""
        shown.append(one_line(there[0]) + more)
    if len(shown) > 5:
        shown[5:] = ["..."]
    return ", ".join(shown)


def _images(reading: Reading, kind: str, files: Iterable[str]) -> set[str]:
    """Returns the names of the images in label files of a format, none of damaged files."""
    names, row = set(), ROWS[kind]
    for file in files:
        if row.images:
            with suppress(DataError):  # the note still names it
                names |= row.images(str(reading.folder.path / file))
            continue
        nearest = reading.images.nearest
        image = nearest(file) or nearest(os.path.splitext(file)[0])  # Supervisely: a.jpg.json
        if image or (row.read_all and row is not YOLO):
            names.add(image or file)
    return names


def _lost_images(
    reading: Reading, every: Mapping[str, Sequence[str]], found: Annotations, listed: Iterable[str] | None
) -> list[str]:
    """Returns a note about images that are read neither for this split nor for another one, if there are any."""
    folder, read = reading.folder, reading.sources[0].format
    used = {real_path(found.path(i)) for i in range(len(found))} | {real_path(path) for path in listed or ()}
    lost = [image for image in folder.images if _path(folder, image) not in used]
    if folder.split and lost:  # the images of another split are read with that split
        own = {split_in(image) for image in _relative(folder, used)}
        lost = [image for image in lost if split_in(image) in (None, *own)]
    if not lost:
        return []
    opened = {real_path(path) for path in map(found.files.__getitem__, range(len(found)))}
    known = set(_listed(folder)) if folder.split else set()  # images of other splits, and of label files that are named
    for kind, names in every.items():
        if kind != YOLO.name or read != YOLO.name:  # of YOLO, lists and data files decide what is read
            others = names if ROWS[kind].images else [name for name in names if _path(folder, name) not in opened]
            known |= set(_stems(_images(reading, kind, others)))
    twins = {os.path.splitext(path)[0] for path in used}  # a second image of the name of one that is read
    lost = [
        image for image in lost if stem_of(image) not in known or os.path.splitext(_path(folder, image))[0] in twins
    ]
    return [f"{folder.path}: images that are not read: {len(lost)} ({_some(lost)})"] if lost else []


def _listed(folder: Folder) -> list[str]:
    """Returns the stems of the images in the lists of a folder, and in ImageSets below it."""
    names = [name for name in folder.of_suffix(TEXT) if "/" not in name or "ImageSets/" in name]
    names = [name for name in names if os.path.basename(name).lower() not in CLASS_FILES]
    stems = []
    for name in names:
        if "/" in name or texts.names_images(folder.file(name)):
            images = (texts.image_of(line) for _, line in text_lines(str(folder.path / name)))
            stems += [stem_of(image.replace("\\", "/")) for image in images if image]
    return stems


def _relative(folder: Folder, paths: Iterable[str]) -> Iterator[str]:
    top = _path(folder, "x")[:-1]
    return (path.removeprefix(top).replace(os.sep, "/") for path in paths)


def _path(folder: Folder, name: str) -> str:
    return real_path(os.path.join(folder.path, name))


def real_path(path: str) -> str:
    """Returns the path with the real folder, but with the name of the file as it is."""
    place, name = os.path.split(path)
    return os.path.join(_real_folder(os.path.abspath(place)), name)


_real_folder = lru_cache(maxsize=1000)(os.path.realpath)


def _stems(names: Iterable[str]) -> Iterator[str]:
    for name in names:
        for short in image_paths.short_names(name):
            yield stem_of(short)
            yield short  # some tables have names without suffix
