"""Detector: a trained model as a function from images to detections, for programs of your own.

    from deploy.detector import Detector
    for result in Detector("runs/train-2026-01-31-1/best.pt")(["a.jpg", "b.jpg"]):
        print(result.names, result.scores, result.boxes)

predict.py uses the same class, and evaluate.py the same `load`, so all of them predict the same boxes.
"""

import ctypes
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from deploy.load import device_for, load
from deploy.thresholds import thresholds_of
from deploy.tiles import Tiles, cut, for_detection, merged
from utils.images import READERS, batched, letterbox, prefetch, read_with_limits
from utils.processes import choose_device
from utils.value_range import are_outside, outside_text


class Result(NamedTuple):
    """The detections in one image, best first. Without detections, all arrays have length 0."""

    boxes: np.ndarray  # float32 [n, 4] xyxy, pixels of the image; clipped to it, except with official weights
    scores: np.ndarray  # float32 [n]
    labels: np.ndarray  # int64 [n]
    names: tuple[str, ...]  # class names of the labels


class Detector:
    """A trained model as a callable: `Detector(checkpoint)(images)` returns one `Result` per image.

    An image is a path, or a uint8 array [H, W, 3] in BGR order as in OpenCV. `load` explains the arguments `checkpoint`,
    `model`, `classes` and `image_size`; `confidence=None` takes the threshold stored in the file, "per_class" one threshold
    for each of its classes. The boxes equal the boxes of evaluate.py with the same `confidence`, `nms_iou` and
    `max_detections`, up to rounding, since batch norms are folded into the convolutions. `tile`: the side in pixels of tiles
    to detect in, too (docs/tiles.md). On a CPU the process keeps the memory that it frees (see `keep_memory`).
    """

    def __init__(
        self,
        checkpoint: str | Path | None = None,
        model: str | None = None,
        classes: Sequence[str] | None = None,
        image_size: tuple[int, int] | None = None,
        device: str = "auto",
        confidence: float | str | None = None,
        nms_iou: float = 0.5,
        batch_size: int = 8,
        max_detections: int = 300,
        tile: int | None = None,
        overlap: float | None = None,
    ):
        self.loaded = loaded = load(checkpoint, model, classes, image_size)
        self.classes, self.image_size = loaded.classes, loaded.image_size
        self.config, self.path = loaded.config, loaded.path
        self.device = choose_device(device_for(loaded.path, device))
        self.batch_size = batch_size
        if confidence is None:
            least = loaded.confidence
        elif isinstance(confidence, str):
            least = thresholds_of(loaded, confidence)
        else:
            least = confidence
        self.reported = False  # whether a 16-bit file with other values was reported
        self.limits = {"confidence": least, "nms_iou": nms_iou, "max_detections": max_detections}
        self.model = loaded.model.fuse().to(self.device, memory_format=torch.channels_last)
        if self.device.type == "cpu":
            keep_memory()
        self.tiles = None
        if tile is not None or overlap is not None:
            self.tiles = for_detection(tile, overlap)

    def __call__(self, images: str | Path | np.ndarray | Sequence[str | Path | np.ndarray]) -> list[Result]:
        """Detects objects in a list of images; a single image is a list of one. Raises ImageError for an unreadable file."""
        if isinstance(images, str | Path) or getattr(images, "ndim", 4) < 4:
            images = [images]
        if self.tiles:
            return self.detect_in_tiles(self.read_all(images, self.batch_size), self.tiles)
        results = []
        for batch in batched(self.read_all(images, 2 * self.batch_size), self.batch_size):
            inputs, transforms = self.prepare(batch)
            results += self.select(self.network(inputs), transforms)
        return results

    def detect_in_tiles(self, images: Iterable[np.ndarray], tiles: Tiles) -> list[Result]:
        """Detects objects in images uint8 [H, W, 3] BGR and in their tiles, in batches of windows -> one Result per image."""
        results: list[Result] = []
        found: list[Result] = []  # of windows whose image is not finished
        waiting: deque[np.ndarray] = deque()  # the windows of each of these images

        def crops() -> Iterator[np.ndarray]:
            for image in images:
                require_image(image)
                windows = tiles.windows(image.shape[1], image.shape[0])
                waiting.append(windows)
                yield image
                yield from cut(image, windows[1:])

        for batch in batched(crops(), self.batch_size):
            inputs, transforms = self.prepare(batch)
            found += self.select(self.network(inputs), transforms)
            while waiting and len(found) >= len(waiting[0]):
                count = len(waiting[0])
                parts = [(one.boxes, one.scores, one.labels) for one in found[:count]]
                boxes, scores, labels = merged(parts, waiting.popleft(), self.limits)
                results.append(Result(boxes, scores, labels, tuple(self.classes[label] for label in labels)))
                del found[:count]
        return results

    def read(self, path: str | Path) -> np.ndarray:
        """Reads an image file as the training did -> uint8 [H, W, 3] BGR. Raises ImageError.

        Prints a note about the first 16-bit file whose values are outside the range of the training."""
        image, limits = read_with_limits(str(path), self.loaded.value_range)
        if not self.reported and are_outside(np.array([limits]), self.loaded.value_range)[0]:
            self.reported = True
            print(f"note: {path}: {outside_text(limits, self.loaded.value_range)}")
        return image

    def read_all(self, images: Sequence[str | Path | np.ndarray], most: int) -> Iterator[np.ndarray]:
        """Yields the images in order; threads read up to `most` of the next files ahead."""

        def read(image: str | Path | np.ndarray) -> np.ndarray:
            return self.read(image) if isinstance(image, str | Path) else image

        if len(images) > 1 and any(isinstance(image, str | Path) for image in images):
            return prefetch(read, images, most, READERS)
        return map(read, images)

    def prepare(self, images: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
        """Letterboxes images uint8 [H, W, 3] BGR for the network.

        Returns its input uint8 [B, 3, H, W] and letterbox transforms float32 [B, 5], on the device of the model.
        """
        for image in images:
            require_image(image)
        fitted = [letterbox(image, self.image_size, self.model.letterbox) for image in images]
        inputs = torch.from_numpy(np.stack([image for image, _ in fitted])).permute(0, 3, 1, 2)
        transforms = torch.tensor([transform for _, transform in fitted], dtype=torch.float32)
        return inputs.to(self.device), transforms.to(self.device)

    @torch.inference_mode()
    def network(self, inputs: Tensor) -> NamedTuple:
        """Runs the network: input [B, 3, H, W] -> the family's raw Predictions."""
        torch.backends.cudnn.allow_tf32 = False  # as `evaluate` does, so that the boxes are the same
        return self.model(inputs)

    @torch.inference_mode()
    def select(self, predictions: NamedTuple, transforms: Tensor) -> list[Result]:
        """Applies the confidence threshold and NMS to raw predictions -> Results in pixels of the original images."""
        detections = self.model.detections(predictions, self.image_size, transforms, **self.limits)
        ends = np.cumsum([len(one.scores) for one in detections])[:-1]
        # One transfer from the device per field, not per image.
        fields = (np.split(torch.cat(field).cpu().numpy(), ends) for field in zip(*detections, strict=True))
        results = []
        for boxes, scores, labels in zip(*fields, strict=True):
            results.append(Result(boxes, scores, labels, tuple(self.classes[label] for label in labels)))
        return results


def require_image(image: object) -> None:
    """Raises TypeError unless the image is an array uint8 [H, W, 3]."""
    if not isinstance(image, np.ndarray):
        what = type(image).__name__
    elif image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        what = f"{image.dtype} {list(image.shape)}"
    else:
        return
    raise TypeError(f"an image must be a path or a uint8 array [H, W, 3] in BGR order, not {what}")


def keep_memory() -> None:
    """Makes glibc keep freed memory for this process; does nothing with other C libraries.

    By default glibc returns the buffers of large layers to Linux, and gets them back page by page in every forward pass.
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if hasattr(libc, "mallopt"):
        libc.mallopt(-4, 0)  # M_MMAP_MAX: no allocation has a mapping of its own
        libc.mallopt(-1, -1)  # M_TRIM_THRESHOLD: never return the end of the heap
