"""Detections matched with boxes, once for the metrics, the curves, the intervals and the confusion matrix of an evaluation.

`match_classes` matches within each class and image by the rules of COCO and VOC. It equals pycocotools to the bit, for all IoUs
at once. `match_one_to_one` matches across classes, for the confusion matrix. Both see all detections: only COCO's own metrics
leave out those beyond COCO_LIMIT.
"""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

MATCH_IOU = 0.5  # min IoU of a correct detection in VOC AP, in the curves and in the confusion matrix
IOUS = np.linspace(0.5, 0.95, 10)  # of the COCO metrics
COCO_LIMIT = 100  # detections per image and class that the COCO metrics count, those with the highest scores
CORRECT, IGNORED = 1, 2  # states of a detection; 0: not matched
BLOCK = 2**16  # approximate number of pairs of a detection and a box that are compared at once


class ClassMatches(NamedTuple):
    """The matched boxes and detections of one class in all images, which are numbered in the order of their ids."""

    box_images: np.ndarray  # int64 [m] the image of each box without crowd regions
    images: np.ndarray  # int64 [n] the image of each detection; detections are sorted by score, highest first
    scores: np.ndarray  # float64 [n]
    ranks: np.ndarray  # int64 [n] rank by score among the detections of its image, from 0
    states: np.ndarray  # int8 [10, n] CORRECT, IGNORED or 0 for each IoU, by COCO's rule
    voc: np.ndarray  # int8 [n] CORRECT, IGNORED or 0 at IoU 0.5, by VOC's rule

    def counted_by_coco(self) -> "ClassMatches":
        """Returns the matches without the detections beyond COCO_LIMIT of an image."""
        kept = self.ranks < COCO_LIMIT
        names = ("images", "scores", "ranks", "states", "voc")
        return self._replace(**{name: getattr(self, name)[..., kept] for name in names})


class _Boxes(NamedTuple):
    """The boxes of all classes. A group is an image and a class; its boxes are neighbors, in the order of the file."""

    groups: np.ndarray  # int64 [m], rising
    boxes: np.ndarray  # float64 [m, 4] x, y, width, height
    crowd: np.ndarray  # bool [m]
    regions: np.ndarray  # bool [m] crowd regions that are ignore regions


class _Pairs(NamedTuple):
    """Detections and boxes of the same group that overlap, sorted by detection."""

    detections: np.ndarray  # int64 [p], rising
    boxes: np.ndarray  # int64 [p]
    overlaps: np.ndarray  # float64 [p], see `overlap`

    def starts(self) -> np.ndarray:
        """The place of the first pair of each detection."""
        return np.flatnonzero(np.diff(self.detections, prepend=-1))


def match_classes(ground_truth: dict, detections: list[dict]) -> dict[str, ClassMatches]:
    """Matches detections with boxes within each class and image: class name -> matches, in the order of the categories.

    Detections take their boxes in the order of their scores, so those beyond COCO_LIMIT change nothing for the others. By
    COCO's rule a detection takes the free box with the highest IoU. If there is none, it is ignored if a crowd region, which is
    never taken, contains enough of it. By VOC's rule (Everingham et al. 2010) only the box with the highest IoU matters, and
    the first detection on it takes it.

    Raises ValueError for detections of images or categories that the ground truth does not have.
    """
    _check_ids(ground_truth, detections)
    names = class_names(ground_truth)
    labels = {category: label for label, category in enumerate(names)}
    images = {image: index for index, image in enumerate(sorted(entry["id"] for entry in ground_truth["images"]))}
    truth = _sorted_boxes(ground_truth["annotations"], labels, images)
    groups, boxes, scores, ranks = _sorted_detections(detections, labels, images)
    states, voc = _match_groups(groups, boxes, truth)
    of_detections, image_of = np.divmod(groups, max(len(images), 1))
    of_boxes, box_images = np.divmod(truth.groups[~truth.crowd], max(len(images), 1))
    order = np.lexsort((-scores, of_detections))
    matches = {}
    for label, name in enumerate(names.values()):
        rows = order[slice(*np.searchsorted(of_detections, [label, label + 1]))]
        mine = slice(*np.searchsorted(of_boxes, [label, label + 1]))
        matches[name] = ClassMatches(
            box_images=box_images[mine],
            images=image_of[rows],
            scores=scores[rows],
            ranks=ranks[rows],
            states=states[:, rows],
            voc=voc[rows],
        )
    return matches


