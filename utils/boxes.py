"""The only box arithmetic of the project. Boxes are xyxy in pixels unless a name says otherwise.

Every function takes torch tensors or NumPy arrays `[..., 4]` and returns the same kind.
"""

from typing import TypeAlias

import numpy as np

Boxes: TypeAlias = "torch.Tensor | np.ndarray"  # noqa: F821


def _library(boxes: Boxes):
    """NumPy or torch. Who only reads annotations needs no torch, which takes seconds and half a gigabyte to import."""
    if isinstance(boxes, np.ndarray | np.generic):
        return np
    import torch

    return torch


def _stack(parts: list[Boxes]) -> Boxes:
    return _library(parts[0]).stack(parts, -1)


def xyxy_to_xywh(boxes: Boxes) -> Boxes:
    """Corners -> left, top, width, height (the format of COCO files)."""
    x1, y1, x2, y2 = (boxes[..., i] for i in range(4))
    return _stack([x1, y1, x2 - x1, y2 - y1])


def xywh_to_xyxy(boxes: Boxes) -> Boxes:
    """Left, top, width, height -> corners."""
    x, y, w, h = (boxes[..., i] for i in range(4))
    return _stack([x, y, x + w, y + h])


def cxcywh_to_xyxy(boxes: Boxes) -> Boxes:
    """Centre and size -> corners."""
    x, y, w, h = (boxes[..., i] for i in range(4))
    return _stack([x - w / 2, y - h / 2, x + w / 2, y + h / 2])


def xyxy_to_cxcywh(boxes: Boxes) -> Boxes:
    """Corners -> centre and size."""
    x1, y1, x2, y2 = (boxes[..., i] for i in range(4))
    return _stack([(x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1])


def area(boxes: Boxes) -> Boxes:
    """`[..., 4]` -> `[...]`, 0 for inverted boxes."""
    return (boxes[..., 2] - boxes[..., 0]).clip(0) * (boxes[..., 3] - boxes[..., 1]).clip(0)


def clip(boxes: Boxes, width: float, height: float) -> Boxes:
    """Moves every corner into the picture `[0, width] x [0, height]`."""
    x1, y1, x2, y2 = (boxes[..., i] for i in range(4))
    return _stack([x1.clip(0, width), y1.clip(0, height), x2.clip(0, width), y2.clip(0, height)])


def iou(a: Boxes, b: Boxes, eps: float = 1e-9) -> Boxes:
    """IoU of boxes that lie opposite each other after broadcasting: `[..., 4], [..., 4]` -> `[...]` in 0..1."""
    library = _library(a)
    top_left, bottom_right = library.maximum(a[..., :2], b[..., :2]), library.minimum(a[..., 2:], b[..., 2:])
    sides = (bottom_right - top_left).clip(0)
    overlap = sides[..., 0] * sides[..., 1]
    return overlap / (area(a) + area(b) - overlap + eps)


def ciou(a: Boxes, b: Boxes, eps: float = 1e-9) -> Boxes:
    """Complete IoU of boxes that lie opposite each other after broadcasting: `[..., 4], [..., 4]` -> `[...]`, at most 1.

    IoU less the squared distance of the centres over the squared diagonal of the box around both, less the difference of
    the proportions, weighed without gradient (Zheng et al. 2020, arXiv 1911.08287, equations 10 and 11)."""
    library = _library(a)
    overlap = iou(a, b, eps)
    around = library.maximum(a[..., 2:], b[..., 2:]) - library.minimum(a[..., :2], b[..., :2])
    apart = (a[..., :2] + a[..., 2:] - b[..., :2] - b[..., 2:]) / 2
    shape = 4 / np.pi**2 * (_proportion(a, eps) - _proportion(b, eps)) ** 2
    weight = shape / (1 - overlap + shape + eps)
    weight = weight if library is np else weight.detach()
    return overlap - (apart**2).sum(-1) / ((around**2).sum(-1) + eps) - weight * shape


def _proportion(boxes: Boxes, eps: float) -> Boxes:
    """The angle of a diagonal."""
    x1, y1, x2, y2 = (boxes[..., i] for i in range(4))
    return _library(boxes).arctan((x2 - x1) / (y2 - y1 + eps))


def pairwise_iou(a: Boxes, b: Boxes) -> Boxes:
    """IoU of every box of `a [..., N, 4]` with every box of `b [..., M, 4]` -> `[..., N, M]`."""
    return iou(a[..., :, None, :], b[..., None, :, :])
