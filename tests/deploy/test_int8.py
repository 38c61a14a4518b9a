"""export.py int8=true: an 8-bit file with the same interface, its AP measured, and refused if it loses too much."""

import contextlib
import io
import json
import re
import shutil
from pathlib import Path

import cv2
import numpy as np
import onnx
import pytest
from lively import lively_checkpoint
from refused import refused, told
from small import TINY_WEIGHTS

import evaluate
import export
from datasets import demo
from datasets.errors import DataError
from deploy import int8
from deploy.detector import Detector
from deploy.exported_model import ExportedModel
from deploy.formats import ExportError
from deploy.load import load
from export import Config, main
from utils.config import ConfigError


def data_of(images):
    """Calibration images and a loader, as export.py reads them for TINY_WEIGHTS."""
    return int8.read_data(str(images / "train.txt"), str(images / "val.txt"), load(TINY_WEIGHTS))


@pytest.fixture(scope="module")
def files(demo_images, tmp_path_factory):
    """The checkpoint of a short training as a float32 file and as an 8-bit file, with the printed text of the latter."""
    folder = tmp_path_factory.mktemp("int8")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        before = main(Config(str(TINY_WEIGHTS), output=str(folder / "float.onnx"), check_images=2))
        after = Path(shutil.copy(before, folder / "int8.onnx"))
        int8.quantize(after, *data_of(demo_images), max_loss=1)
    return before, after, printed.getvalue()


def about_of(file):
    return {entry.key: json.loads(entry.value) for entry in onnx.load(file).metadata_props}


def nodes_by_name(file):
    return {node.name: node for node in onnx.load(file).graph.node}


def test_all_but_the_first_and_the_last_convolutions_have_8_bit_inputs(files):
    """Decoding and NMS stay in float32, too."""
    before, after = map(nodes_by_name, files[:2])
    made = {name: node.op_type for node in after.values() for name in node.output}
    convolutions = [name for name, node in before.items() if node.op_type == "Conv"]
    small = [name for name in convolutions if made.get(after[name].input[1]) == "DequantizeLinear"]
    first = int(len(convolutions) * int8.FLOAT_FRACTION)
    assert first > 0 and small == convolutions[first:-9]  # boxes, objectness, classes of three strides
    rounded = {node.input[0] for node in after.values() if node.op_type == "QuantizeLinear"}
    changed = [node for name, node in before.items() if rounded & set(after[name].output)]
    assert {node.op_type for node in changed} == {"Conv", "Sigmoid", "Mul"}
    weights = {x.name: x.data_type for x in onnx.load(files[1]).graph.initializer if len(x.dims) == 4}
    assert list(weights.values()).count(onnx.TensorProto.INT8) == len(small)


def test_the_printed_ap_is_that_of_evaluate(files, demo_images, tmp_path):
    data = {"data": str(demo_images / "val.txt"), "workers": 0, "device": "cpu"}
    metrics = evaluate.main(evaluate.Config(str(files[1]), output=str(tmp_path / "out"), **data))
    (of_int8,) = re.findall(r"^int8 .*", files[2], re.MULTILINE)
    told(of_int8, "mAP50-95", f"{100 * metrics['AP']:.2f}")


def test_the_file_detects_what_the_float_file_detects(files):
    images = [demo.draw_image(number)[0] for number in range(4)]
    ours, theirs = (Detector(file, confidence=0.2)(images) for file in files[:2])
    found = [sum(len(one.scores) for one in results) for results in (ours, theirs)]
    assert found[0] > 3 and abs(found[0] - found[1]) <= 0.3 * found[0]


def replace_measurements(monkeypatch, times, loss):
    """Files of 8 bits are written without quantization, and have these milliseconds and this loss of AP."""
    values = iter([{"AP": 0.3}, {"AP": 0.3 - loss}])
    monkeypatch.setattr(int8, "evaluate", lambda *_: next(values))
    monkeypatch.setattr(int8, "milliseconds", lambda files, image: times)
    monkeypatch.setattr(int8, "ExportedModel", lambda _: None)
    monkeypatch.setattr(int8, "write_quantized", lambda source, target, images: target.write_bytes(b"8 bits"))


def test_the_boxes_of_a_file_with_8_bits_are_not_compared(files):
    """They differ: its mAP tells how good it is."""
    with refused(ExportError, "int8.onnx", "8 bits", "evaluate.py"):
        main(Config(str(TINY_WEIGHTS), check=str(files[1]), check_images=2))


@pytest.mark.parametrize(("loss", "is_written"), [(0.0099, True), (0.0101, False)])
def test_a_file_that_loses_too_much_is_not_written(files, tmp_path, monkeypatch, loss, is_written):
    replace_measurements(monkeypatch, [20.0, 10.0], loss)
    file = Path(shutil.copy(files[0], tmp_path / "a.onnx"))
    outcome = contextlib.nullcontext()
    if not is_written:
        outcome = refused(int8.Int8Error, "1.01 mAP points", "int8_loss=0.01", "int8_loss=0.0102")
    with outcome:
        int8.quantize(file, [None], None, max_loss=0.01)
    assert (file.read_bytes() == b"8 bits") == is_written


@pytest.mark.parametrize(("times", "is_faster"), [([10.6, 10.0], True), ([10.4, 10.0], False), ([10.0, 20.0], False)])
def test_a_file_that_is_not_faster_on_this_computer_is_called_so(
    files, tmp_path, monkeypatch, capsys, times, is_faster
):
    replace_measurements(monkeypatch, times, loss=0.0)
    int8.quantize(Path(shutil.copy(files[0], tmp_path / "a.onnx")), [None], None, max_loss=0.01)
    printed = capsys.readouterr().out
    assert ("not faster" not in printed) == is_faster
    for line, ms in zip(printed.splitlines(), times, strict=False):
        told(line, f"{ms:.1f} ms")


