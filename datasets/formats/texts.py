"""Text files -> Source: annotation files, lists of images whose boxes are in label files, and folders of YOLO label files."""

import os
import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath

from datasets.errors import DataError
from datasets.formats import annotation_file, image_paths, listing, voc, yolo
from datasets.formats.annotation_file import text_lines
from datasets.formats.class_lists import find_lists, names_next_to
from datasets.formats.file import File
from datasets.formats.refusals import refuse_texts
from datasets.formats.source import Source
from datasets.store import Split
from utils.files import files_under
from utils.images import IMAGE_SUFFIXES


def claims(file: File) -> bool:
    """Returns whether a file is a text."""
    return file.suffix == ".txt"


def read(file: File, split: Split, image_root: str | None) -> Source:
    """Reads an annotation file, or a list of images, whose boxes are in label files of YOLO or VOC. Raises DataError."""
    path = Path(file.path)
    if "ImageSets" in path.parts[-3:-1]:
        folder = path.parents[0 if path.parent.name == "ImageSets" else 1].parent
        return voc.read_folder(folder, (), image_root, path)
    refuse_texts([path])
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
    if listing.of_suffix(files_under(path.parent), ".xml"):
        return voc.read_folder(path.parent, (), image_root, path)
    return found


OF_REPOSITORIES = ("requirements", "readme", "license", "cmakelists")  # beginnings of names of texts without images
_BOX = re.compile(r"\s-?\d+(\.\d+)?(,-?\d+(\.\d+)?){3,5}(\s|$)")


def is_label_file(file: File, has_image: bool) -> bool:
    """Returns whether a file is an annotation file: its first line names an image and has a box."""
    if has_image or file.suffix != ".txt" or file.name.lower() in listing.CLASS_FILES:
        return False
    return names_images(file) and bool(_BOX.search(_first_line(file)))


def images_in(path: str) -> set[str]:
    """Returns the names of the images in an annotation file. Raises DataError."""
    return {image_of(line) for _, line in text_lines(path) if line.strip()}


def image_of(line: str) -> str:
    """Returns the name of the image in a line of an annotation file or a list."""
    return _BOX.split(f"{line.strip()} ")[0].strip()


def names_images(file: File) -> bool:
    """Returns whether the first line of a text holds the name of an image."""
    first = _first_line(file).lower()
    return any(suffix in first for suffix in IMAGE_SUFFIXES)


def _first_line(file: File) -> str:
    return file.head.partition(b"\n")[0].decode("utf-8", "replace")


class Texts:
    """The text files of a folder: which of them are annotation files or lists of images, and whether others are labels."""

    def __init__(self, folder: Path, files: Sequence[str], image_root: str | None) -> None:
        self.folder, self.files = folder, files
        self.texts = listing.of_suffix(files, ".txt")
        self.images = listing.images_of(files)
        if image_root:
            self.images += listing.images_of(files_under(image_root))
        # Roboflow's YOLOv4
        self.exported = [text for text in self.texts if os.path.basename(text).lower() == "_annotations.txt"]
        self._paired = image_paths.Stems(self.images)

    @cached_property
    def lists(self) -> tuple[list[str], bool, list[str]]:
        """Returns (annotation files and lists of images, whether they are sure to be some, all that name images).

        Raises DataError for label files of a known format that is not read."""
        labels = [text for text in self.texts if self._paired.nearest(text)] or self.texts  # others may be notes
        refuse_texts(self.folder / text for text in labels[:: max(len(labels) // 10, 1)])
        lists = [text for text in self.texts if "/" not in text and text.lower() not in listing.CLASS_FILES]
        lists = [text for text in lists if not self._paired.nearest(text)]
        lists = [
            text for text in lists if not yolo.is_label(self.folder / text, least=5)
        ]  # the user named labels/train
        naming = [text for text in lists if names_images(File(self.folder / text))]
        sure = [text for text in lists if text in naming or listing.split_of(text)]  # others may be a README
        lists = sure or [text for text in lists if not text.lower().startswith(OF_REPOSITORIES)]
        if len(lists) > 1:
            lists = [text for text in lists if listing.split_of(text)]
        return lists, bool(sure), naming

    @cached_property
    def folders_below(self) -> list[str]:
        """The folders below this one that hold annotation files or lists of images of a split, such as data/set/train.txt."""
        below = [text for text in self.texts if "/" in text and listing.split_of(PurePosixPath(text).stem)]
        below = [text for text in below if names_images(File(self.folder / text))]
        return sorted({os.path.dirname(text) for text in below})

    @cached_property
    def labels_alone(self) -> list[str]:
        """The texts, if one of the first begins with a label, whether an image has its name or not."""
        first = (File(self.folder / text) for text in self.texts[:100])
        return self.texts if any(yolo.is_label_file(file, has_image=False) for file in first) else []

    def are_labels(self) -> bool:
        """Returns whether the texts, or those next to the folder, are YOLO label files."""
        labeled = image_paths.Stems(self.texts)
        near = (str(self.folder / image) for image in self.images[:100])  # the user named images/train
        if any(map(yolo.has_label, near)) or any(map(labeled.nearest, self.images)):
            return True
        return any(re.search("(^|/)labels/", text) for text in self.texts)


def list_of_split(folder: Path, lists: Sequence[str], split: Split) -> tuple[str, list[str]]:
    """Returns (the list of a split, notes about others of this split). One with the very name of the split is preferred.

    Raises DataError for several without it."""
    chosen = listing.select_split(folder, lists, split, by_name=True)
    exact = {text.lower(): text for text in chosen}
    named = [exact[f"{name}.txt"] for name in split if f"{name}.txt" in exact]
    if not named and len(chosen) > 1:
        fix = f"join them to {split[0]}.txt, or name one of them"
        raise DataError(f"{folder}: {len(chosen)} lists are of the split {split[0]} ({', '.join(chosen[:5])}): {fix}")
    if not named:
        return chosen[0], []
    others = [text for text in chosen if text.lower()[:-4] not in listing.SPLIT_NAMES]
    if not others:
        return named[0], []
    text = f"{folder}: lists that are not read, because there is {named[0]}: {', '.join(others[:5])}"
    return named[0], [text]
