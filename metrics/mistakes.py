"""Sorts the mistakes of a detector by kind, for the report.

`metrics.comparison.compare_images` matches detections and boxes one to one; this module gives each mistake a kind:

- missed: a box without a matched detection, of any class, and without a loose one.
- wrong class: a detection that is matched with a box of another class.
- double: a detection with an IoU of at least 0.5 with a box that is matched with another detection, of any class.
- loose: a detection with an IoU from 0.1 to 0.5 with an unmatched box of its class.
- background: every other false detection.

Every false detection has one kind, similar to TIDE (Bolya et al. 2020). In TIDE a detection is also loose if another detection
is matched with the box; where objects are dense, most such detections show neighboring objects without a label.
"""

from collections import Counter
from typing import NamedTuple

import numpy as np

from metrics.comparison import ImageComparison
from metrics.matches import MATCH_IOU
from utils.boxes import area, pairwise_iou

KINDS = ("missed", "background", "wrong class", "loose", "double")
LOOSE_IOU = 0.1  # min IoU of a loose detection, as in TIDE
PER_IMAGE = 3  # max mistakes of one kind from an image, so that one bad image does not fill the list
PER_KIND = 36  # max examples of a kind


class Example(NamedTuple):
    """A box, a detection or a pair of both in one image, as indices in its `ImageComparison`; -1: none."""

    image: int
    box: int
    detection: int
    rank: float  # the highest comes first


def by_kind(comparisons: list[ImageComparison]) -> dict[str, list[Example]]:
    """Returns all mistakes by kind, sorted: the largest missed boxes and the false detections with the highest scores first."""
    found: dict[str, list[Example]] = {kind: [] for kind in KINDS}
    for image, comparison in enumerate(comparisons):
        overlaps = pairwise_iou(comparison.detected, comparison.boxes)
        explained = set(comparison.matched.tolist())  # boxes whose mistake is listed with a detection
        for d in np.flatnonzero(comparison.false).tolist():
            kind, box = _kind(comparison, d, overlaps[d])
            found[kind].append(Example(image, box, d, float(comparison.scores[d])))
            if kind == "loose":
                explained.add(box)
        sizes = area(comparison.boxes)
        missed = set(np.flatnonzero(comparison.missed).tolist()) - explained
        found["missed"] += [Example(image, box, -1, float(sizes[box])) for box in sorted(missed)]
    return {kind: sorted(examples, key=lambda example: -example.rank) for kind, examples in found.items()}


def _kind(comparison: ImageComparison, detection: int, overlaps: np.ndarray) -> tuple[str, int]:
    """Returns the kind of a false detection and the index of its box (-1: none). `overlaps` [m]: IoUs with the boxes."""
    if comparison.matched[detection] >= 0:
        return "wrong class", int(comparison.matched[detection])
    if overlaps.max(initial=0) >= MATCH_IOU:  # the box has another detection: otherwise they would be a pair
        return "double", int(overlaps.argmax())
    label, background = comparison.detected_labels[detection], comparison.true_labels[detection]
    free = np.where((comparison.labels == label) & (comparison.predicted == background), overlaps, 0)
    if free.max(initial=0) >= LOOSE_IOU:
        return "loose", int(free.argmax())
    return "background", -1


def choose(kinds: dict[str, list[Example]]) -> tuple[dict[str, list[Example]], list[int]]:
    """Chooses at most PER_KIND examples of each kind for a report, and returns them and their images."""
    chosen = {kind: _from_many_images(examples)[:PER_KIND] for kind, examples in kinds.items()}
    in_turn = [some[place] for place in range(PER_KIND) for some in chosen.values() if place < len(some)]
    return chosen, list(dict.fromkeys(example.image for example in in_turn))


def _from_many_images(examples: list[Example]) -> list[Example]:
    """The examples without those beyond the first PER_IMAGE of an image."""
    counts: Counter = Counter()
    kept = []
    for example in examples:
        counts[example.image] += 1
        if counts[example.image] <= PER_IMAGE:
            kept.append(example)
    return kept
