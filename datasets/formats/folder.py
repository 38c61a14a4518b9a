"""Reads a folder: chooses its format, reads it, and counts what was not read.

A folder is read in one format, and each image has one label file. One stray file of a format that is tried before the others,
or in the place that is tried first, could hide a whole data set. So label files that are not read are an error if they label
more images than the files that are read, unless a data file decides.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from typing import NamedTuple, NoReturn

from datasets.errors import DataError, graded, one_line, raise_any
from datasets.formats import annotation_file, image_paths, yolo
from datasets.formats.file import File, Folder, images_of, stem_of, unread_image_notes
from datasets.formats.formats import (
    FORMATS,
    JSON,
    LINES,
    LISTS,
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
from datasets.formats.splits import read_split
from datasets.store import Annotations
from utils.files import real_path
from utils.text import amount

ROWS = {row.name: row for row in (*FORMATS, *NOT_READ, UNREADABLE)}


class Reading(NamedTuple):
    """What was read from a folder, and with which format."""

    folder: Folder
    formats: Callable[[str], Format | None]  # of the files in the folder, by name
    row: Format  # of the label files: YOLO, if a data file or a list of images names them
    is_decided: bool  # by a data file
    sources: list[Source]  # one, or several files that are joined


def read_folder(folder: Folder) -> Reading:
    """Reads a folder in the first format that matches files in it. Raises DataError."""
    formats = lru_cache(maxsize=None)(lambda name: format_of(folder.file(name)))
    row, files = _choose(folder, formats)
    if row.read_folder:
        sources = row.read_folder(folder, files)
    elif row.read:
        sources = read_split(folder, list(files), row.read)
    sources[0].problems += _damaged(folder, formats, row)
    read_as = YOLO if sources[0].has_yolo_labels else row
    return Reading(folder, formats, read_as, row is YAML, sources)


def _choose(folder: Folder, formats: Callable[[str], Format | None]) -> tuple[Format, Iterator[str]]:
    """Returns the format of a folder, and its files. They are recognized as they are asked for: YOLO has one for each image."""
    for row in FORMATS:
        names = folder.of_suffix(row.suffixes)
        if row.suffixes == TEXT and row.read:
            names = [name for name in names if not folder.has_image(stem_of(name))]
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
    for name in folder.of_suffix((*TABLE, *XML, *LINES, *JSON)):
        read_file(folder.path / name, folder.split)  # tells what is wrong with it
    if folder.images and not folder.of_suffix(TEXT):
        what = f"no file with boxes, only images ({len(folder.images)}), for example {folder.images[0]}"
        raise DataError(f"{folder.path}: {what}: name the file or the folder with the boxes, or label the images first")
    inside = ", ".join(sorted(path.name for path in folder.path.iterdir() if path.is_dir())[:5])
    raise DataError(
        f"{folder.path}: neither data.yaml or label files (YOLO) nor *.xml (VOC, CVAT) nor *.json (COCO, LabelMe) nor *.csv is "
        f"in this folder: name the file, or the folder above or below it{f' ({inside})' if inside else ''}"
    )


def _damaged(folder: Folder, formats: Callable[[str], Format | None], row: Format) -> list[str]:
    """Returns the problems of files in no format, with the name of an image, in a format with one label file per image."""
    if row.read or row.suffixes == TEXT:
        return []
    files = (folder.file(name) for name in folder.of_suffix(row.suffixes) if formats(name) in (None, UNREADABLE))
    fix = "export it again, or take it out of this folder"
    return [
        problem_of(file) or f"{file.path}: not a file of {row.name}, as others are: {fix}"
        for file in files
        if file.has_image
    ]


def unread_notes(reading: Reading, found: Annotations) -> list[str]:
    """Returns notes that count the label files and images in a folder that were not read. `found`: what was read.

    Raises DataError if label files of one format that are not read label more images than those that are read, unless a data
    file decides."""
    folder, is_yolo = reading.folder, reading.row is YOLO
    read = {found.files[index] for index in range(len(found))}
    for source in reading.sources:
        read |= {source.path, *source.label_files}
    mine, others, images = [], defaultdict(list), set(images_of(folder.files))
    for name in (name for name in folder.files if name not in images):
        if os.path.join(folder.path, name) in read:  # these files are not opened again
            mine.append(name)
        elif (row := reading.formats(name)) and not (row is YAML or (row is YOLO and reading.is_decided)):
            others[row.name].append(name)
    counts = {kind: _count_images(folder, kind, names) for kind, names in others.items()}
    if counts and not reading.is_decided:
        count = _count_images(folder, reading.row.name, mine)
        if not is_yolo:  # else images without a label file, which are backgrounds, are among those found
            count = max(count, len(found))
        largest = max(counts, key=lambda kind: counts[kind])
        if counts[largest] > count:
            fix = "name the folder or the file of the right one, or move the others out of this folder"
            own = f"{reading.row.name} ({_example(reading, mine)}) would be read with {amount(count, 'image')}"
            other = f"{largest} ({others[largest][0]}) has {counts[largest]}"
            raise DataError(f"{folder.path}: labels in several formats or places: {own}, but {other}: {fix}")
    notes = []
    for kind, names in others.items():
        if kind == UNREADABLE.name:
            example = problem_of(folder.file(names[0]))
            notes.append(f"{folder.path}: {kind}, but may hold labels: {len(names)}, for example {example}")
        elif counts[kind] or kind != LISTS.name:  # other lists have no boxes
            why = "without an image" if is_yolo and kind == YOLO.name and not counts[kind] else "that are not read"
            text = f"{folder.path}: label files of {kind} {why}: {len(names)}, for example {one_line(names[0])}"
            is_orphan = is_yolo and kind == YOLO.name  # and its image may count as a background
            notes.append(graded(text, len(names), len(found)) if is_orphan else text)
    return notes if is_yolo else [*notes, *unread_image_notes(folder.path, folder.files), *_lost_images(folder, found)]


def _example(reading: Reading, names: list[str]) -> str:
    """Returns the file that names the images that are read, or else the first of `names`, their label files."""
    path, folder = reading.sources[0].path, reading.folder.path
    if os.path.isfile(path):
        return os.path.relpath(path, folder)
    return names[0] if names else str(folder)


def _lost_images(folder: Folder, found: Annotations) -> list[str]:
    """Returns a note about images in a folder without other splits that are not read."""
    if folder.image_root or found.other_splits:
        return []
    used = {real_path(found.path(index)) for index in range(len(found))}
    lost = [image for image in folder.images if real_path(os.path.join(folder.path, image)) not in used]
    text = f"{folder.path}: images that no label file names, left out: {len(lost)}, for example "
    return [text + one_line(image) for image in lost[:1]]


def _count_images(folder: Folder, kind: str, files: Iterable[str]) -> int:
    """Returns the number of images that label files of a format label; without files that cannot be read."""
    row, images, names = ROWS[kind], set(), list(files)
    index = image_paths.Stems(folder.images, (path for name in names for path in (name, os.path.splitext(name)[0])))
    for name in names:
        if row.read:
            with suppress(DataError):  # the note names it
                images |= _labeled_images(row, folder.file(name))
        elif image := index.nearest(name) or index.nearest(os.path.splitext(name)[0]):  # Supervisely: a.jpg.json
            images.add(image)
    return len(images)


def _labeled_images(row: Format, file: File) -> set[str]:
    """Returns the names of the images with boxes in a file. Raises DataError."""
    read = row.read
    if read is None or row.name == LISTS.name:  # a list may name images without boxes
        source = annotation_file.read_annotation_file(file.path)
    else:
        source = read(file, ())
    ends = [*source.starts, len(source.labels)][1:]
    return {
        source.images[index] for index, (start, end) in enumerate(zip(source.starts, ends, strict=True)) if end > start
    }
