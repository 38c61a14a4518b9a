"""A trained detector in a program of your own:

    from utils.detector import Detector
    for found in Detector("runs/train-2026-01-31-1/best.pt")(["a.jpg", "b.jpg"]):
        print(found.names, found.scores, found.boxes)

predict.py uses it, and evaluate.py its `load`, so that the three give the same boxes. With utils.onnx the one place in utils
that knows models and data.
"""

import ctypes
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import nets
from datasets.images import read_image
from datasets.transforms import letterbox
from nets import pretrained
from utils import checkpoint, onnx
from utils.ahead import READERS, ahead, blocks
from utils.distributed import choose_device

CONFIDENCE = 0.3  # where a file does not know the confidence of its best F1
OFFICIAL_SIZES = {"yolox_nano": (416, 416), "yolox_tiny": (416, 416)}  # the others were trained at 640 x 640


class Found(NamedTuple):
    """What was found in one picture, best first. Arrays of length 0 without anything."""

    boxes: np.ndarray  # float32 [n, 4] xyxy, pixels of the picture; may reach a little outside
    scores: np.ndarray  # float32 [n]
    labels: np.ndarray  # int64 [n]
    names: tuple[str, ...]  # of the labels


class Loaded(NamedTuple):
    """A model with its weights, on the CPU, and what its file says about it."""

    model: nets.DetectionModel | onnx.OnnxModel
    classes: tuple[str, ...]
    image_size: tuple[int, int]  # height, width
    config: dict[str, Any]  # of the training; empty for weights from elsewhere
    path: Path
    confidence: float  # of the best F1 in the validation


