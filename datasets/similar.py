"""Groups of images that show the same: equal files, and copies that were rescaled, saved again or made a bit brighter."""

from collections.abc import Hashable, Sequence

import numpy as np

from utils.text import amount, percent

NEAR = 7  # bits of 256 by which nearly same images differ at most: less than the 8 bands, so that one band is equal
# An image is compared with at most this many of the images that are equal in a band: the next in sorted order.
CROWD = 64
FEW_COPIES = 0.01  # of the images of a split: fewer copies of training images hardly change its metrics

_ONES = np.unpackbits(np.arange(65536, dtype=np.uint16).view(np.uint8)).reshape(-1, 16).sum(1, dtype=np.uint8)


def similar_groups(digests: np.ndarray, hashes: np.ndarray) -> np.ndarray:
    """Returns the group of each image, int64 [N]: the index of the first image that is the same or nearly the same.

    `digests` [N] and `hashes` [N, 4] come from `datasets.scan.scan`. Groups are closed: an image that is near to one of a group
    belongs to it. Images that cannot be read are alone."""
    groups = np.arange(len(digests))
    order = np.argsort(digests, kind="stable")
    same = (digests[order[1:]] == digests[order[:-1]]) & (digests[order[1:]] != 0)
    groups = _join(groups, order[:-1][same], order[1:][same])
    hashed = np.flatnonzero(hashes.any(1))
    words = np.ascontiguousarray(hashes[hashed]).view(np.uint32)
    for band in range(words.shape[1]):
        order = np.lexsort(np.roll(words, -band, 1).T[::-1])  # by this band, then by the others
        rows = words[order]
        first = np.arange(len(rows))
        for step in range(1, CROWD + 1):
            first = first[first + step < len(rows)]
            first = first[rows[first, band] == rows[first + step, band]]
            if not len(first):
                break
            near = first[bits_apart(rows[first], rows[first + step]) <= NEAR]
            groups = _join(groups, hashed[order[near]], hashed[order[near + step]])
    return groups


def with_named(groups: np.ndarray, names: Sequence[Hashable]) -> np.ndarray:
    """Returns the groups after all images of one name became one group. Groups are closed, as in `similar_groups`."""
    first: dict[Hashable, int] = {}
    others = [first.setdefault(name, index) for index, name in enumerate(names)]
    return _join(groups, np.array(others, int), np.arange(len(groups)))


def copies_between(first: tuple[np.ndarray, np.ndarray], second: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Returns for each image of the second split an image of the first that it is a copy of, int64 [N of the second], or -1.

    Each split is (digests, hashes). Copies are images of one group of `similar_groups`."""
    groups = similar_groups(*map(np.concatenate, zip(first, second, strict=True)))
    count = len(first[0])  # the number of a group is its first image, of the first split if it has one there
    return np.where(groups[count:] < count, groups[count:], -1)


def copies_text(first: str, second: str, count: int, total: int, score: str = "the mAP") -> tuple[str, str]:
    """Returns how many of the `total` images of the split `second` are copies of images of `first`, and what that means."""
    counted = f"copies of images of {first} in {second}: {count} of {amount(total, 'image')} ({percent(count / total)})"
    if count < FEW_COPIES * total:
        return counted, f"too few to change {score} much"
    return counted, f"{score} is too high"


def bits_apart(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Returns the number of bits in which the rows of two arrays of whole numbers differ."""
    return _ONES[(a ^ b).view(np.uint16)].sum(-1, dtype=np.int64)


def _join(groups: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Returns the groups after the images a[i] and b[i] became one group, for all i."""
    while len(a):
        low, high = np.minimum(groups[a], groups[b]), np.maximum(groups[a], groups[b])
        apart = low < high
        a, b = a[apart], b[apart]
        np.minimum.at(groups, high[apart], low[apart])
        while (groups != groups[groups]).any():
            groups = groups[groups]
    return groups
