"""Grid points, and the way between raw box values and boxes in pixels."""

import math

import torch
from torch import Tensor

from utils.boxes import cxcywh_to_xyxy, xyxy_to_cxcywh

BORDERS = (45.0, 150.0)  # pixels: of the strides 8, 16 and 32 (benchmarks/results/strides.md)
BINS = 16  # a distance to a side is a distribution over 0, 1, ... 15 strides


def grid(image_size: tuple[int, int], strides: tuple[int, ...], like: Tensor) -> tuple[Tensor, Tensor]:
    """Height and width of the input -> cells `[A, 2]` (column, row) and strides `[A]`, level after level, row by row."""
    cells, sizes = [], []
    for stride in strides:
        rows, columns = image_size[0] // stride, image_size[1] // stride
        y = torch.arange(rows, device=like.device, dtype=like.dtype)
        x = torch.arange(columns, device=like.device, dtype=like.dtype)
        cells.append(torch.stack([x.expand(rows, -1), y[:, None].expand(-1, columns)], 2).flatten(0, 1))
        sizes.append(torch.full((rows * columns,), float(stride), device=like.device, dtype=like.dtype))
    return torch.cat(cells), torch.cat(sizes)


def octaves_of(strides: Tensor) -> tuple[Tensor, Tensor]:
    """log2 of the smallest size of objects, in pixels, that a stride has, and of the smallest that is too large for it."""
    small, large = map(math.log2, BORDERS)
    low = torch.where(strides > 16, large, torch.where(strides > 8, small, -torch.inf))
    return low, torch.where(strides < 16, small, torch.where(strides < 32, large, torch.inf))


def octaves_inside(log2_size: Tensor, strides: Tensor) -> Tensor:
    """How far a size, log2 of pixels, is inside of what a stride has; negative: outside."""
    low, high = octaves_of(strides)
    return torch.minimum(log2_size - low, high - log2_size)


def at_least_float32(x: Tensor) -> Tensor:
    """float64 stays, all else becomes float32."""
    return x if x.dtype == torch.float64 else x.float()


def decode_yolox(raw: Tensor, cells: Tensor, strides: Tensor) -> Tensor:
    """Raw `[..., A, 4]` -> xyxy in pixels: centre = (p + cell) * stride, size = exp(p) * stride (YOLOX, section 2.1)."""
    centre = (raw[..., :2] + cells) * strides[..., None]
    return cxcywh_to_xyxy(torch.cat([centre, raw[..., 2:].exp() * strides[..., None]], -1))


def encode_yolox(boxes: Tensor, cells: Tensor, strides: Tensor) -> Tensor:
    """The inverse of `decode_yolox`; the size is guarded by 1e-8 cells, as in the official L1 targets."""
    scaled = xyxy_to_cxcywh(boxes) / strides[..., None]
    return torch.cat([scaled[..., :2] - cells, (scaled[..., 2:] + 1e-8).log()], -1)


def decode_dfl(raw: Tensor, cells: Tensor, strides: Tensor) -> Tensor:
    """Logits `[..., A, 64]` -> xyxy in pixels: from the cell's centre the expected distances in strides to the left, top, right
    and bottom (Generalized Focal Loss, Li et al. 2020, section 3.2)."""
    distances = raw.unflatten(-1, (4, BINS)).softmax(-1) @ torch.arange(BINS, device=raw.device, dtype=raw.dtype)
    sides = torch.cat([cells + 0.5 - distances[..., :2], cells + 0.5 + distances[..., 2:]], -1)
    return sides * strides[..., None]


def encode_dfl(boxes: Tensor, cells: Tensor, strides: Tensor) -> Tensor:
    """xyxy in pixels -> distances `[..., A, 4]` in strides from the cell's centre; negative where it lies outside."""
    sides = boxes / strides[..., None]
    return torch.cat([cells + 0.5 - sides[..., :2], sides[..., 2:] - cells - 0.5], -1)
