"""How good detections are: the twelve figures of COCO, VOC's AP, and what each class adds to them.

pycocotools is the reference. faster-coco-eval gives the same twelve decimals and is used where it can be imported;
`BACKEND.name` says which one is in use, and `evaluate.py` prints it. A ground truth is a COCO dictionary with "images",
"annotations" (boxes x, y, width, height) and "categories"; detections are the entries of a COCO results file.
"""

import contextlib
import importlib
import io
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version
from typing import NamedTuple

import numpy as np

from utils.boxes import area, iou, xywh_to_xyxy

MATCH_IOU = 0.5  # from this overlap on a detection is right, in VOC AP, curves and mistakes
MAX_DETECTIONS = 100  # a picture and class, as COCO counts
FIGURES = {  # name: (of precision or recall, IoU index, area index, index into 1, 10, 100 detections)
    "AP": ("precision", slice(None), 0, 2),
    "AP50": ("precision", 0, 0, 2),
    "AP75": ("precision", 5, 0, 2),
    "AP_small": ("precision", slice(None), 1, 2),
    "AP_medium": ("precision", slice(None), 2, 2),
    "AP_large": ("precision", slice(None), 3, 2),
    "AR1": ("recall", slice(None), 0, 0),
    "AR10": ("recall", slice(None), 0, 1),
    "AR100": ("recall", slice(None), 0, 2),
    "AR_small": ("recall", slice(None), 1, 2),
    "AR_medium": ("recall", slice(None), 2, 2),
    "AR_large": ("recall", slice(None), 3, 2),
}


class Backend(NamedTuple):
    """A COCO evaluator: its name with version, its data class and its evaluator class."""

    name: str
    coco: type
    evaluator: type


def load_backend(name: str) -> Backend:
    """`name` is faster-coco-eval or pycocotools. Raises ImportError where it is not installed."""
    if name == "faster-coco-eval":
        module = importlib.import_module("faster_coco_eval")
        return Backend(f"{name} {version(name)}", module.COCO, module.COCOeval_faster)
    data, figures = (importlib.import_module(f"pycocotools.{part}") for part in ("coco", "cocoeval"))
    return Backend(f"{name} {version(name)}", data.COCO, figures.COCOeval)


try:
    BACKEND = load_backend("faster-coco-eval")
except ImportError:
    BACKEND = load_backend("pycocotools")


class Curve(NamedTuple):
    """One class over falling scores, at IoU .5. Detections of equal score are taken in together."""

    precision: np.ndarray  # float64 [n]
    recall: np.ndarray  # float64 [n], rising; NaN without boxes
    scores: np.ndarray  # float64 [n], falling
    boxes: int  # boxes to be found, crowd not counted

    def f1(self) -> np.ndarray:
        """float64 [n]."""
        return 2 * self.precision * self.recall / np.maximum(self.precision + self.recall, 1e-12)

    def best(self) -> tuple[float, float, float, float]:
        """Precision, recall, F1 and threshold where F1 is highest; zeros where nothing was found."""
        if not len(self.scores):
            return 0.0, 0.0, 0.0, 0.0
        f1 = self.f1()
        at = int(np.argmax(f1))
        return float(self.precision[at]), float(self.recall[at]), float(f1[at]), float(self.scores[at])

    def average_precision(self) -> float:
        """The area under the curve, precision made to fall with recall (all points, as VOC from 2010 on)."""
        envelope = np.maximum.accumulate(self.precision[::-1])[::-1]
        return float(np.sum(np.diff(self.recall, prepend=0.0) * envelope))


