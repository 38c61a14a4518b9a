"""Detection metrics: the twelve of COCO, VOC's AP, and precision, recall and F1 per class.

pycocotools is the reference for the twelve: the tests compare twelve decimals. faster-coco-eval computes them in a seventh of
the time. The other metrics come from `metrics.matches`. A ground truth is a COCO dictionary with "images", "annotations" (boxes
x, y, width, height) and "categories"; detections are the entries of a COCO results file.
"""

import contextlib
import io
import math
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import NamedTuple

import numpy as np
from faster_coco_eval import COCO, COCOeval_faster

from metrics.matches import CORRECT, IGNORED, ClassMatches, class_names, match_classes
from utils.boxes import xyxy_to_xywh

EVALUATOR = f"faster-coco-eval {version('faster-coco-eval')}"
# Name -> array of the evaluator, and what to average of it. Axes: IoU, recall (of "precision"), class, size, limit (1, 10, 100).
SIZES = ("small", "medium", "large")  # numbers 1 to 3 of the evaluators; 0 is boxes of all sizes
COCO_METRICS = {
    "AP": ("precision", np.s_[..., 0, 2]),
    "AP50": ("precision", np.s_[0, ..., 0, 2]),
    "AP75": ("precision", np.s_[5, ..., 0, 2]),
    **{f"AP_{size}": ("precision", np.s_[..., index, 2]) for index, size in enumerate(SIZES, 1)},
    **{f"AR{limit}": ("recall", np.s_[..., 0, index]) for index, limit in enumerate((1, 10, 100))},
    **{f"AR_{size}": ("recall", np.s_[..., index, 2]) for index, size in enumerate(SIZES, 1)},
}


class Curve(NamedTuple):
    """Precision and recall of one class at IoU 0.5 for each distinct score, highest score first."""

    precision: np.ndarray  # float64 [n]
    recall: np.ndarray  # float64 [n], rising; NaN without boxes
    scores: np.ndarray  # float64 [n], falling
    boxes: int  # boxes of the ground truth without crowd regions
    found: np.ndarray = np.zeros(0, int)  # int64 [n] detections with this or a higher score

    def f1(self) -> np.ndarray:
        """F1 at each score: float64 [n]."""
        return 2 * self.precision * self.recall / np.maximum(self.precision + self.recall, 1e-12)

    def best(self) -> tuple[float, float, float, float]:
        """Precision, recall, F1 and score at the highest F1; zeros and the score -1 without a correct detection."""
        f1 = self.f1()
        if not f1.any():
            return 0.0, 0.0, 0.0, -1.0
        at = int(np.argmax(f1))
        return float(self.precision[at]), float(self.recall[at]), float(f1[at]), float(self.scores[at])

    def envelope(self) -> np.ndarray:
        """Interpolated precision: the highest precision at this or a higher recall, float64 [n]."""
        return np.maximum.accumulate(self.precision[::-1])[::-1]

    def average_precision(self) -> float:
        """The area under the interpolated curve (all points, as VOC from 2010 on)."""
        return float(np.sum(np.diff(self.recall, prepend=0.0) * self.envelope()))


def coco_metrics(ground_truth: dict, detections: list[dict]) -> dict:
    """Computes the twelve COCO metrics, VOC_AP50, precision and recall (means over classes), "confidence" and "per_class".

    per_class[name] holds AP, AP50, VOC_AP50, the precision, recall, f1 and threshold at the highest F1 at IoU 0.5, and the
    number of boxes. "confidence" is the threshold with the highest mean F1 over classes. The COCO metrics (with AP and AP50 of
    per_class) count 100 detections of a class in an image, all others count all detections. A metric without any box of its
    class or size is -1, and so is a threshold without a correct detection; without detections other metrics are 0. Raises
    ValueError for detections of images or categories that the ground truth does not have.
    """
    result = _accumulate(ground_truth, detections)  # first, because it needs the most memory
    matches = match_classes(ground_truth, detections)
    by_coco, by_voc = curves(matches), curves(matches, "voc")
    values = {name: np.asarray(result[array])[index] for name, (array, index) in COCO_METRICS.items()}  # classes last
    metrics = {name: _mean(of_classes) for name, of_classes in values.items()}
    order = sorted(category["id"] for category in ground_truth["categories"])  # the evaluators sort the ids
    per_class = {}
    for category, name in class_names(ground_truth).items():
        row = {key: _mean(values[key][..., order.index(category)]) for key in ("AP", "AP50")}
        if by_coco[name].boxes:
            row["VOC_AP50"] = by_voc[name].average_precision()
            best = by_coco[name].best()
        else:
            row["VOC_AP50"] = -1.0
            best = (-1.0, -1.0, -1.0, -1.0)
        row |= zip(("precision", "recall", "f1", "threshold"), best, strict=True)
        per_class[name] = row | {"boxes": by_coco[name].boxes}
    for name in ("VOC_AP50", "precision", "recall"):
        metrics[name] = _mean(np.array([row[name] for row in per_class.values()]))
    metrics["confidence"] = best_confidence([curve for curve in by_coco.values() if curve.boxes])
    return metrics | {"per_class": per_class}


