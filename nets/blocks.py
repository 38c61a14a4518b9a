"""Building blocks shared by all model families."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

BN_EPS, BN_MOMENTUM = 1e-3, 0.03  # of the released weights of YOLOX and YOLOv9; the other families set theirs


class ConvNorm(nn.Module):
    """Convolution without bias, then batch norm; "same" padding. `[B, in, H, W]` -> `[B, out, H / stride, W / stride]`."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int = 1, stride: int = 1, groups: int = 1):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel, stride, kernel // 2, groups=groups, bias=False)
        self.bn: nn.Module = nn.BatchNorm2d(out_channels, eps=BN_EPS, momentum=BN_MOMENTUM)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.conv(x))

    def fuse(self) -> None:
        """Folds the batch norm into the convolution, in place, for inference."""
        if isinstance(self.bn, nn.BatchNorm2d):
            self.conv, self.bn = fuse_conv_bn_eval(self.conv.eval(), self.bn.eval()), nn.Identity()


class Conv(ConvNorm):
    """Convolution, batch norm and SiLU."""

    def forward(self, x: Tensor) -> Tensor:
        return silu(super().forward(x))


class SeparableConv(nn.Sequential):
    """A depthwise convolution and a pointwise one, each with batch norm and SiLU."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int = 3, stride: int = 1):
        super().__init__()
        self.depthwise = Conv(in_channels, in_channels, kernel, stride, groups=in_channels)
        self.pointwise = Conv(in_channels, out_channels)


class Bottleneck(nn.Module):
    """A 1x1 and a 3x3 convolution (`conv`: Conv or SeparableConv), with a residual connection if `shortcut` is set."""

    def __init__(self, channels: int, shortcut: bool, conv: type[nn.Module]):
        super().__init__()
        self.conv1: nn.Module = Conv(channels, channels)
        self.conv2 = conv(channels, channels, 3)
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv2(self.conv1(x))
        return x + y if self.shortcut else y


class CSP(nn.Module):
    """Cross-stage partial stage: three convolutions and `depth` bottlenecks (CSPNet, Wang et al. 2020; C3 of the YOLO line)."""

    def __init__(self, in_channels: int, out_channels: int, depth: int, shortcut: bool, conv: type, block=Bottleneck):
        super().__init__()
        half = out_channels // 2
        self.conv1 = Conv(in_channels, half)
        self.conv2 = Conv(in_channels, half)
        self.conv3 = Conv(2 * half, out_channels)
        self.blocks = nn.Sequential(*(block(half, shortcut, conv) for _ in range(depth)))

    def forward(self, x: Tensor) -> Tensor:
        return self.conv3(torch.cat([self.blocks(self.conv1(x)), self.conv2(x)], 1))


class SPP(nn.Module):
    """Spatial pyramid pooling (He et al. 2014; YOLOv3-SPP) between two 1x1 convolutions."""

    def __init__(self, in_channels: int, out_channels: int):
        super().__init__()
        self.conv1 = Conv(in_channels, in_channels // 2)
        self.conv2 = Conv(in_channels // 2 * 4, out_channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv2(pyramid_pools(self.conv1(x)))


class RepConv(nn.Module):
    """The sum of a 3x3 and a 1x1 convolution, each with batch norm, then SiLU (RepVGG, Ding et al. 2021).

    `weighted`: the 1x1 convolution has a learned weight (PP-YOLOE+).
    """

    def __init__(self, channels: int, weighted: bool = False):
        super().__init__()
        self.conv3x3 = ConvNorm(channels, channels, 3)
        self.conv1x1: ConvNorm | None = ConvNorm(channels, channels)
        self.alpha = nn.Parameter(torch.ones(1)) if weighted else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv3x3(x)
        if self.conv1x1 is None:
            return silu(y)
        branch = self.conv1x1(x)
        if self.alpha is not None:
            branch = (self.alpha * branch).to(y.dtype)  # else float32 with mixed precision, up to the end of the stage
        return silu(y + branch)

    @torch.no_grad()
    def fuse(self) -> None:
        """Merges both into one 3x3 convolution, in place, for inference."""
        if self.conv1x1 is None:
            return
        self.conv3x3.fuse()
        self.conv1x1.fuse()
        factor = 1 if self.alpha is None else self.alpha
        self.conv3x3.conv.weight += factor * F.pad(self.conv1x1.conv.weight, (1, 1, 1, 1))
        bias_of(self.conv3x3.conv).add_(factor * bias_of(self.conv1x1.conv))
        self.conv1x1 = self.alpha = None


class RepBottleneck(Bottleneck):
    """Bottleneck with a RepConv as its first convolution."""

    def __init__(self, channels: int, shortcut: bool, conv: type[nn.Module]):
        super().__init__(channels, shortcut, conv)
        self.conv1 = RepConv(channels)


class GELAN(nn.Module):
    """Generalized efficient layer aggregation network (YOLOv9, Wang et al. 2024, section 4.2).

    A 1x1 convolution gives `inside` channels. One half of them passes two inner stages in a row. Both halves and both outputs are
    concatenated and pass another 1x1. An inner stage is a CSP of `depth` bottlenecks and a 3x3, or with depth 0 the 3x3 alone.
    """

    def __init__(self, in_channels: int, inside: int, out_channels: int, depth: int):
        super().__init__()
        half = inside // 2
        self.conv1 = Conv(in_channels, inside)
        self.conv2 = _inner_stage(half, depth)
        self.conv3 = _inner_stage(half, depth)
        self.conv4 = Conv(2 * inside, out_channels)

    def forward(self, x: Tensor) -> Tensor:
        parts = list(self.conv1(x).chunk(2, 1))
        for stage in (self.conv2, self.conv3):
            parts.append(stage(parts[-1]))
        return self.conv4(torch.cat(parts, 1))


def _inner_stage(channels: int, depth: int) -> nn.Module:
    """Builds an inner stage of GELAN."""
    if depth == 0:
        return Conv(channels, channels, 3)
    return nn.Sequential(CSP(channels, channels, depth, True, Conv, RepBottleneck), Conv(channels, channels, 3))


class AConv(nn.Sequential):
    """Halves height and width: the mean of 2 x 2 neighbors, then a 3x3 convolution of stride 2 (YOLOv9)."""

    def __init__(self, in_channels: int, out_channels: int):
        super().__init__()
        self.mean = nn.AvgPool2d(2, stride=1)
        self.conv = Conv(in_channels, out_channels, 3, 2)


class ADown(nn.Module):
    """Halves height and width (YOLOv9): the mean of 2 x 2 neighbors, then a 3x3 convolution of stride 2 for one half of the
    channels, and a max pool with a 1x1 convolution for the other half."""

    def __init__(self, in_channels: int, out_channels: int):
        super().__init__()
        self.conv1 = Conv(in_channels // 2, out_channels // 2, 3, 2)
        self.conv2 = Conv(in_channels // 2, out_channels // 2)

    def forward(self, x: Tensor) -> Tensor:
        first, second = F.avg_pool2d(x, 2, stride=1).chunk(2, 1)
        return torch.cat([self.conv1(first), self.conv2(F.max_pool2d(second, 3, stride=2, padding=1))], 1)


def pyramid_pools(x: Tensor) -> Tensor:
    """Concatenates x and its max pools of 5, 9 and 13 pixels: `[B, C, H, W]` -> `[B, 4 * C, H, W]`."""
    # Two chained 5-pools cover 9 pixels and three cover 13: the same outputs as separate pools, with less work.
    pools = [x]
    for _ in range(3):
        pools.append(F.max_pool2d(pools[-1], 5, stride=1, padding=2))
    return torch.cat(pools, 1)


class AttentionStem(nn.Module):
    """Weights the channels of a map by their mean over the image, then a 1x1 convolution `conv` (PP-YOLOE, PicoDet)."""

    def __init__(self, channels: int, conv: type[ConvNorm]):
        super().__init__()
        self.fc = nn.Conv2d(channels, channels, 1)
        self.conv = conv(channels, channels)
        nn.init.normal_(self.fc.weight, std=0.001)  # as in the official code: all channels begin with the same weight

    def forward(self, x: Tensor, mean: Tensor) -> Tensor:
        return self.conv(x * self.fc(mean).sigmoid())


def silu(x: Tensor) -> Tensor:
    """SiLU, in place where `x` needs no gradient. Autograd would copy the input of an in-place SiLU."""
    return F.silu(x, inplace=not x.requires_grad)


def upsample(x: Tensor) -> Tensor:
    """Doubles height and width by nearest-neighbor interpolation."""
    return F.interpolate(x, scale_factor=2.0, mode="nearest")


def flatten_levels(levels: Sequence[Sequence[Tensor]]) -> Tensor:
    """Concatenates maps `[B, C, H, W]` of each level -> `[B, A, sum of C]`, level by level and row by row."""
    return torch.cat([torch.cat(list(maps), 1).flatten(2) for maps in levels], 2).transpose(1, 2)


def bias_of(conv: nn.Conv2d) -> Tensor:
    """Returns the bias of a convolution that has one."""
    assert conv.bias is not None
    return conv.bias


def init_predictor(predictor: nn.Module, bias: float, std: float | None = None) -> None:
    """Sets the bias of a convolution that predicts, and draws its weights with this deviation; None: they stay."""
    assert isinstance(predictor, nn.Conv2d)
    if std is not None and std > 0:
        nn.init.normal_(predictor.weight, std=std)
    elif std is not None:
        nn.init.zeros_(predictor.weight)
    nn.init.constant_(bias_of(predictor), bias)


def set_batch_norms(model: nn.Module, eps: float, momentum: float) -> None:
    """Sets epsilon and momentum of all batch norms of a model."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps, module.momentum = eps, momentum
