"""YOLOX (Ge et al. 2021, arXiv 2107.08430): CSPDarknet, PAFPN and an anchor-free decoupled head."""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from nets.blocks import CSP, SPP, Conv, SeparableConv, bias_of, flatten_levels, init_predictor, upsample
from nets.coder import decode_yolox, grid
from nets.model import DetectionHead, DetectionModel

SIZES = {  # multipliers of depth and width (YOLOX, table 3), and the convolution
    "nano": (0.33, 0.25, SeparableConv),
    "tiny": (0.33, 0.375, Conv),
    "s": (0.33, 0.50, Conv),
    "m": (0.67, 0.75, Conv),
    "l": (1.0, 1.0, Conv),
    "x": (1.33, 1.25, Conv),
}
FOCUS = ((0, 0), (1, 0), (0, 1), (1, 1))  # row and column offsets of the four pixels that become channels


class Predictions(NamedTuple):
    """Raw outputs: the anchor points of the strides 8, 16 and 32 one after another, each level row by row."""

    boxes: Tensor  # [B, A, 4] offset of the center in strides, log of the size in strides
    objectness: Tensor  # [B, A] logits
    classes: Tensor  # [B, A, C] logits


class Backbone(nn.Module):
    """CSPDarknet: images `[B, 3, H, W]` BGR, 0-255 -> feature maps of the strides 8, 16 and 32."""

    focus = True  # False after `fuse`

    def __init__(self, depth: float, width: float, conv: type[nn.Module]):
        super().__init__()
        c = [int(64 * width) * 2**i for i in range(5)]
        d = max(round(3 * depth), 1)
        self.stem = Conv(12, c[0], 3)
        self.stage2 = nn.Sequential(conv(c[0], c[1], 3, 2), CSP(c[1], c[1], d, True, conv))
        self.stage3 = nn.Sequential(conv(c[1], c[2], 3, 2), CSP(c[2], c[2], 3 * d, True, conv))
        self.stage4 = nn.Sequential(conv(c[2], c[3], 3, 2), CSP(c[3], c[3], 3 * d, True, conv))
        self.stage5 = nn.Sequential(conv(c[3], c[4], 3, 2), SPP(c[4], c[4]), CSP(c[4], c[4], d, False, conv))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # Focus: every 2 x 2 pixels become channels, in the order top-left, bottom-left, top-right, bottom-right.
        x = torch.cat([images[..., row::2, col::2] for row, col in FOCUS], 1) if self.focus else images
        stride8 = self.stage3(self.stage2(self.stem(x)))
        stride16 = self.stage4(stride8)
        return stride8, stride16, self.stage5(stride16)

    @torch.no_grad()
    def fuse(self) -> None:
        """Merges Focus and the stem into one 6x6 convolution of stride 2, in place, for inference; same outputs up to rounding.

        Some converters do not support slices with steps.
        """
        if not self.focus:
            return
        self.stem.fuse()
        old, self.focus = self.stem.conv, False
        self.stem.conv = nn.Conv2d(3, old.out_channels, 6, 2, 2).to(old.weight)
        bias_of(self.stem.conv).copy_(bias_of(old))
        for (row, col), weights in zip(FOCUS, old.weight.split(3, 1), strict=True):
            self.stem.conv.weight[..., row::2, col::2] = weights


