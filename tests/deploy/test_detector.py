"""deploy/detector.py: images, paths and batches give the same results, and files are read for what they are."""

import json
import os
import threading

import numpy as np
import pytest
import torch
from lively import lively_checkpoint, tiny_checkpoint
from refused import refused

import nets
from datasets.dataset import DetectionDataset
from datasets.formats.options import ReadOptions
from datasets.formats.read import read
from datasets.loader import ValSampler, build_loader
from deploy.detector import Detector, Result
from deploy.load import is_checkpoint, load, newest_checkpoint
from nets.pretrained import COCO_CLASSES
from utils.config import ConfigError
from utils.file_checks import CheckpointError
from utils.images import ImageError

LOW = {"confidence": 0.05, "nms_iou": 0.65, "device": "cpu"}


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return tiny_checkpoint(tmp_path_factory.mktemp("weights") / "best.pt")


def noise(count, seed=0):
    """Images of noise in different sizes."""
    rng = np.random.default_rng(seed)
    shapes = rng.integers(20, 150, (count, 2))
    return [rng.integers(0, 256, (h, w, 3), dtype=np.uint8) for h, w in shapes]


def assert_same(a: Result, b: Result, boxes=1e-2, scores=1e-4):
    assert len(a.boxes) == len(b.boxes) and a.names == b.names
    np.testing.assert_allclose(a.boxes, b.boxes, atol=boxes)
    np.testing.assert_allclose(a.scores, b.scores, atol=scores)


def test_a_result_has_the_documented_types(weights):
    (result,) = Detector(weights, **LOW)([np.zeros((50, 80, 3), np.uint8)])
    n = len(result.scores)
    assert n > 0 and result.boxes.shape == (n, 4) and result.boxes.dtype == np.float32
    assert result.labels.shape == (n,) and result.labels.dtype == np.int64
    assert result.names == tuple(("red", "blue")[label] for label in result.labels)
    assert (np.diff(result.scores) <= 0).all() and result.scores.min() >= 0.05


def test_results_do_not_depend_on_the_batch_size(weights):
    images = noise(7)
    alone = [Detector(weights, batch_size=1, **LOW)([image])[0] for image in images]
    for a, b in zip(alone, Detector(weights, batch_size=3, **LOW)(images), strict=True):
        assert_same(a, b)


def test_a_missing_file_among_others_is_named_and_leaves_no_thread(weights):
    detector, before = Detector(weights, batch_size=2, **LOW), threading.active_count()
    for images in (["nowhere.jpg"], [*noise(5), "nowhere.jpg", *noise(5)]):
        with refused(ImageError, "nowhere.jpg"):
            detector(images)
    assert threading.active_count() == before


def test_the_detector_equals_the_evaluation(weights, painted):
    """The loader and the model of evaluate.py, and the detector, on the same images."""
    data = read(str(painted(6)), "val", ReadOptions(classes=("red", "blue")))
    model, _, size, *_ = load(weights)
    loader = build_loader(DetectionDataset(data, model.letterbox), ValSampler(len(data), 4, size), 0)
    limits = {"confidence": 0.05, "nms_iou": 0.65}
    with torch.no_grad():
        evaluated = [one for b in loader for one in model.detections(model(b.images), b.size, b.transforms, **limits)]
    results = Detector(weights, **LOW)([data.path(i) for i in range(len(data))])
    assert sum(len(one.boxes) for one in evaluated) > 20
    for a, b in zip(evaluated, results, strict=True):
        assert_same(Result(a.boxes.numpy(), a.scores.numpy(), a.labels.numpy(), b.names), b)
        assert a.labels.tolist() == b.labels.tolist()


