"""The bricks of all families, and what every detection model can do."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from nets.postprocess import Detections, select

BN_EPS, BN_MOMENTUM = 1e-3, 0.03  # the released weights of both families were trained with them


class Conv(nn.Module):
    """Convolution without bias, batch norm, SiLU; "same" padding. `[B, in, H, W]` -> `[B, out, H / stride, W / stride]`."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int = 1, stride: int = 1, groups: int = 1):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel, stride, kernel // 2, groups=groups, bias=False)
        self.bn = nn.BatchNorm2d(out_channels, eps=BN_EPS, momentum=BN_MOMENTUM)

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.bn(self.conv(x)), inplace=True)

    def fuse(self) -> None:
        """Folds the batch norm into the convolution, in place. For inference only."""
        if isinstance(self.bn, nn.BatchNorm2d):
            self.conv, self.bn = fuse_conv_bn_eval(self.conv.eval(), self.bn.eval()), nn.Identity()


class SeparableConv(nn.Module):
    """A depthwise convolution and a pointwise one, each with batch norm and SiLU."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int = 3, stride: int = 1):
        super().__init__()
        self.depthwise = Conv(in_channels, in_channels, kernel, stride, groups=in_channels)
        self.pointwise = Conv(in_channels, out_channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.pointwise(self.depthwise(x))


class Bottleneck(nn.Module):
    """1x1, then 3x3 (`conv`: Conv or SeparableConv), with a residual connection if asked for."""

    def __init__(self, channels: int, shortcut: bool, conv: type[nn.Module]):
        super().__init__()
        self.conv1 = Conv(channels, channels)
        self.conv2 = conv(channels, channels, 3)
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv2(self.conv1(x))
        return x + y if self.shortcut else y


class CSP(nn.Module):
    """Cross-stage partial stage with three convolutions (CSPNet, Wang et al. 2020; the C3 of the YOLO line)."""

    def __init__(self, in_channels: int, out_channels: int, depth: int, shortcut: bool, conv: type[nn.Module]):
        super().__init__()
        half = out_channels // 2
        self.conv1 = Conv(in_channels, half)
        self.conv2 = Conv(in_channels, half)
        self.conv3 = Conv(2 * half, out_channels)
        self.blocks = nn.Sequential(*(Bottleneck(half, shortcut, conv) for _ in range(depth)))

    def forward(self, x: Tensor) -> Tensor:
        return self.conv3(torch.cat([self.blocks(self.conv1(x)), self.conv2(x)], 1))


class SPP(nn.Module):
    """Spatial pyramid pooling: max pools 5, 9 and 13 beside the identity (He et al. 2014; YOLOv3-SPP)."""

    def __init__(self, in_channels: int, out_channels: int):
        super().__init__()
        self.conv1 = Conv(in_channels, in_channels // 2)
        self.conv2 = Conv(in_channels // 2 * 4, out_channels)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(x)
        # Two chained 5-pools see 9 pixels and three see 13: the same numbers as separate pools, with less work.
        pools = [x]
        for _ in range(3):
            pools.append(F.max_pool2d(pools[-1], 5, stride=1, padding=2))
        return self.conv2(torch.cat(pools, 1))


class DetectionModel(nn.Module):
    """What every family offers. A family sets `letterbox`, `strides`, `num_classes`, `backbone`, and writes `forward`
    (images -> its Predictions) and `decode` (Predictions -> boxes, scores and labels a point)."""

    letterbox: str  # "corner" or "centre": where the picture lies in the network's input
    strides: tuple[int, ...]
    num_classes: int
    backbone: nn.Module
    backbone_frozen = False

    def freeze_backbone(self, frozen: bool) -> None:
        """Frozen: no gradients for the backbone, and its batch norms in evaluation mode, also after `train()`."""
        self.backbone_frozen = frozen
        self.backbone.requires_grad_(not frozen)
        self.train(self.training)

    def train(self, mode: bool = True):
        super().train(mode)
        if self.backbone_frozen:
            self.backbone.eval()
        return self

    def fuse(self):
        """Folds all batch norms into their convolutions, in place; for inference. Outputs change by rounding only."""
        for module in self.modules():
            if isinstance(module, Conv):
                module.fuse()
        return self.eval()

    def detections(
        self,
        predictions,
        image_size: tuple[int, int],
        frames: Tensor,
        confidence: float = 0.001,
        nms_iou: float = 0.65,
        max_detections: int = 300,
    ) -> list[Detections]:
        """Predictions -> detections of each picture, boxes in pixels of the original picture and not clipped.

        `image_size`: height and width of the network's input; `frames [B, 5]`: original width, height, scale, left, top.
        """
        boxes, scores, labels = self.decode(predictions, image_size)
        return select(boxes, scores, labels, frames, confidence, nms_iou, max_detections)

    @torch.no_grad()
    def detect(self, images: Tensor, frames: Tensor, **limits) -> list[Detections]:
        """Pictures `[B, 3, H, W]` -> detections, in evaluation mode whatever the mode is now. `limits`: see `detections`."""
        was_training = self.training
        self.eval()
        found = self.detections(self(images), tuple(images.shape[-2:]), frames, **limits)
        self.train(was_training)
        return found
