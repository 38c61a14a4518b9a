"""Fuzzers of ONNX files: flipped bits, graphs with other types, shapes and attributes, and odd metadata."""

import json
import random
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from deploy.detector import Detector
from deploy.onnx_model import metadata
from utils.file_checks import CheckpointError

from . import spoil
from .harness import Case, Failure, Fuzzer

CLASSES = ("cat", "dog")
JSONS = (
    "",
    "null",
    "true",
    "-1",
    "0",
    "1e999",
    "NaN",
    "1" + "0" * 5000,
    "[]",
    "{}",
    '"a"',
    "[1, 2]",
    "[64, 96]",
    "[[]]",
)
JSONS += (
    "[1000000, 1000000]",
    "[33, 64]",
    '["cat"]',
    '["cat", null]',
    '["cat\\ud800", "x"]',
    '"raw"',
    '"center"',
    "[" * 9000,
)
JSONS += ('["a", "a"]', '["\\u001b[31m", "b"]', "1.5", "0.5", '"yolox_s"', "\x00", '{"a": ' * 2000)


@lru_cache(1)
def model():
    """A small network with the inputs, outputs and metadata of an exported file."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    weights = {
        "kernel": rng.normal(size=(6, 3, 32, 32)).astype(np.float32) / 1e5,
        "shape": np.array([0, 6, -1], np.int64),
        "four": np.array([0, 4], np.int64),
        "start": np.array([0], np.int64),
        "end": np.array([4], np.int64),
        "last": np.array([6], np.int64),
        "axis": np.array([2], np.int64),
        "scale": np.array([30], np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["images", "kernel"], ["map"], strides=[32, 32]),
        helper.make_node("Reshape", ["map", "shape"], ["flat"]),
        helper.make_node("Transpose", ["flat"], ["rows"], perm=[0, 2, 1]),
        helper.make_node("Slice", ["rows", "start", "end", "axis"], ["raw"]),
        helper.make_node("Mul", ["raw", "scale"], ["boxes"]),
        helper.make_node("Slice", ["rows", "end", "last", "axis"], ["pair"]),
        helper.make_node("Sigmoid", ["pair"], ["both"]),
        helper.make_node("ReduceMax", ["both", "axis"], ["most"], keepdims=0),
        helper.make_node("Mul", ["most", "confidence"], ["weak"]),
        helper.make_node("Mul", ["weak", "nms_iou"], ["weaker"]),
        helper.make_node("Sub", ["most", "weaker"], ["scores"]),
        helper.make_node("ArgMax", ["both"], ["labels"], axis=2, keepdims=0),
    ]
    inputs = [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 3, 64, 96])]
    inputs += [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("confidence", "nms_iou")]
    outputs = [helper.make_tensor_value_info("boxes", TensorProto.FLOAT, ["batch", 6, 4])]
    outputs += [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 6])]
    outputs += [helper.make_tensor_value_info("labels", TensorProto.INT64, ["batch", 6])]
    initial = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    initial += [numpy_helper.from_array(np.array([0.5], np.float32), name) for name in ("confidence", "nms_iou")]
    graph = helper.make_graph(nodes, "detector", inputs, outputs, initial)
    found = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    about: dict[str, Any] = {"model": "yolox_nano", "classes": CLASSES, "image_size": (64, 96), "dynamic_size": False}
    about |= {"letterbox": "corner", "padding": 114, "outputs": "detections", "confidence": 0.4, "nms_iou": 0.5}
    helper.set_model_props(found, metadata(about | {"max_detections": 6, "half": False, "clip": False}))
    onnx.checker.check_model(found)
    return found


def changed(rng: random.Random) -> bytes:
    """The bytes of the network with other numbers, types or names in one of its parts."""
    import onnx

    proto = onnx.ModelProto()
    proto.CopyFrom(model())
    graph, number = proto.graph, rng.choice((*spoil.EXTREME, -1, -(2**31)))
    how, node = rng.randrange(9), rng.choice(proto.graph.node)
    if how == 0:
        node.op_type = rng.choice(("Relu", "Loop", "Resize", "Expand", "ConstantOfShape", "NoSuch", "", "Conv", "Tile"))
    elif how == 1:
        for attribute in node.attribute:
            attribute.i, attribute.ints[:] = number, [number for _ in attribute.ints]
    elif how == 2:
        names = [other for one in graph.node for other in (*one.input, *one.output)]
        node.input[rng.randrange(len(node.input))] = rng.choice(names)
    elif how == 3:
        del graph.node[rng.randrange(len(graph.node))]
    elif how == 4:
        value = rng.choice((*graph.input, *graph.output)).type.tensor_type
        if rng.random() < 0.5:
            value.elem_type = rng.randrange(0, 24)
        elif value.shape.dim:
            value.shape.dim[rng.randrange(len(value.shape.dim))].dim_value = min(number, 2**40)
    elif how == 5:
        tensor = rng.choice(graph.initializer)
        if rng.random() < 0.5:
            tensor.dims[rng.randrange(len(tensor.dims))] = number
        else:
            tensor.raw_data = spoil.spoil(rng, tensor.raw_data)
    elif how == 6:
        tensor = rng.choice([one for one in graph.initializer if one.data_type == onnx.TensorProto.INT64])
        tensor.raw_data = np.full(tensor.dims, number, np.int64).tobytes()
    elif how == 7:
        del graph.output[rng.randrange(3)]
    else:
        graph.input[rng.randrange(3)].name = rng.choice(("x", "", "images", "boxes"))
    return proto.SerializeToString()


def odd_metadata(rng: random.Random) -> bytes:
    """The bytes of the network with other metadata."""
    import onnx

    proto = onnx.ModelProto()
    proto.CopyFrom(model())
    for _ in range(rng.choice((1, 1, 2))):
        entry = rng.choice(proto.metadata_props)
        if rng.random() < 0.15:
            proto.metadata_props.remove(entry)
        else:
            entry.value = rng.choice(JSONS)
    if rng.random() < 0.1:
        entry = proto.metadata_props.add()
        entry.key, entry.value = rng.choice(("version", "x\n", "classes")), rng.choice(JSONS)
    return proto.SerializeToString()


def make(rng: random.Random) -> Case:
    how = rng.random()
    if how < 0.05:
        return {"intact.onnx": model().SerializeToString()}
    if how < 0.35:
        data = model().SerializeToString()
        return {"flipped.onnx": spoil.spoil(rng, data, rng.choice((100, len(data))))}
    return {"odd.onnx": odd_metadata(rng) if how < 0.65 else changed(rng)}


def run(folder: Path) -> None:
    (path,) = folder.iterdir()
    detector = Detector(path, batch_size=2)
    images = [np.full((50, 70, 3), value, np.uint8) for value in (0, 90, 255)]
    results = detector(images)
    if len(results) != 3 or detector.image_size[0] % 32 or not 0 <= detector.limits["confidence"] <= 1:
        raise Failure("wrong", f"{results}, {detector.image_size}, {detector.limits}")
    for one in results:
        count = len(one.scores)
        if one.boxes.shape != (count, 4) or one.labels.shape != (count,) or not set(one.names) <= set(detector.classes):
            raise Failure("wrong", f"{one}")
    if path.name == "intact.onnx" and (detector.classes != CLASSES or len(results[1].scores) != 6):
        raise Failure("wrong", f"{results[1]}, {detector.classes}")
    json.dumps([one.boxes.tolist() for one in results])


try:
    import onnxruntime  # noqa: F401

    FUZZERS = (Fuzzer("onnx", make, run, (CheckpointError, ValueError), fraction=0.4),)
except ImportError:  # an optional package
    FUZZERS = ()
