"""Merges the detections of overlapping tiles: partial and duplicate detections of an object become one detection."""

from collections.abc import Iterator

import numpy as np

from utils.boxes import area, intersection

COVERED = 0.5  # a box that covers more than this fraction of a box cut by a tile's border is the same object
BLOCK = 256  # detections compared with all others at a time
BORDER = 0.03  # fraction of a tile's side: a box that ends nearer to the tile's border counts as cut


def merge(
    boxes: np.ndarray,
    scores: np.ndarray,
    labels: np.ndarray,
    tiles: np.ndarray,
    windows: np.ndarray,
    nms_iou: float,
    max_detections: int,
    class_agnostic: bool = False,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Merges detections of all windows of an image -> boxes, scores and labels of the image, highest score first.

    `boxes [n, 4]`: xyxy in pixels of the image. `tiles [n]`: index of the window of each detection. `windows [t, 4]`: xyxy,
    first the whole image. At first only the 4 * max_detections highest scores are merged; four times as many, again and
    again, while fewer than max_detections objects remain. The order of the tiles does not matter. With `class_agnostic`,
    detections of different classes may be of the same object, which has the class of its best detection.
    """
    groups = np.zeros_like(labels) if class_agnostic else labels
    order = np.lexsort((*windows[tiles].T, *boxes.T, labels, -scores.astype(np.float64)))
    first = 4 * max_detections
    while True:
        chosen = order[:first]
        found: list[tuple[np.ndarray, float, int]] = []
        for group in np.unique(groups[chosen]):
            rows = chosen[groups[chosen] == group]
            found += _objects(boxes[rows], scores[rows], labels[rows], tiles[rows], windows, nms_iou)
        if len(found) >= max_detections or first >= len(order):
            break
        first *= 4
    found = sorted(found, key=lambda detection: -detection[1])[:max_detections]
    return (
        np.array([box for box, _, _ in found], boxes.dtype).reshape(-1, 4),
        np.array([score for _, score, _ in found], scores.dtype),
        np.array([label for _, _, label in found], labels.dtype),
    )


def _objects(
    boxes: np.ndarray, scores: np.ndarray, labels: np.ndarray, tiles: np.ndarray, windows: np.ndarray, nms_iou: float
) -> Iterator[tuple[np.ndarray, float, int]]:
    """Yields box, score and label of each object, from detections of one group, highest score first.

    The detection with the highest score collects the detections of the same object in other tiles. The box of the object is
    the best one that no border cuts; if all are cut, it encloses all of them.
    """
    places, left = windows[tiles].astype(boxes.dtype), np.ones(len(boxes), bool)
    cut = _is_cut(boxes, places, windows[0])
    near = _near(boxes, places, cut, tiles, nms_iou)
    for best in range(len(boxes)):
        if not left[best]:
            continue
        box, place, whole, used = boxes[best], places[best], not cut[best], tiles[[best]]
        same, left[best] = near[best][left[near[best]]], False
        while len(same):
            left[same] = False
            uncut = same[~cut[same]]
            if whole:
                break
            if len(uncut):
                box, place, whole = boxes[uncut[0]], places[uncut[0]], True
            else:
                box = _enclosing(np.vstack([box, boxes[same]]))
                place = _enclosing(np.vstack([place, places[same]]))
            used = np.append(used, tiles[same])
            others = left & ~np.isin(tiles, used)
            same = np.flatnonzero(others & _are_same(box, place, boxes, places, cut, nms_iou))
        yield box, scores[best], labels[best]


def _near(
    boxes: np.ndarray, places: np.ndarray, cut: np.ndarray, tiles: np.ndarray, nms_iou: float
) -> list[np.ndarray]:
    """Returns for each detection the indices of those in other tiles that are of the same object."""
    near: list[np.ndarray] = []
    for first in range(0, len(boxes), BLOCK):
        rows = slice(first, first + BLOCK)
        same = _are_same(boxes[rows, None], places[rows, None], boxes, places, cut, nms_iou)
        near += map(np.flatnonzero, same & (tiles[rows, None] != tiles))
    return near


def _is_cut(boxes: np.ndarray, places: np.ndarray, image: np.ndarray) -> np.ndarray:
    """Returns which boxes [n, 4] end at a border of their window `places` [n, 4] that is no border of the image -> bool [n]."""
    near = BORDER * (places[:, 2:] - places[:, :2])
    low = (boxes[:, :2] < places[:, :2] + near) & (places[:, :2] > image[:2])
    high = (boxes[:, 2:] > places[:, 2:] - near) & (places[:, 2:] < image[2:])
    return (low | high).any(1)


def _are_same(
    box: np.ndarray, place: np.ndarray, boxes: np.ndarray, places: np.ndarray, cut: np.ndarray, nms_iou: float
) -> np.ndarray:
    """Returns which boxes [n, 4] of windows `places` are of the same object as a box of the window `place` -> bool [n].

    For several boxes [m, 1, 4] the result is bool [m, n]. Two boxes are of the same object if, clipped to the area that both
    windows show, they have an IoU above `nms_iou`; the two halves of an object do. If one of `boxes` is cut, it is enough that
    the other box covers more than COVERED of it."""
    shown = intersection(place, places)
    ours, theirs = intersection(box, shown), intersection(boxes, shown)
    inside = area(intersection(ours, theirs))
    union = area(ours) + area(theirs) - inside
    covered = area(intersection(box, boxes))
    return (inside > nms_iou * union) | (cut & (covered > COVERED * area(boxes)))


def _enclosing(boxes: np.ndarray) -> np.ndarray:
    """Returns the smallest box that contains all boxes [n, 4]."""
    return np.concatenate([boxes[:, :2].min(0), boxes[:, 2:].max(0)])
