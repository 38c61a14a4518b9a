"""detector.py, which export.py writes, detects what Detector detects, without this project. Its page is complete."""

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import asdict
from types import SimpleNamespace

import cv2
import numpy as np
import onnx
import pytest
from files import noise
from lively import lively_checkpoint
from pages import ROOT, text_of

from datasets import demo
from deploy.detector import Detector
from deploy.formats import FORMATS
from deploy.standalone import detector as standalone
from deploy.video import read_frames
from export import Config, copy_detector, main
from utils.images import FILL, LETTERBOXES, letterbox, read_image

PAGE = text_of(ROOT / "docs/exported_file.md")


def load(file):
    """The module that was written next to an exported file."""
    spec = importlib.util.spec_from_file_location("detector", file.parent / "detector.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def assert_equal(ours, theirs):
    assert sum(map(len, ours)) > 5
    for a, b in zip(ours, theirs, strict=True):
        assert a.names == b.names and len(a) == len(b)
        for field in ("boxes", "scores", "labels"):
            one, other = getattr(a, field), getattr(b, field)
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)


def assert_close(ours, theirs):
    """Up to rounding, which may exchange detections with equal scores."""
    assert sum(len(result.scores) for result in ours) > 5
    for a, b in zip(ours, theirs, strict=True):
        left = list(range(len(b)))
        for box, score, name in zip(a.boxes, a.scores, a.names, strict=True):
            near = (np.abs(b.boxes - box).max(1) < 0.05) & (np.abs(b.scores - score) < 1e-4)
            left.remove(next(i for i in left if near[i] and b.names[i] == name))
        assert not left


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    stored = {"metrics": {"confidence": 0.45}, "thresholds": {"red": 0.6, "green": 0.25}}
    return lively_checkpoint(tmp_path_factory.mktemp("weights") / "best.pt", **stored)


@pytest.fixture(scope="module")
def file(weights):
    return main(Config(str(weights), check_images=2))


def with_letterbox(file, kind, path):
    """A copy of the file whose metadata ask for another letterbox."""
    proto = onnx.load(file)
    next(entry for entry in proto.metadata_props if entry.key == "letterbox").value = f'"{kind}"'
    onnx.save(proto, path)
    return path


def test_the_program_needs_numpy_opencv_and_the_runtime_of_the_file(file):
    text = (file.parent / "detector.py").read_text(encoding="utf-8")
    packages = set(re.findall(r"^\s*(?:import|from) (\w+)", text, re.MULTILINE)) - {"detector"}  # in its docstring
    assert packages - sys.stdlib_module_names == {"cv2", "numpy"}


CASES = {
    "center": {},
    "fixed batches of float images": {"uint8_input": False, "batch_size": 2},
    "any number and size": {"batch_size": 0, "dynamic_size": True},
}


@pytest.mark.parametrize(
    "case", [*(pytest.param(case, marks=pytest.mark.slow) for case in CASES if case != "center"), "center", "corner"]
)
def test_the_program_gives_the_results_of_the_detector(tmp_path, weights, file, case):
    """Same boxes, scores, labels and names, for files and arrays, small and large, wide and high."""
    if case in CASES:
        file = main(Config(str(weights), output=str(tmp_path / "a.onnx"), check_images=2, **CASES[case]))
    else:
        file = with_letterbox(file, case, tmp_path / "a.onnx")
        (tmp_path / "detector.py").write_bytes((ROOT / "deploy/standalone/detector.py").read_bytes())
    images = [demo.draw_image(number)[0] for number in range(3)]
    images += [cv2.resize(images[0], (500, 90)), cv2.resize(images[1], (40, 70))]
    cv2.imwrite(str(tmp_path / "ü.png"), images[2])
    images.append(str(tmp_path / "ü.png"))
    module = load(file)
    for limits in ({}, {"confidence": 0.1, "nms_iou": 0.7}, {"confidence": "per_class"}):
        assert_equal(Detector(file, **limits)(images), module.Detector(file, **limits)(images))
    if case == "any number and size":
        other = {"image_size": (128, 160)}
        assert_equal(Detector(file, **other)(images), module.Detector(file, **other)(images))
    (nothing,) = module.Detector(file, confidence=1.0)(images[0])
    assert nothing.boxes.shape == (0, 4) and nothing.names == () and len(nothing) == 0


@pytest.fixture
def detector(file):
    """The Detector of the program without a file; a test gives it the metadata."""
    module = load(file)
    return module.Detector.__new__(module.Detector)


