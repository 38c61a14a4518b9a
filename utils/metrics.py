"""Detection metrics: the twelve of COCO, VOC's AP, and precision, recall and F1 per class.

pycocotools is the reference. faster-coco-eval gives the same twelve decimals and is used if it can be imported;
`BACKEND.name` is the one in use, and `evaluate.py` prints it. A ground truth is a COCO dictionary with "images",
"annotations" (boxes x, y, width, height) and "categories"; detections are the entries of a COCO results file.
"""

import contextlib
import io
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import NamedTuple

import numpy as np

from utils.boxes import area, iou, xywh_to_xyxy, xyxy_to_xywh

MATCH_IOU = 0.5  # least IoU of a correct detection in VOC AP, in the curves and in the confusion matrix
MAX_DETECTIONS = 100  # per image and class, as in COCO
SIZES = ("small", "medium", "large")  # numbers 1 to 3 of the evaluators; 0 is boxes of all sizes
# Name -> array of the evaluator, and its part to average. Axes: IoU, recall (of "precision"), class, size, limit (1, 10, 100).
COCO_METRICS = {
    "AP": ("precision", np.s_[..., 0, 2]),
    "AP50": ("precision", np.s_[0, ..., 0, 2]),
    "AP75": ("precision", np.s_[5, ..., 0, 2]),
    **{f"AP_{size}": ("precision", np.s_[..., index, 2]) for index, size in enumerate(SIZES, 1)},
    **{f"AR{limit}": ("recall", np.s_[..., 0, index]) for index, limit in enumerate((1, 10, 100))},
    **{f"AR_{size}": ("recall", np.s_[..., index, 2]) for index, size in enumerate(SIZES, 1)},
}


class Backend(NamedTuple):
    """A COCO evaluator: its name with version, its data class and its evaluator class."""

    name: str
    coco: type
    evaluator: type


def load_backend(name: str) -> Backend:
    """Imports faster-coco-eval or pycocotools. Raises ImportError if it is not installed."""
    if name == "faster-coco-eval":
        from faster_coco_eval import COCO
        from faster_coco_eval import COCOeval_faster as COCOeval
    else:
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval
    return Backend(f"{name} {version(name)}", COCO, COCOeval)


try:
    BACKEND = load_backend("faster-coco-eval")
except ImportError:
    BACKEND = load_backend("pycocotools")


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
        """Precision, recall, F1 and score at the highest F1; zeros without detections."""
        if not len(self.scores):
            return 0.0, 0.0, 0.0, 0.0
        f1 = self.f1()
        at = int(np.argmax(f1))
        return float(self.precision[at]), float(self.recall[at]), float(f1[at]), float(self.scores[at])

    def envelope(self) -> np.ndarray:
        """Interpolated precision: the highest precision at this or a higher recall, float64 [n]."""
        return np.maximum.accumulate(self.precision[::-1])[::-1]

    def average_precision(self) -> float:
        """The area under the interpolated curve (all points, as VOC from 2010 on)."""
        return float(np.sum(np.diff(self.recall, prepend=0.0) * self.envelope()))


def coco_metrics(ground_truth: dict, detections: list[dict], backend: Backend = BACKEND) -> dict:
    """Computes the twelve COCO metrics as floats, "VOC_AP50" (mean over classes), "confidence" and "per_class".

    per_class[name] holds AP, AP50, VOC_AP50, the precision, recall, f1 and threshold at the highest F1 at IoU 0.5, and the
    number of boxes. "confidence" is the threshold with the highest mean F1 over classes. A metric without any box of its
    class or size is -1; without detections it is 0. Raises ValueError for detections of images or categories that the
    ground truth does not have.
    """
    _check_ids(ground_truth, detections)
    result = _accumulate(ground_truth, detections, backend)
    values = {name: np.asarray(result[kind])[index] for name, (kind, index) in COCO_METRICS.items()}  # classes last
    metrics = {name: _mean(of_classes) for name, of_classes in values.items()}
    order = sorted(category["id"] for category in ground_truth["categories"])  # the evaluators sort the ids
    by_rule = curves(ground_truth, detections)
    per_class = {}
    for category, name in class_names(ground_truth).items():
        row = {key: _mean(values[key][..., order.index(category)]) for key in ("AP", "AP50")}
        coco, voc = by_rule["coco"][name], by_rule["voc"][name]
        at_best = (voc.average_precision(), *coco.best()) if coco.boxes else [-1.0] * 5
        row |= zip(("VOC_AP50", "precision", "recall", "f1", "threshold"), at_best, strict=True)
        per_class[name] = row | {"boxes": coco.boxes}
    metrics["VOC_AP50"] = _mean(np.array([row["VOC_AP50"] for row in per_class.values()]))
    metrics["confidence"] = best_confidence([curve for curve in by_rule["coco"].values() if curve.boxes])
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


