"""PP-YOLOE+ (Xu et al. 2022, arXiv 2203.16250): CSPResNet, CSPPAN and an anchor-free head that predicts distances.

It is the network of PaddleDetection (Apache-2.0), release 2.5, which the authors call PP-YOLOE+.
"""

import math
import re
from typing import NamedTuple

import torch
from torch import Tensor, nn

from nets.blocks import (
    AttentionStem,
    Conv,
    RepConv,
    flatten_levels,
    init_predictor,
    pyramid_pools,
    set_batch_norms,
    upsample,
)
from nets.coder import decode_dfl, grid
from nets.model import DetectionHead, DetectionModel

SIZES = {"s": (0.33, 0.50), "m": (0.67, 0.75), "l": (1.0, 1.0), "x": (1.33, 1.25)}  # multipliers of depth and width
BINS = 17  # per side of a box: the distance is a distribution over 0, 1, ... 16 strides


class Predictions(NamedTuple):
    """Raw outputs: the anchor points of the strides 8, 16 and 32 one after another, each level row by row."""

    boxes: Tensor  # [B, A, 68] logits of 17 distances to the left side, then top, right, bottom
    classes: Tensor  # [B, A, C] logits


class RepBlock(nn.Module):
    """A 3x3 convolution and a RepConv, in the backbone with a residual connection and a weight of the 1x1 branch."""

    def __init__(self, channels: int, backbone: bool):
        super().__init__()
        self.conv1 = Conv(channels, channels, 3)
        self.conv2 = RepConv(channels, weighted=backbone)
        self.shortcut = backbone

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv2(self.conv1(x))
        return x + y if self.shortcut else y


