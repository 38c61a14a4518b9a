"""Reads a folder: chooses its format, reads it, and counts what was not read.

A folder is read in one format, and each image has one label file. One stray file of a format that is tried before the others,
or in the place that is tried first, could hide a whole data set. So label files that are not read are an error if they label
more images than the files that are read, unless a data file decides.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from typing import NamedTuple, NoReturn

from datasets.errors import DataError, one_line, raise_any
from datasets.formats import annotation_file, image_paths, yolo
from datasets.formats.file import File, Folder, images_of, stem_of, unread_image_notes
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
    """Reads a folder in the first format that matches files in it. Raises DataError."""
    formats = lru_cache(maxsize=None)(lambda name: format_of(folder.file(name)))
    row, files = _choose(folder, formats)
    if row.read_folder:
        sources = row.read_folder(folder, files)
    else:
        sources = read_split(folder, list(files), row.read)
    source = sources[0]
    source.format = source.format or row.name
    source.problems += _damaged(folder, formats, row)
    return Reading(folder, formats, row, sources, image_paths.Stems(folder.images))


def _choose(folder: Folder, formats: Callable[[str], Format | None]) -> tuple[Format, Iterator[str]]:
    """Returns the format of a folder, and its files. They are recognized as they are asked for: YOLO has one for each image."""
    for row in FORMATS:
        names = folder.of_suffix(row.suffixes)
        if row.suffixes == TEXT and row.images:
            names = [name for name in names if stem_of(name) not in folder.stems]
        matching = (name for name in names if formats(name) is row)
        if (first := next(matching, None)) is not None:
            return row, chain([first], matching)
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
    if row.images or row.read_folder is None or row.suffixes == TEXT:
        return []
    files = (folder.file(name) for name in folder.of_suffix(row.suffixes) if formats(name) in (None, UNREADABLE))
    fix = "export it again, or take it out of this folder"
    return [
        problem_of(file) or f"{file.path}: not a file of {row.name}, as others are: {fix}"
        for file in files
        if file.has_image
    ]


# ---- what was not read


def unread_notes(reading: Reading, found: Annotations) -> list[str]:
    """Returns notes that count label files and images in a folder that were not read. `found`: what was read.

    Raises DataError if the label files that are not read, of one format, label more images than those that are read, unless a
    data file decides."""
    folder, read = reading.folder, reading.sources[0].format
    opened = {real_path(path) for path in map(found.files.__getitem__, range(len(found))) if path}
    own = opened.union(real_path(path) for source in reading.sources for path in (source.path, *source.label_files))
    files = _label_files(reading, own)
    mine = [name for name in files[read] if _path(folder, name) in own]
    unread = {kind: sorted(set(names).difference(mine)) for kind, names in files.items()}
    if reading.row is YAML:
        unread[YOLO.name] = []
    counts = {kind: len(_images(reading, kind, names)) for kind, names in unread.items() if names}
    if counts and reading.row is not YAML:
        count = len(_images(reading, read, mine))
        if read != YOLO.name:  # else images without a label file, which are backgrounds, are among those found
            count = max(count, len(found))
        largest = max(counts, key=lambda kind: counts[kind])
        if counts[largest] > count:
            fix = "name the folder or the file of the right one, or move the others out of this folder"
            what = f"{read} ({_example(mine)}) would be read with {amount(count, 'image')}"
            other = f"{largest} ({_example(unread[largest])}) has {counts[largest]}"
            raise DataError(f"{folder.path}: labels in several formats or places: {what}, but {other}: {fix}")
    notes = [
        f"{folder.path}: {_what(folder, kind, unread[kind])}"
        for kind, count in counts.items()
        if count or kind != YOLO.name  # the reader of YOLO reports label files without an image
    ]
    if read != YOLO.name:
        notes += unread_image_notes(folder.path, folder.files)
        if not folder.image_root:
            notes += _lost_images(reading, found, files, opened)
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
        is_list = row is not None and row.images == annotation_file.images_in
        if row not in (None, YAML) and not (is_list and not annotation_file.has_box(folder.file(name))):
            found[row.name].append(name)
    return found


def _what(folder: Folder, kind: str, names: Sequence[str]) -> str:
    """Returns the number of label files that are not read, and the first one; of files that cannot be read, with the reason."""
    if kind == UNREADABLE.name:
        return f"{kind}, but may hold labels: {len(names)}, for example {problem_of(folder.file(names[0]))}"
    return f"label files of {kind} that are not read: {len(names)}, for example {one_line(names[0])}"


def _example(names: Sequence[str]) -> str:
    """Returns the first of these files, and the number of the others."""
    if len(names) == 1:
        return one_line(names[0])
    return f"{one_line(names[0])} and {len(names) - 1} more"


def _images(reading: Reading, kind: str, files: Iterable[str]) -> set[str]:
    """Returns the names of the images in label files of a format, none of damaged files."""
    names, row, nearest = set(), ROWS[kind], reading.images.nearest
    for file in files:
        if row.images:
            with suppress(DataError):  # the note still names it
                names |= row.images(str(reading.folder.path / file))
            continue
        image = nearest(file) or nearest(os.path.splitext(file)[0])  # Supervisely: a.jpg.json
        if image or (row.read_folder and row is not YOLO):
            names.add(image or file)
    return names


def _lost_images(
    reading: Reading, found: Annotations, files: Mapping[str, Sequence[str]], opened: set[str]
) -> list[str]:
    """Returns a note about images that are not read, and that no label file names. `opened`: label files that are read."""
    folder = reading.folder
    used = {real_path(found.path(i)) for i in range(len(found))}
    lost = [image for image in folder.images if _path(folder, image) not in used]
    if folder.split and lost:  # the images of another split are read with that split
        splits = {split_in(image) for image in folder.images if _path(folder, image) in used}
        lost = [image for image in lost if split_in(image) in (None, *splits)]
    if not lost:
        return []
    labeled: set[str] = set()
    for kind, names in files.items():
        others = names if ROWS[kind].images else [name for name in names if _path(folder, name) not in opened]
        for image in _images(reading, kind, others):
            labeled.update(image_paths.short_names(image))
    lost = [image for image in lost if labeled.isdisjoint((os.path.basename(image), stem_of(image)))]
    text = f"{folder.path}: images that are not read, because no label file names them: {len(lost)}, for example "
    return [text + one_line(image) for image in lost[:1]]


def _path(folder: Folder, name: str) -> str:
    return real_path(os.path.join(folder.path, name))


def real_path(path: str) -> str:
    """Returns the path with the real folder, but with the name of the file as it is."""
    place, name = os.path.split(path)
    return os.path.join(_real_folder(os.path.abspath(place)), name)


_real_folder = lru_cache(maxsize=1000)(os.path.realpath)
