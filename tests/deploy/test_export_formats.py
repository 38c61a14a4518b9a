"""export.py format=: a converter or a runtime that fails costs a line, and a file that detects something else is not written."""

import json
import shutil
import sys
import zipfile

import numpy as np
import onnx
import pytest
import torch
from lively import lively, lively_checkpoint
from refused import refused, told

import evaluate
import export
import nets
from datasets import demo
from deploy import exported_model, formats
from deploy.agreement import verify
from deploy.detector import Detector
from deploy.exported_model import InProcess, OwnProcess
from deploy.formats import FORMATS, METADATA, ExportError, convert, metadata_of
from deploy.load import is_checkpoint, load
from export import Config, main
from nets.extended import extended
from utils import checkpoint
from utils.config import ConfigError
from utils.file_checks import CheckpointError
from utils.images import read_image

SMALLEST = {"yolox_nano": 80, "yolov9_t": 1, "ppyoloe_s": 3, "picodet_s": 2}  # and a number of classes
SIZE = (128, 192)
ENDINGS = {
    "crash": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
    "hang": "import time; time.sleep(99)",
    "missing": "import a_package_that_is_not_here",
    "nothing": "import sys; print('of another version', file=sys.stderr); sys.exit(3)",
}


def images(count=3):
    return [demo.draw_image(number)[0] for number in range(count)]


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return lively_checkpoint(tmp_path_factory.mktemp("weights") / "best.pt")


@pytest.fixture(scope="module")
def raw(weights):
    """A file with raw outputs, as other formats have them."""
    return main(Config(str(weights), str(weights.with_name("raw.onnx")), check_images=2, outputs="raw"))


def program(path, text):
    path.write_text(text, encoding="utf-8")
    return str(path)


# ---- converters


@pytest.mark.parametrize("how", ENDINGS)
def test_a_converter_that_fails_costs_a_line_and_leaves_nothing(weights, tmp_path, monkeypatch, how):
    shutil.copy(weights, tmp_path / "best.pt")
    monkeypatch.setattr(formats, "is_here", lambda package: True)
    monkeypatch.setattr(formats.converters, "__file__", program(tmp_path / "fake.py", ENDINGS[how]))
    monkeypatch.setattr(formats, "TIMEOUT", 2.0 if how == "hang" else 60.0)
    before = sorted(tmp_path.iterdir())
    with refused(ExportError, "format=openvino", "pip install openvino==", "2 seconds" if how == "hang" else "code"):
        main(Config(str(tmp_path / "best.pt"), format=("openvino",), check_images=2))
    assert sorted(tmp_path.iterdir()) == before


def test_the_other_formats_are_written_and_what_cannot_be_compared_is_called_so(weights, tmp_path, monkeypatch, capsys):
    shutil.copy(weights, tmp_path / "best.pt")
    text = "import os, sys\nif sys.argv[1] == 'ncnn': sys.exit(1)\nos.mkdir(sys.argv[3])\n"
    monkeypatch.setattr(formats.converters, "__file__", program(tmp_path / "fake.py", text))
    monkeypatch.setattr(formats, "is_here", lambda package: True)
    monkeypatch.setattr(sys, "platform", "linux")
    with refused(ExportError, "format=ncnn", "pnnx"):
        main(Config(str(tmp_path / "best.pt"), format=("ncnn", "coreml"), check_images=2))
    about = metadata_of(tmp_path / "best_unchecked.mlpackage")
    assert (
        about["format"] == "coreml" and about["classes"] == ["red", "blue", "green"] and about["strides"] == [8, 16, 32]
    )
    assert (tmp_path / "detector.py").exists() and not (tmp_path / "best_ncnn").exists()
    with refused(ConfigError, "best_unchecked.mlpackage", "half=false", "output="):  # a program may use it
        main(Config(str(tmp_path / "best.pt"), format=("coreml",), check_images=2, half=True))