class PyramidPool(nn.Module):
    """Spatial pyramid pooling, then a 1x1 convolution."""

    def __init__(self, channels: int):
        super().__init__()
        self.conv = Conv(4 * channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(pyramid_pools(x))


class ChannelAttention(nn.Module):
    """Effective squeeze and excitation (CenterMask, Lee and Park 2020): weights channels by the mean of the map."""

    def __init__(self, channels: int):
        super().__init__()
        self.fc = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * nn.functional.hardsigmoid(self.fc(x.mean((2, 3), keepdim=True)))


class CSPRep(nn.Module):
    """Cross-stage partial stage of RepBlocks. In the backbone, attention weights the channels of both paths."""

    def __init__(
        self, in_channels: int, out_channels: int, depth: int, inside: int, backbone: bool, pool: bool = False
    ):
        super().__init__()
        self.conv1 = Conv(in_channels, inside)
        self.conv2 = Conv(in_channels, inside)
        self.blocks = nn.Sequential()
        for i in range(depth):
            self.blocks.add_module(f"{i}", RepBlock(inside, backbone))
            if pool and i == (depth - 1) // 2:  # in the middle
                self.blocks.add_module("pool", PyramidPool(inside))
        self.attention = ChannelAttention(2 * inside) if backbone else nn.Identity()
        self.conv3 = Conv(2 * inside, out_channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv3(self.attention(torch.cat([self.conv1(x), self.blocks(self.conv2(x))], 1)))


class Stage(nn.Sequential):
    """Stage of the backbone: a convolution of stride 2, then a CSPRep."""

    def __init__(self, in_channels: int, out_channels: int, depth: int):
        super().__init__()
        middle = (in_channels + out_channels) // 2
        self.down = Conv(in_channels, middle, 3, 2)
        self.csp = CSPRep(middle, out_channels, depth, middle // 2, backbone=True)


class Backbone(nn.Module):
    """CSPResNet: images `[B, 3, H, W]` RGB, 0-1 -> feature maps of the strides 8, 16 and 32."""

    def __init__(self, depth: float, width: float):
        super().__init__()
        c = [int(channels * width) for channels in (64, 128, 256, 512, 1024)]
        stem = c[0] // 2
        self.stem = nn.Sequential(Conv(3, stem, 3, 2), Conv(stem, stem, 3), Conv(stem, c[0], 3))
        self.stage2, self.stage3, self.stage4, self.stage5 = (
            Stage(c[i], c[i + 1], max(round(depth * blocks), 1)) for i, blocks in enumerate((3, 6, 6, 3))
        )

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        stride8 = self.stage3(self.stage2(self.stem(images)))
        stride16 = self.stage4(stride8)
        return stride8, stride16, self.stage5(stride16)


class Neck(nn.Module):
    """PAFPN (Liu et al. 2018) of CSPRep stages: a top-down and a bottom-up path."""

    def __init__(self, depth: float, width: float):
        super().__init__()
        in8, in16, in32 = (int(c * width) for c in (256, 512, 1024))
        c8, c16, c32 = neck_channels(width)

        def stage(in_channels: int, out_channels: int, pool: bool = False) -> CSPRep:
            blocks = max(round(3 * depth), 1)
            return CSPRep(in_channels, out_channels, blocks, out_channels // 2, backbone=False, pool=pool)

        self.top_stride32 = stage(in32, c32, pool=True)
        self.reduce_stride32 = Conv(c32, c32 // 2)
        self.up_to_stride16 = stage(in16 + c32 // 2, c16)
        self.reduce_stride16 = Conv(c16, c16 // 2)
        self.up_to_stride8 = stage(in8 + c16 // 2, c8)
        self.shrink_stride8 = Conv(c8, c8, 3, 2)
        self.down_to_stride16 = stage(c8 + c16, c16)
        self.shrink_stride16 = Conv(c16, c16, 3, 2)
        self.down_to_stride32 = stage(c16 + c32, c32)

    def forward(self, stride8: Tensor, stride16: Tensor, stride32: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        top = self.top_stride32(stride32)
        middle = self.up_to_stride16(torch.cat([upsample(self.reduce_stride32(top)), stride16], 1))
        out8 = self.up_to_stride8(torch.cat([upsample(self.reduce_stride16(middle)), stride8], 1))
        out16 = self.down_to_stride16(torch.cat([self.shrink_stride8(out8), middle], 1))
        return out8, out16, self.down_to_stride32(torch.cat([self.shrink_stride16(out16), top], 1))


class Head(DetectionHead):
    """Efficient task-aligned head (PP-YOLOE, section 2.2). Each level has a branch for classes and one for boxes."""

    def __init__(self, channels: tuple[int, ...], num_classes: int):
        super().__init__()
        self.class_stems = nn.ModuleList(AttentionStem(c, Conv) for c in channels)
        self.box_stems = nn.ModuleList(AttentionStem(c, Conv) for c in channels)
        self.class_predictors = nn.ModuleList(nn.Conv2d(c, num_classes, 3, padding=1) for c in channels)
        self.box_predictors = nn.ModuleList(nn.Conv2d(c, 4 * BINS, 3, padding=1) for c in channels)
        for class_predictor, box_predictor in zip(self.class_predictors, self.box_predictors, strict=True):
            init_predictor(class_predictor, -math.log((1 - 0.01) / 0.01), std=0.0)  # initial scores are .01
            init_predictor(box_predictor, 1.0, std=0.0)  # both as in the official code

    def levels(self, features: tuple[Tensor, ...]) -> list[Predictions]:
        """Feature maps of each stride -> Predictions of maps `[B, C, H, W]` for each stride."""
        levels = []
        for i, x in enumerate(features):
            mean = x.mean((2, 3), keepdim=True)
            classes = self.class_predictors[i](self.class_stems[i](x, mean) + x)
            levels.append(Predictions(self.box_predictors[i](self.box_stems[i](x, mean)), classes))
        return levels

    def flatten(self, levels: list[Predictions]) -> Predictions:
        """Maps of each stride -> Predictions `[B, A, ...]` of all anchor points."""
        raw = flatten_levels(levels)  # [B, A, 68 + C]
        return Predictions(raw[..., : 4 * BINS], raw[..., 4 * BINS :])


class PPYOLOE(DetectionModel):
    """PP-YOLOE+ of one size: multipliers of depth and width, as in `SIZES`."""

    letterbox = "stretch"
    strides = (8, 16, 32)

    def __init__(self, size: tuple[float, float], num_classes: int):
        super().__init__()
        self.num_classes = num_classes
        self.backbone = Backbone(*size)
        self.neck = Neck(*size)
        self.head = Head(neck_channels(size[1]), num_classes)
        set_batch_norms(self, eps=1e-5, momentum=0.1)  # the released weights were trained with them

    @classmethod
    def completed(cls, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Adds the weights of 1x1 branches, which are 1 in the weights of Objects365: these were trained without them."""
        branches = [name for name in state if re.fullmatch(r"backbone\..*\.conv1x1\.conv\.weight", name)]
        alphas = {name.replace("conv1x1.conv.weight", "alpha"): torch.ones(1) for name in branches}
        return alphas | state

    def prepare(self, images: Tensor) -> Tensor:
        """Images -> input of the backbone: RGB, 0-1, in the dtype of the weights."""
        return images.flip(1).to(self.dtype) / 255

    def decode(self, predictions: Predictions, image_size: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
        """Returns boxes `[B, A, 4]` xyxy in pixels of the input, and scores and labels `[B, A]` of the best class."""
        raw = predictions.boxes.float()
        best, labels = predictions.classes.float().max(-1)
        return decode_dfl(raw, *grid(image_size, self.strides, raw)), best.sigmoid(), labels


def neck_channels(width: float) -> tuple[int, int, int]:
    """Channels of the neck's outputs of the strides 8, 16 and 32."""
    c8, c16, c32 = (int(c * width) for c in (192, 384, 768))
    return c8, c16, c32
