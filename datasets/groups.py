"""Which images belong together by their names: the groups of split_by=, versions of one image, and frames of one video."""

import os
import re
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from datasets.errors import DataError
from datasets.similar import bits_apart, similar_groups, with_named
from datasets.store import Annotations
from utils.config import ConfigError

FOLDERS = "folders"  # the word for split_by=: each folder is a group

_ROBOFLOW = re.compile(r"_[A-Za-z]+\.rf\.\w+$")  # the end of clip_01_jpg.rf.2f31 in its exports
MOST_VERSIONS = 50  # of one image in its exports; more images of one name are other images
_VIDEO = re.compile(r"(?<![a-z])(video|vid|clip|movie|frame|scene|sequence|seq|mp4|mov|avi|mkv)s?(?![a-z])", re.I)
PAIRS = 2000  # of any images, to see how much two images of the data differ
ALIKE = 0.75  # of the median distance of such pairs, below which images are alike; of numbered photographs 1 % are
LEAST = 3  # images of the validation data that are alike to their neighbors: fewer may be chance


def check_split_by(split_by: str | None) -> str | None:
    """Returns split_by=. Raises ConfigError for a pattern that is no regular expression with a group."""
    if split_by in (None, FOLDERS):
        return split_by
    example = (
        r"split_by='(.+)_\d+' makes clip7 the group of clip7_0001.jpg, and split_by=folders makes each folder a group"
    )
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
    pattern = re.compile(split_by)
    found = [pattern.search(os.path.basename(path)) for path in paths]
    others = [path for path, match in zip(paths, found, strict=True) if match is None]
    if others:
        count = f"{len(others)} of {len(paths)} images"
        raise DataError(
            f"split_by={split_by} does not match {others[0]} ({count}): write a pattern that matches all names"
        )
    return [match.groups("") for match in found]


# ---- versions of one image


def version_groups(digests: np.ndarray, hashes: np.ndarray, paths: Sequence[str]) -> np.ndarray:
    """Returns the group of each image as `similar_groups`, which also holds all versions of an image in an export of Roboflow.

    Augmented versions, such as a_jpg.rf.2f31.jpg and a_jpg.rf.77c0.jpg, are crops or mirror images, which do not look alike."""
    stems = [os.path.splitext(os.path.basename(path))[0] for path in paths]
    names = [stem.partition(".rf.")[0] if _ROBOFLOW.search(stem) else "" for stem in stems]
    counts = Counter(names)
    versions = [
        name if name and counts[name] <= MOST_VERSIONS else path for name, path in zip(names, paths, strict=True)
    ]
    return with_named(similar_groups(digests, hashes), versions)


# ---- frames of one video


def frames_in_both(train: Annotations, val: Annotations) -> tuple[np.ndarray, np.ndarray]:
    """Returns (validation images that seem to be frames of videos of which the training data have frames, for each of them
    the training image of the same video that has the nearest number), as indices.

    Their names differ in a number only. As photographs are numbered, too, they count if the names have a word such as clip or
    frame, or else if at least half of all such images look like the training image with the nearest number."""
    numbered = defaultdict(list)
    for index in range(len(train)):
        if name := _numbered(train.path(index)):
            numbered[name[0]].append((name[1], index))
    numbered = {key: sorted(rows) for key, rows in numbered.items()}
    pairs, are_named = [], []
    for index in range(len(val)):
        key, number = _numbered(val.path(index)) or ("", 0)
        if key in numbered:
            rows = numbered[key]  # without those of this number, which are the same image, and no neighbors
            before, after = bisect(rows, (number,)), bisect(rows, (number, len(train)))
            if not (near := rows[before - 1 : before] + rows[after : after + 1]):
                continue
            pairs.append((index, min(near, key=lambda row: abs(row[0] - number))[1]))
            are_named.append(bool(_VIDEO.search(key)))
    index, other = np.array(pairs, int).reshape(-1, 2).T
    are_frames = np.array(are_named, bool) | _alike(train.hashes, val.hashes, other, index)
    return index[are_frames], other[are_frames]


def _alike(train: np.ndarray, val: np.ndarray, rows: np.ndarray, val_rows: np.ndarray) -> np.ndarray:
    """Returns whether the images of each pair are more alike than any two images of the data; none if only few pairs are.

    `train` [N, 4] and `val` [M, 4]: perceptual hashes; `rows` and `val_rows`: the pairs."""
    rng = np.random.default_rng(0)
    apart = bits_apart(train[rng.integers(0, len(train), PAIRS)], val[rng.integers(0, len(val), PAIRS)])
    alike = bits_apart(train[rows], val[val_rows]) < ALIKE * np.median(apart)
    return alike & (alike.sum() >= max(LEAST, len(rows) / 2))


def _numbered(path: str) -> tuple[str, int] | None:
    """Returns (what the names of all frames of a video share, the number of the frame); None without a number.

    The folder counts for names that are numbers only."""
    folder, name = os.path.split(path)
    stem = _ROBOFLOW.sub("", os.path.splitext(name)[0])
    numbers = list(re.finditer(r"\d+", stem))
    if not numbers:
        return None
    start, end = numbers[-1].span()
    shared = f"{stem[:start]}#{stem[end:]}"
    if shared == "#":
        shared = f"{os.path.basename(folder)}/#"
    return shared, int(stem[start:end][-18:])
