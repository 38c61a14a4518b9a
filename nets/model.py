"""What every detection model can do."""

import torch
from torch import Tensor, nn

from nets.blocks import ConvNorm, RepConv, rows
from nets.coder import at_least_float32
from nets.postprocess import Detections, select
from nets.selector import Selected, Selector


class DetectionModel(nn.Module):
    """What every family offers. A family sets `letterbox`, `strides`, `num_classes`, `backbone`, `neck`, `head`, and writes
    `prepare` (images -> what the backbone takes) and `decode` (Predictions -> boxes, scores and labels a point). A head says
    Predictions: as maps in `levels` (features -> for each stride Predictions of `[B, C, H, W]`), as points in `joined`
    (these -> Predictions of `[B, A, ...]`), and `seen` makes of one of them what a selector shall know."""

    letterbox: str  # "corner" or "centre": where the picture lies in the network's input
    strides: tuple[int, ...]
    num_classes: int
    backbone: nn.Module
    neck: nn.Module
    head: nn.Module
    frozen: tuple[str, ...] = ()

    def __init__(self):
        super().__init__()
        self.selector: Selector | None = None  # of a model that needs no NMS

    def freeze(self, *parts: str) -> None:
        """No gradients for these of backbone, neck and head, and their batch norms in evaluation mode, also after `train()`."""
        self.frozen = parts
        for name, part in self.named_children():
            part.requires_grad_(name not in parts)
        self.train(self.training)

    def freeze_backbone(self, frozen: bool) -> None:
        """Freezes the backbone and nothing else, or nothing."""
        self.freeze(*["backbone"] * frozen)

    def train(self, mode: bool = True):
        super().train(mode)
        for name in self.frozen:
            getattr(self, name).eval()
        return self

    def add_selector(self) -> None:
        """Makes the model one that needs no NMS."""
        self.selector = Selector(self.head.channels, self.strides)

    def features(self, images: Tensor) -> tuple[Tensor, ...]:
        """What the heads take."""
        return self.neck(*self.backbone(self.prepare(images)))

    def levels(self, images: Tensor) -> tuple[list, tuple[list[Tensor], ...]]:
        """Images -> maps of each stride: what the head says; and of a model with a selector `chosen` and `claims`, else ()."""
        features = self.features(images)
        levels = self.head.levels(features)
        if self.selector is None:
            return levels, ()
        return levels, self.selector(features, [self.head.seen(type(x)(*map(at_least_float32, x))) for x in levels])

    def forward(self, images: Tensor):
        """Images `[B, 3, H, W]` BGR, 0-255, uint8 or float, height and width multiples of 32 -> the family's Predictions; of a
        model with a selector Selected."""
        levels, selected = self.levels(images)
        said = self.head.joined(levels)
        return Selected(said, *(rows([[x] for x in maps])[..., 0] for maps in selected)) if selected else said

    def points(self, predictions, image_size: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
        """As `decode`, also of Selected: a score is then that of the object and of the point to speak for it."""
        if not isinstance(predictions, Selected):
            return self.decode(predictions, image_size)
        boxes, scores, labels = self.decode(predictions.said, image_size)
        return boxes, scores * predictions.chosen.float().sigmoid(), labels

    def fuse(self):
        """Folds batch norms and parallel convolutions into single ones, in place; for inference. Outputs stay up to rounding."""
        for module in list(self.modules()):
            if isinstance(module, ConvNorm | RepConv):
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
        boxes, scores, labels = self.points(predictions, image_size)
        nms_iou = nms_iou if self.selector is None else None
        return select(boxes, scores, labels, frames, confidence, nms_iou, max_detections)

    @torch.no_grad()
    def detect(self, images: Tensor, frames: Tensor, **limits) -> list[Detections]:
        """Pictures `[B, 3, H, W]` -> detections, in evaluation mode whatever the mode is now. `limits`: see `detections`."""
        was_training = self.training
        self.eval()
        found = self.detections(self(images), tuple(images.shape[-2:]), frames, **limits)
        self.train(was_training)
        return found