@pytest.mark.parametrize("value_range", [None, (0, 65535), (100, 4000), (0, 4095), (20000, 60000)])
def test_every_depth_is_read_as_by_the_detector(tmp_path, detector, value_range):
    detector.about = {"value_range": value_range}
    for name, image in (("8", noise()), ("16", noise().astype(np.uint16) * 200 + 90)):
        path = str(tmp_path / f"{name}.png")
        cv2.imwrite(path, image)
        np.testing.assert_array_equal(detector.read(path), read_image(path, value_range=value_range))


@pytest.mark.parametrize("kind", LETTERBOXES)
def test_the_pixels_of_the_input_are_those_of_training(detector, kind):
    detector.about, detector.image_size = {"letterbox": kind, "padding": FILL}, (64, 96)
    for height, width in ((64, 96), (20, 30), (90, 135), (100, 190), (127, 193), (128, 192), (129, 200), (700, 40)):
        image = noise(0, height, width)
        pixels, scale, offset = detector.letterbox(image)
        expected, transform = letterbox(image, (64, 96), kind)
        np.testing.assert_array_equal(pixels, expected)
        np.testing.assert_allclose([*scale[:2], *offset[:2]], transform[2:], rtol=1e-6)


@pytest.mark.parametrize("clip", [False, True])
def test_boxes_end_at_the_image_only_if_the_model_clips_them(detector, clip):
    detector.about, detector.thresholds, detector.classes = {"clip": clip}, np.full(1, 0.5), ("a",)
    boxes = np.array([[-5, 4, 200, 20]], np.float32)
    found = detector.result(noise(), 1, 0, boxes, np.ones(1), np.zeros(1, int))
    assert found.boxes.tolist() == ([[0, 4, 64, 20]] if clip else boxes.tolist())


def test_the_program_runs_without_torch_and_without_this_project(tmp_path, file):
    """From any folder: one next to it with the name of a room of this project, or of a runtime, does not matter."""
    (tmp_path / "without").mkdir()
    for name in ("torch", "onnx", "utils", "nets", "deploy"):
        (tmp_path / f"without/{name}.py").write_text("raise ImportError('not here')")
    for name in ("datasets", "metrics", "onnxruntime", "openvino"):
        (tmp_path / name).mkdir()
    (tmp_path / "datasets/__init__.py").write_text("raise ImportError('not here')")
    (tmp_path / "detector.py").write_bytes((file.parent / "detector.py").read_bytes())
    image = demo.draw_image(3)[0]
    cv2.imwrite(str(tmp_path / "a.png"), image)
    words = [sys.executable, "detector.py", str(file), "a.png", "drawn.png"]
    env = {"PYTHONPATH": str(tmp_path / "without")}
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    (result,) = Detector(file)(image)
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(result.names) != []
    assert (cv2.imread(str(tmp_path / "drawn.png")) != image).any()


@pytest.mark.parametrize("image", ["a.png", "empty.png", np.zeros((9, 9), np.uint8), np.zeros((9, 9, 3))])
def test_images_that_it_cannot_use_are_named(tmp_path, monkeypatch, file, image):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.png").write_text("no image")
    (tmp_path / "empty.png").touch()
    with pytest.raises(ValueError, match=image if isinstance(image, str) else "uint8"):
        load(file).Detector(file)(image)


WRONG = [
    ("", "drawn.png", "usage"),
    ("none.onnx", "a.png", "drawn.png", "none.onnx"),
    ("FILE", "none.png", "drawn.png", "none.png"),
    ("FILE", "bad.png", "drawn.png", "bad.png"),
    ("FILE", "video=bad.mp4", "drawn.mp4", "bad.mp4"),
    ("FILE", "a.png", "a.png", "a.png"),
    ("FILE", "a.png", "drawn.xyz", "specified extension"),
    ("bad.onnx", "a.png", "drawn.png", "bad.onnx"),
    ("foreign.onnx", "a.png", "drawn.png", "foreign.onnx has no valid version, classes"),
    ("folder", "a.png", "drawn.png", "folder"),
]


