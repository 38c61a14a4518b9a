"""Divides images at random into splits, with identical and similar images in one split, and writes the splits.

The split depends only on the contents of the files and the seed, not on their order, names or folders. Only of an export of
Roboflow, the names show which images are versions of one image.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from datasets.errors import DataError
from datasets.formats import annotation_file, coco
from datasets.formats.annotation_file import annotation_line
from datasets.formats.class_names import class_text
from datasets.formats.file import File, of_suffix
from datasets.formats.labels import resolve_labels
from datasets.formats.options import ReadOptions
from datasets.formats.yolo import has_label, label_file
from datasets.groups import named_groups, version_groups
from datasets.scan import scan
from datasets.similar import with_named
from datasets.store import Annotations
from utils.files import files_under, real_path
from utils.outputs import write_all
from utils.text import amount

PARTS = ("train", "val", "test")


def split_groups(groups: np.ndarray, digests: np.ndarray, fractions: Sequence[float], seed: int) -> list[np.ndarray]:
    """Divides images at random into one part per fraction -> sorted indices of each part.

    `groups [N]`: images of one group stay in one part. The groups are ordered by a hash of the seed and their
    `digests [N]`, so that it does not depend on the order of the images, and new images move few others."""
    salt = seed.to_bytes(8, "big")
    keys = [hashlib.blake2b(digest.tobytes(), digest_size=8, salt=salt).digest() for digest in digests]
    count = int(groups.max(initial=-1)) + 1
    first = [b"\xff" * 8] * count
    for group, key in zip(groups.tolist(), keys, strict=True):
        first[group] = min(first[group], key)
    order = sorted(range(count), key=first.__getitem__)
    sizes = np.bincount(groups, minlength=count)[order]
    middles = np.cumsum(sizes) - sizes / 2
    wanted = np.searchsorted(np.cumsum(fractions)[:-1] * len(groups), middles, side="right")
    part_of_group, part = np.empty(count, int), -1
    for place, group in enumerate(order):  # no part stays empty if there are enough groups, however large they are
        part = max(min(int(wanted[place]), part + 1), len(fractions) - count + place)
        part_of_group[group] = part
    return [np.flatnonzero(part_of_group[groups] == part) for part in range(len(fractions))]


class Division(NamedTuple):
    """Which part of the training images is for validation: val=.2, or a fold of a cross-validation, val=1/5."""

    option: str  # what the user wrote, for errors
    fractions: tuple[float, ...]  # of all parts
    val: int  # the part for validation; the others are for training


def split(
    data: Annotations, fractions: Sequence[float], seed: int, option: str, split_by: str | None = None
) -> list[Annotations]:
    """Divides annotations into one part per fraction. `option` is what the user wrote, for errors. Raises DataError."""
    return [data.select(part) for part in _parts(data, fractions, seed, option, split_by)]


def _parts(
    data: Annotations, fractions: Sequence[float], seed: int, option: str, split_by: str | None
) -> list[np.ndarray]:
    """Returns the sorted indices of each part.

    Same and similar images, versions of one image, and a group of `split_by` stay in one part."""
    paths = [data.path(i) for i in range(len(data))]
    found = scan(paths)
    groups = version_groups(found.digests, found.hashes, paths)
    if split_by is not None:
        groups = with_named(groups, named_groups(paths, split_by))
    groups = np.unique(groups, return_inverse=True)[1]
    count, number = amount(len(data), "image"), len(np.unique(groups))
    if number < len(fractions):
        why = f"all but {number} of the images are copies: add different images"
        if split_by is not None:
            why = f"split_by={split_by} and copies leave {amount(number, 'group')}: choose a pattern that makes more of them"
        if len(data) == 1:
            why = "there is only one image: add different images"
        raise DataError(f"{option} divides {count} into {len(fractions)} parts: {why}")
    if min(fractions) * len(data) < 0.5:
        raise DataError(f"{option} divides {count} into {len(fractions)} parts: enlarge the smallest part")
    return split_groups(groups, found.digests, fractions, seed)


def divide(
    data: Annotations, division: Division, seed: int, split_by: str | None = None
) -> tuple[Annotations, Annotations]:
    """Splits the validation images off the training data -> (training data, validation data). Raises DataError."""
    parts = _parts(data, division.fractions, seed, division.option, split_by)
    val = parts.pop(division.val)
    return data.select(np.sort(np.concatenate(parts))), data.select(val)


def train_and_val(
    data: Annotations, division: Division, seed: int, split_by: str | None = None
) -> tuple[Annotations, Annotations]:
    """Does the same as `divide`, with data that equal the contents of the files that `write` writes.

    So evaluation of the files gives the same metrics."""
    train, val = divide(data, division, seed, split_by)
    return _as_written(train), _as_written(val)


def _as_written(data: Annotations) -> Annotations:
    with tempfile.TemporaryDirectory() as folder:
        write(folder, {"all": data})
        path = os.path.join(folder, file_name("all", data))
        if _is_json(data):
            source = coco.read(File(path), ())
        else:
            source = annotation_file.read_annotation_file(path, data.classes)
        read = resolve_labels(source, ReadOptions(bad_boxes="error"), data.classes)
    # what the files do not hold
    kept = ("source", "sizes", "lines", "files", "digests", "hashes", "limits", "value_range")
    return replace(read, **{name: getattr(data, name) for name in kept})


def file_name(split: str, data: Annotations) -> str:
    """Returns the name of the file to which `write` writes a split."""
    return f"{split}.json" if _is_json(data) else f"{split}.txt"


def _is_json(data: Annotations) -> bool:
    return data.is_coco or data.is_partly_annotated


def write(folder: str | os.PathLike, parts: Mapping[str, Annotations]) -> None:
    """Writes a file per split, with absolute paths: COCO JSON if the data come from it, with its areas and ids, or if
    something is not known about them.

    Other data become annotation files and classes.txt."""
    texts = {}
    for name, data in parts.items():
        if not _is_json(data):
            require_box(data, folder)
            texts["classes.txt"] = class_text(data.classes)
        texts[file_name(name, data)] = (
            json_of(data, os.path.abspath) if _is_json(data) else text_of(data, os.path.abspath)
        )
    write_all({Path(folder, name): text for name, text in texts.items()})


def require_box(data: Annotations, folder: str | os.PathLike) -> None:
    """Raises DataError if an annotation file of the data in `folder` would be read as a list of images with label files.

    An annotation file without any box looks like such a list, and the boxes of label files near its images would come back."""
    if len(data.boxes):
        return
    paths = map(data.path, range(len(data)))
    labeled = (path for path in paths if has_label(path) and os.path.getsize(label_file(path)))
    xmls = of_suffix(files_under(folder), ".xml") if len(data) else []
    if found := next((label_file(path) for path in labeled), None) or next(iter(xmls), None):
        raise DataError(
            f"{data.source}: no box is left, and an annotation file without boxes would be read as a list of images with label "
            f"files such as {found}: choose other classes=, another split, or another folder"
        )


def text_of(data: Annotations, path_in_file: Callable[[str], str]) -> str:
    """Returns the text of an annotation file. Raises DataError for a path that it cannot hold."""
    paths = (require_utf8(path_in_file(data.path(i))) for i in range(len(data)))
    return "".join(f"{annotation_line(path, *data.boxes_of(i))}\n" for i, path in enumerate(paths))


def json_of(data: Annotations, path_in_file: Callable[[str], str]) -> str:
    """Returns the text of a COCO JSON, with the ids of categories and images of the data. Raises DataError."""
    contents = data.coco()
    for index, image in enumerate(contents["images"]):
        image["file_name"] = require_utf8(path_in_file(data.path(index)))
    return json.dumps(contents, ensure_ascii=False)


def require_utf8(path: str) -> str:
    """Returns the path of an image. Raises DataError for bytes that are not UTF-8, which no text file can hold."""
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"the path {path!r} is not UTF-8: rename the image or its folder") from error
    return path


def relative(path: str, folder: str | os.PathLike) -> str:
    """Returns the path relative to `folder`, with "/"; the absolute path if it is on another drive."""
    try:
        return os.path.relpath(real_path(path), os.path.realpath(folder)).replace(os.sep, "/")
    except ValueError:
        return os.path.abspath(path)