def class_names(ground_truth: dict) -> dict[int, str]:
    """Category id -> name, in the order of the data; the id is added if two categories have the same name."""
    categories = {category["id"]: category["name"] for category in ground_truth["categories"]}
    counts = Counter(categories.values())
    return {i: name if counts[name] == 1 else f"{name} ({i})" for i, name in categories.items()}


def curves(ground_truth: dict, detections: list[dict]) -> dict[str, dict[str, Curve]]:
    """Precision-recall curves at IoU 0.5: matching rule ("coco" or "voc", see `match`) -> class name -> Curve.

    A detection matched to a crowd region is ignored: it counts neither as correct nor as false.
    """
    truths, detected = _group(ground_truth["annotations"]), _group(detections)
    boxes: Counter = Counter()  # per category
    for (category, _), entries in truths.items():
        boxes[category] += sum(not entry.get("iscrowd", 0) for entry in entries)
    scored = {rule: defaultdict(list) for rule in ("coco", "voc")}  # category -> (score, matched) of each detection
    for (category, image), entries in detected.items():
        top = sorted(entries, key=lambda entry: -entry["score"])[:MAX_DETECTIONS]
        same = truths.get((category, image), [])
        crowd = [bool(entry.get("iscrowd", 0)) for entry in same]
        pair = (_boxes(top), _boxes(same), np.array(crowd)) if same else None
        for rule, rows in scored.items():
            owners = match(*pair, rule).tolist() if pair else [-1] * len(top)
            rows[category] += [(e["score"], o >= 0) for e, o in zip(top, owners, strict=True) if o < 0 or not crowd[o]]
    names = class_names(ground_truth).items()
    return {rule: {name: _curve(rows[c], boxes[c]) for c, name in names} for rule, rows in scored.items()}


def match(detected: np.ndarray, boxes: np.ndarray, crowd: np.ndarray, rule: str) -> np.ndarray:
    """Matches detections, highest score first, to boxes of their class: xyxy [n, 4], xyxy [m, 4], bool [m] -> int64 [n].

    The result is the index of a box, or -1. A box is matched once, a crowd region any number of times. Rule "coco": a
    detection takes the unmatched box with the highest IoU, else a crowd region that contains half of it. Rule "voc"
    (Everingham et al. 2010): only the box with the highest IoU counts, and the first detection on it takes it.
    """
    owners = np.full(len(detected), -1)
    if not len(boxes):
        return owners
    overlaps = overlap_matrix(detected, boxes, crowd & (rule == "coco"))
    free = np.ones(len(boxes), bool)
    for d in np.flatnonzero(overlaps.max(1) >= MATCH_IOU):
        row = overlaps[d]
        if rule == "coco":
            unmatched = np.where(free & ~crowd, row, -1)
            row = unmatched if unmatched.max() >= MATCH_IOU else np.where(crowd, row, -1)
        best = len(row) - 1 - int(np.argmax(row[::-1]))  # the last of equals, as in pycocotools
        if row[best] >= MATCH_IOU and free[best]:
            owners[d], free[best] = best, crowd[best]
    return owners


