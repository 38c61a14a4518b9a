"""Exported models: ONNX files of export.py, run by onnxruntime with the interface of a DetectionModel."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import nets
from nets.postprocess import Detections, clip_to_images, joined
from utils.file_checks import CheckpointError, fitting, validated
from utils.images import into_original
from utils.text import first_line

VERSION = 1  # of the metadata, and of the meaning of inputs and outputs
REQUIRED = ("version", "model", "classes", "image_size", "dynamic_size", "letterbox", "outputs", "confidence", "clip")


class OnnxModel:
    """An ONNX file of export.py as a model that predicts on the CPU, with as many threads as torch has now.

    `about` is the metadata of the file (docs/exported_file.md). Raises ValueError if the file does not accept `image_size`.
    """

    def __init__(self, path: str | Path, image_size: tuple[int, int] | None = None):
        self.path, self._session = Path(path), _open(Path(path))
        self._input = self._session.get_inputs()[0]
        self.about = _about(self.path, self._session.get_modelmeta().custom_metadata_map)
        self.letterbox, self.num_classes = self.about["letterbox"], len(self.about["classes"])
        self.added_counts = tuple(self.about.get("added", ()))  # files of earlier versions have none
        self.counts = (self.num_classes - sum(self.added_counts), *self.added_counts)  # classes of each head
        self._decoder = None
        if self.about["outputs"] == "raw":
            with torch.device("meta"):
                self._decoder = nets.build(self.about["model"], self.num_classes, added=self.added_counts)
        height, width = self.about["image_size"]
        if image_size not in (None, (height, width)) and not self.about["dynamic_size"]:
            only = f"image_size={height},{width} only"
            raise ValueError(f"{path} was exported for {only}: leave it out, or export with dynamic_size=true")

    def __call__(self, images: Tensor) -> Any:
        """Images `[B, 3, H, W]`, 0-255 -> raw Predictions.

        For a file that contains NMS this returns the images: the file runs in `detections`, which knows the thresholds.
        """
        if self._decoder is None:
            return images
        maps, count = self._run(images, {}), self._decoder.num_levels  # boxes_8, boxes_16, ...
        fields = [maps[start : start + count] for start in range(0, len(maps), count)]
        with fitting(self.path):
            return self._decoder.flatten(list(zip(*fields, strict=True)))

    def detections(
        self,
        predictions: Any,
        image_size: tuple[int, int],
        transforms: Tensor,
        confidence: float | Tensor = 0.001,
        nms_iou: float = 0.65,
        max_detections: int = 300,
        clip: bool | None = None,
        class_agnostic: bool = False,
    ) -> list[Detections]:
        """Turns predictions into detections per image, as `DetectionModel.detections` does.

        An image has at most as many as the `max_detections` of the export. With a threshold for each class, detections above
        the lowest one count against this limit. `clip=None`: as the exported model does. Raises ValueError for `class_agnostic`
        if NMS per class is inside the file.
        """
        clip = self.about["clip"] if clip is None else clip
        if self._decoder is not None:
            limits = {"confidence": confidence, "nms_iou": nms_iou, "max_detections": max_detections, "clip": clip}
            limits["class_agnostic"] = class_agnostic
            return self._decoder.detections(predictions, image_size, transforms.cpu(), **limits)
        if class_agnostic:
            require_open_nms(self)
        thresholds = torch.as_tensor(confidence, dtype=torch.float32).expand(self.num_classes)
        inputs = {"confidence": thresholds.min().reshape(1).numpy(), "nms_iou": np.array([nms_iou], np.float32)}
        boxes, scores, labels = self._run(predictions, inputs)
        if not (labels < self.num_classes).all() or not boxes.isfinite().all() or not scores.isfinite().all():
            raise CheckpointError(f"{self.path} returns unknown classes or boxes that are not finite: export it again")
        boxes = into_original(boxes, transforms.cpu()[:, None])
        if clip:
            boxes = clip_to_images(boxes, transforms.cpu())
        keep = (labels >= 0) & (scores >= thresholds[labels.clamp(min=0)])
        heads, first = [], 0
        for count in self.counts:  # the limit counts for each head, as in DetectionModel.detections
            chosen = keep & (labels >= first) & (labels < first + count)
            images = [(boxes[i, rows], scores[i, rows], labels[i, rows]) for i, rows in enumerate(chosen)]
            heads.append([Detections(*(field[:max_detections] for field in image)) for image in images])
            first += count
        return joined(heads)

    def _run(self, images: Tensor, limits: Mapping[str, np.ndarray]) -> list[Tensor]:
        """Runs the session on as many images at a time as the file takes; an incomplete batch is padded with black images."""
        images = images.cpu()
        if self._input.type == "tensor(uint8)":
            inputs = images.to(torch.uint8).permute(0, 2, 3, 1).contiguous().numpy()
        else:
            inputs = images.float().contiguous().numpy()
        fixed = self._input.shape[0]
        batch_size = fixed if isinstance(fixed, int) else max(len(inputs), 1)
        outputs = []
        for start in range(0, len(inputs), batch_size):
            batch = inputs[start : start + batch_size]
            padding = np.zeros((batch_size - len(batch), *batch.shape[1:]), batch.dtype)
            try:
                output = self._session.run(None, {self._input.name: np.concatenate([batch, padding]), **limits})
            except Exception as error:  # its errors have no common class
                why = first_line(error)
                raise CheckpointError(f"{self.path} cannot be run ({why}): export it again") from error
            outputs.append([x[: len(batch)] for x in output])
        return [torch.from_numpy(np.concatenate(parts)) for parts in zip(*outputs, strict=True)]

    def to(self, device: torch.device, **_: Any) -> "OnnxModel":
        """Returns the model. Raises ValueError for every device except the CPU."""
        if torch.device(device).type != "cpu":
            raise ValueError(f".onnx files run on the CPU only, not on {device}: give device=cpu, or the checkpoint")
        return self

    def eval(self) -> "OnnxModel":
        """Returns the model: it is always in evaluation mode."""
        return self

    def fuse(self) -> "OnnxModel":
        """Returns the model: its batch norms were folded at the export."""
        return self


def require_open_nms(model: Any) -> None:
    """Raises ValueError for a file that contains NMS per class, whose boxes cannot be compared across classes."""
    if isinstance(model, OnnxModel) and model.about["outputs"] != "raw":
        raise ValueError(
            f"class_agnostic=true: NMS per class is inside {model.path}: give the checkpoint, or export with outputs=raw"
        )


def _open(path: Path):
    """Opens a file in onnxruntime. Raises CheckpointError if it is missing or damaged, or if onnxruntime is."""
    if not path.is_file():
        raise CheckpointError(f"there is no {path}; python export.py checkpoint=FILE writes one")
    try:
        import onnxruntime
    except ImportError as error:
        raise CheckpointError(f"{path} needs onnxruntime ({error}): pip install onnxruntime") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors only, without the warning that the thresholds are inputs with defaults
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors have no common class
        why = first_line(error)
        raise CheckpointError(
            f"{path} is damaged or too new for onnxruntime {onnxruntime.__version__} ({why}): export it again"
        ) from error


def _about(path: Path, written: Mapping[str, str]) -> dict[str, Any]:
    """Reads the metadata of a file. Raises CheckpointError if export.py did not write it, or if a value is wrong."""
    if missing := [name for name in REQUIRED if name not in written]:
        raise CheckpointError(f"{path} has no {', '.join(missing)} in its metadata: export.py did not write it")
    try:
        about = {name: json.loads(value) for name, value in written.items()}
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} has metadata that are not JSON: export it again") from error
    if about["version"] != VERSION:
        raise CheckpointError(f"{path} has another version than {VERSION}: export it again")
    return validated(about, path, "onnx")


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
