"""Anchor points, and the conversion between raw box outputs and boxes in pixels."""

from collections.abc import Sequence

import torch
from torch import Tensor

from utils.boxes import cxcywh_to_xyxy, xyxy_to_cxcywh

BINS = 16  # per side of a box in YOLOv9: the distance is a distribution over 0, 1, ... 15 strides


def level_shapes(image_size: tuple[int, int], strides: Sequence[int]) -> list[tuple[int, int]]:
    """Rows and columns of each level for an input (height, width): what convolutions of stride 2 leave, which round up.

    So the last row and column of a coarse level may reach beyond the input.
    """
    height, width = image_size
    # Not -(-height // stride): in an exported file with any size, division rounds towards 0.
    return [((height + stride - 1) // stride, (width + stride - 1) // stride) for stride in strides]


def grid(image_size: tuple[int, int], strides: tuple[int, ...], like: Tensor) -> tuple[Tensor, Tensor]:
    """Grid cells `[A, 2]` (column, row) and strides `[A]` of an input (height, width), level by level and row by row."""
    cells, sizes = [], []
    for stride, shape in zip(strides, level_shapes(image_size, strides), strict=True):
        y, x = (torch.arange(side, device=like.device, dtype=like.dtype) for side in shape)
        cells.append(torch.stack(torch.meshgrid(x, y, indexing="xy"), 2).flatten(0, 1))
        sizes.append(torch.full_like(cells[-1][:, 0], stride))
    return torch.cat(cells), torch.cat(sizes)


def at_least_float32(x: Tensor) -> Tensor:
    """Converts to float32, but keeps float64."""
    return x if x.dtype == torch.float64 else x.float()


def decode_yolox(raw: Tensor, cells: Tensor, strides: Tensor) -> Tensor:
    """Raw values `[..., A, 4]` -> xyxy in pixels: center = (p + cell) * stride, size = exp(p) * stride (YOLOX, section 2.1)."""
    center = (raw[..., :2] + cells) * strides[..., None]
    return cxcywh_to_xyxy(torch.cat([center, raw[..., 2:].exp() * strides[..., None]], -1))


def encode_yolox(boxes: Tensor, cells: Tensor, strides: Tensor) -> Tensor:
    """Inverse of `decode_yolox`. 1e-8 strides are added to the size before the logarithm, as in the official L1 targets."""
    scaled = xyxy_to_cxcywh(boxes) / strides[..., None]
    return torch.cat([scaled[..., :2] - cells, (scaled[..., 2:] + 1e-8).log()], -1)


def decode_dfl(raw: Tensor, cells: Tensor, strides: Tensor) -> Tensor:
    """Logits `[..., A, 4 * bins]` -> xyxy in pixels (Generalized Focal Loss, Li et al. 2020, section 3.2).

    The expected distances from the anchor point to the left, top, right and bottom side are in strides.
    """
    distances = raw.unflatten(-1, (4, -1)).softmax(-1)
    distances = distances @ torch.arange(raw.shape[-1] // 4, device=raw.device, dtype=raw.dtype)
    sides = torch.cat([cells + 0.5 - distances[..., :2], cells + 0.5 + distances[..., 2:]], -1)
    return sides * strides[..., None]


def encode_dfl(boxes: Tensor, cells: Tensor, strides: Tensor) -> Tensor:
    """xyxy in pixels -> distances `[..., A, 4]` in strides from the anchor point; negative if it lies outside of the box."""
    sides = boxes / strides[..., None]
    return torch.cat([cells + 0.5 - sides[..., :2], sides[..., 2:] - cells - 0.5], -1)
