"""Tells label files among JSON files by their beginning, and finds the names of their images, without parsing them."""

import json
import os
import re
from pathlib import Path

from datasets.errors import open_file
from datasets.formats import image_paths
from datasets.formats.coco import has_labels
from datasets.formats.file import File
from datasets.formats.refusals import BLANKS
from utils.images import IMAGE_SUFFIXES

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


def may_be_labels(head: bytes) -> bool:
    """Returns whether a JSON file that begins with `head` looks like annotations, not like notes or settings."""
    words = (b'"images"', b'"shapes"', b'"regions"', b'"_via_', b'"bbox"', b'"annotations"', b'"frames"')
    return any(word in head for word in words) or head.lstrip(BLANKS)[:1] == b"["


def is_supervisely(file: File, has_image: bool = False) -> bool:
    """Returns whether a JSON file is one of Supervisely, with an object."""
    return file.suffix == ".json" and b'"classTitle"' in file.head


def is_labelme(file: File, has_image: bool = False) -> bool:
    """Returns whether a JSON file is one of LabelMe."""
    if file.suffix != ".json":
        return False
    return b'"shapes"' in file.head and (b'"imagePath"' in file.head or b'"points"' in file.head)


def is_not_labelme(file: File) -> bool:
    """Returns whether a JSON file has another known format than LabelMe."""
    return _is_of_many_images(file) or is_supervisely(file)


def is_many_images(file: File, has_image: bool = False) -> bool:
    """Returns whether a JSON file holds the labels of many images: COCO, Label Studio, VIA, Datumaro or Scalabel."""
    return _is_of_many_images(file) and has_labels(file.path)


def is_of_other_task(file: File, has_image: bool = False) -> bool:
    """Returns whether a file is one of COCO for another task, with captions, panoptic segments, or images alone."""
    return _is_of_many_images(file) and not has_labels(file.path)


def _is_of_many_images(file: File) -> bool:
    if file.suffix != ".json" or is_labelme(file) or is_supervisely(file):
        return False
    return any(all(word in file.head for word in words) for words in _JSON)


def with_labels(folder: Path, files: list[str]) -> list[str]:
    """Returns the JSON files with labels: instances of COCO, or else all that are not for captions or other tasks."""
    instances = [file for file in files if os.path.basename(file).startswith("instances")]
    if instances or len(files) == 1:
        return instances or files
    return [file for file in files if has_labels(folder / file)] or files


def images_in(path: str) -> set[str]:
    """Returns the values of the first key in a JSON file, or in JSON Lines, whose values are names of images."""
    with open_file(path) as file:
        contents = file.read()
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
