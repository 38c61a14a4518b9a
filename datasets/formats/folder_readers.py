"""Readers of folders: an ordered list, of which the first that claims a folder reads it.

A new format is one more FolderReader. What it does not read is found by unread.py, from the same list.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from datasets.errors import DataError, raise_any
from datasets.formats import (
    cvat,
    data_file,
    json_labels,
    labelme,
    listing,
    record_files,
    refusals,
    tables,
    texts,
    unreadable,
    voc,
    yolo,
)
from datasets.formats.file import File
from datasets.formats.file_readers import read_file
from datasets.formats.source import Source
from datasets.store import Split
from utils.files import files_under


class Folder:
    """A folder that may hold a data set, and what is to be read from it."""

    def __init__(self, path: Path, split: Split, image_root: str | None) -> None:
        self.path, self.split, self.image_root = path, split, image_root
        self.files = files_under(path)

    def of_suffix(self, suffixes: str | tuple[str, ...]) -> list[str]:
        """Returns the files with one of these suffixes."""
        return listing.of_suffix(self.files, suffixes)

    def file(self, name: str) -> File:
        """Returns a file in the folder."""
        return File(self.path / name)

    @cached_property
    def texts(self) -> texts.Texts:
        """The texts: lists, label files and others."""
        return texts.Texts(self.path, self.files, self.image_root)

    @cached_property
    def jsons(self) -> dict[str, bool]:
        """{JSON file that looks like annotations: whether it is of LabelMe}. Raises DataError for forms that are not read."""
        found, others = {}, []
        for name in self.of_suffix(".json"):
            file = self.file(name)
            if json_labels.may_be_labels(file.head):
                refusals.refuse_json(file.path, file.head)
                found[name] = b'"shapes"' in file.head
            elif len(others) < 20:
                others.append(file)
        for file in others if not found else ():
            refusals.refuse_json(file.path, file.head)
        return found


class FolderReader(NamedTuple):
    """A format of folders: which label files it reads, and its reader."""

    name: str
    claims: Callable[[Folder], list[str]]  # the files of all splits that it reads, none if it is another format
    read: Callable[[Folder, list[str]], list[Source]]  # reads the split of these files; several sources are joined
    is_label_file: Callable[[File, bool], bool]  # (a file, whether an image has its name)
    images_in: Callable[[str], set[str]] | None = None  # names in a label file; None: it belongs to one image
    by_name: bool = False  # a label file belongs to the image of its name, and to no other
    reports: str = ""  # the images that its reader reads or names: "all", or those "near" the ones that it reads


# ---- which label files a folder has


def _xmls(folder: Folder) -> list[str]:
    """Returns the XML files if one of them holds labels; otherwise they are settings or the like."""
    xmls = folder.of_suffix(".xml")
    return xmls if any(_is_label_xml(folder.file(name)) for name in xmls) else []


def _is_label_xml(file: File) -> bool:
    return voc.is_label_file(file) or cvat.is_label_file(file)


def _cvat(folder: Folder) -> list[str]:
    xmls = _xmls(folder)
    return xmls if len(xmls) < 100 and all(cvat.is_cvat(folder.file(name)) for name in xmls) else []


def _supervisely(folder: Folder) -> list[str]:
    return list(filter(record_files.is_supervisely, folder.files))


def _labelme(folder: Folder) -> list[str]:
    """Returns all JSON files that do not have another format, if there is one of LabelMe. Its reader reports the others."""
    if not any(folder.jsons.values()):
        return []
    return [name for name in folder.of_suffix(".json") if not json_labels.is_not_labelme(folder.file(name))]


def _nothing(folder: Folder) -> list[str]:
    return []  # label files that are named, but never read


def _tables(folder: Folder) -> list[str]:
    found = folder.of_suffix(tables.SUFFIXES)
    return [name for name in found if tables.is_table(str(folder.path / name))]


def _unreadable(folder: Folder) -> list[str]:
    return [name for name in folder.files if unreadable.problem_of(folder.file(name))]


def _lists(folder: Folder) -> list[str]:
    """Returns the annotation files of Roboflow, or the lists of images, if one of them belongs to the split."""
    if folder.texts.exported:
        return folder.texts.exported
    lists, are_sure, _ = folder.texts.lists
    return lists if are_sure and (folder.split or len(lists) == 1) else []


def _yolo(folder: Folder) -> list[str]:
    """Returns all files if some are label files: a folder of images may have them next to it."""
    return folder.files if folder.texts.are_labels() else []


# ---- reading


def _read_files(folder: Folder, files: Sequence[str]) -> list[Source]:
    """Reads the file of a split; without a split, all files."""
    split, path = folder.split, folder.path
    chosen = listing.select_split(path, files, split, by_name=True) if len(files) > 1 else files
    if split and len(chosen) > 1:
        names = ", ".join(chosen[:5])
        raise DataError(f"{path}: {len(chosen)} files may have the annotations ({names}): name the one with the boxes")
    sources = [read_file(path / file, split, folder.image_root) for file in chosen]
    sources[-1].notes += listing.no_split_notes(path, files, split, by_name=True)
    sources[0].label_files += [str(path / file) for file in files]
    listing.add_splits(sources[0], path, listing.splits_of(files, by_name=True), split)
    return sources


def _read_lists(folder: Folder, lists: Sequence[str]) -> list[Source]:
    """Reads the list of a split, or the annotation files of Roboflow."""
    found, split, path = folder.texts, folder.split, folder.path
    if found.exported or not _lists(folder):
        return _read_files(folder, lists)
    notes = listing.no_split_notes(path, found.lists[2], split, by_name=True)
    chosen, others = texts.list_of_split(path, lists, split)
    source = read_file(path / chosen, split, folder.image_root)
    source.notes += others + notes
    source.label_files += [str(path / text) for text in found.texts if split and "/" not in text]
    if not any(source.lines):  # its boxes are in label files
        source.format = YOLO.name
        source.label_files += [str(path / file) for file in yolo.usual_labels(folder.files)]
    listing.add_splits(source, path, listing.splits_of(lists, by_name=True), split)
    return [source]


def _read_data_file(folder: Folder, files: Sequence[str]) -> list[Source]:
    return [data_file.read_folder(folder.path, files, folder.split, folder.image_root)]


def _read_voc(folder: Folder, files: Sequence[str]) -> list[Source]:
    return [voc.read_folder(folder.path, folder.split, folder.image_root)]


def _read_supervisely(folder: Folder, files: Sequence[str]) -> list[Source]:
    return [record_files.read_supervisely(folder.path, files, folder.split, folder.image_root)]


def _read_labelme(folder: Folder, files: Sequence[str]) -> list[Source]:
    return [labelme.read_folder(folder.path, files, folder.split, folder.image_root)]


def _read_yolo(folder: Folder, files: Sequence[str]) -> list[Source]:
    return [yolo.read_folder(folder.path, folder.files, folder.split, folder.image_root)]


def _refuse_unreadable(folder: Folder, files: Sequence[str]) -> list[Source]:
    """Raises DataError, which names the files that may have the boxes, but cannot be read, with the reasons."""
    problems = [unreadable.problem_of(folder.file(name)) for name in files]
    raise_any(f"{folder.path}: no file with boxes, but files that cannot be read: {len(problems)}", problems)
    return []


def _refuse_lists_below(folder: Folder, places: Sequence[str]) -> list[Source]:
    """Raises DataError, which names the folders below that have annotation files: relative names in them start there."""
    shown = " or ".join(str(folder.path / place) for place in places[:5])
    raise DataError(f"{folder.path}: no data set in this folder itself, but below it: give {shown}")


def _refuse(folder: Folder, files: Sequence[str]) -> list[Source]:
    """Raises DataError, which names what is in the folder."""
    refusals.refuse_folder(folder.path, folder.files)
    inside = ", ".join(sorted(path.name for path in folder.path.iterdir() if path.is_dir())[:5])
    raise DataError(
        f"{folder.path}: neither data.yaml or label files (YOLO) nor *.xml (VOC, CVAT) nor *.json (COCO, LabelMe) nor *.csv is "
        f"in this folder: name the file, or the folder above or below it{f' ({inside})' if inside else ''}"
    )


YOLO = FolderReader("YOLO", _yolo, _read_yolo, yolo.is_label_file, by_name=True, reports="all")
VOC = FolderReader("VOC", _xmls, _read_voc, voc.is_label_file, reports="near")
LISTS = FolderReader("annotation files", _lists, _read_lists, texts.is_label_file, texts.images_in)
CSV = FolderReader("CSV", _tables, _read_files, tables.is_label_file, tables.image_names)
UNREADABLE = FolderReader(
    "files that cannot be read", _unreadable, _refuse_unreadable, unreadable.is_label_file, lambda path: set()
)

FOLDER_READERS = (  # the first one that claims label files reads them
    YOLO._replace(claims=lambda folder: data_file.data_files(folder.path), read=_read_data_file, reports=""),
    FolderReader("CVAT", _cvat, _read_files, cvat.is_label_file, cvat.images_in),
    VOC,
    FolderReader("Supervisely", _supervisely, _read_supervisely, json_labels.is_supervisely),
    FolderReader("LabelMe", _labelme, _read_labelme, json_labels.is_labelme, reports="all"),
    FolderReader(
        "JSON",
        lambda folder: json_labels.with_labels(folder.path, list(folder.jsons)),
        _read_files,
        json_labels.is_many_images,
        json_labels.images_in,
    ),
    FolderReader("COCO for other tasks", _nothing, _read_files, json_labels.is_of_other_task, by_name=True),
    FolderReader(
        "JSON Lines",
        lambda folder: folder.of_suffix(record_files.JSON_LINES),
        _read_files,
        record_files.is_label_file,
        json_labels.images_in,
    ),
    LISTS,
    YOLO,
    CSV,
    UNREADABLE,
    LISTS._replace(claims=lambda folder: folder.texts.folders_below, read=_refuse_lists_below),
    LISTS._replace(claims=lambda folder: folder.texts.lists[0]),  # its reader reports what is wrong with them
    CSV._replace(claims=lambda folder: folder.of_suffix(tables.SUFFIXES)),  # as for lists
    VOC._replace(claims=lambda folder: folder.of_suffix(".xml")),  # as for lists
    YOLO._replace(claims=lambda folder: folder.texts.labels_alone),  # its reader reports that their images are missing
    FolderReader("other formats", lambda folder: ["."], _refuse, refusals.is_label_file, by_name=True),
)
