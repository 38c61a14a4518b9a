"""Box arithmetic: conversions, area, clipping, IoU and CIoU. Boxes are xyxy in pixels unless a name has another format.

Every function takes torch tensors or NumPy arrays `[..., 4]` and returns the same type.
"""

from typing import TypeAlias

import numpy as np

Boxes: TypeAlias = "torch.Tensor | np.ndarray"  # noqa: F821


def _library(boxes: Boxes):
    """NumPy or torch. torch is imported only for tensors: the import takes seconds, and reading annotations does not need it."""
    if isinstance(boxes, (np.ndarray, np.generic)):
        return np
    import torch

    return torch


def _pair(first: Boxes, second: Boxes) -> Boxes:
    """Concatenates two halves of a box."""
    return _library(first).concatenate([first, second], -1)


def xyxy_to_xywh(boxes: Boxes) -> Boxes:
    """Converts corners to left, top, width, height (the format of COCO files)."""
    return _pair(boxes[..., :2], boxes[..., 2:] - boxes[..., :2])


def xywh_to_xyxy(boxes: Boxes) -> Boxes:
    """Converts left, top, width, height to corners."""
    return _pair(boxes[..., :2], boxes[..., :2] + boxes[..., 2:])


def cxcywh_to_xyxy(boxes: Boxes) -> Boxes:
    """Converts center and size to corners."""
    center, half = boxes[..., :2], boxes[..., 2:] / 2
    return _pair(center - half, center + half)


def xyxy_to_cxcywh(boxes: Boxes) -> Boxes:
    """Converts corners to center and size."""
    return _pair((boxes[..., :2] + boxes[..., 2:]) / 2, boxes[..., 2:] - boxes[..., :2])


def area(boxes: Boxes) -> Boxes:
    """The area of boxes, 0 for inverted ones: `[..., 4]` -> `[...]`."""
    sides = (boxes[..., 2:] - boxes[..., :2]).clip(0)
    return sides[..., 0] * sides[..., 1]


def clip(boxes: Boxes, width: float, height: float) -> Boxes:
    """Clips boxes to the image `[0, width] x [0, height]`."""
    sides = [boxes[..., i].clip(0, limit) for i, limit in enumerate((width, height, width, height))]
    return _library(boxes).stack(sides, -1)


def iou(a: Boxes, b: Boxes, eps: float = 1e-9) -> Boxes:
    """Element-wise IoU with broadcasting: `[..., 4], [..., 4]` -> `[...]` in 0..1."""
    library = _library(a)
    top_left, bottom_right = library.maximum(a[..., :2], b[..., :2]), library.minimum(a[..., 2:], b[..., 2:])
    sides = (bottom_right - top_left).clip(0)
    overlap = sides[..., 0] * sides[..., 1]
    return overlap / (area(a) + area(b) - overlap + eps)


def ciou(a: Boxes, b: Boxes, eps: float = 1e-9) -> Boxes:
    """Element-wise complete IoU with broadcasting: `[..., 4], [..., 4]` -> `[...]`, at most 1.

    CIoU is the IoU, minus the squared center distance over the squared diagonal of the enclosing box, minus a term for the
    difference of the aspect ratios, whose weight has no gradient (Zheng et al. 2020, arXiv 1911.08287, equations 10 and 11).
    """
    library = _library(a)
    overlap = iou(a, b, eps)
    enclosing = library.maximum(a[..., 2:], b[..., 2:]) - library.minimum(a[..., :2], b[..., :2])
    distance = (a[..., :2] + a[..., 2:] - b[..., :2] - b[..., 2:]) / 2
    shape = 4 / np.pi**2 * (_diagonal_angle(a, eps) - _diagonal_angle(b, eps)) ** 2
    weight = shape / (1 - overlap + shape + eps)
    weight = weight if library is np else weight.detach()
    return overlap - (distance**2).sum(-1) / ((enclosing**2).sum(-1) + eps) - weight * shape


def _diagonal_angle(boxes: Boxes, eps: float) -> Boxes:
    """The angle between the diagonal and the vertical axis, in radians."""
    x1, y1, x2, y2 = (boxes[..., i] for i in range(4))
    return _library(boxes).arctan((x2 - x1) / (y2 - y1 + eps))


def pairwise_iou(a: Boxes, b: Boxes) -> Boxes:
    """The IoU of all pairs of boxes: `[..., N, 4], [..., M, 4]` -> `[..., N, M]`."""
    return iou(a[..., :, None, :], b[..., None, :, :])
