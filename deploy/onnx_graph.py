"""What an exported file computes: a model with its pre- and post-processing, in operators that ONNX has."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nets.model import DetectionModel
from nets.postprocess import FAR, MAX_CANDIDATES

VERSION = 1  # of the metadata, and of the meaning of inputs and outputs
OPSET = 18  # of ONNX: the one torch.onnx writes without converting afterwards
NOTHING = -1.0  # score that means "no box", below every threshold


@torch.library.custom_op("thaw::suppress", mutates_args=())
def suppress(boxes: Tensor, scores: Tensor, nms_iou: Tensor, max_detections: int) -> Tensor:
    """NMS per class as an operator that PyTorch cannot run: the export replaces it by `suppress_in_onnx`.

    Boxes `[B, K, 4]` xyxy; scores `[B, C, K]`, NOTHING for classes that a box does not have; `nms_iou [1]`. Returns `[B, K]`
    with 1 for boxes that are kept, at most `max_detections` per class, and 0 for the others.
    """
    raise NotImplementedError


@suppress.register_fake
def _(boxes: Tensor, scores: Tensor, nms_iou: Tensor, max_detections: int) -> Tensor:
    return boxes.new_empty(boxes.shape[:2])


def suppress_in_onnx(boxes, scores, nms_iou, max_detections):
    """Builds `suppress` from operators of ONNX."""
    from onnxscript import opset18 as op

    limit, threshold = op.Constant(value_ints=[max_detections]), op.Constant(value_floats=[NOTHING / 2])
    chosen = op.NonMaxSuppression(boxes, scores, limit, nms_iou, threshold)  # rows of image, class, box
    places = op.Gather(chosen, op.Constant(value_ints=[0, 2]), axis=1)
    ones = op.Expand(op.Constant(value_float=1.0), op.Shape(op.Gather(chosen, op.Constant(value_int=0), axis=1)))
    zeros = op.Mul(op.ReduceMax(scores, op.Constant(value_ints=[1]), keepdims=0), op.Constant(value_float=0.0))
    return op.ScatterND(zeros, places, ones)


def product_in_onnx(matrix, vector):
    """Builds the product of a matrix and a vector as a sum, because MatMul with a vector is slow in onnxruntime.

    Such products are the means of the distributions of box sides.
    """
    from onnxscript import opset18 as op

    if len(vector.shape) != 1:
        return op.MatMul(matrix, vector)
    return op.ReduceSum(op.Mul(matrix, vector), op.Constant(value_ints=[-1]), keepdims=0)


TRANSLATIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.ops.thaw.suppress.default: suppress_in_onnx,
    torch.ops.aten.matmul.default: product_in_onnx,
}


class DetectionGraph(nn.Module):
    """A model that outputs detections after NMS: as `DetectionModel.detections`, but in pixels of the input, and padded.

    `uint8_input`: the images are uint8 `[B, H, W, 3]`, otherwise float32 `[B, 3, H, W]`. `max_detections`: per image.
    """

    outputs = ("boxes", "scores", "labels")

    def __init__(self, model: DetectionModel, uint8_input: bool, max_detections: int):
        super().__init__()
        self.model, self.uint8_input, self.max_detections = model, uint8_input, max_detections

    def forward(self, images: Tensor, confidence: Tensor, nms_iou: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Images and two thresholds `[1]` -> boxes `[B, N, 4]` xyxy in pixels of the input, scores and labels `[B, N]`,
        best first. After the last detection, boxes and scores are 0 and labels -1. With n heads, N is n * max_detections."""
        images = images.permute(0, 3, 1, 2) if self.uint8_input else images
        heads = []
        size = images.shape[2], images.shape[3]
        for head in self.model.per_head(self.model(images)):
            boxes, scores, labels = head.model.decode(head.predictions, size)
            boxes, scores, labels = self.detections(boxes, scores, labels, head.num_classes, confidence, nms_iou)
            heads.append((boxes, scores, labels + head.first_class))
        boxes, scores, labels = heads[0]
        if len(heads) > 1:
            boxes, scores, labels = (torch.cat(field, 1) for field in zip(*heads, strict=True))
            boxes, scores, labels = top(boxes, scores, labels, len(heads) * self.max_detections)
        real = scores > NOTHING / 2
        return boxes.where(real[..., None], 0.0), scores.where(real, 0.0), labels.where(real, -1)

    def detections(
        self, boxes: Tensor, scores: Tensor, labels: Tensor, num_classes: int, confidence: Tensor, nms_iou: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Applies the threshold and NMS to the decoded anchor points of a head; scores of empty places are NOTHING."""
        wanted = (scores >= confidence) & boxes.isfinite().all(-1)
        # Padded, so that there are MAX_CANDIDATES places for every size of the input.
        boxes, labels = F.pad(boxes, (0, 0, 0, MAX_CANDIDATES)), F.pad(labels, (0, MAX_CANDIDATES))
        scores = F.pad(scores.where(wanted, NOTHING), (0, MAX_CANDIDATES), value=NOTHING)
        boxes, scores, labels = top(boxes, scores, labels, MAX_CANDIDATES)
        own = labels[:, None] == torch.arange(num_classes, device=labels.device)[:, None]
        kept = suppress(boxes.clamp(-FAR, FAR), scores[:, None].where(own, NOTHING), nms_iou, self.max_detections)
        scores = scores.where(kept > 0, NOTHING)
        return top(boxes, scores, labels, self.max_detections)


def top(boxes: Tensor, scores: Tensor, labels: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Selects the `count` highest scores, in falling order; of equal scores ONNX takes the first ones, as `select` does."""
    scores, best = scores.topk(count, 1)
    return boxes.gather(1, best[..., None].expand(-1, -1, 4)), scores, labels.gather(1, best)


class RawGraph(nn.Module):
    """A model that outputs its predictions before decoding: for each field and stride a tensor `[B, C, rows, columns]`.

    `shapes`: field -> shape of its values for one anchor point, such as (4,) or (); their product is C. The names of the outputs
    and fields of an added head end with "_added1", "_added2", ...
    """

    def __init__(self, model: DetectionModel, uint8_input: bool, image_size: tuple[int, int]):
        super().__init__()
        self.model, self.uint8_input = model, uint8_input
        with torch.no_grad():
            heads = [head.predictions for head in model.per_head(model(torch.zeros(1, 3, *image_size)))]
        self.shapes, self.outputs = {}, []
        for field in heads[0]._fields:
            for number, predictions in enumerate(heads):
                suffix = f"_added{number}" if number else ""
                self.shapes[field + suffix] = tuple(getattr(predictions, field).shape[2:])
                self.outputs += [f"{field}_{stride}{suffix}" for stride in model.strides]

    @property
    def about(self) -> dict[str, Any]:
        """The metadata that a program needs to decode the outputs (docs/exported_file.md)."""
        return {"shapes": self.shapes, "strides": self.model.strides, "output_names": self.outputs}

    def forward(self, images: Tensor) -> list[Tensor]:
        """Images -> the tensors in the order of `outputs`, float32, as the last convolutions output them."""
        images = images.permute(0, 3, 1, 2) if self.uint8_input else images
        levels = self.model.levels(self.model.features(images))
        return [x.float() for field in zip(*levels, strict=True) for x in field]


def write(
    file: BinaryIO | Path, model: DetectionModel, about: dict[str, Any], batch_size: int, uint8_input: bool
) -> None:
    """Writes a model as an ONNX file. Its batch norms must be folded. It moves to the CPU, and half=true converts it.

    `about`: the metadata of the file, which are also the options of the export. `batch_size`: 0 for any number of images.
    """
    import onnx

    model = (model.half() if about["half"] else model).cpu()
    if about["outputs"] == "detections":
        graph: DetectionGraph | RawGraph = DetectionGraph(model, uint8_input, about["max_detections"])
        limits = {"confidence": about["confidence"], "nms_iou": about["nms_iou"]}
    else:
        graph = RawGraph(model, uint8_input, about["image_size"])
        limits = {}
        about = about | graph.about
    height, width = about["image_size"]
    if about["dynamic_size"]:  # torch.export takes a single row of grid cells, at the largest stride, for a constant
        height, width = (max(side, 2 * max(model.strides)) for side in (height, width))
    images = torch.zeros(batch_size or 2, 3, height, width)
    if uint8_input:
        images = images.permute(0, 2, 3, 1).to(torch.uint8).contiguous()
    dynamic = dynamic_dimensions(batch_size == 0, about["dynamic_size"], uint8_input)
    program = torch.onnx.export(
        graph.eval(),
        (images, *(torch.tensor([value]) for value in limits.values())),
        input_names=["images", *limits],
        output_names=list(graph.outputs),
        dynamic_shapes=(dynamic, *(None for _ in limits)),
        opset_version=OPSET,
        custom_translation_table=TRANSLATIONS,
        dynamo=True,
        optimize=True,
        verbose=False,
    )
    assert program is not None  # as it is with dynamo=True
    onnx.save(add_metadata(program.model_proto, limits, about), file)


def dynamic_dimensions(any_number: bool, any_size: bool, uint8_input: bool) -> dict[int, Any] | None:
    """Returns which dimensions of the images are not fixed in the file, None for none."""
    dynamic: dict[int, Any] = {}
    if any_number:
        dynamic[0] = torch.export.Dim("batch", min=1, max=2**15)
    if any_size:
        rows, columns = (1, 2) if uint8_input else (2, 3)
        dynamic[rows] = 32 * torch.export.Dim("rows", min=1, max=2**10)
        dynamic[columns] = 32 * torch.export.Dim("columns", min=1, max=2**10)
    return dynamic or None


def add_metadata(proto, limits: Mapping[str, float], about: Mapping[str, Any]):
    """Adds the metadata and the default thresholds to an ONNX model, checks it and returns it."""
    import onnx

    for part in (proto, proto.graph, *proto.graph.node):  # torch writes the folders of this computer there
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    for name, value in limits.items():  # an input with an initializer is optional
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([value], np.float32), name))
    values = {"version": VERSION, **about}
    onnx.helper.set_model_props(proto, {name: json.dumps(value, ensure_ascii=False) for name, value in values.items()})
    onnx.checker.check_model(proto)
    return proto
