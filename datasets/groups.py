"""Which images belong together by their names: the groups of split_by=, and versions of one image."""

import os
import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

from datasets.errors import DataError
from datasets.similar import similar_groups, with_named
from utils.config import ConfigError

FOLDERS = "folders"  # the word for split_by=: each folder is a group

_ROBOFLOW = re.compile(r"_[A-Za-z]+\.rf\.\w+$")  # the end of clip_01_jpg.rf.2f31 in its exports
MAX_VERSIONS = 50  # of one image in its exports; a name with more of them is not of one image


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
