"""Evaluation with several labels per anchor point, as the published metrics of YOLOv9 are measured."""

from typing import Any

import torch
from torch import Tensor, nn

from nets import picodet
from nets.model import DetectionModel, Part
from nets.postprocess import Detections, joined, select

MAX_PAIRS = 30_000  # pairs of anchor point and class per image before NMS
TOLERANCE = 1e-5  # between the scores of this module and of the family: the rounding of float32


class MultiLabel(nn.Module):
    """A model whose anchor points detect every class above the confidence threshold, not only the best one."""

    def __init__(self, model: DetectionModel):
        super().__init__()
        if not isinstance(model, DetectionModel):
            raise ValueError("multi_label=true needs the checkpoint: an exported file holds the best class only")
        self.model, self.letterbox = model, model.letterbox

    def forward(self, images: Tensor) -> Any:
        """Images -> raw Predictions of the model."""
        return self.model(images)

    def detections(
        self, predictions: Any, image_size: tuple[int, int], transforms: Tensor, **limits
    ) -> list[Detections]:
        """Turns predictions into detections per image, as `DetectionModel.detections` does."""
        heads = []
        limits = {"max_candidates": MAX_PAIRS, "clip": self.model.clips} | limits
        for part in self.model.parts(predictions):
            boxes, scores, labels = pairs(part.model, part.predictions, image_size)
            heads.append(select(boxes, scores, labels + part.first_class, transforms, **limits))
        return joined(heads)


def pairs(model: DetectionModel, predictions: Any, image_size: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Returns boxes `[B, K, 4]`, scores and labels `[B, K]` of the K best pairs of anchor point and class, best first.

    Of equal scores the first anchor point counts, then the first class.
    """
    boxes, best, _ = model.decode(predictions, image_size)
    scores = class_scores(predictions)
    if not torch.allclose(scores.amax(-1), best, atol=TOLERANCE, equal_nan=True):
        raise ValueError(f"multi_label=true does not know how {type(model).__name__} computes its scores")
    num_classes = scores.shape[-1]
    usable = boxes.abs().amax(-1).isfinite()
    scores = scores.where(usable[..., None], -1).nan_to_num(-1).flatten(1)  # [B, A * C]
    scores, order = (x[:, :MAX_PAIRS] for x in scores.sort(dim=1, descending=True, stable=True))
    points, labels = order // num_classes, order % num_classes
    return boxes.gather(1, points[..., None].expand(-1, -1, 4)), scores, labels


def with_class_scores(part: Part, image_size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Returns boxes `[B, A, 4]` and scores of all classes `[B, A, C]` of a head.

    For a family whose scores this module does not know, the scores are -1 except for the best class.
    """
    boxes, best, labels = part.model.decode(part.predictions, image_size)
    if hasattr(part.predictions, "classes"):
        scores = class_scores(part.predictions)
        if torch.allclose(scores.amax(-1), best, atol=TOLERANCE, equal_nan=True):
            return boxes, scores
    others = best.new_full((*best.shape, part.num_classes), -1)
    return boxes, others.scatter(2, labels[..., None], best[..., None])


def class_scores(predictions: Any) -> Tensor:
    """Scores `[B, A, C]` of all classes: sigmoid of their logits, times the sigmoid of the objectness if there is one.

    The scores of PicoDet are `picodet.joint_scores`.
    """
    if isinstance(predictions, picodet.Predictions):
        return picodet.joint_scores(predictions.classes.float(), predictions.alignment.float())
    scores = predictions.classes.float().sigmoid()
    objectness = getattr(predictions, "objectness", None)
    return scores if objectness is None else objectness.float().sigmoid()[..., None] * scores
