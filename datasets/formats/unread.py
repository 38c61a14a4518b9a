"""Finds what the reader of a folder did not read: label files, and images that no label file names.

A folder is read in one format, and each image has one label file. One stray file of a format that is tried before the others,
or in the place that is tried first, could hide a whole data set. So label files that are not read are named, and they are an
error if they label more images than the files that are read.
"""

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache

from datasets.errors import DataError, first_ten, one_line
from datasets.formats import image_paths, listing, texts, unreadable
from datasets.formats.annotation_file import text_lines
from datasets.formats.folder_readers import FOLDER_READERS, UNREADABLE, YOLO, Folder, FolderReader
from datasets.formats.source import Source
from datasets.store import Annotations
from utils.files import files_under
from utils.text import amount

_FORMATS = {reader.name: reader for reader in FOLDER_READERS}


def left_over(folder: Folder, reader: FolderReader, sources: Sequence[Source], found: Annotations) -> list[str]:
    """Returns notes about label files and images in `folder` that `reader` has not read. `found`: what it has read, `sources`.

    With `image_root` the images in `folder` do not count. Raises DataError if the label files that are not read, of one
    format, label more images than those that are read, unless a data file decides."""
    read, listed = sources[0].format or reader.name, sources[0].listed
    own = {_real(path) for source in sources for path in (source.path, *source.label_files)}
    own |= {_real(path) for path in map(found.files.__getitem__, range(len(found))) if path}
    every = _label_files(folder, read, own)
    mine = [name for name in every[read] if _path(folder, name) in own]
    unread = {kind: sorted(set(names).difference(mine)) for kind, names in every.items()}
    unread = {kind: names for kind, names in unread.items() if names}
    images = image_paths.Stems(listing.images_of(files_under(folder.image_root) if folder.image_root else folder.files))
    counts = {kind: len(_images(folder, kind, names, images)) for kind, names in unread.items()}
    if listed is None and counts:
        count = len(_images(folder, read, mine, images))
        if _FORMATS[read].images_in:  # else images without a label file, which are backgrounds, are among those found
            count = max(count, len(found))
        most = max(counts, key=counts.get)
        if counts[most] > count:
            fix = "name the folder or the file of the right one, or move the others out of this folder"
            what = f"{read} ({_some(mine)}) would be read with {amount(count, 'image')}"
            other = f"{most} ({_some(unread[most])}) has {counts[most]}"
            raise DataError(f"{folder.path}: labels in several formats or places: {what}, but {other}: {fix}")
    named = {_real(path) for source in sources for path in source.named_files}
    unread = {kind: [name for name in names if _path(folder, name) not in named] for kind, names in unread.items()}
    unread = {kind: names for kind, names in unread.items() if names}
    notes = _unread_labels(folder, read, unread, counts)
    if not reader.reports and listed is None:
        notes += listing.unread_notes(folder.path, folder.files)
    if not folder.image_root:
        notes += _lost_images(folder, reader, read, every, found, listed)
    return notes


def _label_files(folder: Folder, read: str, own: set[str]) -> dict[str, list[str]]:
    """Returns {format: label files} of a folder. `own`: the label files of the format `read`, which its reader has opened."""
    images = set(listing.images_of(folder.files))
    stems, found = set(map(image_paths.stem_of, images)), defaultdict(list)
    for name in folder.files:
        if name in images:
            continue
        kind = read
        if _path(folder, name) not in own:
            file, has_image = folder.file(name), image_paths.stem_of(name) in stems
            kind = next((kind for kind, reader in _FORMATS.items() if reader.is_label_file(file, has_image)), None)
        if kind:
            found[kind].append(name)
    return found


def _unread_labels(
    folder: Folder, read: str, unread: Mapping[str, Sequence[str]], counts: Mapping[str, int]
) -> list[str]:
    """Returns notes about label files that are not read: how many of each format, their names and the number of images.

    Files that cannot be read are named with the reasons."""
    shown, notes = [], []
    for kind, names in unread.items():
        if kind == UNREADABLE.name:
            problems = [unreadable.problem_of(folder.file(name)) for name in names]
            notes.append(f"{folder.path}: {kind}, but may hold labels: {len(names)}\n{first_ten(problems)}")
            continue
        images = f" of {counts[kind]} images" if _FORMATS[kind].images_in else ""
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


def _images(folder: Folder, kind: str, files: Iterable[str], images: image_paths.Stems) -> set[str]:
    """Returns the names of the images in label files of a format, none of damaged files. `images`: of the data set."""
    names, reader = set(), _FORMATS[kind]
    for file in files:
        if reader.images_in is None:
            stem = os.path.splitext(file)[0]
            image = images.nearest(file) or images.nearest(stem)  # Supervisely writes a.jpg.json
            if image or not reader.by_name:
                names.add(image or file)
            continue
        with suppress(DataError):  # the note still names it
            names |= reader.images_in(str(folder.path / file))
    return names


def _lost_images(
    folder: Folder,
    reader: FolderReader,
    read: str,
    every: Mapping[str, Sequence[str]],
    found: Annotations,
    listed: Iterable[str] | None,
) -> list[str]:
    """Returns a note about images that are read neither for this split nor for another one, if there are any."""
    if reader.reports == "all":
        return []
    used = {_real(found.path(i)) for i in range(len(found))} | {_real(path) for path in listed or ()}
    lost = [image for image in listing.images_of(folder.files) if _path(folder, image) not in used]
    if reader.reports == "near":  # those next to the images that are read
        near = {os.path.dirname(path) for path in used}
        lost = [image for image in lost if os.path.dirname(_path(folder, image)) not in near]
    if folder.split and lost:  # the images of another split are read with that split
        own = {listing.split_in(image) for image in _relative(folder, used)}
        lost = [image for image in lost if listing.split_in(image) in (None, *own)]
    if lost:
        known, images = set(_lists(folder)), image_paths.Stems(listing.images_of(folder.files))
        for kind, names in every.items():
            if kind != YOLO.name or read != YOLO.name:  # of YOLO, lists and data files decide what is read
                known |= set(_stems(_images(folder, kind, names, images)))
        lost = [image for image in lost if image_paths.stem_of(image) not in known]
    return [f"{folder.path}: images that are not read: {len(lost)} ({_some(lost)})"] if lost else []


def _lists(folder: Folder) -> list[str]:
    """Returns the stems of the images in the lists of a folder, and in ImageSets below it."""
    names = [name for name in folder.of_suffix(".txt") if "/" not in name or "ImageSets/" in name]
    names = [name for name in names if os.path.basename(name).lower() not in listing.CLASS_FILES]
    stems = []
    for name in names:
        if "/" in name or texts.names_images(folder.file(name)):
            images = (texts.image_of(line) for _, line in text_lines(str(folder.path / name)))
            stems += [image_paths.stem_of(image.replace("\\", "/")) for image in images if image]
    return stems


def _relative(folder: Folder, paths: Iterable[str]) -> Iterator[str]:
    top = _path(folder, "x")[:-1]
    return (path.removeprefix(top).replace(os.sep, "/") for path in paths)


def _path(folder: Folder, name: str) -> str:
    return _real(os.path.join(folder.path, name))


def _real(path: str) -> str:
    """Returns the path with the real folder, but with the name of the file as it is."""
    place, name = os.path.split(path)
    return os.path.join(_real_folder(os.path.abspath(place)), name)


_real_folder = lru_cache(maxsize=1000)(os.path.realpath)


def _stems(names: Iterable[str]) -> Iterator[str]:
    for name in names:
        for short in image_paths.short_names(name):
            yield image_paths.stem_of(short)
            yield short  # some tables have names without suffix
