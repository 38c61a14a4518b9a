"""Which reader reads what: the list of the formats of single files, and what a folder is read as."""

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from datasets.errors import DataError
from datasets.formats import coco, cvat, labelme, labelstudio, listing, record_files, tables, texts, via, voc, yolo
from datasets.formats.file import File
from datasets.formats.record_files import JSON_LINES
from datasets.formats.refusals import BLANKS, refuse_folder, refuse_json
from datasets.formats.source import Source
from datasets.formats.typed_json import BOM
from datasets.formats.unread import (
    CSV,
    CVAT,
    JSON,
    LABELME,
    LINES,
    SUPERVISELY,
    TEXT,
    VOC,
    YOLO,
    is_label_xml,
    is_other_json,
    left_over,
    with_labels,
)
from datasets.store import Annotations, Split
from utils.files import files_under

_YOLO = re.compile(rb"^[\"']?(train|val|valid|validation|test)[\"']? *:", re.IGNORECASE | re.MULTILINE)
_NAMES = re.compile(rb"^[\"']?names[\"']? *:", re.IGNORECASE | re.MULTILINE)
_DARKNET = re.compile(rb"^\s*(train|valid|names) *=", re.IGNORECASE | re.MULTILINE)


class Reader(NamedTuple):
    """A format of single files: what it looks like, and its reader."""

    claims: Callable[[File], bool]
    read: Callable[
        ..., Source
    ]  # (file, split) or, where label files and images are paired by their names, also image_root
    pairs: bool = False


READERS = (  # the first one that claims a file reads it
    Reader(texts.claims, texts.read, pairs=True),
    Reader(record_files.claims_scalabel, record_files.read_scalabel),
    Reader(labelstudio.claims, labelstudio.read),
    Reader(labelme.claims, labelme.read, pairs=True),
    Reader(coco.claims, coco.read),
    Reader(record_files.claims_datumaro, record_files.read_datumaro),
    Reader(via.claims, via.read),
    Reader(tables.claims, tables.read),
    Reader(record_files.claims_lines, record_files.read_lines),
    Reader(cvat.claims, cvat.read),
    Reader(yolo.claims_config, yolo.read_config, pairs=True),
)


class Reading(NamedTuple):
    """What was read from a file or folder."""

    sources: list[Source]  # one, or several files that are joined: their images have the same classes
    notes: Callable[[Annotations], list[str]] | None = None  # about what the folder holds besides


def read_path(path: Path, split: Split, image_root: str | None) -> Reading:
    """Reads a file or a folder. Raises DataError."""
    if image_root is not None and not os.path.isdir(image_root):
        raise DataError(f"image_root={image_root}: there is no such folder: correct the path")
    if path.is_dir():
        return read_folder(path, split, image_root)
    return Reading([read_file(path, split, image_root)])


def read_file(path: Path, split: Split, image_root: str | None = None) -> Source:
    """Reads a file in the format of the first reader that claims it. Raises DataError."""
    file = File(path)
    if file.suffix == ".json":
        _ = file.json  # what is not JSON is reported before its format is recognized
        refuse_json(path, file.head)
    for reader in READERS:
        if reader.claims(file):
            return reader.read(file, split, image_root) if reader.pairs else reader.read(file, split)
    if file.suffix == ".json":
        there = ", ".join(list(file.json)[:5]) or "nothing"
        raise DataError(
            f"{path}: not a COCO ground truth, it has no images, nor a file of LabelMe, Label Studio or VIA (2), but "
            f"{there}: export the boxes as COCO"
        )
    raise DataError(
        f"{path}: give an annotation file (.txt), JSON (COCO, Label Studio, VIA), CSV, YOLO yaml, CVAT XML, or a folder "
        f"with any of these, or with VOC, LabelMe or YOLO label files"
    )


def read_folder(folder: Path, split: Split, image_root: str | None) -> Reading:
    """Reads a folder by what it holds: a YOLO data file, XML, JSON, lists, or YOLO label files, in this order.

    Label files of other formats, and images that no label file names, are reported."""
    config, others = _data_files(folder)
    if config is None:
        kind, sources = _read_labels(folder, split, image_root)
        own = [file for source in sources for file in (source.path, *source.label_files)]
        return Reading(sources, lambda found: left_over(folder, found, split, kind, image_root, own))
    images = yolo.config_images(config, image_root)
    source = yolo.read_config(File(config), split, image_root)

    def notes(found: Annotations) -> list[str]:
        unread = yolo.unread_configs(config, images, others, image_root)
        own = [] if image_root else [os.path.join(folder, file) for file in yolo.usual_labels(files_under(folder))]
        return unread + left_over(folder, found, split, YOLO, image_root, own, images)

    return Reading([source], notes)


def _data_files(folder: Path) -> tuple[Path | None, list[Path]]:
    """Returns (the YOLO data file of a folder, if it has one; others, which are not read).

    It is data.yaml, or the only other yaml file, or else the only darknet file. Raises DataError if there are several."""
    names = sorted(os.listdir(folder), key=lambda name: (name.lower() != "data.yaml", name))
    names = [name for name in names if not os.path.isdir(folder / name)]
    yamls = [folder / name for name in listing.of_suffix(names, (".yaml", ".yml"))]
    heads = {path: File(path).head.removeprefix(BOM) for path in yamls}
    own = [path for path in yamls if path.name.lower() == "data.yaml"][:1]
    data = own or [path for path in yamls if _YOLO.search(heads[path])]
    darknet = [folder / name for name in listing.of_suffix(names, ".data")]
    darknet = [path for path in darknet if _DARKNET.search(File(path).head.removeprefix(BOM))]
    chosen = data or darknet
    if len(chosen) > 1:
        shown = ", ".join(path.name for path in chosen[:5])
        raise DataError(f"{folder}: several data files ({shown}): name one of them")
    if not chosen:
        return None, []
    others = [path for path in yamls if _YOLO.search(heads[path]) or _NAMES.search(heads[path])] + darknet
    return chosen[0], [path for path in others if path != chosen[0]]


