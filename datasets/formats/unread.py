"""Finds what the reader of a folder did not read: label files, and images that no label file names.

A folder is read in one format, and each image has one label file. One stray file of a format that is tried before the others,
or in the place that is tried first, could hide a whole data set. So label files that are not read are named, and they are an
error if they label more images than the files that are read.
"""

import json
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from datasets.errors import DataError, one_line, open_file
from datasets.formats import image_paths, listing
from datasets.formats.annotation_file import text_lines
from datasets.formats.coco import has_labels
from datasets.formats.record_files import JSON_LINES, is_lines, is_supervisely
from datasets.formats.refusals import refuse_texts
from datasets.formats.tables import image_names, is_table
from datasets.formats.yolo import begins_with_label, is_label, is_named_otherwise
from datasets.store import Annotations, Split
from utils.files import files_under
from utils.images import IMAGE_SUFFIXES

VOC, CVAT, LABELME, JSON, SUPERVISELY = "VOC", "CVAT", "LabelMe", "JSON", "Supervisely"
LINES, TEXT, YOLO, CSV = "JSON Lines", "annotation files", "YOLO", "CSV"
NO_LABELS = "COCO for other tasks"  # captions, panoptic segments, or images alone
OTHER = "other formats"  # text files in a known format that is not supported
PER_IMAGE = (VOC, LABELME, SUPERVISELY, YOLO)  # one label file per image
HEAD = 1 << 16  # bytes
_XML = re.compile(rb"<(\w+:)?annotation(s?)\b")
_BOX = re.compile(r"\s-?\d+(\.\d+)?(,-?\d+(\.\d+)?){3,5}(\s|$)")
_JSON = (  # sets of keys: the head of a label file has all keys of one set
    (b'"file_name"', b'"images"'),
    (b'"annotations"', b'"bbox"'),
    (b'"annotations"', b'"result"'),
    (b'"annotations"', b'"coordinates"'),
    (b'"regions"', b'"shape_attributes"'),
    (b'"box2d"',),
    (b'"items"', b'"categories"'),
    (b'"image"', b'"rectanglelabels"'),
    (b'"image"', b'"label"', b'"original_width"'),
)
_IMAGE_KEYS = (
    b"file_name",
    b"filename",
    b"path",
    b"image",
    b"img",
    b"name",
    b"coco_url",
)  # the first one with images counts


def left_over(
    folder: Path,
    found: Annotations,
    split: Split,
    read: str,
    image_root: str | None,
    label_files: Iterable[str],
    listed: Iterable[str] | None = None,
) -> list[str]:
    """Returns notes about the label files and images in `folder` that were not read. `read`: the format that was.

    With `image_root` the images in `folder` do not count. `label_files`: those that the reader reads for any split.
    `listed`: the images in all splits of a data file, if there is one. A data file decides what is read.
    Raises DataError if the label files that are not read, of one format, label more images than those that are read."""
    files = files_under(folder)
    own = {_real(path) for path in (*label_files, *(found.files[i] for i in range(len(found)))) if path}
    every = _label_files(folder, files, read, own)
    mine = [name for name in every.get(read, ()) if _real(os.path.join(folder, name)) in own]
    others = {kind: names for kind, names in every.items() if kind != read}
    if more := sorted(set(every.get(read, ())).difference(mine)):
        others[read] = more
    if NO_LABELS in others and all(_real(os.path.join(folder, name)) in own for name in others[NO_LABELS]):
        del others[NO_LABELS]  # read, because there is nothing else
    images = image_paths.Stems(listing.images_of(files_under(image_root) if image_root else files))
    counts = {kind: _count(folder, kind, names, images) for kind, names in others.items() if kind != NO_LABELS}
    if listed is None and counts:
        count = _count(folder, read, mine, images)
        if read not in PER_IMAGE:  # else images without a label file, which are backgrounds, are among those found
            count = max(count, len(found))
        most = max(counts, key=counts.get)
        if counts[most] > count:
            fix = "name the folder or the file of the right one, or move the others out of this folder"
            what = f"{read} ({_some(mine)}) would be read with {count} images"
            other = f"{most} ({_some(others[most])}) has {counts[most]}"
            raise DataError(f"{folder}: labels in several formats or places: {what}, but {other}: {fix}")
    if read == YOLO and YOLO in others and (rest := _unnamed(folder, others.pop(YOLO), own, images)):
        others[YOLO] = rest
    notes = [_other_formats(folder, read, others, counts)] if others else []
    if read not in (VOC, YOLO):
        notes += listing.unread_notes(folder, files)
    if read == VOC:
        notes += _unlisted(folder, files, every[VOC])
    return notes + ([] if image_root else _lost_images(folder, files, found, split, read, every, listed))