class Neck(nn.Module):
    """PAFPN (Liu et al. 2018): a top-down and a bottom-up path."""

    def __init__(self, depth: float, width: float, conv: type[nn.Module]):
        super().__init__()
        c8, c16, c32 = (int(c * width) for c in (256, 512, 1024))
        d = round(3 * depth)
        self.reduce_stride32 = Conv(c32, c16)
        self.up_to_stride16 = CSP(2 * c16, c16, d, False, conv)
        self.reduce_stride16 = Conv(c16, c8)
        self.up_to_stride8 = CSP(2 * c8, c8, d, False, conv)
        self.shrink_stride8 = conv(c8, c8, 3, 2)
        self.down_to_stride16 = CSP(2 * c8, c16, d, False, conv)
        self.shrink_stride16 = conv(c16, c16, 3, 2)
        self.down_to_stride32 = CSP(2 * c16, c32, d, False, conv)

    def forward(self, stride8: Tensor, stride16: Tensor, stride32: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        top = self.reduce_stride32(stride32)
        middle = self.reduce_stride16(self.up_to_stride16(torch.cat([upsample(top), stride16], 1)))
        out8 = self.up_to_stride8(torch.cat([upsample(middle), stride8], 1))
        out16 = self.down_to_stride16(torch.cat([self.shrink_stride8(out8), middle], 1))
        out32 = self.down_to_stride32(torch.cat([self.shrink_stride16(out16), top], 1))
        return out8, out16, out32


class Head(DetectionHead):
    """Decoupled head. Each level has a stem, a branch for classes, and a branch for boxes and objectness."""

    def __init__(self, width: float, num_classes: int, conv: type[nn.Module]):
        super().__init__()
        inside = int(256 * width)
        channels = [int(c * width) for c in (256, 512, 1024)]
        self.stems = nn.ModuleList(Conv(c, inside) for c in channels)
        self.class_convs, self.box_convs = (
            nn.ModuleList(nn.Sequential(conv(inside, inside, 3), conv(inside, inside, 3)) for _ in channels)
            for _ in range(2)
        )
        self.class_predictors, self.box_predictors, self.objectness_predictors = (
            nn.ModuleList(nn.Conv2d(inside, out, 1) for _ in channels) for out in (num_classes, 4, 1)
        )
        prior = -math.log((1 - 0.01) / 0.01)  # RetinaNet (Lin et al. 2017), section 4.1: initial scores are .01
        for predictor in (*self.class_predictors, *self.objectness_predictors):
            init_predictor(predictor, prior)

    def levels(self, features: tuple[Tensor, ...]) -> list[Predictions]:
        """Feature maps of each stride -> Predictions of maps `[B, C, H, W]` for each stride."""
        levels = []
        for i, x in enumerate(features):
            x = self.stems[i](x)
            class_features, box_features = self.class_convs[i](x), self.box_convs[i](x)
            boxes, objectness = self.box_predictors[i](box_features), self.objectness_predictors[i](box_features)
            levels.append(Predictions(boxes, objectness, self.class_predictors[i](class_features)))
        return levels

    def flatten(self, levels: list[Predictions]) -> Predictions:
        """Maps of each stride -> Predictions `[B, A, ...]` of all anchor points."""
        raw = flatten_levels(levels)  # [B, A, 4 + 1 + C]
        return Predictions(raw[..., :4], raw[..., 4], raw[..., 5:])


class YOLOX(DetectionModel):
    """YOLOX of one size: multipliers of depth and width, and the convolution, as in `SIZES`."""

    letterbox = "corner"
    strides = (8, 16, 32)

    def __init__(self, size: tuple[float, float, type[nn.Module]], num_classes: int):
        super().__init__()
        depth, width, conv = size
        self.num_classes = num_classes
        self.backbone = Backbone(depth, width, conv)
        self.neck = Neck(depth, width, conv)
        self.head = Head(width, num_classes, conv)

    def prepare(self, images: Tensor) -> Tensor:
        """Images -> input of the backbone: BGR, 0-255, in the dtype of the weights."""
        return images.to(self.dtype)

    def decode(self, predictions: Predictions, image_size: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
        """Returns boxes `[B, A, 4]` xyxy in pixels of the input, and scores and labels `[B, A]` of the best class."""
        raw = predictions.boxes.float()
        best, labels = predictions.classes.float().max(-1)
        scores = predictions.objectness.float().sigmoid() * best.sigmoid()
        return decode_yolox(raw, *grid(image_size, self.strides, raw)), scores, labels
