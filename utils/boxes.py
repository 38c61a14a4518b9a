"""Box arithmetic: conversions, area, clipping, IoU, GIoU and CIoU. Boxes are xyxy in pixels unless a name has another format.

Every function takes torch tensors or NumPy arrays `[..., 4]` and returns the same type.

The coordinate systems of boxes, and every place where they change from one to another:

- Files to original image (pixels of the upright image): the readers convert x, y, width, height (datasets/formats/coco.py),
  center and size (datasets/formats/yolo.py) and percent (datasets/formats/labelstudio.py) to corners, and
  datasets/formats/labels.py multiplies fractions by the size of the image. deploy/label_files.py and `to_coco` in
  metrics/coco.py convert back.
- Original to reduced image (decoded at 1/2, 1/4 or 1/8 of its size): `DetectionDataset` in datasets/dataset.py; reduced
  further before it is painted: `_reduced` in datasets/transforms.py.
- Image to input of the network: in training `move_boxes` in datasets/transforms.py; in evaluation and prediction
  `boxes_to_input` in utils/images.py, with the letterbox. Its inverse is `into_original` in utils/images.py, which
  nets/postprocess.py and deploy/exported_model.py call.
- Input to anchor points (offsets in strides) and back: nets/coder.py.
- Tile to image: `merged` in deploy/tiles.py.
"""

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

if TYPE_CHECKING:
    import torch

Boxes = TypeVar("Boxes", "torch.Tensor", np.ndarray)


def _library(boxes: Any) -> Any:
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


def intersection(a: Boxes, b: Boxes) -> Boxes:
    """Element-wise intersections with broadcasting: `[..., 4], [..., 4]` -> `[..., 4]`; inverted where there is none."""
    library = _library(a)
    return _pair(library.maximum(a[..., :2], b[..., :2]), library.minimum(a[..., 2:], b[..., 2:]))


def iou(a: Boxes, b: Boxes, eps: float = 1e-9) -> Boxes:
    """Element-wise IoU with broadcasting: `[..., 4], [..., 4]` -> `[...]` in 0..1."""
    library = _library(a)
    top_left, bottom_right = library.maximum(a[..., :2], b[..., :2]), library.minimum(a[..., 2:], b[..., 2:])
    sides = (bottom_right - top_left).clip(0)
    overlap = sides[..., 0] * sides[..., 1]
    return overlap / (area(a) + area(b) - overlap + eps)


def giou(a: Boxes, b: Boxes, eps: float = 1e-9) -> Boxes:
    """Element-wise generalized IoU with broadcasting: `[..., 4], [..., 4]` -> `[...]`, between -1 and 1.

    GIoU is the IoU, minus the fraction of the enclosing box that neither box covers (Rezatofighi et al. 2019, algorithm 1).
    """
    library = _library(a)
    overlap = area(intersection(a, b))
    union = area(a) + area(b) - overlap
    corners = library.minimum(a[..., :2], b[..., :2]), library.maximum(a[..., 2:], b[..., 2:])
    enclosing = area(_pair(*corners))
    return overlap / (union + eps) - (enclosing - union) / (enclosing + eps)


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
