"""Files that export.py wrote, run by onnxruntime behind the interface that Detector and utils.evaluate ask of a model."""

import json
from collections import namedtuple
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nets.postprocess import Detections, into_original
from nets.selector import Selected
from utils.checkpoint import CheckpointError

VERSION = 1  # of the metadata and of what inputs and outputs mean


class OnnxModel:
    """`about`: the metadata of the file, of which each value is JSON: version, model, classes, image_size, dynamic_size,
    letterbox, outputs, confidence and more (docs/deploy.md).

    It computes on the CPU, whatever device tensors come from, with as many threads as torch has when it is made.
    `family(model, number of classes, nms_free)`: a model whose `decode` understands what a raw file gives.
    """

    def __init__(self, path: str | Path, family: Callable):
        self._session = _open(Path(path))
        self.about = _about(Path(path), self._session.get_modelmeta().custom_metadata_map)
        self.letterbox, self.num_classes = self.about["letterbox"], len(self.about["classes"])
        self._input = self._session.get_inputs()[0]
        raw, second_head = self.about["outputs"] == "raw", {"nms_free": self.about["nms_free"]}
        self._family = family(self.about["model"], self.num_classes, **second_head) if raw else None

    def __call__(self, images: Tensor) -> Any:
        """Images `[B, 3, H, W]` 0-255 -> predictions. Where NMS is in the file these are the images: it also wants the limits."""
        if self._family is None:
            return images
        names = [output.name for output in self._session.get_outputs()]  # boxes_8, boxes_16, ...
        levels = zip(names, self._run(images, {}), strict=True)
        flat = [(name.rpartition("_")[0], level.flatten(2)) for name, level in levels]
        fields = {}
        for field, shape in self.about["shapes"].items():
            points = torch.cat([level for name, level in flat if name == field], 2).transpose(1, 2)
            fields[field] = points.reshape(*points.shape[:2], *shape)
        chosen = fields.pop("chosen", None)
        said = namedtuple("Predictions", fields)(**fields)
        return said if chosen is None else Selected(said, chosen)

    def detections(
        self, predictions: Any, image_size: tuple[int, int], frames: Tensor, confidence: float = 0.001,
        nms_iou: float = 0.65, max_detections: int = 300,
    ) -> list[Detections]:  # fmt: skip
        """As those of a DetectionModel; no more than the file was exported for."""
        if self._family is not None:
            limits = {"confidence": confidence, "nms_iou": nms_iou, "max_detections": max_detections}
            return self._family.detections(predictions, image_size, frames.cpu(), **limits)
        limits = {"confidence": np.array([confidence], np.float32), "nms_iou": np.array([nms_iou], np.float32)}
        boxes, scores, labels = (x[:, :max_detections] for x in self._run(predictions, limits))
        boxes = into_original(boxes, frames.cpu()[:, None])
        return [Detections(*(x[i][labels[i] >= 0] for x in (boxes, scores, labels))) for i in range(len(labels))]

    def _run(self, images: Tensor, limits: Mapping[str, np.ndarray]) -> list[Tensor]:
        """As many at a time as the file wants; a batch that is too small is filled up."""
        images = images.cpu()
        if self._input.type == "tensor(uint8)":
            pictures = images.to(torch.uint8).permute(0, 2, 3, 1).contiguous().numpy()
        else:
            pictures = images.float().contiguous().numpy()
        fixed = self._input.shape[0]
        at_once = fixed if isinstance(fixed, int) else max(len(pictures), 1)
        parts = []
        for start in range(0, len(pictures), at_once):
            some = pictures[start : start + at_once]
            blank = np.zeros((at_once - len(some), *some.shape[1:]), some.dtype)
            found = self._session.run(None, {self._input.name: np.concatenate([some, blank]), **limits})
            parts.append([x[: len(some)] for x in found])
        return [torch.from_numpy(np.concatenate(part)) for part in zip(*parts, strict=True)]

    def to(self, device: torch.device, **_: Any) -> "OnnxModel":
        """Raises ValueError for anything but the CPU."""
        if torch.device(device).type != "cpu":
            raise ValueError(f".onnx files run on the CPU here, not on {device}: give device=cpu, or the checkpoint")
        return self

    def eval(self) -> "OnnxModel":
        return self

    def fuse(self) -> "OnnxModel":
        return self


def _open(path: Path):
    if not path.is_file():
        raise CheckpointError(f"there is no {path}; python export.py checkpoint=FILE writes one")
    try:
        import onnxruntime
    except ImportError as error:
        raise CheckpointError(f"{path} needs onnxruntime ({error}): pip install onnxruntime") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # no warning that the limits are inputs with defaults
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors have no common class
        why = str(error).partition("\n")[0]
        raise CheckpointError(
            f"{path} is damaged or too new for onnxruntime {onnxruntime.__version__} ({why})"
        ) from error


def _about(path: Path, written: Mapping[str, str]) -> dict[str, Any]:
    if "version" not in written or "letterbox" not in written:
        raise CheckpointError(f"{path} does not say what it wants and gives: it was not written by export.py")
    if written["version"] != str(VERSION):
        raise CheckpointError(f"{path} has version {written['version']}, known is {VERSION}: export it again")
    return {name: json.loads(value) for name, value in written.items()}


def metadata(values: Mapping[str, Any]) -> dict[str, str]:
    """What `about` gives -> as it is written into a file."""
    return {name: json.dumps(value, ensure_ascii=False) for name, value in {"version": VERSION, **values}.items()}