def class_names(ground_truth: dict) -> dict[int, str]:
    """Category id -> name, in the order of the data; the id is added if two categories have the same name."""
    categories = {category["id"]: category["name"] for category in ground_truth["categories"]}
    counts = Counter(categories.values())
    return {i: name if counts[name] == 1 else f"{name} ({i})" for i, name in categories.items()}


def _check_ids(ground_truth: dict, detections: list[dict]) -> None:
    for field, key in (("images", "image_id"), ("categories", "category_id")):
        unknown = {entry[key] for entry in detections} - {entry["id"] for entry in ground_truth[field]}
        if unknown:
            raise ValueError(
                f"the detections have {len(unknown)} values of {key} that the ground truth does not have, such as "
                f"{min(unknown)}; were they made from other data?"
            )


def _sorted_boxes(annotations: list[dict], labels: dict[int, int], images: dict[int, int]) -> _Boxes:
    """Converts the annotations of known images and categories to columns, sorted by group."""
    entries = [entry for entry in annotations if entry["image_id"] in images and entry["category_id"] in labels]
    groups, boxes = _columns(entries, labels, images)
    crowd = np.array([bool(entry.get("iscrowd", 0)) for entry in entries], bool)
    regions = np.array([bool(entry.get("open", 0)) for entry in entries], bool)
    order = np.argsort(groups, kind="stable")
    return _Boxes(groups[order], boxes[order], crowd[order], regions[order])