def best_confidence(curves: Sequence[Curve]) -> float:
    """The threshold from .01 to .99 with the highest mean F1 over classes; -1 without a correct detection."""
    thresholds = np.arange(1, 100) / 100
    total = np.zeros(len(thresholds))
    for curve in curves:
        above = np.searchsorted(-curve.scores, -thresholds, side="right")  # scores at or above each threshold
        total += np.append(0.0, curve.f1())[above]
    return float(thresholds[total.argmax()]) if total.any() else -1.0


def class_thresholds(per_class: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """The threshold of the best F1 of each class that has a correct detection, from `per_class` of `coco_metrics`.

    Rounded down to four decimals: with batch norms folded, the score of a detection differs in the last digits.
    """
    return {name: math.floor(row["threshold"] * 1e4) / 1e4 for name, row in per_class.items() if row["f1"] > 0}


def curves(matches: Mapping[str, ClassMatches], rule: str = "coco") -> dict[str, Curve]:
    """Precision-recall curves of each class at IoU 0.5, by the rule "coco" or "voc" (see `match_classes`).

    An ignored detection counts neither as correct nor as false.
    """
    found = {}
    for name, of_class in matches.items():
        states = of_class.voc if rule == "voc" else of_class.states[0]
        found[name] = _curve(of_class, states)
    return found


def _curve(of_class: ClassMatches, states: np.ndarray) -> Curve:
    """Computes the curve of one class from the state of each detection: int8 [n]."""
    counted = states != IGNORED
    scores = of_class.scores[counted]
    hits = np.cumsum(states[counted] == CORRECT)
    last = np.flatnonzero(np.diff(scores, append=-np.inf))  # a threshold cannot separate equal scores
    boxes = len(of_class.box_images)
    recall = hits[last] / boxes if boxes else np.full(len(last), np.nan)
    return Curve(hits[last] / (last + 1), recall, scores[last], boxes, last + 1)


def _accumulate(ground_truth: dict, detections: list[dict]) -> dict:
    """The evaluator's precision [10 IoUs, 101 recalls, classes, 4 areas, 3 limits] and recall [10, classes, 4, 3].

    Annotations are numbered from 1, because pycocotools takes the id 0 for "not matched".
    """
    with contextlib.redirect_stdout(io.StringIO()):
        indexed = []
        for entries in (ground_truth["annotations"], detections):
            data = COCO()
            numbered = [
                {"area": e["bbox"][2] * e["bbox"][3], "iscrowd": 0, **e, "id": n} for n, e in enumerate(entries, 1)
            ]
            data.dataset = {**ground_truth, "annotations": numbered}
            data.createIndex()
            indexed.append(data)
        evaluator = COCOeval_faster(*indexed, "bbox")
        evaluator.evaluate()
        evaluator.accumulate()
    return evaluator.eval


def _mean(values: np.ndarray) -> float:
    """The mean of all values but -1; -1 without any. Rounded, because the 13th decimal depends on the order of summation."""
    measured = values[values > -1]
    return round(float(measured.mean()), 12) if measured.size else -1.0


def to_coco(parts: Sequence[Sequence[np.ndarray]], annotations) -> list[dict]:
    """Converts boxes xyxy, scores, labels and image indices of each process to entries of a COCO results file.

    The entries are sorted by image id. Boxes become x, y, width, height; ids come from the data. As in LVIS (Gupta et al. 2019,
    section 3.3), detections of a class do not count in images in which it is not annotated: they are left out.
    """
    if not parts:
        return []
    boxes, scores, labels, index = (np.concatenate(part) for part in zip(*parts, strict=True))
    if annotations.annotated is not None:
        counted = annotations.annotated_mask()[index, labels]
        boxes, scores, labels, index = boxes[counted], scores[counted], labels[counted], index[counted]
    image_ids = np.asarray(annotations.image_ids)[index]
    order = np.argsort(image_ids, kind="stable")
    boxes = xyxy_to_xywh(boxes.astype(np.float64))
    columns = image_ids, np.asarray(annotations.category_ids)[labels], boxes, scores
    rows = zip(*(column[order].tolist() for column in columns), strict=True)
    return [{"image_id": i, "category_id": c, "bbox": box, "score": s} for i, c, box, s in rows]
