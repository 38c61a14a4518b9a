"""PicoDet (Yu et al. 2021, arXiv 2111.00902) in its second version: LCNet, LCPAN, and a head of four strides for small devices.

It is the network of PaddleDetection (Apache-2.0), release 2.4, whose files have `lcnet` in their names.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nets.blocks import AttentionStem, ConvNorm, flatten_levels, init_predictor, set_batch_norms, upsample
from nets.coder import decode_dfl, grid
from nets.model import DetectionHead, DetectionModel


class Size(NamedTuple):
    """Channels and depths of a network size."""

    width: float  # multiplier of the channels of the backbone
    channels: int  # of the neck and the head
    depth: int  # convolutions per level of the head


SIZES = {"s": Size(0.75, 96, 2), "m": Size(1.5, 128, 4), "l": Size(2.0, 160, 4)}
BINS = 8  # per side of a box: the distance is a distribution over 0, 1, ... 7 strides
EPS = 1e-9  # added to products of scores, as in the official code: the root has a finite gradient
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of the pixels of ImageNet: red, green, blue


class Predictions(NamedTuple):
    """Raw outputs: the anchor points of the strides 8, 16, 32 and 64 one after another, each level row by row."""

    boxes: Tensor  # [B, A, 32] logits of 8 distances to the left side, then top, right, bottom
    alignment: Tensor  # [B, A] logits of how well box and class fit together
    classes: Tensor  # [B, A, C] logits


class Conv(ConvNorm):
    """Convolution, batch norm and hard-swish."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return F.hardswish(y, inplace=not y.requires_grad)