def _read_labels(folder: Path, split: Split, image_root: str | None) -> tuple[str, list[Source]]:
    """Reads a folder without a YOLO data file -> (format, sources)."""
    files = files_under(folder)
    xmls = listing.of_suffix(files, ".xml")
    if any(is_label_xml(folder / file) for file in xmls):  # otherwise they are settings or the like
        if len(xmls) < 100 and all(cvat.is_cvat(File(folder / file)) for file in xmls):
            return CVAT, _read_files(folder, xmls, split, image_root)
        return VOC, [voc.read_folder(folder, split, image_root)]
    if any(map(record_files.is_supervisely, files)):
        source = record_files.read_supervisely(folder, files, split, image_root)
        source.label_files = [os.path.join(folder, file) for file in filter(record_files.is_supervisely, files)]
        return SUPERVISELY, [source]
    if jsons := _jsons(folder, files):
        if any(jsons.values()):
            every = [file for file in listing.of_suffix(files, ".json") if not is_other_json(folder, file)]
            source = labelme.read_folder(folder, every, split, image_root)
            source.label_files = [os.path.join(folder, file) for file in every]
            return LABELME, [source]
        return JSON, _read_files(folder, with_labels(folder, list(jsons)), split, image_root)
    if lines := listing.of_suffix(files, JSON_LINES):
        return LINES, _read_files(folder, lines, split, image_root)
    if sources := _read_texts(folder, files, split, image_root):
        return (TEXT if any(line for source in sources for line in source.lines) else YOLO), sources
    if found := listing.of_suffix(files, tables.SUFFIXES):
        found = [table for table in found if tables.is_table(str(folder / table))] or found
        return CSV, _read_files(folder, found, split, image_root)
    if xmls:
        return VOC, [voc.read_folder(folder, split, image_root)]  # which reports what is wrong with them
    refuse_folder(folder, files)
    inside = ", ".join(sorted(path.name for path in folder.iterdir() if path.is_dir())[:5])
    raise DataError(
        f"{folder}: neither data.yaml or label files (YOLO) nor *.xml (VOC, CVAT) nor *.json (COCO, LabelMe) nor *.csv is in "
        f"this folder: name the file, or the folder above or below it{f' ({inside})' if inside else ''}"
    )


def _read_texts(folder: Path, files: list[str], split: Split, image_root: str | None) -> list[Source]:
    """Reads a folder with annotation files, lists of images or YOLO label files. Empty if it has none of these."""
    found = texts.Texts(folder, files, image_root)
    if found.exported:
        return _read_files(folder, found.exported, split, image_root)
    lists, are_sure, naming = found.lists()
    if are_sure and lists and (split or len(lists) == 1):
        notes = listing.no_split_notes(folder, naming, split, by_name=True)
        chosen, others = texts.list_of_split(folder, lists, split)
        source = read_file(folder / chosen, split, image_root)
        source.notes += others + notes
        listing.add_splits(source, folder, listing.splits_of(lists, by_name=True), split)
        own = yolo.usual_labels(files) | {text for text in found.texts if split and "/" not in text}
        source.label_files = [os.path.join(folder, file) for file in own]
        return [source]
    if found.are_labels():
        return [yolo.read_folder(folder, files, split, image_root)]
    return _read_files(folder, lists, split, image_root) if lists else []


def _read_files(folder: Path, files: Sequence[str], split: Split, image_root: str | None) -> list[Source]:
    """Reads the file of a split; without a split, all files."""
    chosen = listing.select_split(folder, files, split, by_name=True) if len(files) > 1 else files
    if split and len(chosen) > 1:
        names = ", ".join(chosen[:5])
        raise DataError(
            f"{folder}: {len(chosen)} files may have the annotations ({names}): name the one with the boxes"
        )
    sources = [read_file(folder / file, split, image_root) for file in chosen]
    sources[-1].notes += listing.no_split_notes(folder, files, split, by_name=True)
    sources[0].label_files = [os.path.join(folder, file) for file in files]
    listing.add_splits(sources[0], folder, listing.splits_of(files, by_name=True), split)
    return sources


def _jsons(folder: Path, files: list[str]) -> dict[str, bool]:
    """Returns {file: whether it is of LabelMe} of the JSON files that look like annotations. Raises DataError for others,
    of a known form that is not read."""
    found, others = {}, []
    for file in listing.of_suffix(files, ".json"):
        head = File(folder / file).head
        if _is_data(head):
            refuse_json(folder / file, head)
            found[file] = b'"shapes"' in head
        elif len(others) < 20:
            others.append((folder / file, head))
    for path, head in others if not found else ():
        refuse_json(path, head)
    return found


def _is_data(head: bytes) -> bool:
    """Returns whether a JSON file that begins with `head` looks like annotations, not like notes or settings."""
    words = (b'"images"', b'"shapes"', b'"regions"', b'"_via_', b'"bbox"', b'"annotations"', b'"frames"')
    return any(word in head for word in words) or head.lstrip(BLANKS)[:1] == b"["
