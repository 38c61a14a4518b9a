"""YOLOv9 (Wang et al. 2024, arXiv 2402.13616): GELAN, PAFPN, a head without anchors that says distributions of distances.

Of the network of MultimediaTechLab (MIT) it is the main branch: the auxiliary one is used in training only.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nets.blocks import GELAN, SPP, AConv, ADown, Conv, rows
from nets.coder import BINS, decode_dfl, grid
from nets.model import DetectionModel


class Size(NamedTuple):
    """Channels and depths of a network."""

    stem: int
    stages: tuple[tuple[int, int, int], ...]  # of strides 4, 8, 16, 32: channels after the stride, inside GELAN, out
    neck: tuple[int, int, int]  # channels of strides 8, 16, 32
    shrink: tuple[int, int]  # channels on the way from stride 8 to 16 and from 16 to 32
    first_depth: int  # bottlenecks of an inner stage of GELAN at stride 4, where 0 stands for a plain convolution
    depth: int  # everywhere else
    down: type[nn.Module]


SIZES = {
    "t": Size(16, ((32, 32, 32), (64, 64, 64), (96, 96, 96), (128, 128, 128)), (64, 96, 128), (48, 64), 0, 3, AConv),
    "s": Size(32, ((64,) * 3, (128,) * 3, (192,) * 3, (256,) * 3), (128, 192, 256), (96, 128), 0, 3, AConv),
    "m": Size(32, ((64, 128, 128), (240,) * 3, (360,) * 3, (480,) * 3), (240, 360, 480), (184, 240), 1, 1, AConv),
    "c": Size(64, ((128, 128, 256), (256, 256, 512), (512,) * 3, (512,) * 3), (256, 512, 512), (256, 512), 1, 1, ADown),
}
BOX_CHANNELS = 4 * BINS  # of the whole box branch: it has a quarter of the narrowest level, but never fewer


class Predictions(NamedTuple):
    """Raw outputs; the points of the strides 8, 16, 32 one after another, each level row by row."""

    boxes: Tensor  # [B, A, 64] logits of 16 distances to the left, then top, right, bottom
    classes: Tensor  # [B, A, C] logits


class Backbone(nn.Module):
    """RGB in 0..1 `[B, 3, H, W]` -> features of the strides 8, 16, 32."""

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
    """PAFPN (Liu et al. 2018) of GELANs: top-down, then bottom-up."""

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
        middle = self.up_to_stride16(torch.cat([_double(stride32), stride16], 1))
        out8 = self.up_to_stride8(torch.cat([_double(middle), stride8], 1))
        out16 = self.down_to_stride16(torch.cat([self.shrink_stride8(out8), middle], 1))
        return out8, out16, self.down_to_stride32(torch.cat([self.shrink_stride16(out16), stride32], 1))


def _double(x: Tensor) -> Tensor:
    return F.interpolate(x, scale_factor=2.0, mode="nearest")


class Head(nn.Module):
    """For each level a branch for the classes and one for the boxes, whose four sides are groups of their own."""

    def __init__(self, channels: tuple[int, ...], num_classes: int, class_width: int):
        super().__init__()
        self.channels = channels
        self.class_convs = nn.ModuleList(
            nn.Sequential(Conv(c, class_width, 3), Conv(class_width, class_width, 3)) for c in channels
        )
        self.box_convs = nn.ModuleList(
            nn.Sequential(Conv(c, BOX_CHANNELS, 3), Conv(BOX_CHANNELS, BOX_CHANNELS, 3, groups=4)) for c in channels
        )
        self.class_predictors = nn.ModuleList(nn.Conv2d(class_width, num_classes, 1) for _ in channels)
        self.box_predictors = nn.ModuleList(nn.Conv2d(BOX_CHANNELS, BOX_CHANNELS, 1, groups=4) for _ in channels)
        for of_class, of_box in zip(self.class_predictors, self.box_predictors, strict=True):
            nn.init.constant_(of_class.bias, -10.0)  # as in the official code, and the 1 below
            nn.init.constant_(of_box.bias, 1.0)

    def levels(self, features: tuple[Tensor, ...]) -> list[Predictions]:
        """Maps `[B, C, H, W]` of each stride."""
        found = []
        for i, x in enumerate(features):
            boxes = self.box_predictors[i](self.box_convs[i](x))
            found.append(Predictions(boxes, self.class_predictors[i](self.class_convs[i](x))))
        return found

    def joined(self, levels: list[Predictions]) -> Predictions:
        """Maps -> points."""
        raw = rows(levels)  # [B, A, 64 + C]
        return Predictions(raw[..., :BOX_CHANNELS], raw[..., BOX_CHANNELS:])

    def seen(self, level: Predictions) -> Tensor:
        """See Selector."""
        bins = torch.arange(BINS, device=level.boxes.device, dtype=level.boxes.dtype)[:, None, None]
        sides = [(x.softmax(1) * bins).sum(1, keepdim=True) for x in level.boxes.split(BINS, 1)]
        before, after = torch.cat(sides[:2], 1), torch.cat(sides[2:], 1)  # left and top, right and bottom
        sizes = (before + after).clamp(min=0.01).log2()
        return torch.cat([(after - before) / 2, sizes, level.classes.amax(1, keepdim=True) / 4], 1)


class YOLOv9(DetectionModel):
    """`class_width`: channels of the class branches; None: the official rule, from the narrowest level and the classes."""

    letterbox = "centre"
    strides = (8, 16, 32)

    def __init__(self, size: Size, num_classes: int, class_width: int | None = None):
        super().__init__()
        self.num_classes = num_classes
        self.backbone = Backbone(size)
        self.neck = Neck(size)
        self.head = Head(size.neck, num_classes, class_width or max(size.neck[0], min(2 * num_classes, 128)))

    def prepare(self, images: Tensor) -> Tensor:
        return images.flip(1).to(self.head.box_predictors[0].weight.dtype) / 255

    def decode(self, predictions: Predictions, image_size: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
        """-> boxes `[B, A, 4]` xyxy in pixels of the input, scores `[B, A]`, labels `[B, A]` of the best class."""
        raw = predictions.boxes.float()
        best, labels = predictions.classes.float().max(-1)
        return decode_dfl(raw, *grid(image_size, self.strides, raw)), best.sigmoid(), labels
