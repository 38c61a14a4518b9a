"""What a detector confuses, misses and invents, picture by picture, counting detections from a confidence on."""

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from utils.boxes import xywh_to_xyxy
from utils.metrics import MATCH_IOU, overlap_matrix


class Compared(NamedTuple):
    """One picture: its boxes, the detections, and who belongs to whom. Labels are places in the list of categories."""

    image_id: int
    boxes: np.ndarray  # float64 [m, 4] xyxy; crowd regions are left out
    labels: np.ndarray  # int64 [m]
    partners: np.ndarray  # int64 [m] the detection on each box, whatever its class; -1: none
    found: np.ndarray  # float64 [n, 4] xyxy; detections inside a crowd region of their class are left out
    found_labels: np.ndarray  # int64 [n]
    scores: np.ndarray  # float64 [n]

    @property
    def right(self) -> np.ndarray:
        """bool [m]: boxes that were found, under their class."""
        if not len(self.found):
            return np.zeros(len(self.boxes), bool)
        return (self.partners >= 0) & (self.found_labels[self.partners] == self.labels)

    @property
    def false(self) -> np.ndarray:
        """bool [n]: detections that are not the right answer to any box."""
        false = np.ones(len(self.found), bool)
        false[self.partners[self.right]] = False
        return false

    @property
    def mistakes(self) -> int:
        """Boxes missed or misnamed, and false detections."""
        return int((~self.right).sum() + self.false.sum())


def compare(ground_truth: dict, detections: list[dict], confidence: float) -> list[Compared]:
    """Every picture of a COCO ground truth against the entries of a results file that score at least `confidence`."""
    places = {category["id"]: place for place, category in enumerate(ground_truth["categories"])}
    truths, found = defaultdict(list), defaultdict(list)
    for entry in ground_truth["annotations"]:
        truths[entry["image_id"]].append((*entry["bbox"], places[entry["category_id"]], entry.get("iscrowd", 0)))
    for entry in detections:
        if entry["score"] >= confidence:
            found[entry["image_id"]].append((*entry["bbox"], places[entry["category_id"]], entry["score"]))
    ids = [image["id"] for image in ground_truth["images"]]
    return [_compare(i, *(np.array(rows[i], np.float64).reshape(-1, 6) for rows in (truths, found))) for i in ids]


def _compare(image_id: int, truth: np.ndarray, found: np.ndarray) -> Compared:
    """Rows of x, y, w, h, label, then crowd or score. Pairs of equal class come first, then the greater overlap."""
    crowd = truth[:, 5] > 0
    boxes, detected = xywh_to_xyxy(truth[:, :4]), xywh_to_xyxy(found[:, :4])
    overlaps = overlap_matrix(detected, boxes, crowd)
    same = found[:, 4:5] == truth[None, :, 4]
    preference = np.where((overlaps >= MATCH_IOU) & ~crowd, overlaps + same, 0)
    partners, free = np.full(len(boxes), -1), np.ones(len(detected), bool)
    for pair in np.argsort(-preference, axis=None, kind="stable")[: np.count_nonzero(preference)]:
        d, b = divmod(int(pair), len(boxes))
        if free[d] and partners[b] < 0:
            partners[b], free[d] = d, False
    counted = ~(free & ((overlaps >= MATCH_IOU) & same & crowd).any(1))
    new_place = np.append(np.cumsum(counted) - 1, -1)
    return Compared(
        image_id,
        boxes[~crowd],
        truth[~crowd, 4].astype(np.int64),
        new_place[partners[~crowd]],
        detected[counted],
        found[counted, 4].astype(np.int64),
        found[counted, 5],
    )


def confusion_matrix(compared: list[Compared], num_classes: int) -> np.ndarray:
    """int64 [C + 1, C + 1]: the row is the true class, the column the one found.

    Last row: detections on background; last column: missed boxes.
    """
    matrix = np.zeros((num_classes + 1, num_classes + 1), np.int64)
    for picture in compared:
        answers = np.append(picture.found_labels, num_classes)[picture.partners]
        np.add.at(matrix, (picture.labels, answers), 1)
        alone = np.ones(len(picture.found), bool)
        alone[picture.partners[picture.partners >= 0]] = False
        np.add.at(matrix, (num_classes, picture.found_labels[alone]), 1)
    return matrix
