"""Compares an exported file with PyTorch, up to what rounding may change.

Detections of both cannot be compared: of overlapping boxes with nearly equal scores, NMS keeps those that rounding made the best,
and the boxes that it removes for them follow. After a few epochs from scratch most scores are nearly equal, also between
the classes of a box. So the detections of the file are compared with the boxes of PyTorch before NMS. They are right if each has
a partner there, if no two of them overlap by more than the threshold, and if each box without a partner overlaps a detection
whose score is as high. A box may have each class whose score is within the tolerance of its best one.
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


def compare(boxes: Sequence, detections: Sequence, limits: Limits, tolerance: Tolerance) -> Agreement:
    """Compares the boxes of PyTorch before NMS with the detections of a file.

    `boxes`: per image a list with boxes `[n, 4]` and scores of all classes `[n, C]` for each head, because the limits count for
    each head. `detections`: per image boxes, scores and labels, best first. Both go down to the score
    `limits.confidence - 2 * tolerance.scores`.
    """
    differences, unpaired, count = [(0.0, 0.0)], [], 0
    for number, (heads, of_file) in enumerate(zip(boxes, detections, strict=True), 1):
        found = rows(of_file)
        first = 0  # label of the first class of the head
        for one in heads:
            ours, scores = (np.asarray(part, np.float64) for part in one)
            theirs = found[(found[:, 5] >= first) & (found[:, 5] < first + scores.shape[1])]
            paired, wrong = _compare_head(ours, scores, theirs, first, limits, tolerance)
            differences += paired
            unpaired += [f"image {number}: {text}" for text in wrong]
            count += int((theirs[:, 4] >= limits.confidence).sum())
            first += scores.shape[1]
    largest_box, largest_score = np.max(differences, 0).tolist()
    return Agreement(count, largest_box, largest_score, tuple(unpaired))


def _compare_head(
    boxes: np.ndarray, scores: np.ndarray, detections: np.ndarray, first: int, limits: Limits, tolerance: Tolerance
) -> tuple[list[tuple[float, float]], list[str]]:
    """Compares boxes `[n, 4]` with class scores `[n, C]` and detections `[m, 6]` of a head in an image.

    `first`: the label of its first class. Returns the differences within pairs, and what is wrong.
    """
    differences, wrong = [], []
    best = scores.max(1)
    min_score = best - tolerance.scores  # of the boxes in the file, whichever class is the best one there
    own = scores[:, detections[:, 5].astype(int) - first]  # of each box for the class of each detection, [n, m]
    free = np.ones(len(boxes), bool)  # without a partner so far
    compared = detections[:, 4] >= limits.confidence
    for i, row in enumerate(detections):
        box, score = np.abs(boxes - row[:4]).max(1), np.abs(own[:, i] - row[4])
        near = free & (row[4] >= min_score) & (box <= tolerance.boxes) & (score <= tolerance.scores)
        if near.any():
            nearest = int(np.where(near, box, np.inf).argmin())
            free[nearest] = False
            differences.append((box[nearest], score[nearest]))
        elif compared[i]:
            wrong.append(f"only the file has {description(row)}")

    too_much = min(limits.nms_iou + tolerance.nms_iou, 1.0)
    same_class = detections[:, None, 5] == detections[:, 5]
    twice = np.triu(same_class & (_overlaps(detections[:, :4], detections[:, :4]) > too_much), 1).any(0)
    wrong += [f"NMS in the file keeps {description(row)} next to a better box" for row in detections[twice & compared]]

    # A full list was cut at its last score: near it, a box may be missing.
    full = [(best, limits.candidates), (detections[:, 4], limits.detections)]
    last_scores = [np.sort(values)[-most] for values, most in full if len(values) >= most]
    least = max([limits.confidence, *(score + 2 * tolerance.scores for score in last_scores)])
    alone = free & (best >= least)
    enough = max(limits.nms_iou - tolerance.nms_iou, 0.0)
    possible = own[alone] >= min_score[alone, None] - tolerance.scores  # may be the best class in the file
    as_good = possible & (detections[:, 4] >= min_score[alone, None])
    removed = (as_good & (_overlaps(boxes[alone], detections[:, :4]) > enough)).any(1)
    missing = np.flatnonzero(alone)[~removed]
    labels = first + scores[missing].argmax(1)
    missing_rows = np.concatenate([boxes[missing], best[missing, None], labels[:, None]], 1)
    wrong += [f"only PyTorch has {description(row)}" for row in missing_rows]
    return differences, wrong


def _overlaps(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The IoU of all pairs of boxes, clipped as in NMS: `[n, 4]`, `[m, 4]` -> `[n, m]`."""
    return pairwise_iou(a.clip(-FAR, FAR), b.clip(-FAR, FAR))


def rows(detections: Sequence) -> np.ndarray:
    """Boxes, scores and labels -> float64 `[n, 6]`."""
    boxes, scores, labels = (np.asarray(part, np.float64) for part in detections)
    return np.concatenate([boxes, scores[:, None], labels[:, None]], 1)


def description(row: np.ndarray) -> str:
    """A detection in words, for a message."""
    return f"class {row[5]:.0f} at {', '.join(f'{side:.1f}' for side in row[:4])} with score {row[4]:.4f}"
