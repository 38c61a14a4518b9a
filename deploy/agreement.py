"""Compares an exported file with PyTorch, up to what rounding may change.

Detections of both cannot be compared: of overlapping boxes with nearly equal scores, NMS keeps those that rounding made the best,
and the boxes that it removes for them follow. After a few epochs from scratch most scores are nearly equal. So the detections of
the file are compared with the boxes of PyTorch before NMS. They are right if each has a partner there, if no two of them overlap
by more than the threshold, and if each box without a partner overlaps a detection whose score is as high.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nets.postprocess import FAR
from utils.boxes import pairwise_iou
from utils.text import amount


class Tolerance(NamedTuple):
    """How far apart two detections of the same object may be."""

    boxes: float  # pixels of the network's input, for every coordinate
    scores: float
    nms_iou: float  # overlaps within this distance of the NMS threshold may be on either side of it
    unpaired: float  # fraction of the detections that may have no partner


class Limits(NamedTuple):
    """The limits of a file."""

    confidence: float  # detections with at least this score are compared
    nms_iou: float
    detections: int  # per image and head
    candidates: int  # boxes per image and head before NMS


class Agreement(NamedTuple):
    """How far apart a file and PyTorch are."""

    detections: int  # of the file
    boxes: float  # the largest difference within a pair
    scores: float
    unpaired: tuple[str, ...]  # descriptions of the detections that only one of them has

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


def compare(
    boxes: Sequence, detections: Sequence, num_classes: Sequence[int], limits: Limits, tolerance: Tolerance
) -> Agreement:
    """Compares the boxes of PyTorch before NMS with the detections of a file, per image as tuples (boxes, scores, labels).

    Both go down to the score `limits.confidence - 2 * tolerance.scores`; detections come best first. `num_classes`: of each
    head of the model, because the limits count for each head.
    """
    differences, unpaired, count = [(0.0, 0.0)], [], 0
    for number, image in enumerate(zip(boxes, detections, strict=True), 1):
        ours, theirs = map(rows, image)
        first = 0
        for classes in num_classes:
            own = [x[(x[:, 5] >= first) & (x[:, 5] < first + classes)] for x in (ours, theirs)]
            paired, wrong = _compare_head(*own, limits, tolerance)
            differences += paired
            unpaired += [f"image {number}: {text}" for text in wrong]
            count += int((own[1][:, 4] >= limits.confidence).sum())
            first += classes
    largest_box, largest_score = np.max(differences, 0).tolist()
    return Agreement(count, largest_box, largest_score, tuple(unpaired))


def _compare_head(
    boxes: np.ndarray, detections: np.ndarray, limits: Limits, tolerance: Tolerance
) -> tuple[list[tuple[float, float]], list[str]]:
    """Compares the boxes and the detections of a head in an image -> differences within pairs, and what is wrong."""
    differences, wrong = [], []
    free = np.ones(len(boxes), bool)  # without a partner so far
    compared = detections[:, 4] >= limits.confidence
    for row, required in zip(detections, compared, strict=True):
        box, score = np.abs(boxes[:, :4] - row[:4]).max(1, initial=0), np.abs(boxes[:, 4] - row[4])
        near = free & (boxes[:, 5] == row[5]) & (box <= tolerance.boxes) & (score <= tolerance.scores)
        if near.any():
            nearest = int(np.where(near, box, np.inf).argmin())
            free[nearest] = False
            differences.append((box[nearest], score[nearest]))
        elif required:
            wrong.append(f"only the file has {description(row)}")

    too_much = min(limits.nms_iou + tolerance.nms_iou, 1.0)
    twice = np.triu(_overlaps(detections, detections) > too_much, 1).any(0)  # a better detection overlaps them
    wrong += [f"NMS in the file keeps {description(row)} next to a better box" for row in detections[twice & compared]]

    # A full list was cut at its last score: near it, a box may be missing.
    last_scores = [np.sort(x[:, 4])[-most] for x, most in _full(boxes, detections, limits)]
    least = max([limits.confidence, *(score + 2 * tolerance.scores for score in last_scores)])
    alone = boxes[free & (boxes[:, 4] >= least)]
    enough = max(limits.nms_iou - tolerance.nms_iou, 0.0)
    as_good = detections[:, 4] >= alone[:, 4, None] - 2 * tolerance.scores
    removed = ((_overlaps(alone, detections) > enough) & as_good).any(1)
    wrong += [f"only PyTorch has {description(row)}" for row in alone[~removed]]
    return differences, wrong


def _full(boxes: np.ndarray, detections: np.ndarray, limits: Limits) -> list[tuple[np.ndarray, int]]:
    """Returns the lists that reach their limit, with the limit."""
    pairs = ((boxes, limits.candidates), (detections, limits.detections))
    return [(rows, most) for rows, most in pairs if len(rows) >= most]


def _overlaps(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The IoU of all pairs of rows `[n, 6]` and `[m, 6]` -> `[n, m]`; 0 for different labels."""
    same = a[:, None, 5] == b[None, :, 5]
    return pairwise_iou(a[:, :4].clip(-FAR, FAR), b[:, :4].clip(-FAR, FAR)) * same


def rows(detections: Sequence) -> np.ndarray:
    """Boxes, scores and labels -> float64 `[n, 6]`."""
    boxes, scores, labels = (np.asarray(part, np.float64) for part in detections)
    return np.concatenate([boxes, scores[:, None], labels[:, None]], 1)


def description(row: np.ndarray) -> str:
    """A detection in words, for a message."""
    return f"class {row[5]:.0f} at {', '.join(f'{side:.1f}' for side in row[:4])} with score {row[4]:.4f}"
