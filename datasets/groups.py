"""Which images belong together by their names: the groups of split_by=, versions of one image, and frames of one video."""

import os
import re
from bisect import bisect
from collections import Counter
from collections.abc import Sequence

import numpy as np

from datasets.errors import DataError
from datasets.similar import bits_apart, similar_groups, with_named
from datasets.store import Annotations
from utils.config import ConfigError

FOLDERS = "folders"  # the word for split_by=: each folder is a group

_ROBOFLOW = re.compile(r"_[A-Za-z]+\.rf\.\w+$")  # the end of clip_01_jpg.rf.2f31 in its exports
MAX_VERSIONS = 50  # of one image in its exports; a name with more of them is not of one image
_VIDEO = re.compile(r"(?<![a-z])(video|vid|clip|movie|frame|scene|sequence|seq|mp4|mov|avi|mkv)s?(?![a-z])", re.I)
RANDOM_PAIRS = 2000  # of images, to see how much two images of the data differ
SIMILAR = 0.75  # of the median distance of random pairs: below it, images are similar; of numbered photographs 1 % are
MIN_SIMILAR = 3  # pairs of neighbors that are similar: fewer may be chance


def check_split_by(split_by: str | None) -> str | None:
    """Returns split_by=. Raises ConfigError for a pattern that is no regular expression with a group."""
    if split_by in (None, FOLDERS):
        return split_by
    example = r'split_by="(.+)_\d+" makes clip7 the group of clip7_0001.jpg, split_by=folders makes each folder a group'
    try:
        groups = re.compile(split_by).groups
    except (re.error, OverflowError, RecursionError) as error:
        raise ConfigError(f"split_by={split_by}: no regular expression ({error}): {example}") from error
    if not groups:
        raise ConfigError(f"split_by={split_by}: put the part that names the group in parentheses: {example}")
    return split_by


def named_groups(paths: Sequence[str], split_by: str) -> list[tuple[str, ...]]:
    """Returns the group of each image: its folder, or what the groups of the pattern match in its file name.

    Raises DataError for a name that the pattern does not match."""
    if split_by == FOLDERS:
        return [(os.path.dirname(path),) for path in paths]
    pattern, groups = re.compile(split_by), []
    for path in paths:
        match = pattern.search(os.path.basename(path))
        if match is None:
            raise DataError(f"split_by={split_by} does not match {path}: write a pattern that matches all names")
        groups.append(match.groups(""))
    return groups


# ---- versions of one image


def version_groups(digests: np.ndarray, hashes: np.ndarray, paths: Sequence[str]) -> np.ndarray:
    """Returns the group of each image as `similar_groups`, joined with all versions of it in an export of Roboflow.

    Augmented versions, such as a_jpg.rf.2f31.jpg and a_jpg.rf.77c0.jpg, are crops or flipped images, which do not look alike."""
    stems = [os.path.splitext(os.path.basename(path))[0] for path in paths]
    names = [stem.partition(".rf.")[0] if _ROBOFLOW.search(stem) else "" for stem in stems]
    counts = Counter(names)
    versions = [
        name if name and counts[name] <= MAX_VERSIONS else path for name, path in zip(names, paths, strict=True)
    ]
    return with_named(similar_groups(digests, hashes), versions)


# ---- frames of one video


def frames_in_both(train: Annotations, val: Annotations) -> tuple[np.ndarray, np.ndarray]:
    """Returns (indices of validation images that are probably frames of videos of the training images, for each of them the
    index of the training frame with the nearest number).

    Their names differ in a number only. As photographs are numbered, too, they count if the name has a word such as clip or
    frame, or if at least half of all such pairs look similar."""
    numbered: dict[str, list[tuple[int, int]]] = {}
    for index in range(len(train)):
        key, number = _numbered(train.path(index))
        numbered.setdefault(key, []).append((number, index))
    rows_of = {key: sorted(rows) for key, rows in numbered.items() if key}
    pairs, are_named = [], []
    for index in range(len(val)):
        key, number = _numbered(val.path(index))
        rows = rows_of.get(key, [])  # an equal number is the same image, no neighbor
        before, after = bisect(rows, (number,)), bisect(rows, (number, len(train)))
        near = rows[max(before - 1, 0) : before] + rows[after : after + 1]
        if near:
            pairs.append((index, min(near, key=lambda row: abs(row[0] - number))[1]))
            are_named.append(bool(_VIDEO.search(key)))
    rows_of_val, rows_of_train = np.array(pairs, int).reshape(-1, 2).T
    are_frames = np.array(are_named, bool)
    if train.hashes is not None and val.hashes is not None:
        are_frames |= _similar(train.hashes, val.hashes, rows_of_train, rows_of_val)
    return rows_of_val[are_frames], rows_of_train[are_frames]


def _similar(train: np.ndarray, val: np.ndarray, rows: np.ndarray, val_rows: np.ndarray) -> np.ndarray:
    """Returns whether the images of each pair are clearly more similar than random pairs; none if too few pairs are.

    `train` [N, 4] and `val` [M, 4]: perceptual hashes; `rows` and `val_rows`: the pairs."""
    rng = np.random.default_rng(0)
    one, other = (rng.integers(0, len(hashes), RANDOM_PAIRS) for hashes in (train, val))
    similar = bits_apart(train[rows], val[val_rows]) < SIMILAR * np.median(bits_apart(train[one], val[other]))
    return similar & (similar.sum() >= max(MIN_SIMILAR, len(rows) / 2))


def _numbered(path: str) -> tuple[str, int]:
    """Returns (the name with # for its last number, this number); ("", 0) without a number.

    A name that is only a number gets the name of its folder."""
    folder, name = os.path.split(path)
    stem = _ROBOFLOW.sub("", os.path.splitext(name)[0])
    numbers = list(re.finditer(r"\d+", stem))
    if not numbers:
        return "", 0
    start, end = numbers[-1].span()
    shared = f"{stem[:start]}#{stem[end:]}"
    if shared == "#":
        shared = f"{os.path.basename(folder)}/#"
    return shared, int(stem[start:end][-18:])
