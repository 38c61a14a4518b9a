"""Detector: a trained model as a function from images to detections, for programs of your own.

    from deploy.detector import Detector
    for result in Detector("runs/train-2026-01-31-1/best.pt")(["a.jpg", "b.jpg"]):
        print(result.names, result.scores, result.boxes)

predict.py uses the same class, and evaluate.py the same `load`, so all of them predict the same boxes.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from deploy import video
from deploy.exported_model import require_open_nms
from deploy.inputs import download, is_live, is_pillow, is_stream, is_web_address, listed, of_pillow, require_image
from deploy.load import device_for, load
from deploy.result import Result
from deploy.thresholds import only_classes, threshold_of
from deploy.tiles import Tiles, cut, for_detection, merged
from utils.images import READERS, batched, decode_with_limits, frame_count, letterbox, prefetch, read_bytes
from utils.processes import choose_device
from utils.remote import without_keys
from utils.remote_cache import local_source
from utils.value_range import are_outside, outside_text

Images = str | Path | np.ndarray | Sequence[str | Path | np.ndarray]  # Pillow images, too, which are not imported here


class Input(NamedTuple):
    """An image to detect objects in."""

    pixels: np.ndarray  # uint8 [H, W, 3] BGR
    path: str | None = None  # of its file or video, or its address
    in_file: bool = False  # whether it can be read from the path again


class Detector:
    """A trained model as a callable: `Detector(checkpoint)(images)` returns one `Result` per image.

    An image is a path, the http address of an image, a uint8 array [H, W, 3] in BGR order as in OpenCV, or a Pillow image, whose
    EXIF orientation is not applied. A folder or a pattern such as "in/*.jpg" stands for all its images.

    `load` explains the arguments `checkpoint`, `model`, `classes` and `image_size`; `confidence=None` takes the threshold stored
    in the file, "per_class" the thresholds of its classes. `only`: names of the classes to detect. `class_agnostic`: boxes of
    different classes that overlap more than `nms_iou` are one object, too. `tile`: the side in pixels of tiles to detect in, too
    (docs/tiles.md). The boxes equal those of evaluate.py with the same `confidence`, `nms_iou` and `max_detections`, up to
    rounding, since batch norms are folded into the convolutions.
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
        only: str | Sequence[str] | None = None,
        class_agnostic: bool = False,
    ):
        self.loaded = loaded = load(checkpoint, model, classes, image_size)
        if loaded.path.suffix != ".onnx":
            import torchvision.ops  # noqa: F401  seconds for torchvision, which NMS needs: not in the time of the first image
        self.classes, self.image_size = loaded.classes, loaded.image_size
        self.config, self.path = loaded.config, loaded.path
        self.device = choose_device(device_for(loaded.path, device))
        self.batch_size = batch_size
        self.confidence = threshold_of(loaded, confidence)
        self.reported: set[str] = set()  # kinds of notes about files
        self.only = only
        self.limits = {"confidence": only_classes(self.confidence, self.classes, only), "nms_iou": nms_iou}
        self.limits |= {"max_detections": max_detections, "class_agnostic": class_agnostic}
        if class_agnostic:
            require_open_nms(loaded.model)
        self.model = loaded.model.fuse().to(self.device, memory_format=torch.channels_last)
        self.tiles = None
        if tile is not None or overlap is not None:
            self.tiles = for_detection(tile, overlap)

    def __call__(self, images: Images) -> list[Result]:
        """Detects objects in images and returns a list with one Result per image; a single image gives a list of one.

        Raises ImageError for a file or an address that cannot be read, TypeError for an array of another kind, and ValueError for
        a video, whose frames only `stream` gives.
        """
        return list(self._results(self.inputs(listed(images))))

    def stream(self, images: Images | Iterator) -> Iterator[Result]:
        """Yields one Result after the other, of what `__call__` takes and of a video file, a camera number or a stream.

        So the results of a large folder or a long video need no memory. An iterator is read image by image.
        """
        source = local_source(str(images)) if isinstance(images, str | Path | int) else ""
        if is_stream(source):
            yield from self._frames(source)
        elif isinstance(images, Iterator):
            yield from self._results(map(self.input, images))
        else:
            yield from self._results(self.inputs(listed(source or images)))

    def _frames(self, source: str) -> Iterator[Result]:
        """Yields the Results of the frames of a video, in batches; of a live source, frame by frame."""
        live = is_live(source)
        ahead, size = (1, 1) if live else (video.AHEAD, self.batch_size)
        with closing(video.read_frames(source, ahead)) as frames:
            for batch in batched(frames, size):
                yield from self._results(Input(frame, source) for frame in batch)

    def _results(self, inputs: Iterable[Input]) -> Iterator[Result]:
        return self.detect_in_tiles(inputs, self.tiles) if self.tiles else self.detect(inputs)

    def detect(self, inputs: Iterable[Input]) -> Iterator[Result]:
        """Yields one Result per image; the network gets the images in batches."""
        for batch in batched(inputs, self.batch_size):
            network_inputs, transforms = self.prepare([image.pixels for image in batch])
            results = self.select(self.network(network_inputs), transforms)
            for image, result in zip(batch, results, strict=True):
                yield self.of_input(image, result)

    def detect_in_tiles(self, inputs: Iterable[Input], tiles: Tiles) -> Iterator[Result]:
        """Yields one Result per image, from the image and its tiles; the network gets these windows in batches."""
        found: list[Result] = []  # of windows whose image is not finished
        waiting: deque[tuple[Input, np.ndarray]] = deque()  # these images and their windows

        def crops() -> Iterator[np.ndarray]:
            for image in inputs:
                require_image(image.pixels)
                windows = tiles.windows(image.pixels.shape[1], image.pixels.shape[0])
                waiting.append((image, windows))
                yield image.pixels
                yield from cut(image.pixels, windows[1:])

        for batch in batched(crops(), self.batch_size):
            network_inputs, transforms = self.prepare(batch)
            found += self.select(self.network(network_inputs), transforms)
            while waiting and len(found) >= len(waiting[0][1]):
                image, windows = waiting.popleft()
                parts = [(window.boxes, window.scores, window.labels) for window in found[: len(windows)]]
                del found[: len(windows)]
                yield self.of_input(image, self.result(*merged(parts, windows, self.limits)))

    def result(self, boxes: np.ndarray, scores: np.ndarray, labels: np.ndarray) -> Result:
        """Returns a Result with the names of its classes."""
        return Result(boxes, scores, labels, tuple(self.classes[label] for label in labels))

    def of_input(self, image: Input, result: Result) -> Result:
        """Returns the Result with the path of its image, and the pixels unless a file has them."""
        pixels = None if image.in_file else image.pixels
        return replace(result, path=image.path, pixels=pixels, value_range=self.loaded.value_range)

    def read(self, path: str | Path) -> np.ndarray:
        """Reads an image file, or the image at a web address, as in training -> uint8 [H, W, 3] BGR. Raises ImageError.

        Prints a note about the first 16-bit file whose values are outside the range in training, and the first animated one."""
        path, value_range = str(path), self.loaded.value_range
        data = download(path) if is_web_address(path) else read_bytes(path)
        path = without_keys(path)
        image, limits = decode_with_limits(data, path, value_range)
        if are_outside(np.array([limits]), value_range)[0]:
            self._report("16 bits", f"{path}: {outside_text(limits, value_range)}")
        if (frames := frame_count(data)) > 1:
            self._report(
                "frames", f"{path}: the file has {frames} images, of which the first is read, as of others like it"
            )
        return image

    def _report(self, kind: str, text: str) -> None:
        """Prints a note, once per kind."""
        if kind not in self.reported:
            self.reported.add(kind)
            print(f"note: {text}")

    def input(self, image: str | Path | np.ndarray | Any) -> Input:
        """Returns a path, an address, an array or an image of Pillow with its pixels."""
        if isinstance(image, str | Path):
            path = str(image)
            return Input(self.read(path), path, in_file=not is_web_address(path))
        return Input(of_pillow(image) if is_pillow(image) else image)

    def detect_weak(self, min_score: float) -> None:
        """Also detects objects with scores from `min_score` on, which a tracker needs; `confidence` stays as it is."""
        weak: float | Tensor = min_score
        if isinstance(self.confidence, Tensor):
            weak = self.confidence.clamp(max=min_score)
        elif self.confidence < min_score:
            weak = self.confidence
        self.limits["confidence"] = only_classes(weak, self.classes, self.only)

    def inputs(self, images: list) -> Iterator[Input]:
        """Yields the images in order; threads read some of the next files ahead."""
        limit = self.batch_size if self.tiles else 2 * self.batch_size
        if len(images) > 1 and any(isinstance(image, str) for image in images):
            return prefetch(self.input, images, limit, READERS)
        return map(self.input, images)

    def prepare(self, images: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
        """Letterboxes images uint8 [H, W, 3] BGR for the network.

        Returns its input uint8 [B, 3, H, W] and letterbox transforms float32 [B, 6], on the device of the model.
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
        ends = np.cumsum([len(of_image.scores) for of_image in detections])[:-1]
        # One transfer from the device per field, not per image.
        fields = (np.split(torch.cat(field).cpu().numpy(), ends) for field in zip(*detections, strict=True))
        return [self.result(*of_image) for of_image in zip(*fields, strict=True)]