def _unnamed(folder: Path, labels: Sequence[str], own: set[str], images: image_paths.Stems) -> list[str]:
    """Returns those YOLO label files that their reader does not name: it looks for label files without an image and with
    other suffixes in the folders of those that it reads, `own`."""
    folders = {os.path.dirname(path) for path in own}
    near = {label for label in labels if os.path.dirname(_real(os.path.join(folder, label))) in folders}
    usual = (".txt", ".TXT")
    return [label for label in labels if label not in near or (images.nearest(label) and label.endswith(usual))]


def with_labels(folder: Path, files: list[str]) -> list[str]:
    """Returns the JSON files with labels: instances of COCO, or else all that are not for captions or other tasks."""
    instances = [file for file in files if os.path.basename(file).startswith("instances")]
    if instances or len(files) == 1:
        return instances or files
    return [file for file in files if has_labels(folder / file)] or files


def _other_formats(folder: Path, read: str, others: dict[str, list[str]], counts: dict[str, int]) -> str:
    """Returns the note about label files of other formats: how many, their names and the number of their images."""
    shown = []
    for kind, names in others.items():
        images = f" of {counts[kind]} images" if kind in counts and kind not in PER_IMAGE else ""
        shown.append(f"{kind} {len(names)}{images} ({_some(names)})")
    return f"{folder}: label files that are not read, because the folder is read as {read}: {'; '.join(shown)}"


def _unlisted(folder: Path, files: Sequence[str], labels: Sequence[str]) -> list[str]:
    """Returns a note about XML files that no list in ImageSets names, if there are such lists."""
    stems = set(_lists(folder, [file for file in files if "ImageSets/" in file]))
    left = [label for label in labels if image_paths.stem_of(label) not in stems] if stems else []
    return [f"{folder}: XML files that no list names, left out: {len(left)} ({_some(left)})"] if left else []


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


def _lost_images(
    folder: Path,
    files: Sequence[str],
    found: Annotations,
    split: Split,
    read: str,
    every: dict[str, list[str]],
    listed: Iterable[str] | None,
) -> list[str]:
    """Returns a note about images that are read neither for this split nor for another one, if there are any."""
    if read == LABELME or (read == YOLO and listed is None and not _lists(folder, files)):
        return []  # their readers report or read them
    used = {_real(found.path(i)) for i in range(len(found))} | {_real(path) for path in listed or ()}
    images = [image for image in listing.images_of(files) if _real(os.path.join(folder, image)) not in used]
    if read == VOC:  # its reader reports those next to the images that are read
        near = {os.path.dirname(path) for path in used}
        images = [image for image in images if os.path.dirname(_real(os.path.join(folder, image))) not in near]
    if split and images:  # the images of another split are read with that split
        own = {listing.split_in(image) for image in _relative(folder, used)}
        images = [image for image in images if listing.split_in(image) in (None, *own)]
    if images:
        known, there = set(_lists(folder, files)), image_paths.Stems(listing.images_of(files))
        for kind, names in every.items():
            is_decided = kind == YOLO == read  # by lists and data files
            if kind != NO_LABELS and not is_decided:
                known |= {stem for name in names for stem in _stems(_names(folder, kind, name, there))}
        images = [image for image in images if image_paths.stem_of(image) not in known]
    if not images:
        return []
    return [f"{folder}: images that are not read: {len(images)} ({_some(images)})"]


def _relative(folder: Path, paths: Iterable[str]) -> Iterator[str]:
    top = _real(os.path.join(folder, "x"))[:-1]
    return (path.removeprefix(top).replace(os.sep, "/") for path in paths)


def _real(path: str) -> str:
    """Returns the path with the real folder, but with the name of the file as it is."""
    place, name = os.path.split(path)
    return os.path.join(_real_folder(os.path.abspath(place)), name)


_real_folder = lru_cache(maxsize=1000)(os.path.realpath)


def _lists(folder: Path, files: Iterable[str]) -> list[str]:
    """Returns the stems that the lists of a folder name, and those in ImageSets below it: all readings of each line."""
    texts = [name for name in listing.of_suffix(files, ".txt") if "/" not in name or "ImageSets/" in name]
    texts = [name for name in texts if os.path.basename(name).lower() not in listing.CLASS_FILES]
    stems = []
    for name in texts:
        if "/" not in name and not _names_images(folder / name):
            continue
        for _, line in text_lines(str(folder / name)):
            _, readings = listing.listed_name(_BOX.split(f"{line.strip()} ")[0])
            stems += filter(None, (reading.rpartition("/")[2] for reading in readings))
    return stems


def _names_images(path: Path) -> bool:
    first = _head(path).partition(b"\n")[0].lower()
    return any(suffix.encode() in first for suffix in IMAGE_SUFFIXES)


def is_label_xml(path: Path) -> bool:
    """Returns whether an XML file holds labels, of VOC or CVAT."""
    return bool(_kind_of_xml(path))