def test_missing_packages_are_named_and_another_pytorch_gets_an_environment_of_its_own(monkeypatch, tmp_path):
    here = {"ai-edge-litert==2.3.0", "ncnn==1.0.20261020"}
    monkeypatch.setattr(formats, "is_here", here.__contains__)
    monkeypatch.setattr(formats.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setenv("PATH", "")
    for kind, fix in (("litert", "pip install uv"), ("ncnn", "pip install pnnx==20261020")):
        with refused(ExportError, fix):
            formats.python_for(kind)
    (tmp_path / "uv").touch(0o755)
    command = formats.python_for("litert")
    assert command[0] == str(tmp_path / "uv") and {"--isolated", "torch<2.15", "litert-torch==0.10.0"} <= set(command)
    here |= {"litert-torch==0.10.0"}
    assert formats.python_for("litert") == [sys.executable]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"format": ("tflit",)}, ["format=tflit", "openvino", "litert", "ncnn"]),
        ({"format": ()}, ["format=()", "onnx"]),
        ({"format": ("onnx", "litert"), "half": True}, ["half=true", "format=litert"]),
        ({"format": ("openvino",), "int8": True}, ["int8=true", "format=openvino"]),
        ({"format": ("ncnn",), "batch_size": 2}, ["batch_size=2", "format=ncnn"]),
        ({"format": ("ncnn", "onnx"), "output": "a.tflite"}, ["a.tflite", "_ncnn or .onnx"]),
    ],
)
def test_what_a_format_does_not_have_is_refused(weights, changes, named):
    with refused(ConfigError, *named):
        main(Config(str(weights), **changes))


# ---- runtimes


def test_a_process_of_its_own_gives_the_same_boxes(raw, weights):
    for file in (raw, main(Config(str(weights), str(weights.with_name("nms.onnx")), check_images=2))):
        ours, theirs = InProcess(file, 1), OwnProcess(file, 1)
        assert ours.about == theirs.about
        pairs = zip(ours.predict(images(), 0.05, 0.5), theirs.predict(images(), 0.05, 0.5), strict=True)
        for one, other in pairs:
            assert len(one[1]) > 20
            for a, b in zip(one, other, strict=True):
                assert a.dtype == b.dtype
                np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("how", [*ENDINGS, "later"])
def test_a_runtime_that_fails_costs_a_line(raw, tmp_path, monkeypatch, how):
    worker = exported_model.worker
    monkeypatch.setattr(exported_model, "TIMEOUT", 2.0 if how == "hang" else 60.0)
    text = ENDINGS.get(how, ENDINGS["crash"])
    if how == "later":  # after the file was opened
        text = f"import sys; sys.path.insert(0, {str(formats.Path(worker.__file__).parent)!r})\nimport worker, numpy\n"
        text += (
            f"worker.send(sys.stdout.buffer, numpy.array(''), numpy.array({json.dumps(InProcess(raw, 1).about)!r}))\n"
        )
        text += f"worker.receive(sys.stdin.buffer); {ENDINGS['crash']}"
    (tmp_path / "a_ncnn").mkdir()
    for name in (METADATA, "model.ncnn.bin"):
        (tmp_path / "a_ncnn" / name).touch()
    monkeypatch.setattr(worker, "__file__", program(tmp_path / "fake.py", text))
    with refused(CheckpointError, "a_ncnn", "2 seconds" if how == "hang" else "code"):
        Detector(tmp_path / "a_ncnn")(images())


# ---- files that detect something else


def changed_metadata(file, target, **changes):
    """A copy of a file of any format with other metadata."""
    if file.is_dir():
        shutil.copytree(file, target)
        (target / METADATA).write_text(json.dumps(metadata_of(file) | changes))
    elif file.suffix == ".onnx":
        proto = onnx.load(file)
        about = {entry.key: json.loads(entry.value) for entry in proto.metadata_props} | changes
        onnx.helper.set_model_props(proto, {name: json.dumps(value) for name, value in about.items()})
        onnx.save(proto, target)
    else:
        with zipfile.ZipFile(file) as end:
            target.write_bytes(file.read_bytes()[: end.infolist()[0].header_offset])
        with zipfile.ZipFile(target, "a") as end:
            end.writestr(METADATA, json.dumps(metadata_of(file) | changes))
    return target


def damaged(model, how):
    """A model that detects something else."""
    with torch.no_grad():
        if how == "a weight":
            model.head.class_predictors[0].weight.view(-1)[0] += 1.0
        elif how == "order of the classes":
            for predictor in model.head.class_predictors:
                predictor.weight[:2], predictor.bias[:2] = predictor.weight[[1, 0]], predictor.bias[[1, 0]]
        elif how == "RGB for BGR":
            prepare = model.prepare
            model.prepare = lambda images: prepare(images.flip(1))
    return model


DAMAGES = ("a weight", "order of the classes", "RGB for BGR", "names of the classes", "letterbox")


