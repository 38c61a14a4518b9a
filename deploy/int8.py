"""8-bit exports: static quantization of an ONNX file by onnxruntime; measures mAP and speed before and after."""

import logging
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantFormat, QuantType, quantize_static

from deploy.onnx_model import OnnxModel
from engine.evaluation import evaluate
from utils.files import atomic_write
from utils.processes import Ranks
from utils.text import in_points

# onnxruntime runs these operators in 8 bits on CPUs; any other one between two of them converts to float32 and back.
OPERATORS = {"Conv", "Sigmoid", "Mul", "Add", "Concat", "MaxPool", "AveragePool", "Resize", "Split", "Slice"}
# Fractions of the convolutions that stay in float32, counted from the first one; tried in this order.
FLOAT_FRACTIONS = (0.0, 0.125, 0.25, 0.5)
RUNS, WARM_UP = 30, 3  # of each file; the runs before WARM_UP are not timed


class Int8Error(ValueError):
    """The 8-bit file loses too much mAP; no file is written."""


def quantize(path: Path, images: Sequence[np.ndarray], loader: Any, most: float) -> None:
    """Replaces a float32 file of export.py with an 8-bit one that loses at most `most` of the mAP.

    `images`: letterboxed training images uint8 [H, W, 3], which calibrate the range of every tensor. `loader`: batches of the
    validation data. The first layers are the most sensitive: if the loss is too high, more of them stay in float32. Prints
    mAP, size and speed of both files. If the last attempt loses too much, too, the file stays unchanged. Raises Int8Error.
    """
    before = average_precision(path, loader)
    print(f"float32  mAP50-95 {in_points(before)}  {path.stat().st_size / 2**20:.1f} MiB")
    with tempfile.TemporaryDirectory() as folder:
        small = Path(folder) / "int8.onnx"
        for fraction in FLOAT_FRACTIONS:
            quantized(onnx.load(path), small, images, fraction)  # again: quantization moves the weights to files
            after = average_precision(small, loader)
            where = f"{fraction:.0%} of the layers in float32" if fraction else "all inner layers"
            print(f"int8     mAP50-95 {in_points(after)}  {small.stat().st_size / 2**20:.1f} MiB  {where}")
            if before - after <= most:
                break
        first, second = speed([path, small], images)
        print(f"float32 {first:.1f} ms, int8 {second:.1f} ms per image on this CPU: {first / second:.2f} times as fast")
        if (loss := before - after) > most:
            fix = f"calibrate on other images with train=, or accept the loss with int8_loss={loss + 1e-4:.4f}"
            lost = f"8 bits lose {100 * loss:.2f} mAP points, more than int8_loss={most:g}, which is {100 * most:g}"
            raise Int8Error(f"{lost}; nothing written: {fix}")
        with atomic_write(path) as file:
            file.write(small.read_bytes())


def quantized(model: onnx.ModelProto, path: Path, images: Sequence[np.ndarray], fraction: float = 0.0) -> None:
    """Quantizes a model of export.py to 8 bits and writes it, with its metadata and "int8". `fraction`: see `inner_nodes`."""
    about = {entry.key: entry.value for entry in model.metadata_props} | {"int8": "true"}
    with quiet():
        quantize_static(
            model,
            path,
            Reader(model, images),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            nodes_to_quantize=inner_nodes(model.graph, fraction),
            calibrate_method=CalibrationMethod.MinMax,
            extra_options={"CalibMovingAverage": True},  # averages the ranges: outliers change little
        )
    written = onnx.load(path)
    onnx.helper.set_model_props(written, about)
    onnx.save(written, path)


def inner_nodes(graph: onnx.GraphProto, fraction: float) -> list[str]:
    """Returns the names of the nodes to quantize: those between the first convolutions and the last ones.

    The first convolutions read pixels and are slower in 8 bits, since they have few channels. The last ones predict boxes
    and scores. Both stay in float32, with all nodes before the first and after the last ones. `fraction`: this fraction of
    all convolutions, counted from the first, and the nodes between them stay in float32, too.
    """
    after, before = reach(graph.node), reach([reversed_node(node) for node in reversed(graph.node)])
    number = np.cumsum([node.op_type == "Conv" for node in graph.node])
    inner = np.array(after) & np.array(before[::-1]) & (number > fraction * number[-1])
    return [node.name for node, chosen in zip(graph.node, inner, strict=True) if chosen and node.op_type in OPERATORS]


def reach(nodes: Sequence) -> list[bool]:
    """Returns for each node, in topological order, whether its input depends on a convolution."""
    behind, found = set(), []
    for node in nodes:
        found.append(any(name in behind for name in node.input))
        if found[-1] or node.op_type == "Conv":
            behind.update(node.output)
    return found


def reversed_node(node: onnx.NodeProto) -> onnx.NodeProto:
    """Returns a copy of a node whose inputs are its outputs, and the reverse."""
    return onnx.helper.make_node(node.op_type, node.output, node.input)


class Reader(CalibrationDataReader):
    """Feeds images uint8 [H, W, 3] to a model of export.py, in the type and batch size of its input."""

    def __init__(self, model: onnx.ModelProto, images: Sequence[np.ndarray]):
        self.batches = map(self.feed, batches(images, input_of(model).shape.dim[0].dim_value or 1))
        self.uint8 = input_of(model).elem_type == onnx.TensorProto.UINT8
        self.name = model.graph.input[0].name

    def feed(self, images: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the inputs of the model for images uint8 [B, H, W, 3]; its thresholds keep their defaults."""
        return {self.name: images if self.uint8 else images.transpose(0, 3, 1, 2).astype(np.float32)}

    def get_next(self) -> dict[str, np.ndarray] | None:
        """Returns the inputs for the next batch, or None at the end."""
        return next(self.batches, None)


def input_of(model: onnx.ModelProto) -> Any:
    """Returns the tensor type (element type and shape) of the input `images`."""
    return model.graph.input[0].type.tensor_type


def batches(images: Sequence[np.ndarray], size: int) -> Iterator[np.ndarray]:
    """Yields batches of `size` images; the last one repeats the first images to fill up."""
    for start in range(0, len(images), size):
        yield np.stack([images[i % len(images)] for i in range(start, start + size)])


def average_precision(path: Path, loader: Any) -> float:
    """Returns the mAP50-95 of an exported file on validation data."""
    return evaluate(OnnxModel(path), loader, Ranks())["AP"]


def speed(paths: Sequence[Path], images: Sequence[np.ndarray]) -> list[float]:
    """Returns the median milliseconds per image of each file. The files take turns, so that other programs slow them equally."""
    sessions = [OnnxModel(path)._session for path in paths]
    stack = list(Reader(onnx.load(paths[0]), images[:8]).batches)
    times: list[list[float]] = [[] for _ in paths]
    for number in range(RUNS + WARM_UP):
        feed = stack[number % len(stack)]
        for session, own in zip(sessions, times, strict=True):
            start = time.perf_counter()
            session.run(None, feed)
            own.append(time.perf_counter() - start)
    count = len(next(iter(stack[0].values())))
    return [1000 * float(np.median(own[WARM_UP:])) / count for own in times]


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