def test_official_weights_detect_what_the_official_code_detects(shared):
    folder = shared / "data/coco_val326"
    truth = json.loads((folder / "instances_val2017_core326.json").read_text())
    official = json.loads((folder / "yolox_nano_detections.json").read_text())
    names = {category["id"]: category["name"] for category in truth["categories"]}
    detector = Detector(shared / "weights/yolox_nano.pth", "yolox_nano", confidence=0.5, nms_iou=0.65, device="cpu")
    some = truth["images"][:8]
    results = detector([folder / "images" / image["file_name"] for image in some])
    for image, result in zip(some, results, strict=True):
        best = [d for d in official if d["image_id"] == image["id"] and d["score"] >= 0.5]
        best.sort(key=lambda d: -d["score"])
        assert result.names == tuple(names[d["category_id"]] for d in best)
        np.testing.assert_allclose(result.scores, [d["score"] for d in best], atol=5e-3)
        corners = np.array([d["bbox"] for d in best]).reshape(-1, 4)
        corners[:, 2:] += corners[:, :2]
        np.testing.assert_allclose(result.boxes, corners, atol=1.0)


def test_a_checkpoint_stores_its_classes_size_and_confidence(weights, tmp_path):
    model, classes, size, config, path, confidence, name, *_ = load(weights)
    assert (classes, size, path, confidence, name) == (
        ("red", "blue"),
        (64, 96),
        weights,
        0.3,
        "tiny_n",
    ) and not model.training
    assert config["model"] == "tiny_n"
    assert load(weights, image_size=(96, 64)).image_size == (96, 64)
    assert load(weights, "tiny_n", ["red", "blue"]).classes == classes
    for stored, expected in ((0.42, 0.42), (-1.0, 0.3)):  # -1: nothing to measure in the validation
        path = tiny_checkpoint(tmp_path / "best.pt", metrics={"confidence": stored})
        assert Detector(path, device="cpu").limits["confidence"] == expected
        assert Detector(path, device="cpu", confidence=0.7).limits["confidence"] == 0.7


def test_arguments_that_contradict_the_checkpoint_are_refused(weights):
    with refused(ValueError, weights, "tiny_n", "red, blue", "model="):
        load(weights, "yolox_s")
    with refused(ValueError, weights, "red, blue", "classes=", "only= of predict.py"):  # evaluate.py has no only=
        load(weights, classes=["blue", "red"])
    with refused(ValueError, "image_size=420,100", "416,96"):
        load(weights, image_size=(420, 100))


def official(path, rows):
    """A weights file in the official layout, for `rows` classes."""
    model = nets.build("yolox_nano", rows)
    torch.save({"model": model.state_dict()}, path)
    return path, model


def test_weights_without_class_names_need_classes(tmp_path):
    path, _ = official(tmp_path / "w.pth", 3)
    with refused(CheckpointError, path, "model=", "classes=FILE"):
        load(path)
    with refused(ValueError, path, "3 classes", "classes=FILE"):
        load(path, "yolox_nano")
    with refused(ValueError, path, "3 classes", "classes=", "2 names"):
        load(path, "yolox_nano", ["a", "b"])
    assert load(path, "yolox_nano", ["a", "b", "c"]).classes == ("a", "b", "c")
    with refused(CheckpointError, path, "backbone", "model="):
        load(path, "yolox_tiny", ["a", "b", "c"])


def test_weights_of_another_model_are_not_taken_for_weights_without_classes(tmp_path):
    state = {name: value for name, value in nets.build("tiny_n", 80).state_dict().items() if "class_" not in name}
    torch.save(state, tmp_path / "w.pth")
    with refused(ValueError, tmp_path / "w.pth", "is model=", "model=tiny_n"):
        load(tmp_path / "w.pth", "tiny_n")


def test_classes_select_rows_of_coco_weights_by_name(tmp_path):
    path, model = official(tmp_path / "w.pth", 80)
    loaded = load(path, "yolox_nano", ["dog", "person"])
    for name, rows in model.state_dict().items():
        if "class_predictors" in name:
            selected = rows[[COCO_CLASSES.index("dog"), COCO_CLASSES.index("person")]]
            assert torch.equal(loaded.model.state_dict()[name], selected)
    assert loaded.image_size == (416, 416) and load(path, "yolox_nano").classes == COCO_CLASSES
    assert not loaded.model.clips  # the published AP is without it
    with refused(ValueError, path, "80 classes", "classes=", "2 names"):
        load(path, "yolox_nano", ["dog", "dragon"])


