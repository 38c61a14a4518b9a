"""Detections compared with labeled boxes, image by image."""

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from utils.boxes import xywh_to_xyxy
from utils.matches import MATCH_IOU, overlap


class ImageComparison(NamedTuple):
    """Boxes and detections of one image, matched one to one. Classes are numbers; C, that of all classes, is the background."""

    boxes: np.ndarray  # float64 [m, 4] xyxy without crowd regions
    labels: np.ndarray  # int64 [m]
    predicted: np.ndarray  # int64 [m] the class of the detection on each box, or C
    detected: np.ndarray  # float64 [n, 4] xyxy without detections inside a crowd region of their class
    detected_labels: np.ndarray  # int64 [n]
    true_labels: np.ndarray  # int64 [n] the class of the box under each detection, or C
    scores: np.ndarray  # float64 [n]
    matched: np.ndarray  # int64 [n] the box under each detection, or -1

    @property
    def missed(self) -> np.ndarray:
        """Boxes without a detection of their class: bool [m]."""
        return self.predicted != self.labels

    @property
    def false(self) -> np.ndarray:
        """Detections that are not on a box of their class: bool [n]."""
        return self.true_labels != self.detected_labels

    @property
    def errors(self) -> int:
        """The number of missed boxes and false detections."""
        return int(self.missed.sum() + self.false.sum())


def compare_images(ground_truth: dict, detections: list[dict], confidence: float) -> list[ImageComparison]:
    """Compares every image of a ground truth with its detections that score at least `confidence`."""
    labels = {category["id"]: label for label, category in enumerate(ground_truth["categories"])}
    truths, detected = defaultdict(list), defaultdict(list)
    for entry in ground_truth["annotations"]:
        truths[entry["image_id"]].append((*entry["bbox"], labels[entry["category_id"]], entry.get("iscrowd", 0)))
    for entry in detections:
        if entry["score"] >= confidence:
            detected[entry["image_id"]].append((*entry["bbox"], labels[entry["category_id"]], entry["score"]))
    comparisons = []
    for image in ground_truth["images"]:
        truth, of_image = (np.array(rows[image["id"]], np.float64).reshape(-1, 6) for rows in (truths, detected))
        comparisons.append(match_all_classes(truth, of_image, len(labels)))
    return comparisons


def match_all_classes(truth: np.ndarray, detections: np.ndarray, background: int) -> ImageComparison:
    """Matches the boxes and detections of an image one to one: pairs of the same class first, then by falling IoU.

    Both are rows of x, y, width, height, label, and crowd or score. `background`: the number of classes.
    """
    boxes, labels, crowd = xywh_to_xyxy(truth[:, :4]), truth[:, 4].astype(np.int64), truth[:, 5] > 0
    detected, detected_labels = xywh_to_xyxy(detections[:, :4]), detections[:, 4].astype(np.int64)
    predicted, true_labels = np.full(len(boxes), background), np.full(len(detected), background)
    matched, numbers = np.full(len(detected), -1), np.cumsum(~crowd) - 1  # of the boxes that are no crowd regions
    overlaps, same = overlap(detections[:, None, :4], truth[:, :4], crowd), detected_labels[:, None] == labels
    preference = np.where((overlaps >= MATCH_IOU) & ~crowd, overlaps + same, 0)
    for pair in np.argsort(-preference, axis=None, kind="stable")[: np.count_nonzero(preference)]:
        d, b = divmod(int(pair), len(boxes))
        if true_labels[d] == predicted[b] == background:
            predicted[b], true_labels[d], matched[d] = detected_labels[d], labels[b], numbers[b]
    ignored = (true_labels == background) & ((overlaps >= MATCH_IOU) & same & crowd).any(1)
    kept = [x[~ignored] for x in (detected, detected_labels, true_labels, detections[:, 5], matched)]
    return ImageComparison(*(x[~crowd] for x in (boxes, labels, predicted)), *kept)


def confusion_matrix(comparisons: list[ImageComparison], num_classes: int) -> np.ndarray:
    """Counts of boxes by true class (row) and predicted class (column): int64 [C + 1, C + 1].

    The last row counts detections on background, the last column missed boxes.
    """
    matrix = np.zeros((num_classes + 1, num_classes + 1), np.int64)
    for one in comparisons:
        np.add.at(matrix, (one.labels, one.predicted), 1)
        np.add.at(matrix, (num_classes, one.detected_labels[one.true_labels == num_classes]), 1)
    return matrix
