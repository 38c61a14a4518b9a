"""The mistakes of a detector by kind, and the boxes behind each cell of a confusion matrix. Imported only for the report.

Which detection belongs to which box is the decision of `utils.plots.compare_images`; here its mistakes get a kind:

- missed: a box without a detection, and without a loose one.
- wrong class: a detection on a box of another class.
- double: a detection on a box that has another detection, of its own class or any other.
- loose: a detection that overlaps a box of its class which has no detection, but with an IoU below 0.5.
- background: every other detection that is not correct.

Every false detection has one kind, much as in TIDE (Bolya et al. 2020). There, a detection is loose also if the box has another
one; where objects are dense, most of these are neighbors without a label.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from utils.boxes import area, pairwise_iou
from utils.metrics import MATCH_IOU
from utils.plots import ImageComparison

KINDS = ("missed", "background", "wrong class", "loose", "double")
LOOSE_IOU = 0.1  # least overlap of a loose box, as in TIDE
PER_IMAGE = 3  # mistakes of one kind from one image at most, so that one bad image does not fill the list
PER_KIND, PER_CELL = 36, 12  # examples at most
MAX_IMAGES = 200  # in a report


class Example(NamedTuple):
    """A box, a detection or both of one image, by their places in its `ImageComparison`; -1: none."""

    image: int
    box: int
    detection: int
    rank: float  # the highest comes first


Cell = tuple[int, int]  # true and predicted class of a confusion matrix


def by_kind(comparisons: list[ImageComparison]) -> dict[str, list[Example]]:
    """Returns all mistakes by kind, the worst first: the largest missed box, the false detection with the highest score."""
    found: dict[str, list[Example]] = {kind: [] for kind in KINDS}
    for image, one in enumerate(comparisons):
        overlaps = pairwise_iou(one.detected, one.boxes)
        loose = set()
        for d in np.flatnonzero(one.false).tolist():
            kind, box = _kind(one, d, overlaps[d])
            loose |= {box} if kind == "loose" else set()
            found[kind].append(Example(image, box, d, float(one.scores[d])))
        sizes = area(one.boxes)
        missed = set(np.flatnonzero(one.missed).tolist()) - set(one.matched.tolist()) - loose
        found["missed"] += [Example(image, box, -1, float(sizes[box])) for box in sorted(missed)]
    return {kind: sorted(examples, key=lambda one: -one.rank) for kind, examples in found.items()}


def _kind(one: ImageComparison, detection: int, overlaps: np.ndarray) -> tuple[str, int]:
    """Returns the kind of a false detection with IoUs [m] with the boxes of its image, and its box, -1 for none."""
    if one.matched[detection] >= 0:
        return "wrong class", int(one.matched[detection])
    if overlaps.max(initial=0) >= MATCH_IOU:  # the box has another detection: otherwise they would be a pair
        return "double", int(overlaps.argmax())
    label, background = one.detected_labels[detection], one.true_labels[detection]
    free = np.where((one.labels == label) & (one.predicted == background), overlaps, 0)
    if free.max(initial=0) >= LOOSE_IOU:
        return "loose", int(free.argmax())
    return "background", -1


def by_cell(comparisons: list[ImageComparison], background: int) -> dict[Cell, list[Example]]:
    """Returns what is behind each cell of the confusion matrix, which counts exactly these; `background`: number of classes.

    First come the largest missed boxes, the false detections with the highest scores, the correct ones with the lowest.
    """
    cells: dict[Cell, list[Example]] = defaultdict(list)
    for image, one in enumerate(comparisons):
        sizes = area(one.boxes).tolist()
        labels, predicted, true_labels = (x.tolist() for x in (one.labels, one.detected_labels, one.true_labels))
        for d, (box, score) in enumerate(zip(one.matched.tolist(), one.scores.tolist(), strict=True)):
            rank = -score if true_labels[d] == predicted[d] else score
            cells[true_labels[d], predicted[d]].append(Example(image, box, d, rank))
        for box in np.flatnonzero(one.predicted == background).tolist():
            cells[labels[box], background].append(Example(image, box, -1, sizes[box]))
    return {cell: sorted(examples, key=lambda one: -one.rank) for cell, examples in cells.items()}


def choose(lists: Iterable[list[Example]], cells: Iterable[list[Example]]) -> tuple[list[list[Example]], list[int]]:
    """Chooses the examples of a report -> (those of each list, then of each cell), (their images, at most MAX_IMAGES).

    First the lists get their images, then every cell one, then every cell a second one, and so on, until there are
    MAX_IMAGES. Examples whose image is left out come last.
    """
    chosen: list[list[Example]] = []
    for examples in lists:
        count: Counter = Counter()
        few = []
        for one in examples:
            count[one.image] += 1
            few += [one] if count[one.image] <= PER_IMAGE and len(few) < PER_KIND else []
        chosen.append(few)
    cells = list(cells)
    first = [one.image for place in range(PER_KIND) for few in chosen for one in few[place : place + 1]]
    rest = [one.image for place in range(PER_CELL) for few in cells for one in few[place : place + 1]]
    images = list(dict.fromkeys(first + rest))[:MAX_IMAGES]
    there = set(images)

    def shown_first(examples: list[Example]) -> list[Example]:
        return sorted(examples, key=lambda one: one.image not in there)

    return [shown_first(few) for few in chosen] + [shown_first(few)[:PER_CELL] for few in cells], images