def _sorted_detections(
    detections: list[dict], labels: dict[int, int], images: dict[int, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns group, box, score and rank within the group of the detections, sorted by group and falling score."""
    groups, boxes = _columns(detections, labels, images)
    scores = np.array([entry["score"] for entry in detections], np.float64)
    order = np.lexsort((-scores, groups))
    groups = groups[order]
    return groups, boxes[order], scores[order], _ranks(groups)


def _columns(entries: list[dict], labels: dict[int, int], images: dict[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the group, int64 [n], and the box, float64 [n, 4] x, y, width, height, of annotations or detections."""
    groups = [labels[entry["category_id"]] * len(images) + images[entry["image_id"]] for entry in entries]
    boxes = np.array([entry["bbox"] for entry in entries], np.float64).reshape(-1, 4)
    return np.array(groups, np.int64), boxes


def _ranks(groups: np.ndarray) -> np.ndarray:
    """The place of each element within its group: int64 [n], rising -> int64 [n]."""
    return np.arange(len(groups)) - np.searchsorted(groups, groups)


def _match_groups(groups: np.ndarray, boxes: np.ndarray, truth: _Boxes) -> tuple[np.ndarray, np.ndarray]:
    """Matches the detections of all groups -> states int8 [10, n] by COCO's rule, and int8 [n] by VOC's rule.

    Detections of one group depend on each other, detections of several groups do not. So the first ones of all groups take
    their boxes together, then the second ones, and so on.
    """
    states = np.zeros((len(IOUS), len(groups)), np.int8)
    voc = np.zeros(len(groups), np.int8)
    free = np.ones((len(IOUS), len(truth.boxes)), bool)
    for pairs in _pairs(groups, boxes, truth):
        _match_voc(pairs, boxes, truth, voc)
        starts = pairs.starts()
        ranks = _ranks(groups[pairs.detections[starts]])
        ranks = np.repeat(ranks, np.diff(starts, append=len(pairs.boxes)))
        order = np.argsort(ranks, kind="stable")
        ends = np.cumsum(np.bincount(ranks))
        for rows in np.split(order, ends[:-1]):
            _match_coco(_Pairs(*(column[rows] for column in pairs)), truth, free, states)
    return states, voc


def _pairs(groups: np.ndarray, boxes: np.ndarray, truth: _Boxes) -> Iterator[_Pairs]:
    """Yields the pairs of detections and boxes that may match. Each block has all pairs of its groups."""
    starts = np.searchsorted(truth.groups, groups)
    counts = np.searchsorted(truth.groups, groups, "right") - starts
    blocks = np.cumsum(counts)[np.searchsorted(groups, groups)] // BLOCK  # of the first detection of the group
    for rows in np.split(np.arange(len(groups)), np.flatnonzero(np.diff(blocks)) + 1):
        detection = np.repeat(rows, counts[rows])
        box = starts[detection] + _ranks(detection)
        overlaps = overlap(boxes[detection], truth.boxes[box], truth.crowd[box])
        near = overlaps >= IOUS[0]
        if near.any():
            yield _Pairs(detection[near], box[near], overlaps[near])


def _match_coco(pairs: _Pairs, truth: _Boxes, free: np.ndarray, states: np.ndarray) -> None:
    """Matches detections of different groups: changes their `states` [10, n], and `free` [10, m] of their boxes."""
    starts, box = pairs.starts(), pairs.boxes
    able = (free[:, box] | truth.crowd[box]) & (pairs.overlaps >= IOUS[:, None])
    preference = np.where(truth.crowd[box], 0.25, 1)  # a power of two keeps the bits of the overlaps
    values = np.where(able, pairs.overlaps * preference, 0)
    best = _last_best(values, starts)
    level, place = np.nonzero(np.take_along_axis(values, best, -1))
    taken = box[best[level, place]]
    states[level, pairs.detections[starts][place]] = np.where(truth.crowd[taken], IGNORED, CORRECT)
    free[level, taken] = False


def _match_voc(pairs: _Pairs, boxes: np.ndarray, truth: _Boxes, states: np.ndarray) -> None:
    """Matches detections by VOC's rule: changes their `states` [n]. VOC measures the IoU with crowd regions, too.

    VOC has no ignore regions: a detection that lies in one counts as correct or not at all."""
    ious = overlap(boxes[pairs.detections], truth.boxes[pairs.boxes], np.array(False))
    best = _last_best(ious, pairs.starts())
    best = best[ious[best] >= MATCH_IOU]
    detections, owners = pairs.detections[best], pairs.boxes[best]
    _, first = np.unique(owners, return_index=True)
    states[detections[first]] = CORRECT
    states[detections[truth.crowd[owners]]] = IGNORED
    inside = pairs.detections[truth.regions[pairs.boxes] & (pairs.overlaps >= MATCH_IOU)]
    states[inside[states[inside] == 0]] = IGNORED


def _last_best(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """The place of the highest value of each segment [..., p] -> [..., s]; the last one of equals, as in pycocotools."""
    highest = np.maximum.reduceat(values, starts, -1)
    highest = np.repeat(highest, np.diff(starts, append=values.shape[-1]), -1)
    places = np.where(values == highest, np.arange(values.shape[-1]), 0)
    return np.maximum.reduceat(places, starts, -1)


def match_one_to_one(
    detected: np.ndarray, detected_labels: np.ndarray, boxes: np.ndarray, labels: np.ndarray, crowd: np.ndarray
) -> np.ndarray:
    """Matches the detections and the boxes of an image across classes: the index of each detection's box or -1, int64 [n].

    Pairs of the same class come first, then those with the highest IoU. `match_classes` looks at one class at a time, so it
    cannot tell which class an object was taken for; a confusion matrix needs this matching. A detection without a matched box
    gets a crowd region of its class that contains enough of it. Boxes are x, y, width, height: [n, 4] and [m, 4].
    """
    owners = np.full(len(detected), -1)
    if not len(boxes):
        return owners
    near = overlap(detected[:, None], boxes, crowd)
    same = detected_labels[:, None] == labels
    preference = np.where((near >= MATCH_IOU) & ~crowd, near + same, 0)
    free = np.ones(len(boxes), bool)
    for pair in np.argsort(-preference, axis=None, kind="stable")[: np.count_nonzero(preference)]:
        d, b = divmod(int(pair), len(boxes))
        if owners[d] < 0 and free[b]:
            owners[d], free[b] = b, False
    in_crowd = (near >= MATCH_IOU) & same & crowd
    ignored = (owners < 0) & in_crowd.any(1)
    owners[ignored] = in_crowd[ignored].argmax(1)
    return owners


def overlap(detected: np.ndarray, boxes: np.ndarray, crowd: np.ndarray) -> np.ndarray:
    """IoU, or for crowd regions the fraction of the detection inside: x, y, width, height [..., 4] with broadcasting -> [...].

    The order of the operations is the same as in pycocotools: the results are equal to the bit.
    """
    starts = np.maximum(detected[..., :2], boxes[..., :2])
    sides = np.minimum(detected[..., :2] + detected[..., 2:], boxes[..., :2] + boxes[..., 2:]) - starts
    common = np.where((sides > 0).all(-1), sides[..., 0] * sides[..., 1], 0)
    size = detected[..., 2] * detected[..., 3]
    union = np.where(crowd, size, size + boxes[..., 2] * boxes[..., 3] - common)
    return common / np.where(common > 0, union, 1)
