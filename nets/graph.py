"""What an exported file computes: a model with what comes before it and after it, in operators that ONNX has.

Of a family it asks its predictions, as points or as maps, and `decode`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nets.model import DetectionModel
from nets.postprocess import FAR, MAX_CANDIDATES
from nets.selector import Selected

NOTHING = -1.0  # the score of places where there is no candidate; no threshold is as low


@torch.library.custom_op("thaw::suppress", mutates_args=())
def suppress(boxes: Tensor, scores: Tensor, nms_iou: Tensor, most: int) -> Tensor:
    """NMS by class: boxes `[B, K, 4]` xyxy, scores `[B, C, K]`, NOTHING where a box is not of that class, `nms_iou [1]` ->
    `[B, K]`, 1 for what stays, at most `most` of a class. Exists in exported files only (`suppress_in_onnx`)."""
    raise NotImplementedError


@suppress.register_fake
def _(boxes: Tensor, scores: Tensor, nms_iou: Tensor, most: int) -> Tensor:
    return boxes.new_empty(boxes.shape[:2])


def suppress_in_onnx(boxes, scores, nms_iou, most: int):
    """The same in operators of ONNX."""
    from onnxscript import opset18 as op

    limits = op.Constant(value_ints=[most]), nms_iou, op.Constant(value_floats=[NOTHING / 2])
    chosen = op.NonMaxSuppression(boxes, scores, *limits)  # rows of picture, class, box
    places = op.Gather(chosen, op.Constant(value_ints=[0, 2]), axis=1)
    ones = op.Expand(op.Constant(value_float=1.0), op.Shape(op.Gather(chosen, op.Constant(value_int=0), axis=1)))
    zeros = op.Mul(op.ReduceMax(scores, op.Constant(value_ints=[1]), keepdims=0), op.Constant(value_float=0.0))
    return op.ScatterND(zeros, places, ones)


TRANSLATIONS = {torch.ops.thaw.suppress.default: suppress_in_onnx}


class DetectionGraph(nn.Module):
    """A model whose outputs are detections, the same as those of `DetectionModel.detections`.

    `pictures`: images are uint8 `[B, H, W, 3]`, otherwise `[B, 3, H, W]`. `most` detections come out for each of them.
    """

    outputs = ("boxes", "scores", "labels")

    def __init__(self, model: DetectionModel, pictures: bool, most: int):
        super().__init__()
        self.model, self.pictures, self.most = model, pictures, most

    def forward(self, images: Tensor, confidence: Tensor, nms_iou: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Both thresholds are `[1]`. -> boxes `[B, most, 4]` xyxy in pixels of the input, scores and labels `[B, most]`, best
        first; after the last one boxes and scores are 0 and labels -1."""
        images = images.permute(0, 3, 1, 2) if self.pictures else images
        boxes, scores, labels = self.model.points(self.model(images), tuple(images.shape[-2:]))
        wanted = (scores >= confidence) & boxes.isfinite().all(-1)
        # As many places as there may be candidates, whatever the size of the input.
        boxes, labels = F.pad(boxes, (0, 0, 0, MAX_CANDIDATES)), F.pad(labels, (0, MAX_CANDIDATES))
        scores = F.pad(scores.where(wanted, NOTHING), (0, MAX_CANDIDATES), value=NOTHING)
        boxes, scores, labels = best_of(boxes, scores, labels, MAX_CANDIDATES)
        if self.model.selector is None:  # otherwise it needs no NMS
            own = labels[:, None] == torch.arange(self.model.num_classes, device=labels.device)[:, None]
            stays = suppress(boxes.clamp(-FAR, FAR), scores[:, None].where(own, NOTHING), nms_iou, self.most)
            scores = scores.where(stays > 0, NOTHING)
        boxes, scores, labels = best_of(boxes, scores, labels, self.most)
        real = scores > NOTHING / 2
        return boxes.where(real[..., None], 0.0), scores.where(real, 0.0), labels.where(real, -1)


def best_of(boxes: Tensor, scores: Tensor, labels: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The `count` best, falling; ONNX puts the first of equal scores first, as `select` does."""
    scores, best = scores.topk(count, 1)
    return boxes.gather(1, best[..., None].expand(-1, -1, 4)), scores, labels.gather(1, best)


class RawGraph(nn.Module):
    """A model whose outputs are its predictions before decoding: for each field and stride a tensor `[B, C, rows, columns]`.

    `shapes`: field -> what a point has of it, such as (4,) or (); all of it are the C channels. `pictures` as above.
    """

    def __init__(self, model: DetectionModel, pictures: bool, image_size: tuple[int, int]):
        super().__init__()
        self.model, self.pictures = model, pictures
        with torch.no_grad():
            predictions = model(torch.zeros(1, 3, *image_size))
        selected = isinstance(predictions, Selected)
        said = predictions.said if selected else predictions
        self.shapes = {name: tuple(x.shape[2:]) for name, x in said._asdict().items()} | (
            {"chosen": ()} if selected else {}
        )
        self.outputs = tuple(f"{field}_{stride}" for field in self.shapes for stride in model.strides)

    def forward(self, images: Tensor) -> list[Tensor]:
        """The tensors in the order of `outputs`, float32, as they leave the last convolutions (and what is chosen)."""
        levels, selected = self.model.levels(images.permute(0, 3, 1, 2) if self.pictures else images)
        return [x.float() for field in (*zip(*levels, strict=True), *selected[:1]) for x in field]
