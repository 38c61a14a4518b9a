"""Box arithmetic: conversions, area, clipping, IoU and CIoU. Boxes are xyxy in pixels unless a name has another format.

Every function takes torch tensors or NumPy arrays `[..., 4]` and returns the same type.
"""

from typing import TypeAlias

import numpy as np

Boxes: TypeAlias = "torch.Tensor | np.ndarray"  # noqa: F821


def _library(boxes: Boxes):
    """NumPy or torch. torch is imported only for tensors: the import takes seconds, and reading annotations does not need it."""
    if isinstance(boxes, np.ndarray | np.generic):
        return np
    import torch

    return torch


def _stack(parts: list[Boxes]) -> Boxes:
    return _library(parts[0]).stack(parts, -1)


def xyxy_to_xywh(boxes: Boxes) -> Boxes:
    """Converts corners to left, top, width, height (the format of COCO files)."""
    x1, y1, x2, y2 = (boxes[..., i] for i in range(4))
    return _stack([x1, y1, x2 - x1, y2 - y1])


def xywh_to_xyxy(boxes: Boxes) -> Boxes:
    """Converts left, top, width, height to corners."""
    x, y, w, h = (boxes[..., i] for i in range(4))
    return _stack([x, y, x + w, y + h])


def cxcywh_to_xyxy(boxes: Boxes) -> Boxes:
    """Converts center and size to corners."""
    x, y, w, h = (boxes[..., i] for i in range(4))
    return _stack([x - w / 2, y - h / 2, x + w / 2, y + h / 2])


def xyxy_to_cxcywh(boxes: Boxes) -> Boxes:
    """Converts corners to center and size."""
    x1, y1, x2, y2 = (boxes[..., i] for i in range(4))
    return _stack([(x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1])


def area(boxes: Boxes) -> Boxes:
    """The area of boxes, 0 for inverted ones: `[..., 4]` -> `[...]`."""
    return (boxes[..., 2] - boxes[..., 0]).clip(0) * (boxes[..., 3] - boxes[..., 1]).clip(0)


def clip(boxes: Boxes, width: float, height: float) -> Boxes:
    """Clips boxes to the image `[0, width] x [0, height]`."""
    x1, y1, x2, y2 = (boxes[..., i] for i in range(4))
    return _stack([x1.clip(0, width), y1.clip(0, height), x2.clip(0, width), y2.clip(0, height)])


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
