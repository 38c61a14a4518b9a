"""Detector: a trained model as a function from images to detections, for programs of your own.

    from nets.detector import Detector
    for result in Detector("runs/train-2026-01-31-1/best.pt")(["a.jpg", "b.jpg"]):
        print(result.names, result.scores, result.boxes)

predict.py uses the same class, and evaluate.py the same `load`, so all of them predict the same boxes.
"""

import ctypes
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import nets
from utils import checkpoint
from utils.config import check_class_names
from utils.distributed import choose_device
from utils.images import READERS, batched, letterbox, prefetch, read_with_limits
from utils.run import runs
from utils.value_range import ValueRange, are_outside, outside_text

CONFIDENCE = 0.3  # the default threshold for files that do not store the confidence of their best F1


class Result(NamedTuple):
    """The detections in one image, best first. Without detections, all arrays have length 0."""

    boxes: np.ndarray  # float32 [n, 4] xyxy, pixels of the image; clipped to it, except with official weights
    scores: np.ndarray  # float32 [n]
    labels: np.ndarray  # int64 [n]
    names: tuple[str, ...]  # class names of the labels


class Loaded(NamedTuple):
    """A model with its weights on the CPU, and the settings stored in its file."""

    model: nets.DetectionModel  # of an ONNX file: an OnnxModel, which has the methods that prediction needs
    classes: tuple[str, ...]
    image_size: tuple[int, int]  # height, width
    config: dict[str, Any]  # constants of the training run; empty for official weights and ONNX files
    path: Path
    confidence: float  # threshold of the best mean F1 in the validation, or CONFIDENCE
    name: str  # of the model, such as yolox_s
    thresholds: Mapping[str, float] = {}  # by class, of its best F1 in the validation; not of all classes
    measured: bool = False  # whether `confidence` comes from a validation
    value_range: ValueRange | None = None  # of the 16-bit images of the training


class Detector:
    """A trained model as a callable: `Detector(checkpoint)(images)` returns one `Result` per image.

    An image is a path, or a uint8 array [H, W, 3] in BGR order as in OpenCV. `load` explains the arguments `checkpoint`,
    `model`, `classes` and `image_size`; `confidence=None` takes the threshold stored in the file, "per_class" those of its
    classes. The boxes are those of evaluate.py with the same `confidence`, `nms_iou` and `max_detections`, up to rounding,
    since batch norms are folded into the convolutions. `tile`: the side in pixels of tiles to detect in, too (docs/tiles.md).
    On a CPU the process keeps the memory that it frees (see `keep_memory`).
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
        self.classes, self.image_size, self.config, self.path = loaded[1:5]
        self.device, self.batch_size, self.tiles = choose_device(device_for(loaded.path, device)), batch_size, None
        least = loaded.confidence if confidence is None else confidence
        if isinstance(confidence, str):
            from nets.thresholds import thresholds_of

            least = thresholds_of(loaded, confidence)
        self.reported = False  # whether a 16-bit file with other values was reported
        self.limits = {"confidence": least, "nms_iou": nms_iou, "max_detections": max_detections}
        self.model = loaded.model.fuse().to(self.device, memory_format=torch.channels_last)
        if self.device.type == "cpu":
            keep_memory()
        if tile is not None or overlap is not None:
            from nets.tiles import for_detection

            self.tiles = for_detection(tile, overlap)

    def __call__(self, images: str | Path | np.ndarray | Sequence[str | Path | np.ndarray]) -> list[Result]:
        """Detects objects in a list of images; a single image is a list of one. Raises ImageError for an unreadable file."""
        if isinstance(images, str | Path) or getattr(images, "ndim", 4) < 4:
            images = [images]
        if self.tiles:
            return self.tiles.detect(self, self.read_all(images, self.batch_size))
        results = []
        for batch in batched(self.read_all(images, 2 * self.batch_size), self.batch_size):
            inputs, transforms = self.prepare(batch)
            results += self.select(self.network(inputs), transforms)
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
            if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
                what = f"{image.dtype} {list(image.shape)}" if isinstance(image, np.ndarray) else type(image).__name__
                raise TypeError(f"an image must be a path or a uint8 array [H, W, 3] in BGR order, not {what}")
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
        return [Result(*one, tuple(self.classes[label] for label in one[2])) for one in zip(*fields, strict=True)]


def keep_memory() -> None:
    """Makes glibc keep freed memory for this process; does nothing with other C libraries.

    By default glibc returns the buffers of large layers to Linux, and gets them back page by page in every forward pass.
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if hasattr(libc, "mallopt"):
        libc.mallopt(-4, 0)  # M_MMAP_MAX: no allocation has a mapping of its own
        libc.mallopt(-1, -1)  # M_TRIM_THRESHOLD: never return the end of the heap


