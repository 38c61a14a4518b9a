"""Text files: annotation files, and lists of images whose boxes are in label files of YOLO or VOC.

A line of an annotation file is `path x1,y1,x2,y2,class x1,y1,x2,y2,class,crowd ...` in pixels of the image after EXIF rotation.
A relative path starts at the folder of the file. An image without boxes is a background.
"""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from datasets.errors import DataError, check_path
from datasets.formats import voc, yolo
from datasets.formats.class_names import OWN, find_lists, list_in
from datasets.formats.file import CLASS_FILES, File, Folder, of_suffix, text_lines
from datasets.formats.source import Source
from datasets.formats.splits import IMAGE_AND_XML, SPLIT_NAMES, add_notes, read_split, select_split, split_of
from datasets.store import Classes, Split
from utils.files import files_under
from utils.images import IMAGE_SUFFIXES
from utils.text import number_of

ROBOFLOW = "_annotations.txt"  # the annotation file of a split, in the folder of the split
FIRST = 10  # lines in which a list must name an image
_BOX = re.compile(r"\s-?\d+(\.\d+)?(,-?\d+(\.\d+)?){3,5}(\s|$)")
_TEXT_AFTER_IMAGE = re.compile(r"\.(?:" + "|".join(s[1:] for s in IMAGE_SUFFIXES) + r")\s+(.*)", re.IGNORECASE)


def split_line(line: str) -> tuple[str, list[str]]:
    """Splits a line: `"my cat.jpg 1,2,3,4,0 5,6,7,8,1"` -> `("my cat.jpg", ["1,2,3,4,0", "5,6,7,8,1"])`. Raises DataError."""
    tokens = line.split()
    count = len(tokens)
    while count and tokens[count - 1].count(",") >= 3 and not tokens[count - 1].lower().endswith(IMAGE_SUFFIXES):
        count -= 1
    if count < 2:
        return check_path("".join(tokens[:count])), tokens[count:]
    name = line.strip().rsplit(None, len(tokens) - count)[0]
    stray = _TEXT_AFTER_IMAGE.search(name)
    if stray and not name.lower().endswith(IMAGE_SUFFIXES):
        raise DataError(f"{stray[1]!r} is not boxes: write x1,y1,x2,y2,class without spaces inside a box")
    return check_path(name), tokens[count:]


def read_annotation_file(path: str, names: Classes = None) -> Source:
    """Reads an annotation file. `names`: the names of its class numbers, if there is a list of them. Raises DataError."""
    source = Source(path, os.path.dirname(path), names)
    if names is not None:
        source.names_from = "classes.txt"
    for number, line in text_lines(path):
        try:
            name, tokens = split_line(line)
            if tokens and not name:
                raise ValueError(f"no image before the box {tokens[0]!r}: write path x1,y1,x2,y2,class ...")
        except ValueError as error:
            source.problems.append(f"{path}:{number}: {error}")
            continue
        if name:
            source.add_image(name, line=number)
        for token in tokens:
            try:
                x1, y1, x2, y2, label, crowd = _numbers(token)
                source.add_box(f"{path}:{number}", x1, y1, x2, y2, label, crowd)
            except ValueError as error:
                source.problems.append(f"{path}:{number}: {error}")
    return source


def _numbers(token: str) -> list[float]:
    """Returns x1, y1, x2, y2, class and crowd of a box. Raises ValueError."""
    fields = token.split(",")
    try:
        if len(fields) in (5, 6):
            return [*map(number_of, fields), 0.0][:6]
    except ValueError:
        pass
    raise ValueError(f"box {token!r} must be five numbers x1,y1,x2,y2,class, and 0 or 1 for crowd as a sixth")


def annotation_line(path: str, boxes: np.ndarray, labels: np.ndarray, crowd: np.ndarray) -> str:
    """Returns the line of an image, without the line end. Raises DataError for a path that would be read back changed."""
    if split_line(path) != (path, []):
        raise DataError(f"the path {path!r} cannot be written to an annotation file: rename the image")
    rows = zip(boxes.tolist(), labels.tolist(), crowd.tolist(), strict=True)
    words = [path]
    for box, label, is_crowd in rows:
        fields = [f"{value:.6f}".rstrip("0").rstrip(".") for value in box] + [str(label)]
        words.append(",".join([*fields, "1"] if is_crowd else fields))
    return " ".join(words)


# ---- lists of images


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


def read_text(file: File, split: Split) -> Source:
    """Reads an annotation file, or a list of images, whose boxes are in label files of YOLO or VOC. Raises DataError."""
    path, image_root = Path(file.path), file.image_root
    if "ImageSets" in path.parts[-3:-1]:
        folder = path.parents[0 if path.parent.name == "ImageSets" else 1].parent
        return voc.read_listed(path, folder, image_root)
    if any(map(IMAGE_AND_XML.match, _first_lines(file))):
        return voc.read_listed(path, path.parent, image_root)
    names = list_in(str(path.parent), OWN)
    found = read_annotation_file(file.path, names and names.names)
    if not len(found):
        return found
    found.find_images = True
    if len(found.labels) or found.problems:
        return found
    images, labels = yolo.find_listed(file.path, image_root)
    pairs = (pair for pair in zip(labels, images, strict=True) if pair[1].lower().endswith(IMAGE_SUFFIXES))
    if any(yolo.is_label_of(*pair) for pair in pairs):
        return yolo.read_images(file.path, images, find_lists(path.parent, labels, labels), found.notes, labels)
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
        return yolo.read_folder(folder)  # all images, of any list or of none
    if exported or not split:
        return read_split(folder, lists, read_text)
    chosen, others = _list_of_split(path, lists, split)
    source = read_text(folder.file(chosen), split)
    source.notes += others
    source.label_files += [str(path / name) for name in every]
    if not any(source.lines):  # its boxes are in label files
        source.has_yolo_labels = True
        if split_of(Path(chosen).stem):  # without a split it may name a few images, and the label files of others count
            source.label_files += [yolo.label_file(str(path / name)) for name in folder.images]
    add_notes(source, path, every, split, by_name=True)
    return [source]


def _list_of_split(folder: Path, lists: Sequence[str], split: Split) -> tuple[str, list[str]]:
    """Returns (the list of a split, a note about others of this split). One with the very name of the split is preferred.

    Raises DataError for several without it."""
    chosen = select_split(folder, lists, split, by_name=True)
    exact = {text.lower(): text for text in chosen}
    named = next((exact[f"{name}.txt"] for name in split if f"{name}.txt" in exact), None)
    if named is None and len(chosen) > 1:
        fix = f"join them to {split[0]}.txt, or name one of them"
        raise DataError(f"{folder}: {len(chosen)} lists are of the split {split[0]} ({', '.join(chosen[:5])}): {fix}")
    others = [text for text in chosen if named and text.lower()[:-4] not in SPLIT_NAMES]
    text = f"{folder}: lists that are not read, because there is {named}: {len(others)}, for example "
    return named or chosen[0], [text + other for other in others[:1]]


def refuse_lists_below(folder: Folder, names: Iterable[str]) -> list[Source]:
    """Raises DataError, which names the folders below that have annotation files: relative names in them start there."""
    places = sorted({os.path.dirname(name) for name in names})
    shown = " or ".join(str(folder.path / place) for place in places[:5])
    raise DataError(f"{folder.path}: no data set in this folder itself, but below it: give {shown}")
