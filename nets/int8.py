"""8-bit exports: static quantization of an ONNX file by onnxruntime, with its AP and speed before and after."""

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

from nets.onnx import OnnxModel
from utils.checkpoint import atomic_write
from utils.config import ConfigError
from utils.distributed import Ranks
from utils.fit import evaluate

# The operators that have an 8-bit implementation on CPUs; what lies between two of them would change the type twice.
OPERATORS = {"Conv", "Sigmoid", "Mul", "Add", "Concat", "MaxPool", "AveragePool", "Resize", "Split", "Slice"}
# Fractions of the convolutions, the first ones, that stay in float32; tried in this order.
FLOAT_FRACTIONS = (0.0, 0.125, 0.25, 0.5)
RUNS, WARM_UP = 30, 3  # of each file, one after the other


class Int8Error(ValueError):
    """The 8-bit file loses too much; no file is written."""


def quantize(path: Path, images: Sequence[np.ndarray], loader: Any, most: float) -> None:
    """Replaces a float32 file of export.py by an 8-bit form that loses at most `most` of the mAP.

    `images`: letterboxed training images uint8 [H, W, 3], which give the range of every tensor. `loader`: batches of the
    validation data. The first layers are the most sensitive: if 8 bits lose too much, more of them stay in float32. Prints
    mAP, size and speed of both files. Raises Int8Error, and leaves the file as it is, if nothing helps.
    """
    model = onnx.load(path)
    if any(tensor.data_type == onnx.TensorProto.FLOAT16 for tensor in model.graph.initializer):
        raise ConfigError("int8=true and half=true exclude each other: leave one of them out")
    before = average_precision(path, loader)
    print(f"float32  mAP50-95 {before:.4f}  {path.stat().st_size / 2**20:.1f} MiB")
    with tempfile.TemporaryDirectory() as folder:
        small = Path(folder) / "int8.onnx"
        for fraction in FLOAT_FRACTIONS:
            quantized(onnx.load(path), small, images, fraction)  # again: quantization moves the weights to files
            after = average_precision(small, loader)
            where = f"{fraction:.0%} of the layers in float32" if fraction else "all inner layers"
            print(f"int8     mAP50-95 {after:.4f}  {small.stat().st_size / 2**20:.1f} MiB  {where}")
            if before - after <= most:
                break
        first, second = speed([path, small], images)
        print(f"float32 {first:.1f} ms, int8 {second:.1f} ms per image on this CPU: {first / second:.2f} times as fast")
        if (loss := before - after) > most:
            fix = f"calibrate on other images with train=, or accept the loss with int8_loss={loss + 1e-4:.4f}"
            raise Int8Error(f"8 bits lose {loss:.4f} of the mAP, more than int8_loss={most:g}; nothing written: {fix}")
        with atomic_write(path) as file:
            file.write(small.read_bytes())


def quantized(model: onnx.ModelProto, path: Path, images: Sequence[np.ndarray], fraction: float = 0.0) -> None:
    """Writes the 8-bit form of a model of export.py, with its metadata and "int8". `fraction`: see `inner_nodes`."""
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
            extra_options={"CalibMovingAverage": True},  # of the range of each image: single outliers count little
        )
    written = onnx.load(path)
    onnx.helper.set_model_props(written, about)
    onnx.save(written, path)


def inner_nodes(graph: onnx.GraphProto, fraction: float) -> list[str]:
    """Returns the names of the nodes to quantize: those between the first convolutions and the last ones.

    The first convolutions see pixels and are slower with 8 bits, since they have few channels. The last ones predict boxes
    and scores; they stay in float32, and so does all that comes before and after. `fraction`: of all convolutions, the
    first ones that stay in float32, too.
    """
    after, before = reach(graph.node), reach([reversed_node(node) for node in reversed(graph.node)])
    number = np.cumsum([node.op_type == "Conv" for node in graph.node])
    inner = np.array(after) & np.array(before[::-1]) & (number > fraction * number[-1])
    return [node.name for node, chosen in zip(graph.node, inner, strict=True) if chosen and node.op_type in OPERATORS]


def reach(nodes: Sequence) -> list[bool]:
    """Returns for each node, sorted by the flow of data, whether a convolution lies before it."""
    behind, found = set(), []
    for node in nodes:
        found.append(any(name in behind for name in node.input))
        if found[-1] or node.op_type == "Conv":
            behind.update(node.output)
    return found


def reversed_node(node: onnx.NodeProto) -> onnx.NodeProto:
    """Returns a node with its inputs and outputs exchanged."""
    return onnx.helper.make_node(node.op_type, node.output, node.input)


class Reader(CalibrationDataReader):
    """Feeds images uint8 [H, W, 3] to a model of export.py, whatever its input."""

    def __init__(self, model: onnx.ModelProto, images: Sequence[np.ndarray]):
        self.batches = map(self.feed, batches(images, input_of(model).shape.dim[0].dim_value or 1))
        self.uint8 = input_of(model).elem_type == onnx.TensorProto.UINT8
        self.name = model.graph.input[0].name

    def feed(self, images: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the input for images uint8 [B, H, W, 3]. The thresholds have defaults."""
        return {self.name: images if self.uint8 else images.transpose(0, 3, 1, 2).astype(np.float32)}

    def get_next(self) -> dict[str, np.ndarray] | None:
        """Returns the next input, None at the end."""
        return next(self.batches, None)


def input_of(model: onnx.ModelProto) -> Any:
    """Returns type and shape of the images."""
    return model.graph.input[0].type.tensor_type


def batches(images: Sequence[np.ndarray], size: int) -> Iterator[np.ndarray]:
    """Yields stacks of `size` images; the last one repeats images."""
    for start in range(0, len(images), size):
        yield np.stack([images[i % len(images)] for i in range(start, start + size)])


def average_precision(path: Path, loader: Any) -> float:
    """Returns the mAP50-95 of an exported file on validation data."""
    return evaluate(OnnxModel(path), loader, Ranks())["AP"]


def speed(paths: Sequence[Path], images: Sequence[np.ndarray]) -> list[float]:
    """Returns the median milliseconds per image of each file. The files take turns, so that other programs slow all of them."""
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