@pytest.mark.parametrize("words", WRONG, ids=lambda words: " ".join(words[:-1]))
def test_the_program_ends_with_one_line_for_what_it_cannot_use(tmp_path, file, words):
    *words, named = [str(file) if word == "FILE" else word for word in words]
    (tmp_path / "folder").mkdir()
    for name in ("bad.png", "bad.onnx", "bad.mp4"):
        (tmp_path / name).write_text("no image")
    cv2.imwrite(str(tmp_path / "a.png"), noise())
    proto = onnx.load(file)
    proto.ClearField("metadata_props")
    onnx.save(proto, tmp_path / "foreign.onnx")
    program = [sys.executable, str(file.parent / "detector.py"), *words]
    quiet = os.environ | {"OPENCV_LOG_LEVEL": "SILENT", "OPENCV_FFMPEG_LOGLEVEL": "-8"}
    done = subprocess.run(program, cwd=tmp_path, env=quiet, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert named in done.stderr and not list(tmp_path.glob("drawn.*"))


def test_a_missing_runtime_is_named_with_its_package(tmp_path, monkeypatch, file):
    module = load(file)
    (tmp_path / "a.tflite").touch()
    (tmp_path / "a_openvino").mkdir()
    (tmp_path / "a_ncnn").mkdir()
    (tmp_path / "a_ncnn/model.ncnn.param").touch()
    paths = {"onnxruntime": file, "ai-edge-litert": tmp_path / "a.tflite"}
    paths |= {name: tmp_path / f"a_{name}" for name in ("openvino", "ncnn")}
    for _, name, _ in module.RUNTIMES.values():
        monkeypatch.setitem(sys.modules, name, None)  # importing it raises ImportError
    for package, path in paths.items():
        with pytest.raises(ValueError, match=f"pip install {package} "):
            module.Detector(path)


def test_the_program_draws_videos(tmp_path, file):
    frames = [demo.draw_image(number)[0] for number in (3, 4)]
    writer = cv2.VideoWriter(str(tmp_path / "in.mp4"), cv2.VideoWriter.fourcc(*"mp4v"), 5, frames[0].shape[1::-1])
    for frame in frames:
        writer.write(frame)
    writer.release()
    module = load(file)
    module.main([str(file), f"video={tmp_path / 'in.mp4'}", str(tmp_path / "out.mp4")])
    before, after = (list(read_frames(str(tmp_path / name), 1)) for name in ("in.mp4", "out.mp4"))
    assert len(before) == len(after) == 2 and all((a != b).any() for a, b in zip(before, after, strict=True))


def test_a_changed_program_is_kept_and_reported(tmp_path):
    (tmp_path / "detector.py").write_text("# mine")
    assert str(tmp_path / "detector.py") in copy_detector(tmp_path)
    assert (tmp_path / "detector.py").read_text() == "# mine"


def test_the_package_has_the_version_and_license_of_the_project_and_all_runtimes():
    folder = ROOT / "deploy/standalone"
    package = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    runtimes = sum(package["optional-dependencies"].values(), [])
    assert package["version"] == project["version"]
    assert sorted(runtimes) == sorted(package for _, _, package in standalone.RUNTIMES.values())
    assert (folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


PROGRAM = """
import sys
import numpy as np
from detector import Detector
results = Detector(sys.argv[1], confidence=0.35, nms_iou=0.6)(["0.png", "1.png", "2.png"])
for number, result in enumerate(results):
    np.savez(f"{number}.npz", boxes=result.boxes, scores=result.scores, names=result.names)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("onnx", name) for name in ("yolox_nano", "yolov9_t", "ppyoloe_s", "picodet_s")),
        *((kind, "yolox_nano") for kind in ("openvino", "litert", "ncnn")),  # all models: test_export_formats.py
    ],
)
def test_files_of_every_format_give_the_results_of_their_checkpoint(tmp_path, kind, name):
    """In a folder with nothing else, and in a process of its own, since a runtime may crash."""
    for package in (*FORMATS[kind].packages, FORMATS[kind].runtime):
        pytest.importorskip(package.partition("=")[0].replace("-", "_"), reason=f"pip install {package}")
    weights = lively_checkpoint(tmp_path / "best.pt", name=name, image_size=(128, 192))
    options = {"outputs": "raw"} if kind == "onnx" else {}
    output = str(tmp_path / f"a/best{FORMATS[kind].suffix}")
    file = main(Config(str(weights), output=output, format=(kind,), check_images=2, **options))
    images = [demo.draw_image(number)[0] for number in range(3)]
    for number, image in enumerate(images):
        cv2.imwrite(str(file.parent / f"{number}.png"), image)
    command = [sys.executable, "-c", PROGRAM, file.name]
    done = subprocess.run(command, cwd=file.parent, env={}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    ours = [SimpleNamespace(**np.load(file.parent / f"{number}.npz")) for number in range(3)]
    assert_close(ours, Detector(weights, confidence=0.35, nms_iou=0.6)(images))


def test_the_page_explains_all_metadata_and_constants(file):
    names = (
        {entry.key for entry in onnx.load(file).metadata_props} | {"shapes", *standalone.RAW} | set(asdict(Config()))
    )
    assert len(names) > 15 and [name for name in sorted(names) if f"`{name}`" not in PAGE] == []