def device_for(path: str | Path | None, device: str) -> str:
    """Returns `device`, except that "auto" means "cpu" for ONNX files, which run on the CPU only."""
    return "cpu" if device == "auto" and Path(path or "").suffix == ".onnx" else device


def load(
    path: str | Path | None,
    model: str | None = None,
    classes: Sequence[str] | None = None,
    image_size: tuple[int, int] | None = None,
) -> Loaded:
    """Loads a trained model: a checkpoint of this project, an ONNX file of export.py, or official weights.

    `path=None` is "coco" with `model`, or the newest checkpoint in runs/. The name of a run is its newest best.pt. Official
    weights need `model`; they are a file, or "coco" to download them. Those of 80 classes are taken for COCO's. `classes` picks
    some of COCO's, or names those of others.
    `image_size=None` is the size of the training. Raises CheckpointError, PretrainedError or ValueError with the fix.
    """
    path = Path(path or ("coco" if model else newest_checkpoint()))
    if not os.path.exists(path):
        of_name = [folder / "best.pt" for folder in runs("runs", str(path)) if (folder / "best.pt").is_file()]
        path = of_name[-1] if of_name else path
    if str(path) == "coco":
        if model is None:
            raise ValueError(f"checkpoint=coco needs model=, one of {', '.join(nets.model_names())}")
        path = nets.fetch_weights(model, option="checkpoint")
    if path.suffix == ".onnx":
        from nets.onnx import OnnxModel

        network = OnnxModel(path, image_size=image_size)
        names, size, confidence, name = (network.about[x] for x in ("classes", "image_size", "confidence", "model"))
        thresholds = network.about.get("thresholds", {})
        value_range = network.about.get("value_range")
        loaded = Loaded(network, tuple(names), tuple(size), {}, path, confidence, name, thresholds)
        loaded = loaded._replace(value_range=value_range and tuple(value_range))
    elif model is not None and not checkpoint.is_own(checkpoint.read(path)):
        from nets.weights import load_official

        network, names = load_official(path, model, classes)
        loaded = Loaded(network.eval(), names, nets.official_size(model), {}, path, CONFIDENCE, model)
    else:
        loaded = _load_checkpoint(path)
    check_class_names(loaded.classes, str(path))
    if model not in (None, loaded.name) or (classes is not None and tuple(classes) != loaded.classes):
        some = ", ".join(loaded.classes[:5]) + (", ..." if len(loaded.classes) > 5 else "")
        raise ValueError(f"{path} is a {loaded.name} with the classes {some}: leave out model= and classes=")
    return loaded._replace(image_size=nets.check_size(image_size or loaded.image_size))


def _load_checkpoint(path: Path) -> Loaded:
    """Loads best.pt, last.pt or another checkpoint of train.py."""
    from utils.validate import fitting

    contents = checkpoint.load(path, "prediction")
    config, names = contents["config"], tuple(contents["classes"])
    with fitting(path):
        network = nets.build(config["model"], len(names), contents["model"])
        network.load_state_dict(contents["model"])
    best = contents.get("metrics", {}).get("confidence", -1)
    confidence, size = best if best > 0 else CONFIDENCE, tuple(config["image_size"])
    thresholds = contents.get("thresholds", {})
    value_range = contents.get("value_range")
    loaded = Loaded(network.eval(), names, size, config, path, confidence, config["model"], thresholds, best > 0)
    return loaded._replace(value_range=value_range and tuple(value_range))


def newest_checkpoint() -> Path:
    """Returns the most recently written best.pt of all run folders. Raises CheckpointError if there is none."""
    paths = Path("runs").glob("*/best.pt")
    if newest := max(paths, key=lambda path: path.stat().st_mtime, default=None):
        return newest
    raise checkpoint.CheckpointError(
        "no runs/*/best.pt here. Train one with `python train.py`, name one with checkpoint=FILE, or use the official "
        "weights with model=yolox_s"
    )
