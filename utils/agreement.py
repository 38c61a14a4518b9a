"""Whether two ways to compute the same detections agree, up to what rounding may change."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Tolerance(NamedTuple):
    """How far two detections may be apart that are the same."""

    boxes: float  # pixels of the network's input, of every coordinate
    scores: float
    nms_iou: float  # overlaps so near the limit may be on either side of it
    unpaired: float  # share of the detections that may have no partner


class Agreement(NamedTuple):
    """How far they are apart."""

    detections: int  # of the first way
    boxes: float  # the largest distance in a pair
    scores: float
    unpaired: tuple[str, ...]  # detections that the other way does not have, in words

    def within(self, tolerance: Tolerance) -> bool:
        """Pairs are within the tolerance by themselves."""
        return len(self.unpaired) <= tolerance.unpaired * self.detections

    def text(self) -> str:
        return (
            f"{self.detections} detections: boxes differ by at most {self.boxes:.2g} pixels, scores by {self.scores:.2g}, "
            f"{len(self.unpaired)} without a partner"
        )


def around(nms_iou: float, tolerance: Tolerance) -> tuple[float, float, float]:
    """The limits of NMS for which `compare` asks the first way what it finds."""
    return nms_iou, max(nms_iou - tolerance.nms_iou, 0.0), min(nms_iou + tolerance.nms_iou, 1.0)


def compare(
    first: Sequence[Sequence], second: Sequence, confidence: float, most: int, tolerance: Tolerance
) -> Agreement:
    """Detections of the same pictures: `first[i]` with the i-th limit of `around`, `second` with the first of these, all of
    them down to `confidence - 2 * tolerance.scores` and at most `most` a picture (tuples of tensors: boxes, scores, labels).

    Every detection above the confidence must have its own partner, with the same label and within the tolerance. What
    comes or goes with the limit of NMS may have none, and neither must what is so near the last of a full list.
    """
    unpaired, apart, count = [], [(0.0, 0.0)], 0
    for number, (*ours, theirs) in enumerate(zip(*first, second, strict=True)):
        usual, *others = ({row.tobytes(): row for row in rows(one)} for one in ours)
        certain = usual.keys() & others[0].keys() & others[1].keys()
        possible = list({**usual, **others[0], **others[1]}.items())
        found, free = rows(theirs), np.ones(len(theirs[1]), bool)
        full = [one[-1, 4] for one in (*(rows(d) for d in ours), found) if len(one) >= most]
        least = max([confidence, *(score + 2 * tolerance.scores for score in full)])
        for key, row in sorted(possible, key=lambda item: -item[1][4]):
            count += key in certain and row[4] >= least
            box, score = np.abs(found[:, :4] - row[:4]).max(1), np.abs(found[:, 4] - row[4])
            near = free & (found[:, 5] == row[5]) & (box <= tolerance.boxes) & (score <= tolerance.scores)
            if near.any():
                place = int(np.where(near, box, np.inf).argmin())
                free[place] = False
                apart.append((box[place], score[place]))
            elif key in certain and row[4] >= least:
                unpaired.append(f"picture {number + 1}: only the first finds {in_words(row)}")
        lonely = found[free & (found[:, 4] >= least)]
        unpaired += [f"picture {number + 1}: only the second finds {in_words(row)}" for row in lonely]
    boxes, scores = np.max(apart, 0).tolist()
    return Agreement(int(count), boxes, scores, tuple(unpaired))


def rows(detections: Sequence) -> np.ndarray:
    """Boxes, scores and labels -> float64 `[n, 6]`."""
    boxes, scores, labels = (np.asarray(part, np.float64) for part in detections)
    return np.concatenate([boxes, scores[:, None], labels[:, None]], 1)


def in_words(row: np.ndarray) -> str:
    """A detection for a message."""
    return f"class {row[5]:.0f} at {', '.join(f'{side:.1f}' for side in row[:4])} with {row[4]:.4f}"