def _kind_of_xml(path: Path) -> str:
    mark = _XML.search(_head(path).replace(b"\0", b""))  # UTF-16 has zeros
    if mark is None:
        return ""
    return CVAT if mark[2] else VOC


def is_other_json(folder: Path, file: str) -> bool:
    """Returns whether a JSON file holds labels of another format than LabelMe."""
    return _kind_of_json(folder / file, file) in (JSON, NO_LABELS, SUPERVISELY)


def _label_files(folder: Path, files: Sequence[str], read: str, own: set[str]) -> dict[str, list[str]]:
    """Returns {format: label files} of a folder. Files that only look like label files by their suffix are left out.

    `read`: the format whose reader has opened its files, `own`, so that they are recognized without opening them again."""
    images = {image_paths.stem_of(image) for image in listing.images_of(files)}
    found = defaultdict(list)
    for name in files:
        suffix, paired = os.path.splitext(name)[1].lower(), image_paths.stem_of(name) in images
        opened = (suffix, read) == (".xml", VOC)
        if read == YOLO and suffix == ".txt":
            opened = _real(os.path.join(folder, name)) in own
        if kind := read if opened else _kind_of(folder, name, paired):
            found[kind].append(name)
    return found


def _kind_of(folder: Path, name: str, paired: bool) -> str:
    """Returns the format of a label file, "" for any other file. `paired`: whether an image in the folder has this name."""
    path, suffix = folder / name, os.path.splitext(name)[1].lower()
    if suffix == ".xml":
        return _kind_of_xml(path)
    if suffix == ".json":
        return _kind_of_json(path, name)
    if suffix in JSON_LINES:
        return LINES if is_lines(str(path)) else ""
    if suffix in (".csv", ".tsv"):
        return CSV if is_table(str(path)) else ""
    if suffix != ".txt" or os.path.basename(name).lower() in listing.CLASS_FILES:
        return ""
    if not is_named_otherwise(name) and (is_label(path, least=5) if paired else begins_with_label(path)):
        return YOLO
    if paired:
        try:
            refuse_texts([path])
        except DataError:
            return OTHER
        return ""
    first = _head(path).partition(b"\n")[0].decode("utf-8", "replace")
    return TEXT if _names_images(path) and _BOX.search(first) else ""


def _kind_of_json(path: Path, name: str) -> str:
    if is_supervisely(name):
        return SUPERVISELY
    head = _head(path)
    if b'"shapes"' in head and (b'"imagePath"' in head or b'"points"' in head):
        return LABELME
    if b'"classTitle"' in head:
        return SUPERVISELY
    if not any(all(word in head for word in words) for words in _JSON):
        return ""
    return JSON if has_labels(path) else NO_LABELS


def _count(folder: Path, kind: str, files: Iterable[str], images: image_paths.Stems) -> int:
    """Returns the number of images that label files of a format name. `images`: those of the data set."""
    return len({name for file in files for name in _names(folder, kind, file, images)})


def _names(folder: Path, kind: str, file: str, images: image_paths.Stems) -> set[str]:
    """Returns the names of the images in a label file, none of a damaged one."""
    if kind in PER_IMAGE or kind == OTHER:
        place = os.path.splitext(file)[0] if kind == SUPERVISELY else file
        image = images.nearest(place)
        if image:
            return {image}
        return set() if kind in (YOLO, OTHER) else {place}  # a text without an image may be anything
    try:
        return _names_of_many(str(folder / file), kind)
    except DataError:  # the note still names it
        return set()


def _names_of_many(path: str, kind: str) -> set[str]:
    """Returns the names of the images in a label file of a format with many images in a file. Raises DataError."""
    if kind == CSV:
        return image_names(path)
    if kind == TEXT:
        return {_BOX.split(line)[0].strip() for _, line in text_lines(path) if line.strip()}
    with open_file(path) as opened:
        contents = opened.read()
    if kind == CVAT:
        return {name.decode("utf-8", "replace") for name in re.findall(rb'<image\b[^>]*?\bname="([^"]*)"', contents)}
    return _names_in_json(contents)


def _names_in_json(contents: bytes) -> set[str]:
    """Returns the values of the first key in a JSON text whose values are names of images."""
    for key in _IMAGE_KEYS:
        values = re.findall(rb'"%s"\s*:\s*("(?:[^"\\]|\\.)*")' % key, contents)
        names = set()
        for value in set(values):
            try:
                name = json.loads(value)
            except ValueError:
                continue
            if any(short.lower().endswith(IMAGE_SUFFIXES) for short in image_paths.short_names(name)):
                names.add(name)
        if names:
            return names
    return set()


def _stems(names: Iterable[str]) -> Iterator[str]:
    for name in names:
        for short in image_paths.short_names(name):
            yield image_paths.stem_of(short)
            yield short  # some tables have names without suffix


def _head(path: Path) -> bytes:
    with open_file(path) as file:
        return file.read(HEAD)
