"""8-bit exports: static quantization of an ONNX file by onnxruntime, if the mAP falls little."""

import logging
import shutil
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantFormat, QuantType, quantize_static

from datasets.check_images import check_images
from datasets.dataset import DetectionDataset
from datasets.errors import DataError, logged
from datasets.formats import read as formats
from datasets.formats.options import options_of
from datasets.loader import Loader, ValSampler, build_loader
from datasets.store import Annotations, evenly_spaced
from deploy.exported_model import ExportedModel
from deploy.load import Loaded
from deploy.standalone.detector import Detector
from engine.evaluation import evaluate
from utils.images import letterbox
from utils.processes import Ranks
from utils.text import in_points

# onnxruntime runs these operators in 8 bits on CPUs; any other one between two of them converts to float32 and back.
OPERATORS = {"Conv", "Sigmoid", "Mul", "Add", "Concat", "MaxPool", "AveragePool", "Resize", "Split", "Slice"}
# The first convolutions are the most sensitive: with all of them in 8 bits, yolox_nano loses 11.7 mAP points instead of 0.7.
FLOAT_FRACTION = 0.125  # of the convolutions, counted from the first one, stay in float32 (benchmarks/decisions.md)
IMAGES = 50  # at most, on which the ranges of the activations are measured
BATCH_SIZE = 8  # of the loader; exported files choose their own
CALLS = 15  # of each file, whose median is its time
MIN_SPEEDUP = 1.05  # below it, an 8-bit file is not called faster


class Int8Error(ValueError):
    """The 8-bit file loses too much mAP; no file is written."""


def quantize(path: Path, images: Sequence[np.ndarray], loader: Loader, max_loss: float) -> None:
    """Replaces a float32 file of export.py with an 8-bit one, if that loses at most `max_loss` of the mAP.

    `images`: letterboxed training images uint8 [H, W, 3], which calibrate the range of every tensor. `loader`: batches of the
    validation data. Prints mAP, size and time of both files, and a note if 8 bits are not faster here. If the loss is higher,
    raises Int8Error and leaves the file as it is.
    """
    with tempfile.TemporaryDirectory() as folder:
        small = Path(folder) / "int8.onnx"
        write_quantized(path, small, images)
        times, precisions = milliseconds([path, small], images[0]), []
        for name, file, ms in zip(("float32", "int8   "), (path, small), times, strict=True):
            about = f"{file.stat().st_size / 2**20:.1f} MiB  {ms:.1f} ms per image"
            precisions.append(measure(name, ExportedModel(file), loader, about))
        if times[0] < MIN_SPEEDUP * times[1]:
            print("note: on this computer the 8-bit file is not faster; measure it on the CPU that will run it")
        loss = precisions[0] - precisions[1]
        if loss > max_loss:
            fix = f"calibrate on other images with train=, or accept the loss with int8_loss={loss + 1e-4:.4f}"
            lost = f"8 bits lose {100 * loss:.2f} mAP points, more than int8_loss={max_loss:g}, which is {100 * max_loss:g}"
            raise Int8Error(f"{lost}; nothing written: {fix}")
        shutil.copyfile(small, path)  # which has a temporary name


def milliseconds(files: Sequence[Path], image: np.ndarray) -> list[float]:
    """Measures the milliseconds per image of each file in detector.py: medians of calls in turns, after a warm-up.

    `image`: uint8 [H, W, 3] BGR. Each file uses as many threads as torch has now.
    """
    detectors = [Detector(file, threads=torch.get_num_threads()) for file in files]
    seconds: list[list[float]] = [[] for _ in files]
    for _ in range(1 + CALLS):
        for detector, of_file in zip(detectors, seconds, strict=True):
            begin = perf_counter()
            detector([image] * detector.batch_size)
            of_file.append((perf_counter() - begin) / detector.batch_size)
    return [1000 * statistics.median(of_file[1:]) for of_file in seconds]


def measure(name: str, model: Any, loader: Loader, about: str = "") -> float:
    """Evaluates a model or an exported file, and prints and returns its mAP."""
    ap = evaluate(model, loader, Ranks())["AP"]
    print(f"{name}  mAP50-95 {in_points(ap)}  {about}")
    return ap


def write_quantized(source: Path, target: Path, images: Sequence[np.ndarray]) -> None:
    """Quantizes a file of export.py to 8 bits and writes it, with its metadata and "int8"."""
    model = onnx.load(source)
    about = {entry.key: entry.value for entry in model.metadata_props} | {"int8": "true"}
    with quiet():
        quantize_static(
            model,
            target,
            Calibration(model, images),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            nodes_to_quantize=inner_nodes(model.graph),
            calibrate_method=CalibrationMethod.MinMax,
            extra_options={"CalibMovingAverage": True},  # averages the ranges: outliers change little
        )
    written = onnx.load(target)
    onnx.helper.set_model_props(written, about)
    onnx.save(written, target)


