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
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from deploy.load import device_for, load
from deploy.result import Result
from deploy.thresholds import thresholds_of
from deploy.tiles import Tiles, cut, for_detection, merged
from utils.images import READERS, batched, letterbox, prefetch, read_with_limits
from utils.processes import choose_device
from utils.value_range import are_outside, outside_text


class Input(NamedTuple):
    """An image to detect objects in."""

    pixels: np.ndarray  # uint8 [H, W, 3] BGR
    path: str | None = None  # of its file, from which it can be read again


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
        most = self.batch_size if self.tiles else 2 * self.batch_size
        inputs = self.read_all(images, most)
        return list(self.detect_in_tiles(inputs, self.tiles) if self.tiles else self.detect(inputs))

    def detect(self, inputs: Iterable[Input]) -> Iterator[Result]:
        """Yields one Result per image; the network gets the images in batches."""
        for batch in batched(inputs, self.batch_size):
            network_inputs, transforms = self.prepare([one.pixels for one in batch])
            for one, result in zip(batch, self.select(self.network(network_inputs), transforms), strict=True):
                yield self.of_input(one, result)

    def detect_in_tiles(self, inputs: Iterable[Input], tiles: Tiles) -> Iterator[Result]:
        """Yields one Result per image, from the image and its tiles; the network gets these windows in batches."""
        found: list[Result] = []  # of windows whose image is not finished
        waiting: deque[tuple[Input, np.ndarray]] = deque()  # these images and their windows

        def crops() -> Iterator[np.ndarray]:
            for one in inputs:
                require_image(one.pixels)
                windows = tiles.windows(one.pixels.shape[1], one.pixels.shape[0])
                waiting.append((one, windows))
                yield one.pixels
                yield from cut(one.pixels, windows[1:])

        for batch in batched(crops(), self.batch_size):
            network_inputs, transforms = self.prepare(batch)
            found += self.select(self.network(network_inputs), transforms)
            while waiting and len(found) >= len(waiting[0][1]):
                one, windows = waiting.popleft()
                parts = [(window.boxes, window.scores, window.labels) for window in found[: len(windows)]]
                del found[: len(windows)]
                yield self.of_input(one, self.result(*merged(parts, windows, self.limits)))

    def result(self, boxes: np.ndarray, scores: np.ndarray, labels: np.ndarray) -> Result:
        """Returns a Result with the names of its classes."""
        return Result(boxes, scores, labels, tuple(self.classes[label] for label in labels))

    def of_input(self, one: Input, result: Result) -> Result:
        """Returns the Result with its image: the path of a file, or the pixels."""
        if one.path is None:
            return replace(result, pixels=one.pixels)
        return replace(result, path=one.path, value_range=self.loaded.value_range)

    def read(self, path: str | Path) -> np.ndarray:
        """Reads an image file as the training did -> uint8 [H, W, 3] BGR. Raises ImageError.

        Prints a note about the first 16-bit file whose values are outside the range of the training."""
        image, limits = read_with_limits(str(path), self.loaded.value_range)
        if not self.reported and are_outside(np.array([limits]), self.loaded.value_range)[0]:
            self.reported = True
            print(f"note: {path}: {outside_text(limits, self.loaded.value_range)}")
        return image

    def read_all(self, images: Sequence[str | Path | np.ndarray], most: int) -> Iterator[Input]:
        """Yields the images in order; threads read up to `most` of the next files ahead."""

        def read(image: str | Path | np.ndarray) -> Input:
            if isinstance(image, str | Path):
                return Input(self.read(image), str(image))
            return Input(image)

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
        return [self.result(*one) for one in zip(*fields, strict=True)]


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