def coco_figures(ground_truth: dict, detections: list[dict], backend: Backend = BACKEND) -> dict:
    """The twelve COCO figures as plain floats, "VOC_AP50" (mean over classes), "confidence" and "per_class".

    per_class[name] holds AP, AP50, VOC_AP50, the precision, recall, f1 and threshold where F1 is best at IoU .5, and
    the number of boxes. "confidence" is the threshold where the mean F1 of the classes is best. -1: there is nothing to
    measure (no box of that class or size); no detections give 0. Raises ValueError for detections of pictures or
    categories that the ground truth does not have.
    """
    _check_ids(ground_truth, detections)
    result = _accumulate(ground_truth, detections, backend)
    figures = {name: _mean(_slice(result, spec)) for name, spec in FIGURES.items()}
    order = sorted(category["id"] for category in ground_truth["categories"])  # the evaluators sort the ids
    names, arrays = class_names(ground_truth), (_arrays(ground_truth["annotations"]), _arrays(detections))
    coco, voc = (_curves(names, *arrays, rule) for rule in ("coco", "voc"))
    per_class = {}
    for category, name in names.items():
        row = {key: _mean(_slice(result, FIGURES[key])[..., order.index(category)]) for key in ("AP", "AP50")}
        numbers = [voc[name].average_precision(), *coco[name].best()] if coco[name].boxes else [-1.0] * 5
        row |= zip(("VOC_AP50", "precision", "recall", "f1", "threshold"), numbers, strict=True)
        per_class[name] = row | {"boxes": coco[name].boxes}
    figures["VOC_AP50"] = _mean(np.array([row["VOC_AP50"] for row in per_class.values()]))
    figures["confidence"] = best_confidence([curve for curve in coco.values() if curve.boxes])
    return figures | {"per_class": per_class}


def best_confidence(curves: Sequence[Curve]) -> float:
    """The threshold, in whole hundredths, at which the mean F1 of the classes is best; -1 where nothing is found."""
    thresholds = np.arange(1, 100) / 100
    total = np.zeros(len(thresholds))
    for curve in curves:
        last = np.searchsorted(-curve.scores, -thresholds, side="right")  # so many of its points lie above
        total += np.append(0.0, curve.f1())[last]
    return float(thresholds[total.argmax()]) if total.any() else -1.0


def class_names(ground_truth: dict) -> dict[int, str]:
    """Category id -> name, in the order of the data; the id is added where two categories share a name."""
    times = Counter(category["name"] for category in ground_truth["categories"])
    return {
        c["id"]: c["name"] if times[c["name"]] == 1 else f"{c['name']} ({c['id']})" for c in ground_truth["categories"]
    }


def curves(ground_truth: dict, detections: list[dict], rule: str = "coco") -> dict[str, Curve]:
    """Class name -> its precision and recall over the score, at IoU .5.

    rule "coco": a detection takes the free box it overlaps most; in a crowd region counts how much of the detection is
    inside. rule "voc" (Everingham et al. 2010): it must be the first on the box it overlaps most, difficult or not.
    """
    return _curves(class_names(ground_truth), _arrays(ground_truth["annotations"]), _arrays(detections), rule)


def match(detected: np.ndarray, boxes: np.ndarray, crowd: np.ndarray, rule: str) -> np.ndarray:
    """The box that each detection finds: xyxy [n, 4] (best first), xyxy [m, 4], bool [m] -> int64 [n], -1 for none.

    A box is found once, a crowd region any number of times. The rules are those of `curves`.
    """
    owner = np.full(len(detected), -1)
    if not len(boxes):
        return owner
    overlaps = overlap_matrix(detected, boxes, crowd & (rule == "coco"))
    free = np.ones(len(boxes), bool)
    for d in np.flatnonzero(overlaps.max(1) >= MATCH_IOU):
        row = overlaps[d]
        if rule == "coco":
            open_to_it = np.where(free & ~crowd, row, -1)
            row = open_to_it if open_to_it.max() >= MATCH_IOU else np.where(crowd, row, -1)
        best = len(row) - 1 - int(np.argmax(row[::-1]))  # of equals the last, as pycocotools has it
        if row[best] >= MATCH_IOU and free[best]:
            owner[d], free[best] = best, crowd[best]
    return owner


