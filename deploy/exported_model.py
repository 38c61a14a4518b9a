"""Runs exported files with the interface of a DetectionModel, through deploy/standalone/detector.py."""

import json
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deploy.formats import is_exported
from deploy.onnx_graph import VERSION
from deploy.standalone import worker
from deploy.standalone.detector import Detector
from nets.postprocess import Detections, joined, select
from utils.file_checks import CheckpointError, validated
from utils.text import first_line

REQUIRED = ("version", "model", "classes", "image_size", "dynamic_size", "letterbox", "outputs", "confidence", "clip")
TIMEOUT = 300.0  # seconds after which a process that runs a file is ended


class ExportedModel:
    """A file of export.py as a model that predicts on the CPU, with as many threads as torch has now.

    onnxruntime runs in this process, the other runtimes in one of their own. `about` is the metadata of the file
    (docs/exported_file.md). Raises CheckpointError for a file that cannot be used, and ValueError if it does not accept
    `image_size`.
    """

    def __init__(self, path: str | Path, image_size: tuple[int, int] | None = None):
        self.path, threads = Path(path), torch.get_num_threads()
        if not is_exported(self.path):
            raise CheckpointError(f"there is no {path}; python export.py checkpoint=FILE writes one")
        try:
            self._runtime = (
                InProcess(self.path, threads) if self.path.suffix == ".onnx" else OwnProcess(self.path, threads)
            )
        except ValueError as error:
            raise CheckpointError(str(error)) from error
        self.about = _checked(self.path, self._runtime.about)
        self.letterbox, self.num_classes = self.about["letterbox"], len(self.about["classes"])
        self.added_counts = tuple(self.about.get("added", ()))  # files of earlier versions have none
        self.counts = (self.num_classes - sum(self.added_counts), *self.added_counts)  # classes of each head
        self.contains_nms = self.about["outputs"] == "detections"
        height, width = self.about["image_size"]
        if image_size not in (None, (height, width)):
            if not self.about["dynamic_size"]:
                only = f"image_size={height},{width} only"
                raise ValueError(f"{path} was exported for {only}: leave it out, or export with dynamic_size=true")
            self._runtime.set_size(image_size)

    def __call__(self, images: Tensor) -> Tensor:
        """Returns the images: the file runs in `detections`, which knows the thresholds."""
        return images

    def detections(
        self,
        predictions: Tensor | list[np.ndarray],
        image_size: tuple[int, int],
        transforms: Tensor,
        confidence: float | Tensor = 0.001,
        nms_iou: float = 0.65,
        max_detections: int = 300,
        clip: bool | None = None,
        class_agnostic: bool = False,
    ) -> list[Detections]:
        """Turns images into detections per image, as `DetectionModel.detections` does with predictions.

        `predictions`: letterboxed images `[B, 3, H, W]`, 0-255; or images uint8 [H, W, 3] of any size, which the file's own
        detector letterboxes. A file with NMS inside gives at most the `max_detections` of the export. With a threshold for each
        class, detections above the lowest one count against this limit. `clip=None`: as the exported model does. Raises
        ValueError for `class_agnostic` if NMS per class is inside the file.
        """
        if class_agnostic:
            require_open_nms(self)
        if isinstance(predictions, Tensor):
            predictions = list(predictions.cpu().to(torch.uint8).permute(0, 2, 3, 1).contiguous().numpy())
        limits: dict[str, Any] = {"confidence": confidence, "max_detections": max_detections}
        limits |= {"clip": self.about["clip"] if clip is None else clip, "class_agnostic": class_agnostic}
        limits["nms_iou"] = 1.0 if self.contains_nms else nms_iou
        images = self._runtime.predict(predictions, float(torch.as_tensor(confidence).min()), nms_iou)
        found = []
        for transform, fields in zip(transforms.cpu().split(1), images, strict=True):
            boxes, scores, labels = self._fields(fields)
            heads, first = [], 0
            for count in (self.num_classes,) if class_agnostic else self.counts:  # the limits count for each head
                own = (labels >= first) & (labels < first + count)
                heads.append(select(boxes[own][None], scores[own][None], labels[own][None], transform, **limits))
                first += count
            found += joined(heads)
        return found

    def _fields(self, fields: tuple[np.ndarray, np.ndarray, np.ndarray]) -> tuple[Tensor, Tensor, Tensor]:
        """Returns boxes, scores and labels as tensors. Raises CheckpointError for values that no file of export.py gives."""
        boxes, scores, labels = (torch.from_numpy(field) for field in fields)
        if not (labels < self.num_classes).all() or not boxes.isfinite().all() or not scores.isfinite().all():
            raise CheckpointError(f"{self.path} returns unknown classes or boxes that are not finite: export it again")
        return boxes, scores, labels

    def to(self, device: torch.device, **_: Any) -> "ExportedModel":
        """Returns the model. Raises ValueError for every device except the CPU."""
        if torch.device(device).type != "cpu":
            raise ValueError(f"{self.path} runs on the CPU only, not on {device}: give device=cpu, or the checkpoint")
        return self

    def eval(self) -> "ExportedModel":
        """Returns the model: it is always in evaluation mode."""
        return self

    def fuse(self) -> "ExportedModel":
        """Returns the model: its batch norms were folded at the export."""
        return self