def overlap_matrix(detected: np.ndarray, boxes: np.ndarray, crowd: np.ndarray) -> np.ndarray:
    """IoU, or for crowd regions the fraction of the detection inside: xyxy [n, 4], xyxy [m, 4], bool [m] -> [n, m]."""
    overlaps = iou(detected[:, None], boxes[None], eps=1e-300)  # no rounding at IoU 0.5, and no division by 0
    if not crowd.any():
        return overlaps
    sizes = area(detected)[:, None]
    inside = overlaps / (1 + overlaps) * (sizes + area(boxes)[None]) / np.maximum(sizes, 1e-300)
    return np.where(crowd[None], inside, overlaps)


def _group(entries: list[dict]) -> dict[tuple[int, int], list[dict]]:
    """Annotations or detections by category and image."""
    groups = defaultdict(list)
    for entry in entries:
        groups[entry["category_id"], entry["image_id"]].append(entry)
    return groups


def _boxes(entries: list[dict]) -> np.ndarray:
    """float64 [n, 4] xyxy."""
    return xywh_to_xyxy(np.array([entry["bbox"] for entry in entries], np.float64).reshape(-1, 4))


def _curve(rows: list[tuple[float, bool]], boxes: int) -> Curve:
    """Computes the curve of one class from the score of each detection and whether it is matched."""
    scores, matched = np.array(sorted(rows, reverse=True), np.float64).reshape(-1, 2).T
    hits = np.cumsum(matched)
    last = np.flatnonzero(np.diff(scores, append=-np.inf))  # a threshold cannot separate equal scores
    recall = hits[last] / boxes if boxes else np.full(len(last), np.nan)
    return Curve(hits[last] / (last + 1), recall, scores[last], boxes, last + 1)


def _check_ids(ground_truth: dict, detections: list[dict]) -> None:
    for field, key in (("images", "image_id"), ("categories", "category_id")):
        unknown = {entry[key] for entry in detections} - {entry["id"] for entry in ground_truth[field]}
        if unknown:
            raise ValueError(
                f"the detections have {len(unknown)} values of {key} that the ground truth does not have, such as "
                f"{min(unknown)}; were they made from other data?"
            )


def _accumulate(ground_truth: dict, detections: list[dict], backend: Backend) -> dict:
    """The evaluator's precision [10 IoUs, 101 recalls, classes, 4 areas, 3 limits] and recall [10, classes, 4, 3].

    Annotations are numbered from 1, because pycocotools takes the id 0 for "not matched".
    """
    with contextlib.redirect_stdout(io.StringIO()):
        indexed = []
        for entries in (ground_truth["annotations"], detections):
            data = backend.coco()
            numbered = [
                {"area": e["bbox"][2] * e["bbox"][3], "iscrowd": 0, **e, "id": n} for n, e in enumerate(entries, 1)
            ]
            data.dataset = {**ground_truth, "annotations": numbered}
            data.createIndex()
            indexed.append(data)
        evaluator = backend.evaluator(*indexed, "bbox")
        evaluator.evaluate()
        evaluator.accumulate()
    return evaluator.eval


def _mean(values: np.ndarray) -> float:
    """The mean of all values but -1; -1 without any. Rounded, because the 13th decimal depends on the order of summation."""
    measured = values[values > -1]
    return round(float(measured.mean()), 12) if measured.size else -1.0


def to_coco(parts: Sequence[Sequence[np.ndarray]], annotations) -> list[dict]:
    """Converts boxes xyxy, scores, labels and image indices of each process to entries of a COCO results file.

    The entries are sorted by image id. Boxes become x, y, width, height; ids are those of the data.
    """
    if not parts:
        return []
    boxes, scores, labels, index = (np.concatenate(part) for part in zip(*parts, strict=True))
    image_ids = np.asarray(annotations.image_ids)[index]
    order = np.argsort(image_ids, kind="stable")
    boxes = xyxy_to_xywh(boxes.astype(np.float64))
    columns = image_ids, np.asarray(annotations.category_ids)[labels], boxes, scores
    rows = zip(*(column[order].tolist() for column in columns), strict=True)
    return [{"image_id": i, "category_id": c, "bbox": box, "score": s} for i, c, box, s in rows]
