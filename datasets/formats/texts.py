"""Text files -> Source: annotation files, and lists of images whose boxes are in label files."""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from datasets.errors import DataError
from datasets.formats import annotation_file, image_paths, voc, yolo
from datasets.formats.annotation_file import text_lines
from datasets.formats.class_lists import find_lists, names_next_to
from datasets.formats.file import CLASS_FILES, File, Folder, of_suffix
from datasets.formats.source import Source
from datasets.formats.splits import (
    SPLIT_NAMES,
    add_splits,
    no_split_notes,
    read_split,
    select_split,
    split_of,
    splits_of,
)
from datasets.store import Split
from utils.files import files_under
from utils.images import IMAGE_SUFFIXES

ROBOFLOW = "_annotations.txt"  # the annotation file of a split, in the folder of the split
FIRST = 10  # lines in which a list must name an image
_BOX = re.compile(r"\s-?\d+(\.\d+)?(,-?\d+(\.\d+)?){3,5}(\s|$)")


def is_list(file: File) -> bool:
    """Returns whether a text is an annotation file or a list of images, in the data set itself or as Roboflow writes it."""
    if file.name.lower() == ROBOFLOW:
        return True
    if file.has_image or "/" in file.place or file.name.lower() in CLASS_FILES:
        return False
    return names_images(file) or (bool(split_of(Path(file.name).stem)) and not yolo.is_label(file.path, least=5))


def is_list_below(file: File) -> bool:
    """Returns whether a text in a subfolder is an annotation file."""
    return "/" in file.place and not file.has_image and file.name.lower() not in CLASS_FILES and has_box(file)


def names_images(file: File) -> bool:
    """Returns whether one of the first lines of a text holds the name of an image."""
    return any(suffix in line for line in map(str.lower, _first_lines(file)) for suffix in IMAGE_SUFFIXES)


def has_box(file: File) -> bool:
    """Returns whether one of the first lines of a text holds the name of an image and a box: it is an annotation file."""
    return names_images(file) and any(map(_BOX.search, _first_lines(file)))


def _first_lines(file: File) -> list[str]:
    return [line.decode("utf-8", "replace") for line in file.head.split(b"\n", FIRST)[:FIRST]]


def images_in(path: str) -> set[str]:
    """Returns the names of the images in an annotation file. Raises DataError."""
    return {image_of(line) for _, line in text_lines(path) if line.strip()}


def image_of(line: str) -> str:
    """Returns the name of the image in a line of an annotation file or a list."""
    return _BOX.split(f"{line.strip()} ")[0].strip()


def read(file: File, split: Split) -> Source:
    """Reads an annotation file, or a list of images, whose boxes are in label files of YOLO or VOC. Raises DataError."""
    path, image_root = Path(file.path), file.image_root
    if "ImageSets" in path.parts[-3:-1]:
        folder = path.parents[0 if path.parent.name == "ImageSets" else 1].parent
        return voc.read_listed(path, folder, image_root)
    found = annotation_file.read(file.path, names_next_to(path))
    if not len(found):
        return found
    listed = [found.images[index] for index in range(len(found))]
    names = listed
    if image_root is not None:
        names = image_paths.in_root(listed, image_root)
        if names == listed:
            found.notes.append(
                f"image_root={image_root} is not used: {found.path} tells by itself where its images are"
            )
        found.images = type(found.images)(names)
    if len(found.labels) or found.problems:
        return found
    paths = image_paths.locate_all(path, names, [found.root])
    before = image_paths.locate_all(path, listed, [found.root])
    labeled = [place if yolo.has_label(place) else moved for place, moved in zip(before, paths, strict=True)]
    if any(yolo.has_label(place) for place in labeled if place.lower().endswith(IMAGE_SUFFIXES)):
        labels = list(map(yolo.label_file, labeled))
        folders = yolo.label_folders(labeled, labels)
        lists = find_lists(path.parent, folders, folders)
        notes = [*found.notes, *(lists.notes(file.path) if lists else [])]
        return yolo.read_images(file.path, paths, lists, notes, labels)
    if of_suffix(files_under(path.parent), ".xml"):
        return voc.read_listed(path, path.parent, image_root)
    return found


def read_lists(folder: Folder, names: Iterable[str]) -> list[Source]:
    """Reads the list of a split, or the annotation files of Roboflow. Raises DataError."""
    every, split, path = list(names), folder.split, folder.path
    exported = [name for name in every if os.path.basename(name).lower() == ROBOFLOW]
    lists = exported or every
    if len(lists) > 1 and not exported:
        lists = [name for name in lists if split_of(Path(name).stem)] or lists
    if not split and len(lists) > 1 and not any(has_box(folder.file(name)) for name in lists):
        return yolo.read_all(folder)  # all images, of any list or of none
    if exported or not split:
        return read_split(folder, lists, read)
    notes = no_split_notes(path, every, split, by_name=True)
    chosen, others = _list_of_split(path, lists, split)
    source = read(folder.file(chosen), split)
    source.notes += others + notes
    source.label_files += [str(path / name) for name in folder.of_suffix(".txt") if "/" not in name]
    if not any(source.lines):  # its boxes are in label files
        source.format = "YOLO"
        source.label_files += [str(path / name) for name in yolo.usual_labels(folder.files)]
    add_splits(source, path, splits_of(lists, by_name=True), split)
    return [source]


def _list_of_split(folder: Path, lists: Sequence[str], split: Split) -> tuple[str, list[str]]:
    """Returns (the list of a split, notes about others of this split). One with the very name of the split is preferred.

    Raises DataError for several without it."""
    chosen = select_split(folder, lists, split, by_name=True)
    exact = {text.lower(): text for text in chosen}
    named = [exact[f"{name}.txt"] for name in split if f"{name}.txt" in exact]
    if not named and len(chosen) > 1:
        fix = f"join them to {split[0]}.txt, or name one of them"
        raise DataError(f"{folder}: {len(chosen)} lists are of the split {split[0]} ({', '.join(chosen[:5])}): {fix}")
    if not named:
        return chosen[0], []
    others = [text for text in chosen if text.lower()[:-4] not in SPLIT_NAMES]
    if not others:
        return named[0], []
    text = f"{folder}: lists that are not read, because there is {named[0]}: {', '.join(others[:5])}"
    return named[0], [text]


def refuse_lists_below(folder: Folder, names: Iterable[str]) -> list[Source]:
    """Raises DataError, which names the folders below that have annotation files: relative names in them start there."""
    places = sorted({os.path.dirname(name) for name in names})
    shown = " or ".join(str(folder.path / place) for place in places[:5])
    raise DataError(f"{folder.path}: no data set in this folder itself, but below it: give {shown}")
