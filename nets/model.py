"""The base class of all detection models: freezing, prediction, fusing layers for inference."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from nets.postprocess import Detections, joined, select


class HeadPredictions(NamedTuple):
    """What one head of a model predicts."""

    model: "DetectionModel"  # whose `decode` takes the predictions
    predictions: Any  # Predictions of the family
    first_class: int  # the label of the head's first class
    num_classes: int


class DetectionHead(nn.Module):
    """Base class of the heads of all families."""

    box_predictors: nn.ModuleList  # one convolution per stride

    def levels(self, features: tuple[Tensor, ...]) -> list:
        """Feature maps of each stride -> Predictions of maps `[B, C, H, W]` for each stride."""
        raise NotImplementedError

    def flatten(self, levels: list) -> Any:
        """Maps of each stride -> Predictions `[B, A, ...]` of all anchor points."""
        raise NotImplementedError


class DetectionModel(nn.Module):
    """Base class of all families.

    A family sets `letterbox`, `strides`, `num_classes`, `backbone`, `neck` and `head`, and implements two methods: `prepare`
    (images -> input of the backbone) and `decode` (Predictions, input size -> boxes, scores and labels per anchor point).
    """

    letterbox: str  # "corner", "center" or "stretch": how an image fits into the input (utils.images.fit)
    strides: tuple[int, ...]
    num_classes: int
    backbone: nn.Module
    neck: nn.Module
    head: DetectionHead
    frozen = False
    fixed_statistics = False
    first_class = 0  # label of the first class that is trained; see ExtendedModel
    added_counts: tuple[int, ...] = ()  # numbers of classes of the heads that were added; see ExtendedModel
    clips = True  # detections end at the borders of their image; not with official weights, whose published AP is without it

    @property
    def dtype(self) -> torch.dtype:
        """The data type of the weights."""
        predictor = self.head.box_predictors[0]
        assert isinstance(predictor, nn.Conv2d)
        return predictor.weight.dtype

    @property
    def num_levels(self) -> int:
        """The number of Predictions that `levels` returns: one for each stride of each head."""
        return len(self.strides) * (1 + len(self.added_counts))

    @classmethod
    def options(cls, state: Mapping[str, Tensor]) -> dict[str, Any]:
        """Returns constructor arguments that follow from a state dict, such as layer widths. There are none by default."""
        return {}

    @classmethod
    def completed(cls, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Adds tensors to the state dict of official weights that only some of their releases have. There are none by default."""
        return state

    def freeze_backbone(self, frozen: bool) -> None:
        """Freezes or thaws the backbone. A frozen one has no gradients and stays in evaluation mode, also after `train()`.

        In a model with added classes it is frozen in any case.
        """
        self.frozen = frozen
        self.backbone.requires_grad_(not frozen and not self.added_counts)
        self.train(self.training)

    def fix_statistics(self, fixed: bool) -> None:
        """Fixes the running statistics of all batch norms, which then use them in training too, or ends this.

        With fixed statistics, training computes the same function as evaluation (Wu and Johnson 2021, section 4).
        """
        self.fixed_statistics = fixed
        self.train(self.training)

    def train(self, mode: bool = True):
        """Sets training or evaluation mode; a frozen backbone and batch norms with fixed statistics stay in evaluation mode."""
        super().train(mode)
        if self.frozen:
            self.backbone.eval()
        if self.fixed_statistics:
            for module in self.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()
        return self

    def prepare(self, images: Tensor) -> Tensor:
        """Images -> input of the backbone."""
        raise NotImplementedError

    def decode(self, predictions: Any, image_size: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
        """Returns boxes `[B, A, 4]` xyxy in pixels of the input, and scores and labels `[B, A]`."""
        raise NotImplementedError

    def features(self, images: Tensor) -> tuple[Tensor, ...]:
        """Images -> the outputs of the backbone, which the neck takes: one feature map per stride."""
        return self.backbone(self.prepare(images))

    def forward(self, images: Tensor):
        """Images `[B, 3, H, W]` BGR, 0-255, uint8 or float, sides multiples of 32 -> Predictions of the family."""
        return self.flatten(self.levels(self.features(images)))

    def levels(self, features: tuple[Tensor, ...]) -> list:
        """Outputs of the backbone -> Predictions of maps `[B, C, H, W]` for each stride, by neck and head."""
        return self.head.levels(self.neck(*features))

    def flatten(self, levels: list):
        """Maps of each stride -> Predictions `[B, A, ...]` of all anchor points."""
        return self.head.flatten(levels)

    def per_head(self, predictions) -> list["HeadPredictions"]:
        """Divides raw predictions among the heads of the model; a plain model has one."""
        return [HeadPredictions(self, predictions, 0, self.num_classes)]

    def fuse(self):
        """Merges layers for inference, such as batch norms into convolutions, by the `fuse` of every part that has it."""
        for module in list(self.modules())[1:]:
            if hasattr(module, "fuse"):
                module.fuse()
        return self.eval()

    def decode_heads(self, predictions, image_size: tuple[int, int]) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Returns boxes `[B, A, 4]`, and scores and labels `[B, A]`, of each head."""
        heads = []
        for head in self.per_head(predictions):
            boxes, scores, labels = head.model.decode(head.predictions, image_size)
            heads.append((boxes, scores, labels + head.first_class))
        return heads

    def detections(self, predictions, image_size: tuple[int, int], transforms: Tensor, **limits) -> list[Detections]:
        """Turns predictions into detections per image, with boxes in pixels of the original image, clipped to it if `clips`.

        `image_size`: height and width of the network's input; `transforms [B, 6]`: letterbox transforms (see
        `utils.images.LetterboxTransform`); `limits`: keyword arguments of `select`. They count for each head, so that the
        detections of one head do not crowd out others; with `class_agnostic` they count for all heads together.
        """
        heads = self.decode_heads(predictions, image_size)
        if limits.get("class_agnostic"):
            boxes, scores, labels = (torch.cat(field, 1) for field in zip(*heads, strict=True))
            heads = [(boxes, scores, labels)]
        return joined([select(*one, transforms, **{"clip": self.clips} | limits) for one in heads])