def overlap_matrix(detected: np.ndarray, boxes: np.ndarray, crowd: np.ndarray) -> np.ndarray:
    """xyxy [n, 4], xyxy [m, 4], bool [m] -> [n, m]: IoU; for a crowd region the share of the detection inside it."""
    overlaps = iou(detected[:, None], boxes[None], eps=1e-300)  # no rounding at IoU .5, and no division by 0
    sizes = area(detected)[:, None]
    inside = overlaps / (1 + overlaps) * (sizes + area(boxes)[None]) / np.maximum(sizes, 1e-300)
    return np.where(crowd[None], inside, overlaps)


class Arrays(NamedTuple):
    """Annotations or detections by category, then picture, then falling score; equals in their own order."""

    categories: np.ndarray  # int64 [n], rising
    boxes: np.ndarray  # float64 [n, 4] xyxy
    scores: np.ndarray  # float64 [n]; of annotations 0
    crowd: np.ndarray  # bool [n]
    places: dict[tuple[int, int], slice]  # category and picture -> where theirs are


def _arrays(entries: list[dict]) -> Arrays:
    boxes = xywh_to_xyxy(np.array([entry["bbox"] for entry in entries], np.float64).reshape(-1, 4))
    scores = np.array([entry.get("score", 0) for entry in entries], np.float64)
    crowd = np.array([entry.get("iscrowd", 0) for entry in entries], bool)
    keys = np.array([[entry[key] for entry in entries] for key in ("category_id", "image_id")], np.int64)
    order = np.lexsort((-scores, *keys[::-1]))
    keys = keys[:, order]
    starts = np.flatnonzero((np.diff(keys, prepend=keys[:, :1] - 1) != 0).any(0)).tolist()
    places = map(slice, starts, [*starts[1:], len(entries)])
    of_group = dict(zip(map(tuple, keys[:, starts].T.tolist()), places, strict=True))
    return Arrays(keys[0], boxes[order], scores[order], crowd[order], of_group)


def _curves(names: dict[int, str], truths: Arrays, found: Arrays, rule: str) -> dict[str, Curve]:
    right, counted = np.zeros((2, len(found.scores)), bool)
    for key, place in found.places.items():
        best = slice(place.start, min(place.stop, place.start + MAX_DETECTIONS))
        counted[best] = True
        if there := truths.places.get(key):
            owner = match(found.boxes[best], truths.boxes[there], truths.crowd[there], rule)
            right[best] = owner >= 0
            counted[best] = (owner < 0) | ~np.append(truths.crowd[there], False)[owner]
    result = {}
    for category, name in names.items():
        rows = slice(*np.searchsorted(found.categories, [category, category + 1]))
        use = counted[rows]
        boxes = int((~truths.crowd[truths.categories == category]).sum())
        result[name] = _curve(found.scores[rows][use], right[rows][use], boxes)
    return result


def _curve(scores: np.ndarray, right: np.ndarray, boxes: int) -> Curve:
    order = np.argsort(-scores, kind="stable")
    scores, hits = scores[order], np.cumsum(right[order])
    last = np.flatnonzero(np.diff(scores, append=-np.inf))  # a threshold cannot separate equal scores
    recall = hits[last] / boxes if boxes else np.full(len(last), np.nan)
    return Curve(hits[last] / (last + 1), recall, scores[last], boxes)


def _check_ids(ground_truth: dict, detections: list[dict]) -> None:
    for field, key in (("images", "image_id"), ("categories", "category_id")):
        unknown = {d[key] for d in detections} - {entry["id"] for entry in ground_truth[field]}
        if unknown:
            raise ValueError(
                f"detections have {len(unknown)} values of {key} that the ground truth does not know, such as "
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


def _slice(result: dict, spec: tuple) -> np.ndarray:
    """The values behind a figure, classes last."""
    kind, ious, size, limit = spec
    return np.asarray(result[kind])[ious][..., size, limit]


def _mean(values: np.ndarray) -> float:
    """The mean of what could be measured, -1 for nothing; beyond twelve decimals lies only the order of summing."""
    measured = values[values > -1]
    return round(float(measured.mean()), 12) if measured.size else -1.0