def test_official_yolov9_of_any_width_is_loaded_completely(tmp_path):
    """The class branches of the official v9-t may have 80 channels; with two classes they would have 64."""
    torch.manual_seed(0)
    model = nets.build("yolov9_t", 80, nets.build("yolov9_t", 40).state_dict())
    torch.save(model.state_dict(), tmp_path / "v9-t.pt")
    loaded = load(tmp_path / "v9-t.pt", "yolov9_t", ["dog", "person"])
    state = loaded.model.state_dict()
    assert state["head.class_convs.0.1.conv.weight"].shape[0] == 80 and loaded.image_size == (640, 640)
    rows = model.state_dict()["head.class_predictors.2.weight"]
    selected = rows[[COCO_CLASSES.index("dog"), COCO_CLASSES.index("person")]]
    assert torch.equal(state["head.class_predictors.2.weight"], selected)
    detector = Detector(tmp_path / "v9-t.pt", "yolov9_t", image_size=(64, 96), confidence=0.0, device="cpu")
    assert detector.model.letterbox == "center" and len(detector(noise(2))[1].scores) > 0


def test_the_name_of_a_run_is_its_newest_checkpoint(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for run in ("mine-2026-01-31-2", "mine-2026-01-31-10", "mine-too-2026-02-01-1"):
        tiny_checkpoint(tmp_path / "runs" / run / "best.pt")
    (tmp_path / "runs/mine-2026-03-01-1").mkdir()  # without a checkpoint
    assert load("mine").path.parent.name == "mine-2026-01-31-10"
    with refused(ValueError, "min", "checkpoint=mine"):
        load("min")
    (tmp_path / "mine").mkdir()  # the data of the run
    assert load("mine").path.parent.name == "mine-2026-01-31-10" and not is_checkpoint("mine")


def test_the_folder_of_a_run_is_its_checkpoint(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for run in ("mine-2026-01-31-1", "mine-2026-01-31-2"):
        tiny_checkpoint(tmp_path / "runs" / run / "best.pt")
        (tmp_path / "runs" / run / "environment.json").write_text("{}")
    for word in ("mine-2026-01-31-1", "runs/mine-2026-01-31-1", str(tmp_path / "runs/mine-2026-01-31-1")):
        assert load(word).path.resolve() == tmp_path / "runs/mine-2026-01-31-1/best.pt"
    tiny_checkpoint(tmp_path / "runs/other-2026-01-31-1/last.pt")  # stopped before the first evaluation
    (tmp_path / "runs/other-2026-01-31-1/environment.json").write_text("{}")
    assert is_checkpoint("other") and not is_checkpoint(str(tmp_path / "runs"))
    (tmp_path / "metadata.json").touch()  # of a photo album
    assert not is_checkpoint(str(tmp_path))
    with refused(ConfigError, "runs/other-2026-01-31-1/last.pt"):
        load("other")


def test_official_weights_are_taken_next_to_a_run_with_a_similar_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiny_checkpoint(tmp_path / "runs/coco128-2026-01-31-1/best.pt")
    tiny_checkpoint(tmp_path / "runs/coco-2026-01-31-1/best.pt")
    monkeypatch.setattr(nets, "fetch_weights", lambda *_: tmp_path / "downloaded.pth")
    with refused(CheckpointError, tmp_path / "downloaded.pth"):
        load("coco", "yolox_nano")


def test_the_newest_checkpoint_is_the_default(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with refused(CheckpointError, "python train.py"):
        load(None)
    old, new = (lively_checkpoint(tmp_path / f"runs/{name}/best.pt") for name in ("z", "a"))
    os.utime(old, (1, 1))
    loaded = load(None)
    assert newest_checkpoint().resolve() == new and loaded.path.resolve() == new
    assert str(loaded.path) in loaded.note and "newest" in loaded.note  # it may be another run than the one in mind
    assert not load(new).note


def test_weights_without_a_model_are_refused_with_the_constant_that_is_missing(tmp_path):
    state = nets.build("tiny_n", 80).state_dict()
    torch.save(state, tmp_path / "other.pth")
    with refused(CheckpointError, tmp_path / "other.pth", "model=yolox_s"):
        Detector(tmp_path / "other.pth")
    torch.save(state, tmp_path / "tiny.pth")
    assert len(Detector(tmp_path / "tiny.pth", model="tiny_n").classes) == 80
