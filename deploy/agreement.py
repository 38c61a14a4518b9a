"""Compares the detections of two implementations, such as PyTorch and onnxruntime, up to what rounding may change."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from utils.text import amount


class Tolerance(NamedTuple):
    """How far apart two detections of the same object may be."""

    boxes: float  # pixels of the network's input, for every coordinate
    scores: float
    nms_iou: float  # overlaps within this distance of the NMS threshold may be on either side of it
    unpaired: float  # fraction of the detections that may have no partner


class Agreement(NamedTuple):
    """How far apart the detections of two implementations are."""

    detections: int  # of the first implementation
    boxes: float  # the largest difference within a pair
    scores: float
    unpaired: tuple[str, ...]  # descriptions of the detections that only one implementation has

    def within(self, tolerance: Tolerance) -> bool:
        """Whether few enough detections are without a partner. `compare` pairs only detections within the tolerance."""
        return len(self.unpaired) <= tolerance.unpaired * self.detections

    def text(self) -> str:
        """One line for the terminal."""
        return (
            f"{amount(self.detections, 'detection')}: boxes differ by at most {self.boxes:.2g} pixels, scores by "
            f"{self.scores:.2g}, "
            f"{len(self.unpaired)} without a partner"
        )


def nms_thresholds(nms_iou: float, tolerance: Tolerance) -> tuple[float, float, float]:
    """The NMS thresholds for the first implementation in `compare`: the exact one, a lower and a higher one."""
    return nms_iou, max(nms_iou - tolerance.nms_iou, 0.0), min(nms_iou + tolerance.nms_iou, 1.0)


def compare(
    first: Sequence[Sequence], second: Sequence, confidence: float, most: int, tolerance: Tolerance
) -> Agreement:
    """Pairs the detections of two implementations on the same images.

    `first[i]` holds the detections per image at the i-th of `nms_thresholds`, `second` those at the exact threshold; both
    down to the score `confidence - 2 * tolerance.scores`, at most `most` per image, as tuples (boxes, scores, labels).
    Every detection above the confidence needs its own partner with the same label, within the tolerance. Detections
    that depend on the exact NMS threshold, or that are near the end of a full list, may have none.
    """
    unpaired, differences, count = [], [(0.0, 0.0)], 0
    for number, (*of_first, of_second) in enumerate(zip(*first, second, strict=True), 1):
        usual, *others = ({row.tobytes(): row for row in rows(one)} for one in of_first)
        certain = usual.keys() & others[0].keys() & others[1].keys()  # kept at all three thresholds
        possible = {**usual, **others[0], **others[1]}  # kept at one of them: may have a partner
        theirs = rows(of_second)
        free = np.ones(len(theirs), bool)  # without a partner so far
        # A full list was cut at its last score: near it, either implementation may have dropped a detection.
        last_scores = [one[-1, 4] for one in (*map(rows, of_first), theirs) if len(one) >= most]
        least = max([confidence, *(score + 2 * tolerance.scores for score in last_scores)])
        for key, row in sorted(possible.items(), key=lambda item: -item[1][4]):
            required = key in certain and row[4] >= least
            count += required
            box, score = np.abs(theirs[:, :4] - row[:4]).max(1), np.abs(theirs[:, 4] - row[4])
            near = free & (theirs[:, 5] == row[5]) & (box <= tolerance.boxes) & (score <= tolerance.scores)
            if near.any():
                nearest = int(np.where(near, box, np.inf).argmin())
                free[nearest] = False
                differences.append((box[nearest], score[nearest]))
            elif required:
                unpaired.append(f"image {number}: only the first has {description(row)}")
        left = theirs[free & (theirs[:, 4] >= least)]
        unpaired += [f"image {number}: only the second has {description(row)}" for row in left]
    boxes, scores = np.max(differences, 0).tolist()
    return Agreement(int(count), boxes, scores, tuple(unpaired))


def rows(detections: Sequence) -> np.ndarray:
    """Boxes, scores and labels -> float64 `[n, 6]`."""
    boxes, scores, labels = (np.asarray(part, np.float64) for part in detections)
    return np.concatenate([boxes, scores[:, None], labels[:, None]], 1)


def description(row: np.ndarray) -> str:
    """A detection in words, for a message."""
    return f"class {row[5]:.0f} at {', '.join(f'{side:.1f}' for side in row[:4])} with score {row[4]:.4f}"
