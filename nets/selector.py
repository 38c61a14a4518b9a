"""Which of the points that see the same object speaks for it, so that there is no need of NMS."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nets.blocks import Conv
from nets.coder import inside_range

SHARP = 100.0  # slope at the border of a cell, in strides: two neighbours shall not both have the centre
SHARP_SIZE = 20.0  # at the border between the sizes of two strides, in octaves
REACH = 2  # cells to each side that are asked where the centre is
LEAST = -10.0  # of what a point claims


class Selected(NamedTuple):
    """What a model with a selector says."""

    said: Any  # Predictions of its family
    chosen: Tensor  # [B, A] logit: this point speaks for its object
    claims: Tensor | None = None  # [B, A] the part of it that is not learned


class Selector(nn.Module):
    """The second head of a model that needs no NMS.

    A point claims its object where the centre that is predicted is in its cell, and the size one of its stride. As what is
    predicted the neighbours that see the same object take one mean, so that one of them claims it, seldom none or two. To this
    comes what is learned of the features, of what the point says, and of what is claimed at other strides.
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

        `seen [B, 5, H, W]`: from the point to the centre it predicts, x and y, and log2 of width and height, all in strides;
        a quarter of the logit of the score.
        """
        features, seen = [x.detach() for x in features], [x.detach() for x in seen]
        claims = [claim(x.float(), stride) for x, stride in zip(seen, self.strides, strict=True)]
        voices = [x[:, 4:] + y.clamp(max=0).to(x.dtype) / 4 for x, y in zip(seen, claims, strict=True)]
        chosen = []
        for i, (x, said) in enumerate(zip(features, seen, strict=True)):
            silence = torch.full_like(voices[i], LEAST / 4)
            finer = F.max_pool2d(voices[i - 1], 2) if i else silence
            coarser = F.interpolate(voices[i + 1], scale_factor=2.0) if i + 1 < len(seen) else silence
            shown = torch.cat([x, said, claims[i].to(x.dtype) / 10, finer, coarser], 1)
            chosen.append(claims[i] + self.predictors[i](self.convs[i](shown)))
        return chosen, claims


def claim(seen: Tensor, stride: int) -> Tensor:
    """`seen [B, 5, H, W]` -> `[B, 1, H, W]` logits: the object is this point's, by the centre and the size on which it agrees
    with its neighbours."""
    together, pixels = agreed(seen), seen.new_full((), stride)
    away = together[:, :2].abs().amax(1, keepdim=True)
    octaves = inside_range(together[:, 2:].mean(1, keepdim=True) + pixels.log2(), pixels)
    return torch.minimum(SHARP * (0.5 - away), SHARP_SIZE * octaves).clamp(LEAST, -LEAST)


def agreed(seen: Tensor) -> Tensor:
    """`seen [B, 5, H, W]` -> `[B, 4, H, W]`, its centre and sizes as the mean over 5 x 5 points, weighed by their scores and by
    likeness: 1 - 4 * the largest difference of a centre, in sizes, or of a size, in octaves; at least 0."""
    height, width = seen.shape[2:]
    span = range(2 * REACH + 1)
    step = torch.arange(-REACH, REACH + 1, device=seen.device, dtype=seen.dtype)
    steps = torch.stack([step.repeat(len(span)), step.repeat_interleave(len(span))], 1)[..., None, None]  # x and y
    scored = torch.cat([seen[:, :4], (4 * seen[:, 4:]).sigmoid() + 1e-3], 1)  # so that nobody's weight is 0 to himself
    padded = F.pad(scored, (REACH,) * 4)
    near = torch.stack([padded[..., y : y + height, x : x + width] for y in span for x in span], 1)
    boxes, own = torch.cat([near[:, :, :2] + steps, near[:, :, 2:4]], 2), seen[:, None, :4]
    apart = (boxes - own).abs()
    apart = torch.cat([apart[:, :, :2] / own[:, :, 2:].clamp(-6, 12).exp2(), apart[:, :, 2:]], 2).amax(2, keepdim=True)
    weight = near[:, :, 4:] * (1 - 4 * apart).clamp(min=0)
    return (boxes * weight).sum(1) / weight.sum(1)
