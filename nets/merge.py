"""Merging the detections of overlapping tiles: the parts and doubles of an object become one detection."""

from collections.abc import Iterator

import numpy as np

from utils.boxes import area

COVERED = 0.5  # fraction of a box at a tile's border: if another box covers more of it, both are of the same object
BLOCK = 256  # detections that are compared with all others at a time
BORDER = 0.03  # fraction of a tile's side: how near to the border a box ends that the border may have cut


def merge(
    boxes: np.ndarray,
    scores: np.ndarray,
    labels: np.ndarray,
    tiles: np.ndarray,
    windows: np.ndarray,
    nms_iou: float,
    max_detections: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Merges detections of all windows of an image -> boxes, scores and labels of the image, best first.

    `boxes [n, 4]` xyxy in pixels of the image, `tiles [n]`: the window that each is from, `windows [t, 4]` xyxy, the first of
    which is the whole image. At first only the best 4 * max_detections are merged, and more if too few objects remain. The
    order of the tiles does not matter.
    """
    order = np.lexsort((*windows[tiles].T, *boxes.T, labels, -scores.astype(np.float64)))
    first = 4 * max_detections
    while True:
        chosen, found = order[:first], []
        for label in np.unique(labels[chosen]):
            rows = chosen[labels[chosen] == label]
            found += _objects(boxes[rows], scores[rows], label, tiles[rows], windows, nms_iou)
        if len(found) >= max_detections or first >= len(order):
            break
        first *= 4
    found = sorted(found, key=lambda one: -one[1])[:max_detections]
    return (
        np.array([box for box, _, _ in found], boxes.dtype).reshape(-1, 4),
        np.array([score for _, score, _ in found], scores.dtype),
        np.array([label for _, _, label in found], labels.dtype),
    )


def _objects(
    boxes: np.ndarray, scores: np.ndarray, label: int, tiles: np.ndarray, windows: np.ndarray, nms_iou: float
) -> Iterator[tuple[np.ndarray, float, int]]:
    """Yields box, score and label of each object, from detections of one class, highest score first.

    The best detection collects those of other tiles that are of its object. The object's box is the best one that no border
    cuts; if all are cut, it encloses all of them.
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
        yield box, scores[best], label


def _near(
    boxes: np.ndarray, places: np.ndarray, cut: np.ndarray, tiles: np.ndarray, nms_iou: float
) -> list[np.ndarray]:
    """Returns for each detection the indices of those in other tiles that are of the same object."""
    near = []
    for first in range(0, len(boxes), BLOCK):
        rows = slice(first, first + BLOCK)
        same = _are_same(boxes[rows, None], places[rows, None], boxes, places, cut, nms_iou)
        near += map(np.flatnonzero, same & (tiles[rows, None] != tiles))
    return near


def _is_cut(boxes: np.ndarray, places: np.ndarray, image: np.ndarray) -> np.ndarray:
    """Whether boxes [n, 4] end at the border of their windows `places` [n, 4], other than the border of the image -> [n]."""
    near = BORDER * (places[:, 2:] - places[:, :2])
    low = (boxes[:, :2] < places[:, :2] + near) & (places[:, :2] > image[:2])
    high = (boxes[:, 2:] > places[:, 2:] - near) & (places[:, 2:] < image[2:])
    return (low | high).any(1)


def _are_same(
    box: np.ndarray, place: np.ndarray, boxes: np.ndarray, places: np.ndarray, cut: np.ndarray, nms_iou: float
) -> np.ndarray:
    """Whether a box of the window `place` and boxes [n, 4] of windows `places` are of one object -> bool [n].

    For several boxes [m, 1, 4] the result is bool [m, n]. Two boxes are of one object if their parts in the area that both
    windows show overlap by more than `nms_iou`, as those of two halves do. For a box that is cut it is enough that the other
    one covers most of it."""
    shown = _common(place, places)
    ours, theirs = _common(box, shown), _common(boxes, shown)
    inside = area(_common(ours, theirs))
    union = area(ours) + area(theirs) - inside
    covered = area(_common(box, boxes))
    return (inside > nms_iou * union) | (cut & (covered > COVERED * area(boxes)))


def _common(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The intersections of boxes [..., 4], inverted where there is none."""
    return np.concatenate([np.maximum(a[..., :2], b[..., :2]), np.minimum(a[..., 2:], b[..., 2:])], -1)


def _enclosing(boxes: np.ndarray) -> np.ndarray:
    """The smallest box that holds all boxes [n, 4]."""
    return np.concatenate([boxes[:, :2].min(0), boxes[:, 2:].max(0)])