class InProcess:
    """A file in this process."""

    def __init__(self, path: Path, threads: int):
        self.path, self.detector = path, Detector(path, threads=threads)
        self.about = self.detector.about

    def predict(self, images: list[np.ndarray], min_score: float, nms_iou: float) -> list[tuple]:
        """Returns boxes, scores and labels of each image; see `worker.predict`."""
        if not isinstance(self.detector.file.shape[0], int):  # it takes any number of images
            self.detector.batch_size = max(len(images), 1)
        try:
            return worker.predict(self.detector, images, min_score, nms_iou)
        except Exception as error:  # those of onnxruntime have no common class
            raise CheckpointError(f"{self.path} cannot be run ({first_line(error)}): export it again") from error

    def set_size(self, image_size: tuple[int, int]) -> None:
        """Sets height and width of the input of a file with dynamic_size=true."""
        self.detector.image_size = image_size


class OwnProcess:
    """A file in a process of its own, which ends with this object. Raises ValueError if the runtime cannot use the file."""

    def __init__(self, path: Path, threads: int):
        self.path, self.log = path, tempfile.TemporaryFile()  # what the runtime prints
        command = [sys.executable, worker.__file__, str(path), str(threads)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=self.log)
        weakref.finalize(self, _end, self.process)
        problem, *about = self._reply()
        if problem.item():
            raise ValueError(problem.item())
        self.about = json.loads(about[0].item())

    def predict(self, images: list[np.ndarray], min_score: float, nms_iou: float) -> list[tuple]:
        """Returns boxes, scores and labels of each image; see `worker.predict`."""
        results = []
        for image in images:
            try:
                worker.send(self.process.stdin, np.array(min_score), np.array(nms_iou), image)
            except OSError:  # the process has ended, which the reply tells
                pass
            results.append(tuple(self._reply()))
        return results

    def set_size(self, image_size: tuple[int, int]) -> None:
        """These files have one size."""
        raise ValueError(f"{self.path} has another size of the input than {image_size}")

    def _reply(self) -> list[np.ndarray]:
        """Waits for a reply. Raises CheckpointError with the reason if the process ends, or takes longer than TIMEOUT."""
        begin, timer = time.monotonic(), Timer(TIMEOUT, self.process.kill)
        timer.start()
        try:
            return worker.receive(self.process.stdout)
        except EOFError:
            code = self.process.wait()
            is_late = time.monotonic() - begin >= TIMEOUT
            why = f"took longer than {TIMEOUT:g} seconds" if is_late else f"ended with code {code}"
            self.log.seek(0)
            lines = self.log.read().decode(errors="replace").strip().splitlines()
            if lines:
                why += f" ({lines[-1][:300]})"
            fix = "export it again, or to another format="
            raise CheckpointError(f"{self.path}: the process of its runtime {why}: {fix}") from None
        finally:
            timer.cancel()


def _end(process: subprocess.Popen) -> None:
    """Ends a process."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe:
            pipe.close()


def require_open_nms(model: Any) -> None:
    """Raises ValueError for a file that contains NMS per class, whose boxes cannot be compared across classes."""
    if isinstance(model, ExportedModel) and model.contains_nms:
        raise ValueError(
            f"class_agnostic=true: NMS per class is inside {model.path}: give the checkpoint, or export with outputs=raw"
        )


def _checked(path: Path, about: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the metadata of a file. Raises CheckpointError if export.py did not write it, or if a value is wrong."""
    if missing := [name for name in REQUIRED if name not in about]:
        raise CheckpointError(f"{path} has no {', '.join(missing)} in its metadata: export.py did not write it")
    if about["version"] != VERSION:
        raise CheckpointError(f"{path} has another version than {VERSION}: export it again")
    return validated(dict(about), path, "onnx")