def inner_nodes(graph: onnx.GraphProto) -> list[str]:
    """Returns the names of the nodes to quantize: those between the first convolutions and the last ones.

    The first FLOAT_FRACTION of the convolutions stays in float32. So do the last convolutions, which predict boxes and scores,
    and all that follows them.
    """
    convolutions = sum(node.op_type == "Conv" for node in graph.node)  # up to the node of the loop
    in_float = FLOAT_FRACTION * convolutions
    inner: list[str] = []
    inputs: set[str] = set()  # tensors on which a later convolution depends
    for node in reversed(graph.node):
        leads_to_convolution = not inputs.isdisjoint(node.output)
        if leads_to_convolution and convolutions > in_float and node.op_type in OPERATORS:
            inner.append(node.name)
        if leads_to_convolution or node.op_type == "Conv":
            inputs.update(node.input)
        if node.op_type == "Conv":
            convolutions -= 1
    return inner[::-1]


class Calibration(CalibrationDataReader):
    """Feeds images uint8 [H, W, 3] to a model of export.py, in the type and batch size of its input."""

    def __init__(self, model: onnx.ModelProto, images: Sequence[np.ndarray]):
        self.name = model.graph.input[0].name
        tensor = model.graph.input[0].type.tensor_type
        self.is_uint8 = tensor.elem_type == onnx.TensorProto.UINT8
        size = tensor.shape.dim[0].dim_value or 1
        starts = range(0, len(images), size)  # the last batch repeats the first images to fill up
        self.batches = (np.stack([images[i % len(images)] for i in range(k, k + size)]) for k in starts)

    def get_next(self) -> dict[str, np.ndarray] | None:
        """Returns the inputs for the next batch, or None at the end; the thresholds keep their defaults."""
        batch = next(self.batches, None)
        if batch is None:
            return None
        return {self.name: batch if self.is_uint8 else batch.transpose(0, 3, 1, 2).astype(np.float32)}


@contextmanager
def quiet() -> Iterator[None]:
    """Silences the advice that quantization prints about each model."""
    onnxruntime.set_default_logger_severity(3)
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        onnxruntime.set_default_logger_severity(2)


def read_data(train: str | None, val: str | None, loaded: Loaded) -> tuple[list[np.ndarray], Loader]:
    """Returns training images, letterboxed for the model: uint8 [H, W, 3], and a loader of the validation data.

    `train` and `val` are the sources of the data; None: those of the training run. Raises DataError.
    """
    train, val = train or loaded.config.get("train"), val or loaded.config.get("val")
    if not train or not val:
        raise DataError("int8=true needs training images and validation data with boxes: give train= and val=")
    loader = val_loader(val, loaded)
    data = readable(read_split(train, "train", loaded), IMAGES, loaded)
    size, kind = loaded.image_size, loaded.model.letterbox
    return [letterbox(data.image(index), size, kind)[0] for index in range(len(data))], loader


def readable(data: Annotations, count: int, loaded: Loaded) -> Annotations:
    """Returns up to `count` images, evenly spaced, without those that the training run leaves out. Raises DataError."""
    chosen = data.select(np.array(evenly_spaced(len(data), count)))
    checked, _ = check_images(chosen, options_of(loaded.config, loaded.classes))
    return replace(checked, value_range=loaded.value_range)


def val_loader(val: str, loaded: Loaded) -> Loader:
    """Returns a loader of validation data. Raises DataError."""
    data, notes = check_images(read_split(val, "val", loaded), options_of(loaded.config, loaded.classes))
    data, outside = data.with_range(loaded.value_range)
    for note in notes + outside:
        print(logged(note))
    sampler = ValSampler(len(data), BATCH_SIZE, loaded.image_size)
    return build_loader(DetectionDataset(data, loaded.model.letterbox), sampler, workers=0)


def read_split(source: str, split: str, loaded: Loaded) -> Annotations:
    """Reads a split with the options of the training run. Raises DataError if it has no box of the classes of the model."""
    config = loaded.config
    if source != config.get(split):  # other images than in training
        config = config | {"image_root": None}
    data = formats.read(source, split, options_of(config, loaded.classes))
    if not len(data.boxes):
        raise DataError(f"{split}={source}: no boxes of the classes of the model in its split {split!r}")
    return data
