"""Which of the points that see the same object speaks for it, so that there is no need of NMS."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nets.blocks import Conv
from nets.coder import octaves_inside

SHARP = 1000.0  # slope at the border of a cell, in strides: steep, for neighbours agree closely on the centre
SHARP_SIZE = 20.0  # at the border between the sizes of two strides, in octaves
REACH = 2  # cells to each side that are asked where the centre is
MOST = 10.0  # that a point claims, and -MOST the least


class Selected(NamedTuple):
    """What a model with a selector says."""

    said: Any  # Predictions of its family
    chosen: Tensor  # [B, A] logit: this point speaks for its object
    claims: Tensor | None = None  # [B, A] the part of it that is not learned


class Selector(nn.Module):
    """The second head of a model that needs no NMS.

    A point claims its object where the centre that is predicted is in its cell, and the size one of its stride. As what is
    predicted the neighbours of this stride that see the same object take one mean, so that one of them claims it, seldom none or
    two. To this comes what is learned of the features, of what the point says, and of what is claimed at other strides.
    """

    def __init__(self, channels: Sequence[int], strides: Sequence[int], width: int = 32):
        super().__init__()
        self.strides = tuple(strides)
        self.convs = nn.ModuleList(nn.Sequential(Conv(c + 8, width), Conv(width, width, 3)) for c in channels)
        self.predictors = nn.ModuleList(nn.Conv2d(width, 1, 1) for _ in channels)
        for predictor in self.predictors:
            nn.init.zeros_(predictor.weight)
            nn.init.zeros_(predictor.bias)

    def forward(self, features: Sequence[Tensor], seen: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Maps of each stride -> `chosen` and `claims` of each, `[B, 1, H, W]`. What is learned here changes neither features
        nor the first head.

        `seen [B, 5, H, W]`, float32 or better: from the point to the centre it predicts, x and y, and log2 of width and height,
        all in strides; a quarter of the logit of the score.
        """
        features, seen = [x.detach() for x in features], [x.detach() for x in seen]
        claims = [claim(x, stride) for x, stride in zip(seen, self.strides, strict=True)]
        voices = [x[:, 4:] + y.clamp(max=0) / 4 for x, y in zip(seen, claims, strict=True)]
        chosen = []
        for i, (x, said) in enumerate(zip(features, seen, strict=True)):
            silence = torch.full_like(voices[i], -MOST / 4)
            finer = F.max_pool2d(voices[i - 1], 2) if i else silence
            coarser = F.interpolate(voices[i + 1], scale_factor=2.0) if i + 1 < len(seen) else silence
            shown = torch.cat([said, claims[i] / 10, finer, coarser], 1).to(x.dtype)
            learned = self.predictors[i](self.convs[i](torch.cat([x, shown], 1)))
            chosen.append(claims[i] + learned)
        return chosen, claims


def claim(seen: Tensor, stride: int) -> Tensor:
    """`seen [B, 5, H, W]` -> `[B, 1, H, W]` logits: the object is this point's, by the centre and the size on which it agrees
    with its neighbours."""
    x, y, *log2_sides = agreed(seen.where(seen.abs() <= 1e4, 1e4))  # nobody's NaN shall be his neighbours'
    own, pixels = 0.5 - torch.maximum(x.abs(), y.abs()), x.new_full((), stride)
    octaves = octaves_inside(sum(log2_sides) / 2 + pixels.log2(), pixels)
    return torch.minimum(SHARP * own, SHARP_SIZE * octaves).clamp(-MOST, MOST)


def agreed(seen: Tensor) -> list[Tensor]:
    """`seen [B, 5, H, W]` -> four `[B, 1, H, W]`, its centre and sizes as the mean over 5 x 5 points, weighed by their scores
    and by likeness: 1 - 4 * the largest difference of a centre, in sizes, or of a size, in octaves; at least 0."""
    *own, score = seen.split(1, 1)
    weights = (4 * score).sigmoid() + 1e-3  # nobody weighs 0 for himself
    x, y, *sides, scores = (around(part) for part in (*own, weights))
    side = 2 * REACH + 1
    place = torch.arange(side**2, device=seen.device, dtype=seen.dtype)[:, None, None]
    column = (place / side).floor()
    x, y = x + (column - REACH), y + (place - side * column - REACH)
    apart = [(theirs - mine).abs() for theirs, mine in zip((x, y, *sides), own, strict=True)]
    apart[:2] = [far / log2.clamp(-6, 12).exp2() for far, log2 in zip(apart[:2], own[2:], strict=True)]
    weight = scores * (1 - 4 * torch.maximum(torch.maximum(*apart[:2]), torch.maximum(*apart[2:]))).clamp(min=0)
    return [(theirs * weight).sum(1, keepdim=True) / weight.sum(1, keepdim=True) for theirs in (x, y, *sides)]


def around(values: Tensor) -> Tensor:
    """`[B, 1, H, W]` -> `[B, 25, H, W]`: those of the 5 x 5 points around each, column by column; 0 outside."""
    height, width = values.shape[2:]
    padded, span = F.pad(values, (REACH,) * 4), range(2 * REACH + 1)
    column = torch.cat([padded[..., y : y + height, :] for y in span], 1)
    return torch.cat([column[..., x : x + width] for x in span], 1)
