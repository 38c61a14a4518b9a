"""The errors of a detector: detections compared with labeled boxes, image by image, and the confusion matrix."""

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from metrics.coco import Curve, curves
from metrics.matches import ClassMatches, match_classes, match_one_to_one
from utils.boxes import xywh_to_xyxy


class ImageComparison(NamedTuple):
    """Boxes and detections of one image, matched one to one. Classes are numbers; C, the number of classes, is the background."""

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


class Analysis(NamedTuple):
    """The matches and the errors of an evaluation, for its plots and its report."""

    matches: dict[str, ClassMatches]  # class name -> matches within the class
    curves: dict[str, Curve]  # class name -> precision and recall, by COCO's rule
    comparisons: list[ImageComparison]  # of each image, with detections that score at least `confidence`
    matrix: np.ndarray  # int64 [C + 1, C + 1], see `confusion_matrix`
    confidence: float


def analyze_errors(ground_truth: dict, detections: list[dict], confidence: float) -> Analysis:
    """Matches the detections of an evaluation with the boxes, and finds the errors at a confidence."""
    matches = match_classes(ground_truth, detections)
    comparisons = compare_images(ground_truth, detections, confidence)
    matrix = confusion_matrix(comparisons, len(ground_truth["categories"]))
    return Analysis(matches, curves(matches), comparisons, matrix, confidence)


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
        comparisons.append(_compare(truth, of_image, len(labels)))
    return comparisons


def _compare(truth: np.ndarray, detections: np.ndarray, background: int) -> ImageComparison:
    """Compares rows of x, y, width, height, label and crowd or score. `background`: the number of classes."""
    boxes, labels, crowd = truth[:, :4], truth[:, 4].astype(np.int64), truth[:, 5] > 0
    owners = match_one_to_one(detections[:, :4], detections[:, 4].astype(np.int64), boxes, labels, crowd)
    kept = ~np.append(crowd, False)[owners]  # a detection without a box has the owner -1, the appended one
    detections, owners = detections[kept], owners[kept]
    detected_labels, matched = detections[:, 4].astype(np.int64), owners >= 0
    predicted = np.full(len(boxes), background)
    predicted[owners[matched]] = detected_labels[matched]
    numbers = np.cumsum(~crowd) - 1  # of the boxes that are no crowd regions
    return ImageComparison(
        boxes=xywh_to_xyxy(boxes[~crowd]),
        labels=labels[~crowd],
        predicted=predicted[~crowd],
        detected=xywh_to_xyxy(detections[:, :4]),
        detected_labels=detected_labels,
        true_labels=np.append(labels, background)[owners],
        scores=detections[:, 5],
        matched=np.append(numbers, -1)[owners],
    )


def confusion_matrix(comparisons: list[ImageComparison], num_classes: int) -> np.ndarray:
    """Counts of boxes by true class (row) and predicted class (column): int64 [C + 1, C + 1].

    The last row counts detections on background, the last column missed boxes.
    """
    matrix = np.zeros((num_classes + 1, num_classes + 1), np.int64)
    for comparison in comparisons:
        np.add.at(matrix, (comparison.labels, comparison.predicted), 1)
        np.add.at(matrix, (num_classes, comparison.detected_labels[comparison.true_labels == num_classes]), 1)
    return matrix