def test_the_time_of_a_file_is_the_median_per_image_of_calls_in_turns_after_a_warm_up(monkeypatch):
    now, calls = 0.0, []

    class Clocked:
        batch_size = 2

        def __init__(self, path, threads):
            self.path = path

        def __call__(self, images):
            nonlocal now
            calls.append(self.path)
            slow = (
                50.0 if calls.count(self.path) <= 1 + int8.CALLS // 2 else 0.0
            )  # the warm-up, and nearly half of the others
            now += {"a": 0.020, "b": 0.010}[self.path] * len(images) + slow

    monkeypatch.setattr(int8, "Detector", Clocked)
    monkeypatch.setattr(int8, "perf_counter", lambda: now)
    assert int8.milliseconds(["a", "b"], np.zeros((8, 8, 3), np.uint8)) == pytest.approx([20, 10])
    assert calls == ["a", "b"] * (len(calls) // 2)


OPTIONS = {
    "raw": {"outputs": "raw", "uint8_input": False, "batch_size": 2},
    "any": {"batch_size": 0, "dynamic_size": True},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIONS)
def test_every_kind_of_file_can_have_8_bits(demo_images, tmp_path, name):
    own = {"train": str(demo_images / "train.txt"), "val": str(demo_images / "val.txt"), "int8": True, "int8_loss": 1}
    file = main(Config(str(TINY_WEIGHTS), output=str(tmp_path / "a.onnx"), check_images=2, **own, **OPTIONS[name]))
    assert about_of(file)["int8"] and ExportedModel(file).num_classes == len(demo.CLASSES)
    assert onnx.TensorProto.INT8 in {x.data_type for x in onnx.load(file).graph.initializer}
    Detector(file, batch_size=3)([demo.draw_image(number)[0] for number in range(3)])


@pytest.mark.slow
def test_a_refused_file_is_not_written_and_the_data_are_those_of_the_run(demo_images, tmp_path, monkeypatch):
    def quantize(path, images, loader, max_loss):
        assert [image.shape for image in images] == [(64, 96, 3)] * 3 and max_loss == 0.01  # three of nine images
        assert len({image.tobytes() for image in images}) == 3 and len(loader.dataset) == 5
        raise int8.Int8Error("too much")

    monkeypatch.setattr("export.quantize", quantize)
    monkeypatch.setattr(int8, "IMAGES", 3)
    own = {"train": str(demo_images / "train.txt"), "val": str(demo_images / "val.txt")}
    weights = lively_checkpoint(tmp_path / "best.pt", classes=demo.CLASSES, **own)
    with pytest.raises(int8.Int8Error):
        main(Config(str(weights), check_images=1, int8=True))
    assert [path.name for path in tmp_path.iterdir()] == ["best.pt"]


@pytest.mark.parametrize("kind", ["no image", "cut-off JPEG"])
def test_images_that_the_run_left_out_are_left_out(painted, tmp_path, capsys, kind):
    jpeg = cv2.imencode(".jpg", np.full((48, 64, 3), 9, np.uint8))[1].tobytes()
    sources = {name: str(painted(6, name)) for name in ("train", "val")}
    for name in sources:
        (tmp_path / f"{name}_1.png").write_bytes(b"no image" if kind == "no image" else jpeg[:-9])
    loaded = load(TINY_WEIGHTS)
    loaded = loaded._replace(config=loaded.config | sources | {"image_root": None, "bad_images": "skip"})
    images, loader = int8.read_data(None, None, loaded)
    assert len(images) == len(loader.dataset) == 5
    images, source = export.find_images(None, loaded, 6)
    assert len(images) == 5 and source == f"images of {sources['val']}"
    capsys.readouterr()
    loaded = loaded._replace(config=loaded.config | {"bad_images": "error"})
    assert export.find_images(None, loaded, 6)[1].startswith("generated")
    told(capsys.readouterr().out, "val_1.png")


def test_what_cannot_work_names_the_fix(painted):
    loaded = load(TINY_WEIGHTS)._replace(config={})
    with refused(DataError, "int8=true", "train=", "val="):
        int8.read_data(None, None, loaded)
    with refused(DataError, "int8=true", "val="):
        int8.read_data(str(painted(3)), None, loaded)
    with refused(ConfigError, "int8=true", "half=true"):
        main(Config(int8=True, half=True))


@pytest.mark.slow
def test_the_official_nano_loses_at_most_a_point(shared, tmp_path, capsys):
    """And its file of 32 bits has the AP of the official weights (benchmarks/results/official.md)."""
    data = shared / "data"
    options = {"model": "yolox_nano", "images": str(data / "coco_val326/images"), "int8": True, "check_images": 2}
    options |= {"train": str(data / "coco_train337/instances_train2017_subset.json")}
    options |= {"val": str(data / "coco_val326/instances_val2017_core326.json")}
    file = main(Config(str(shared / "weights/yolox_nano.pth"), output=str(tmp_path / "nano.onnx"), **options))
    (of_float,) = re.findall(r"^float32  mAP50-95 (\S+)", capsys.readouterr().out, re.MULTILINE)
    assert float(of_float) == pytest.approx(28.79, abs=0.05)
    assert about_of(file)["int8"] and file.stat().st_size < 0.6 * 3.65 * 2**20
    assert len(Detector(file)(np.full((416, 416, 3), 114, np.uint8))) == 1
