"""YOLOv9 (Wang et al. 2024, arXiv 2402.13616): GELAN, PAFPN and an anchor-free head that predicts distributions of distances.

It is the main branch of the network of MultimediaTechLab (MIT), without the auxiliary branch that is used in training only.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from nets.blocks import GELAN, SPP, AConv, ADown, Conv, flatten_levels, init_predictor, upsample
from nets.coder import BINS, decode_dfl, grid
from nets.model import DetectionHead, DetectionModel


class Size(NamedTuple):
    """Channels and depths of a network size."""

    stem: int
    stages: tuple[tuple[int, int, int], ...]  # strides 4, 8, 16, 32: channels after downsampling, inside GELAN, out
    neck: tuple[int, int, int]  # channels of the strides 8, 16, 32
    shrink: tuple[int, int]  # channels between the strides 8 and 16, and 16 and 32
    first_depth: int  # bottlenecks per inner stage of GELAN at stride 4; 0: a single convolution
    depth: int  # the same at the other strides
    down: type[nn.Module]  # downsampling: AConv or ADown


SIZES = {
    "t": Size(16, ((32, 32, 32), (64, 64, 64), (96, 96, 96), (128, 128, 128)), (64, 96, 128), (48, 64), 0, 3, AConv),
    "s": Size(32, ((64,) * 3, (128,) * 3, (192,) * 3, (256,) * 3), (128, 192, 256), (96, 128), 0, 3, AConv),
    "m": Size(32, ((64, 128, 128), (240,) * 3, (360,) * 3, (480,) * 3), (240, 360, 480), (184, 240), 1, 1, AConv),
    "c": Size(64, ((128, 128, 256), (256, 256, 512), (512,) * 3, (512,) * 3), (256, 512, 512), (256, 512), 1, 1, ADown),
}
BOX_CHANNELS = 4 * BINS  # of the box branch; the official rule max(64, narrowest level / 4) gives 64 for all sizes


class Predictions(NamedTuple):
    """Raw outputs: the anchor points of the strides 8, 16 and 32 one after another, each level row by row."""

    boxes: Tensor  # [B, A, 64] logits of 16 distances to the left side, then top, right, bottom
    classes: Tensor  # [B, A, C] logits


class Backbone(nn.Module):
    """GELAN backbone: images `[B, 3, H, W]` RGB, 0-1 -> feature maps of the strides 8, 16 and 32."""

    def __init__(self, size: Size):
        super().__init__()
        self.stem = Conv(3, size.stem, 3, 2)
        c4, c8, c16, c32 = size.stages
        self.stage2 = nn.Sequential(Conv(size.stem, c4[0], 3, 2), GELAN(*c4, size.first_depth))
        self.stage3 = nn.Sequential(size.down(c4[-1], c8[0]), GELAN(*c8, size.depth))
        self.stage4 = nn.Sequential(size.down(c8[-1], c16[0]), GELAN(*c16, size.depth))
        self.stage5 = nn.Sequential(size.down(c16[-1], c32[0]), GELAN(*c32, size.depth), SPP(c32[-1], c32[-1]))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        stride8 = self.stage3(self.stage2(self.stem(images)))
        stride16 = self.stage4(stride8)
        return stride8, stride16, self.stage5(stride16)


class Neck(nn.Module):
    """PAFPN (Liu et al. 2018) of GELAN stages: a top-down and a bottom-up path."""

    def __init__(self, size: Size):
        super().__init__()
        _, in8, in16, in32 = (out for _, _, out in size.stages)
        c8, c16, c32 = size.neck
        self.up_to_stride16 = GELAN(in32 + in16, c16, c16, size.depth)
        self.up_to_stride8 = GELAN(c16 + in8, c8, c8, size.depth)
        self.shrink_stride8 = size.down(c8, size.shrink[0])
        self.down_to_stride16 = GELAN(size.shrink[0] + c16, c16, c16, size.depth)
        self.shrink_stride16 = size.down(c16, size.shrink[1])
        self.down_to_stride32 = GELAN(size.shrink[1] + in32, c32, c32, size.depth)

    def forward(self, stride8: Tensor, stride16: Tensor, stride32: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        middle = self.up_to_stride16(torch.cat([upsample(stride32), stride16], 1))
        out8 = self.up_to_stride8(torch.cat([upsample(middle), stride8], 1))
        out16 = self.down_to_stride16(torch.cat([self.shrink_stride8(out8), middle], 1))
        return out8, out16, self.down_to_stride32(torch.cat([self.shrink_stride16(out16), stride32], 1))


class Head(DetectionHead):
    """Decoupled head. Each level has a branch for classes, and one for boxes with a group of channels per side of the box."""

    def __init__(self, channels: tuple[int, ...], num_classes: int, width: int):
        super().__init__()
        self.class_convs = nn.ModuleList(nn.Sequential(Conv(c, width, 3), Conv(width, width, 3)) for c in channels)
        self.box_convs = nn.ModuleList(
            nn.Sequential(Conv(c, BOX_CHANNELS, 3), Conv(BOX_CHANNELS, BOX_CHANNELS, 3, groups=4)) for c in channels
        )
        self.class_predictors = nn.ModuleList(nn.Conv2d(width, num_classes, 1) for _ in channels)
        self.box_predictors = nn.ModuleList(nn.Conv2d(BOX_CHANNELS, BOX_CHANNELS, 1, groups=4) for _ in channels)
        for class_predictor, box_predictor in zip(self.class_predictors, self.box_predictors, strict=True):
            init_predictor(class_predictor, -10.0)  # both as in the official code
            init_predictor(box_predictor, 1.0)

    def levels(self, features: tuple[Tensor, ...]) -> list[Predictions]:
        """Feature maps of each stride -> Predictions of maps `[B, C, H, W]` for each stride."""
        return [
            Predictions(self.box_predictors[i](self.box_convs[i](x)), self.class_predictors[i](self.class_convs[i](x)))
            for i, x in enumerate(features)
        ]

    def flatten(self, levels: list[Predictions]) -> Predictions:
        """Maps of each stride -> Predictions `[B, A, ...]` of all anchor points."""
        raw = flatten_levels(levels)  # [B, A, 64 + C]
        return Predictions(raw[..., :BOX_CHANNELS], raw[..., BOX_CHANNELS:])


class YOLOv9(DetectionModel):
    """YOLOv9 of one size. `class_width`: channels of the class branches; None: the official rule."""

    letterbox = "center"
    strides = (8, 16, 32)

    def __init__(self, size: Size, num_classes: int, class_width: int | None = None):
        super().__init__()
        self.num_classes = num_classes
        self.backbone = Backbone(size)
        self.neck = Neck(size)
        self.head = Head(size.neck, num_classes, class_width or max(size.neck[0], min(2 * num_classes, 128)))

    @classmethod
    def options(cls, state: Mapping[str, Tensor]) -> dict[str, int]:
        """Returns the width of the class branches in a state dict; it depends on the number of classes trained with."""
        weight = state.get("head.class_convs.0.0.conv.weight")
        return {} if weight is None else {"class_width": len(weight)}

    def prepare(self, images: Tensor) -> Tensor:
        """Images -> input of the backbone: RGB, 0-1, in the dtype of the weights."""
        return images.flip(1).to(self.dtype) / 255

    def decode(self, predictions: Predictions, image_size: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
        """Returns boxes `[B, A, 4]` xyxy in pixels of the input, and scores and labels `[B, A]` of the best class."""
        raw = predictions.boxes.float()
        best, labels = predictions.classes.float().max(-1)
        return decode_dfl(raw, *grid(image_size, self.strides, raw)), best.sigmoid(), labels