class Detector:
    """`Detector(checkpoint)(images)` -> a `Found` for each image, a path or an array uint8 [H, W, 3] BGR as in OpenCV.

    `checkpoint`, `model`, `classes` and `image_size` as in `load`; `confidence` None: that of the file. Boxes are those of
    evaluate.py with the same `confidence` and `nms_iou`, up to rounding: batch norms are folded into the convolutions.
    On a CPU the program keeps the memory that it frees (`keep_memory`).
    """

    def __init__(
        self,
        checkpoint: str | Path | None = None,
        model: str | None = None,
        classes: Sequence[str] | None = None,
        image_size: tuple[int, int] | None = None,
        device: str = "auto",
        confidence: float | None = None,
        nms_iou: float = 0.5,
        batch_size: int = 8,
    ):
        loaded = load(checkpoint, model, classes, image_size)
        self.classes, self.image_size, self.config, self.path = loaded[1:5]
        self.device, self.batch_size = choose_device(device_for(loaded.path, device)), batch_size
        self.limits = {"confidence": loaded.confidence if confidence is None else confidence, "nms_iou": nms_iou}
        self.model = loaded.model.fuse().to(self.device, memory_format=torch.channels_last)
        if self.device.type == "cpu":
            keep_memory()

    def __call__(self, images: str | Path | np.ndarray | Sequence[str | Path | np.ndarray]) -> list[Found]:
        """A list for one image too. Raises ImageError for a file that cannot be read."""
        if isinstance(images, str | Path) or getattr(images, "ndim", 4) < 4:
            images = [images]
        found = []
        for some in blocks(decoded(images, 2 * self.batch_size), self.batch_size):
            batch, frames = self.prepare(some)
            found += self.select(self.network(batch), frames)
        return found

    def prepare(self, images: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
        """Images uint8 [H, W, 3] BGR -> input of the network uint8 [B, 3, H, W] and frames float32 [B, 5], on the device.

        A frame is the original width and height, the scale, and left and top of the picture in the input.
        """
        for image in images:
            if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
                what = f"{image.dtype} {list(image.shape)}" if isinstance(image, np.ndarray) else type(image).__name__
                raise TypeError(f"an image must be a path or a uint8 array [H, W, 3] in BGR order, not {what}")
        fitted = [letterbox(image, self.image_size, self.model.letterbox) for image in images]
        batch = torch.from_numpy(np.stack([image for image, _ in fitted])).permute(0, 3, 1, 2)
        frames = torch.tensor([frame for _, frame in fitted], dtype=torch.float32)
        return batch.to(self.device), frames.to(self.device)

    @torch.inference_mode()
    def network(self, batch: Tensor) -> NamedTuple:
        """Input [B, 3, H, W] -> the family's raw predictions."""
        return self.model(batch)

    @torch.inference_mode()
    def select(self, predictions: NamedTuple, frames: Tensor) -> list[Found]:
        """Raw predictions -> what is above the confidence and survives NMS, in pixels of the pictures."""
        some = self.model.detections(predictions, self.image_size, frames, **self.limits)
        ends = np.cumsum([len(one.scores) for one in some])[:-1]
        parts = (np.split(torch.cat(part).cpu().numpy(), ends) for part in zip(*some, strict=True))  # one transfer each
        return [Found(*one, tuple(self.classes[label] for label in one[2])) for one in zip(*parts, strict=True)]


def decoded(images: Sequence[str | Path | np.ndarray], most: int) -> Iterator[np.ndarray]:
    """The images in order, files read; of several, threads read up to `most` of those that come next."""

    def read(image: str | Path | np.ndarray) -> np.ndarray:
        return read_image(str(image)) if isinstance(image, str | Path) else image

    if len(images) > 1 and any(isinstance(image, str | Path) for image in images):
        return ahead(read, images, most, READERS)
    return map(read, images)


def keep_memory() -> None:
    """Lets the C library keep what this process frees, where it is glibc: otherwise the memory of large layers goes back to
    Linux and comes again page by page in every pass."""
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if hasattr(libc, "mallopt"):
        libc.mallopt(-4, 0)  # M_MMAP_MAX: no allocation has a mapping of its own
        libc.mallopt(-1, -1)  # M_TRIM_THRESHOLD: never return the end of the heap


def device_for(path: str | Path | None, device: str) -> str:
    """`device`, but for files that only run on the CPU auto is cpu."""
    return "cpu" if device == "auto" and Path(path or "").suffix == ".onnx" else device


def load(
    path: str | Path | None,
    model: str | None = None,
    classes: Sequence[str] | None = None,
    image_size: tuple[int, int] | None = None,
) -> Loaded:
    """A checkpoint of ours (None: the newest one), a file of export.py, or with `model` official weights: a file, or "coco"
    to fetch them.

    Weights of 80 classes are taken for COCO's; `classes` may pick some of them, or name the rows of other weights.
    `image_size` None: that of the training. Raises CheckpointError, PretrainedError or ValueError with the cure.
    """
    path = newest_checkpoint() if path is None else path
    if str(path) == "coco":
        if model is None:
            raise ValueError(f"checkpoint=coco: say which model, one of {', '.join(nets.MODELS)}")
        path = pretrained.fetch(model)
    if Path(path).suffix == ".onnx":
        return _load_exported(Path(path), model, classes, image_size)
    try:
        contents = checkpoint.load(path)
    except checkpoint.CheckpointError:
        if model is None or not Path(path).is_file():
            raise
        network, names = _load_official(path, model, classes)
        size = nets.check_size(image_size or OFFICIAL_SIZES.get(model, (640, 640)))
        return Loaded(network, names, size, {}, Path(path), CONFIDENCE)
    config, names = contents["config"], tuple(contents["classes"])
    _check_same(path, config["model"], names, model, classes)
    network = nets.build(config["model"], len(names), contents["model"])
    network.load_state_dict(contents["model"])
    best = contents.get("metrics", {}).get("confidence", -1)
    size = nets.check_size(image_size or tuple(config["image_size"]))
    return Loaded(network.eval(), names, size, config, Path(path), best if best > 0 else CONFIDENCE)


def _load_exported(path: Path, model: str | None, classes: Sequence[str] | None, image_size: tuple | None) -> Loaded:
    with torch.device("meta"):  # of a model whose raw outputs the file gives only the decoding is asked
        network = onnx.OnnxModel(path, nets.build)
    about = network.about
    _check_same(path, about["model"], tuple(about["classes"]), model, classes)
    size = nets.check_size(image_size or tuple(about["image_size"]))
    if size != tuple(about["image_size"]) and not about["dynamic_size"]:
        own = ",".join(map(str, about["image_size"]))
        raise ValueError(
            f"{path} was exported for image_size={own} only: leave it out, or export with dynamic_size=true"
        )
    return Loaded(network, tuple(about["classes"]), size, {}, path, about["confidence"])


def _check_same(path: str | Path, model: str, names: tuple, wanted: str | None, classes: Sequence[str] | None) -> None:
    if wanted not in (None, model) or (classes is not None and tuple(classes) != names):
        some = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        raise ValueError(f"{path} is a {model} with the classes {some}: leave out model= and classes=")


def _load_official(path: str | Path, model: str, classes: Sequence[str] | None) -> tuple[nets.DetectionModel, tuple]:
    state, names = pretrained.read(path, model)
    rows = len(state.get("head.class_predictors.0.bias", ()))
    wanted = tuple(classes or names or ())
    if not wanted:
        raise ValueError(f"{path} finds {rows} classes, but does not name them: give classes=FILE, one name a line")
    known = names and set(pretrained.shared_classes(names, wanted)) == set(range(len(wanted)))
    if not known and len(wanted) != rows:
        raise ValueError(f"{path} finds {rows} classes, classes= has {len(wanted)} names, and they are not all COCO's")
    network = nets.build(model, len(wanted), state)
    state = pretrained.adapt_classes(state, names if known else None, wanted, network)
    checkpoint.load_matching(network, state).require(backbone=1.0, neck=1.0, head=1.0)
    return network.eval(), wanted


def newest_checkpoint(runs: str | Path = "runs") -> Path:
    """The best.pt written last in a run folder. Raises CheckpointError that says what to do where there is none."""
    found = sorted(Path(runs).glob("*/best.pt"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise checkpoint.CheckpointError(
            f"no {Path(runs) / '*' / 'best.pt'} here. Train one with `python train.py`, name one with checkpoint=FILE, "
            f"or use the official weights with checkpoint=coco model=yolox_s"
        )
    return found[-1]