class ChannelAttention(nn.Module):
    """Squeeze and excitation (Hu et al. 2018): weights the channels of a map by two layers on their means over the image."""

    def __init__(self, channels: int):
        super().__init__()
        self.reduce = nn.Conv2d(channels, channels // 4, 1)
        self.expand = nn.Conv2d(channels // 4, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        means = x.mean((2, 3), keepdim=True)
        return x * F.hardsigmoid(self.expand(F.relu(self.reduce(means))))


class SeparableConv(nn.Sequential):
    """A depthwise convolution and a pointwise one, with attention between them if wanted."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int = 5, stride: int = 1, attention: bool = False):
        super().__init__()
        self.depthwise = Conv(in_channels, in_channels, kernel, stride, groups=in_channels)
        if attention:
            self.attention = ChannelAttention(in_channels)
        self.pointwise = Conv(in_channels, out_channels)


def stage(in_channels: int, out_channels: int, kernels: tuple[int, ...], stride: int = 2, attention: bool = False):
    """Builds a stage of the backbone: a separable convolution of `stride`, and others that keep the size."""
    first, *others = kernels
    layers = [SeparableConv(in_channels, out_channels, first, stride, attention)]
    layers += [SeparableConv(out_channels, out_channels, kernel, 1, attention) for kernel in others]
    return nn.Sequential(*layers)


class Backbone(nn.Module):
    """LCNet (Cui et al. 2021): normalized images `[B, 3, H, W]` RGB -> feature maps of the strides 8, 16 and 32."""

    def __init__(self, width: float):
        super().__init__()
        c2, c2b, c4, c8, c16, c32 = backbone_channels(width)
        self.stem = Conv(3, c2, 3, 2)
        self.stage1 = stage(c2, c2b, (3,), stride=1)
        self.stage2 = stage(c2b, c4, (3, 3))
        self.stage3 = stage(c4, c8, (3, 3))
        self.stage4 = stage(c8, c16, (3, 5, 5, 5, 5, 5))
        self.stage5 = stage(c16, c32, (5, 5), attention=True)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        stride8 = self.stage3(self.stage2(self.stage1(self.stem(images))))
        stride16 = self.stage4(stride8)
        return stride8, stride16, self.stage5(stride16)


class Neck(nn.Module):
    """LCPAN: a top-down and a bottom-up path (Liu et al. 2018) of separable convolutions, and a map of stride 64."""

    def __init__(self, width: float, channels: int):
        super().__init__()

        def merge() -> nn.Sequential:
            return nn.Sequential(SeparableConv(2 * channels, 2 * channels), SeparableConv(2 * channels, channels))

        self.reduce_stride8, self.reduce_stride16, self.reduce_stride32 = (
            Conv(c, channels) for c in backbone_channels(width)[-3:]
        )
        self.up_to_stride16, self.up_to_stride8, self.down_to_stride16, self.down_to_stride32 = (
            merge() for _ in range(4)
        )
        self.shrink_stride8, self.shrink_stride16, self.shrink_stride32, self.shrink_top = (
            SeparableConv(channels, channels, stride=2) for _ in range(4)
        )

    def forward(self, stride8: Tensor, stride16: Tensor, stride32: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        top = self.reduce_stride32(stride32)
        middle = self.up_to_stride16(torch.cat([upsample(top), self.reduce_stride16(stride16)], 1))
        out8 = self.up_to_stride8(torch.cat([upsample(middle), self.reduce_stride8(stride8)], 1))
        out16 = self.down_to_stride16(torch.cat([self.shrink_stride8(out8), middle], 1))
        out32 = self.down_to_stride32(torch.cat([self.shrink_stride16(out16), top], 1))
        return out8, out16, out32, self.shrink_top(top) + self.shrink_stride32(out32)


class Head(DetectionHead):
    """Efficient task-aligned head: each level has convolutions that classes and boxes share, and a map of their alignment."""

    def __init__(self, channels: int, depth: int, levels: int, num_classes: int):
        super().__init__()
        each = range(levels)
        self.convs = nn.ModuleList(
            nn.Sequential(*(SeparableConv(channels, channels) for _ in range(depth))) for _ in each
        )
        self.attention_stems = nn.ModuleList(AttentionStem(channels, Conv) for _ in each)
        self.class_predictors, self.box_predictors = (
            nn.ModuleList(nn.Conv2d(channels, out, 1) for _ in each) for out in (num_classes, 4 * BINS)
        )
        self.alignments = nn.ModuleList(nn.Sequential(Conv(channels, 1, 5), ConvNorm(1, 1)) for _ in each)
        for class_predictor, box_predictor in zip(self.class_predictors, self.box_predictors, strict=True):
            init_predictor(class_predictor, -math.log((1 - 0.01) / 0.01), std=0.01)  # initial scores are .01
            init_predictor(box_predictor, 0.0, std=0.01)  # both as in the official code

    def levels(self, features: tuple[Tensor, ...]) -> list[Predictions]:
        """Feature maps of each stride -> Predictions of maps `[B, C, H, W]` for each stride."""
        levels = []
        for i, x in enumerate(features):
            shared = self.convs[i](x)
            weighted = self.attention_stems[i](shared, shared.mean((2, 3), keepdim=True))
            boxes, classes = self.box_predictors[i](weighted), self.class_predictors[i](weighted)
            levels.append(Predictions(boxes, self.alignments[i](shared), classes))
        return levels

    def flatten(self, levels: list[Predictions]) -> Predictions:
        """Maps of each stride -> Predictions `[B, A, ...]` of all anchor points."""
        raw = flatten_levels(levels)  # [B, A, 32 + 1 + C]
        return Predictions(raw[..., : 4 * BINS], raw[..., 4 * BINS], raw[..., 4 * BINS + 1 :])


class PicoDet(DetectionModel):
    """PicoDet of one size."""

    letterbox = "stretch"
    strides = (8, 16, 32, 64)

    def __init__(self, size: Size, num_classes: int):
        super().__init__()
        self.num_classes = num_classes
        self.backbone = Backbone(size.width)
        self.neck = Neck(size.width, size.channels)
        self.head = Head(size.channels, size.depth, len(self.strides), num_classes)
        set_batch_norms(self, eps=1e-5, momentum=0.1)  # the released weights were trained with them

    def prepare(self, images: Tensor) -> Tensor:
        """Images -> input of the backbone: RGB, 0-1, minus ImageNet's mean, divided by its deviation, in the weights' dtype."""
        pixels = images.to(self.dtype) / 255
        # Channel by channel, since a tensor with the three means would have to be copied to the device.
        colors = zip(pixels.flip(1).split(1, 1), MEAN, DEVIATION, strict=True)
        return torch.cat([(color - mean) / deviation for color, mean, deviation in colors], 1)

    def decode(self, predictions: Predictions, image_size: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
        """Returns boxes `[B, A, 4]` xyxy in pixels of the input, and scores and labels `[B, A]` of the best class."""
        raw = predictions.boxes.float()
        best, labels = predictions.classes.float().max(-1)
        scores = joint_scores(best[..., None], predictions.alignment.float())[..., 0]
        return decode_dfl(raw, *grid(image_size, self.strides, raw)), scores, labels


def backbone_channels(width: float) -> list[int]:
    """Channels of the backbone: twice at stride 2, then of the strides 4 to 32; multiples of 8."""
    return [max(int(channels * width + 4) // 8 * 8, 8) for channels in (16, 32, 64, 128, 256, 512)]


def joint_scores(classes: Tensor, alignment: Tensor) -> Tensor:
    """Scores `[B, A, C]` of classes: the root of class probability times alignment probability, from logits."""
    return (classes.sigmoid() * alignment.sigmoid()[..., None] + EPS).sqrt()


def joint_logits(classes: Tensor, alignment: Tensor) -> Tensor:
    """Logits `[B, A, C]` of `joint_scores`, accurate for scores near 0 and 1."""
    log_product = F.logsigmoid(classes) + F.logsigmoid(alignment)[..., None]
    score = (log_product.exp() + EPS).sqrt()
    # The logarithm of score / (1 - score), with 1 - score = (1 - score^2) / (1 + score).
    return score.log() + score.log1p() - (-log_product.expm1()).clamp(min=EPS).log()