def assert_damages_are_caught(write, fresh, pixels, tmp_path, damages=DAMAGES):
    """`write(model, path)` -> a file of the model; `fresh()` loads the model."""
    loaded = fresh()
    sound = write(fresh().model, tmp_path / "sound")
    verify(sound, loaded.model, pixels, loaded.classes)
    for how in damages:
        changes = {"classes": loaded.classes[::-1]} if how == "names of the classes" else {"letterbox": "stretch"}
        if how in ("names of the classes", "letterbox"):
            file = changed_metadata(sound, sound.with_name(how + sound.name), **changes)
        else:
            file = write(damaged(fresh().model, how), tmp_path / how)
        with refused(ExportError, file.name):
            verify(file, loaded.model, pixels, loaded.classes)


def test_the_comparison_catches_every_damage(weights, tmp_path):
    about = export.description(Config(outputs="raw"), load(weights))

    def write(model, path):
        export.write(path.with_suffix(".onnx"), model.fuse(), about, 1, True)
        return path.with_suffix(".onnx")

    assert_damages_are_caught(write, lambda: load(weights), images(), tmp_path)


def test_a_file_can_be_checked_later(weights, raw, tmp_path, capsys):
    file = shutil.copy(raw, tmp_path / "a_unchecked.onnx")
    for _ in range(2):
        file = main(Config(str(weights), check=str(file), check_images=2))
        assert file == tmp_path / "a.onnx" and file.exists() and not (tmp_path / "a_unchecked.onnx").exists()
    told(capsys.readouterr().out, "a.onnx", "agrees")
    other = lively_checkpoint(tmp_path / "best.pt", classes=("green", "red", "blue"))
    with refused(ExportError, "a.onnx", "green, red, blue"):
        main(Config(str(other), check=str(file), check_images=2))


# ---- what pip has


def require_packages(kind):
    for package in (*FORMATS[kind].packages, FORMATS[kind].runtime):
        if not formats.is_here(package):
            pytest.skip(f"{package} is not installed")


def official(shared):
    return load(shared / "weights/yolox_nano.pth", "yolox_nano")


def extended_checkpoint(path):
    model = extended(lively(nets.build("picodet_s", 3), SIZE), lively(nets.build("picodet_s", 2), SIZE)).eval()
    contents = {"config": {"model": "picodet_s", "image_size": SIZE, "val": None}, "classes": list("abcde")}
    checkpoint.save(path, contents | {"epoch": 1, "step": 1, "metrics": {}, "model": model.state_dict()})
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SMALLEST, "added classes"])
@pytest.mark.parametrize("kind", [kind for kind in FORMATS if kind != "onnx"])
def test_each_format_detects_the_same_as_the_checkpoint(tmp_path, demo_images, kind, name):
    require_packages(kind)
    if name in SMALLEST:
        path = lively_checkpoint(tmp_path / "best.pt", name, [f"c{i}" for i in range(SMALLEST[name])], SIZE)
    else:
        path = extended_checkpoint(tmp_path / "best.pt")
    file = main(Config(str(path), format=(kind,), check_images=3))
    assert metadata_of(file)["format"] == kind and is_checkpoint(str(file))
    if FORMATS[kind].needs_mac:
        assert "unchecked" in file.name
        return
    for limits in ({"confidence": 0.3}, {"confidence": 0.1, "class_agnostic": True}):
        for ours, theirs in zip(Detector(path, **limits)(images()), Detector(file, **limits)(images()), strict=True):
            assert abs(len(ours) - len(theirs)) <= 0.02 * len(ours) and len(ours) > 5
            np.testing.assert_allclose(theirs.scores[:5], ours.scores[:5], atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind, row in FORMATS.items() if kind != "onnx" and not row.needs_mac])
def test_the_file_of_real_weights_is_evaluated_and_its_damages_are_caught(tmp_path, shared, kind):
    require_packages(kind)
    folder = shared / "data/coco_val326"
    pixels = [read_image(path) for path in sorted((folder / "images").glob("*.jpg"))[:4]]
    about = export.description(Config(), official(shared))

    def write(model, path):
        path = path.with_name(path.name + FORMATS[kind].suffix)
        convert(kind, model.fuse(), about, path)
        return path

    converted = (
        "a weight",
        "names of the classes",
        "letterbox",
    )  # the others, each a conversion: above, in an ONNX file
    assert_damages_are_caught(write, lambda: official(shared), pixels, tmp_path, converted)
    options = {"data": str(folder / "instances_val2017_core326.json"), "report": False, "output": str(tmp_path / "a")}
    metrics = evaluate.main(evaluate.Config(str(tmp_path / f"sound{FORMATS[kind].suffix}"), **options))
    assert abs(metrics["AP"] - 0.2880) < 0.001
