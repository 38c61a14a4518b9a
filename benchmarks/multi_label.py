"""Evaluation with several labels per anchor point, as the published metrics of YOLOv9 are measured."""

from typing import Any

from torch import Tensor, nn

from deploy.agreement import class_scores
from nets.model import DetectionModel
from nets.postprocess import Detections, joined, select

MAX_PAIRS = 30_000  # pairs of anchor point and class per image before NMS


class MultiLabel(nn.Module):
    """A model whose anchor points detect every class above the confidence threshold, not only the best one."""

    def __init__(self, model: DetectionModel):
        super().__init__()
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
        for head in self.model.per_head(predictions):
            boxes, scores, labels = pairs(head.model, head.predictions, image_size)
            heads.append(select(boxes, scores, labels + head.first_class, transforms, **limits))
        return joined(heads)


def pairs(model: DetectionModel, predictions: Any, image_size: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Returns boxes `[B, K, 4]`, scores and labels `[B, K]` of the K best pairs of anchor point and class, best first.

    Of equal scores the first anchor point counts, then the first class.
    """
    boxes, *_ = model.decode(predictions, image_size)
    scores = class_scores(predictions)
    num_classes = scores.shape[-1]
    usable = boxes.abs().amax(-1).isfinite()
    scores = scores.where(usable[..., None], -1).nan_to_num(-1).flatten(1)  # [B, A * C]
    scores, order = (x[:, :MAX_PAIRS] for x in scores.sort(dim=1, descending=True, stable=True))
    points, labels = order // num_classes, order % num_classes
    return boxes.gather(1, points[..., None].expand(-1, -1, 4)), scores, labels
