"""utils/detector.py: one path for pictures, arrays and batches, and files that say what they are."""

import json
import os
import sys
import threading

import cv2
import numpy as np
import pytest
import torch
from trained import tiny_checkpoint

import nets
from datasets.dataset import DetectionDataset
from datasets.formats import read
from datasets.images import ImageError, read_image
from datasets.loader import ValSampler, build_loader
from nets.pretrained import COCO_CLASSES
from utils.checkpoint import CheckpointError
from utils.detector import Detector, Found, load, newest_checkpoint

LOW = {"confidence": 0.05, "nms_iou": 0.65, "device": "cpu"}


@pytest.fixture
def weights(tmp_path):
    return tiny_checkpoint(tmp_path / "runs/a/best.pt")


def pictures(count, seed=0):
    rng = np.random.default_rng(seed)
    shapes = rng.integers(20, 150, (count, 2))
    return [rng.integers(0, 256, (h, w, 3), dtype=np.uint8) for h, w in shapes]


def assert_same(a: Found, b: Found, boxes=1e-2, scores=1e-4):
    assert len(a.boxes) == len(b.boxes) and a.names == b.names
    np.testing.assert_allclose(a.boxes, b.boxes, atol=boxes)
    np.testing.assert_allclose(a.scores, b.scores, atol=scores)


def test_result_has_the_types_it_promises(weights):
    (found,) = Detector(weights, **LOW)([np.zeros((50, 80, 3), np.uint8)])
    n = len(found.scores)
    assert n > 0 and found.boxes.shape == (n, 4) and found.boxes.dtype == np.float32
    assert found.labels.shape == (n,) and found.labels.dtype == np.int64
    assert found.names == tuple(("red", "blue")[label] for label in found.labels)
    assert (np.diff(found.scores) <= 0).all() and found.scores.min() >= 0.05


def test_nothing_found_is_empty_arrays(weights):
    (found,) = Detector(weights, **{**LOW, "confidence": 0.9999})(pictures(1))
    assert found.boxes.shape == (0, 4) and found.scores.shape == (0,) and found.names == ()


def test_no_images_no_results(weights):
    assert Detector(weights, **LOW)([]) == []


def test_batch_size_and_company_do_not_matter(weights):
    images = pictures(7)
    alone = [Detector(weights, batch_size=1, **LOW)([image])[0] for image in images]
    for a, b in zip(alone, Detector(weights, batch_size=3, **LOW)(images), strict=True):
        assert_same(a, b)


def test_path_and_array_and_single_image_give_the_same(weights, tmp_path):
    path = tmp_path / "图 片 (1).png"
    path.write_bytes(cv2.imencode(".png", pictures(1)[0])[1].tobytes())
    detector = Detector(weights, **LOW)
    results = [detector(path)[0], detector([str(path)])[0], detector(read_image(str(path)))[0]]
    for other in results[1:]:
        assert_same(results[0], other, 0, 0)


def test_files_read_by_threads_are_the_pictures_in_their_order(weights, tmp_path):
    images = pictures(9)
    for number, image in enumerate(images):
        (tmp_path / f"{number}.png").write_bytes(cv2.imencode(".png", image)[1].tobytes())
    mixed = [tmp_path / f"{n}.png" if n % 3 else image for n, image in enumerate(images)]
    detector = Detector(weights, batch_size=2, **LOW)
    for a, b in zip(detector(images), detector(mixed), strict=True):
        assert_same(a, b, 0, 0)


def test_a_missing_file_among_many_is_named_and_leaves_no_thread(weights, tmp_path):
    detector, before = Detector(weights, batch_size=2, **LOW), threading.active_count()
    with pytest.raises(ImageError, match="nowhere.jpg"):
        detector([*pictures(5), "nowhere.jpg", *pictures(5)])
    assert threading.active_count() == before


@pytest.mark.skipif(sys.platform != "linux", reason="Linux counts the pages that a process gets")
def test_memory_of_the_layers_is_not_given_back(tmp_path):
    """Otherwise Linux hands it out again in every pass, page by page."""
    resource = pytest.importorskip("resource")
    detector = Detector(tiny_checkpoint(tmp_path / "a.pt", image_size=(416, 416)), **LOW)
    batch, _ = detector.prepare(pictures(1))
    faults = []
    for _ in range(6):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        detector.network(batch)
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    assert min(faults) < 200  # of 4 KiB, where a pass takes several MiB


def test_predict_equals_val(weights, painted):
    """Pitfall 16: the loader and model of the evaluation, and the detector, on the same pictures."""
    data = read(str(painted(6)), "val", ("red", "blue"))
    model, _, size, *_ = load(weights)
    loader = build_loader(DetectionDataset(data, model.letterbox), ValSampler(len(data), 4, size), 0)
    limits = {"confidence": 0.05, "nms_iou": 0.65}
    wanted = [one for batch in loader for one in model.detect(batch.images, batch.frames, **limits)]
    got = Detector(weights, **LOW)([data.path(i) for i in range(len(data))])
    assert sum(len(one.boxes) for one in wanted) > 20
    for a, b in zip(wanted, got, strict=True):
        assert_same(Found(a.boxes.numpy(), a.scores.numpy(), a.labels.numpy(), b.names), b)
        assert a.labels.tolist() == b.labels.tolist()


def test_official_weights_find_what_the_official_code_finds(shared):
    folder = shared / "data/coco_val326"
    truth = json.loads((folder / "instances_val2017_core326.json").read_text())
    wanted = json.loads((folder / "yolox_nano_detections.json").read_text())
    names = {category["id"]: category["name"] for category in truth["categories"]}
    detector = Detector(shared / "weights/yolox_nano.pth", "yolox_nano", confidence=0.5, nms_iou=0.65, device="cpu")
    some = truth["images"][:8]
    for image, found in zip(some, detector([folder / "images" / image["file_name"] for image in some]), strict=True):
        best = [d for d in wanted if d["image_id"] == image["id"] and d["score"] >= 0.5]
        best.sort(key=lambda d: -d["score"])
        assert found.names == tuple(names[d["category_id"]] for d in best)
        np.testing.assert_allclose(found.scores, [d["score"] for d in best], atol=5e-3)
        corners = np.array([d["bbox"] for d in best]).reshape(-1, 4)
        corners[:, 2:] += corners[:, :2]
        np.testing.assert_allclose(found.boxes, corners, atol=1.0)


def test_image_of_another_kind_is_refused_with_what_it_is(weights):
    detector = Detector(weights, **LOW)
    for image, what in (
        (np.zeros((9, 9), np.uint8), r"uint8 \[9, 9\]"),
        (np.zeros((9, 9, 4), np.uint8), r"\[9, 9, 4\]"),
        (np.zeros((9, 9, 3), np.float32), "float32"),
        (7, "int"),
    ):
        with pytest.raises(TypeError, match=what):
            detector([image])


def test_missing_picture_is_named(weights):
    with pytest.raises(ImageError, match="nowhere.jpg"):
        Detector(weights, **LOW)(["nowhere.jpg"])


def test_checkpoint_says_classes_and_size(weights):
    model, classes, size, config, path, confidence = load(weights)
    assert (classes, size, path, confidence) == (("red", "blue"), (64, 96), weights, 0.3) and not model.training
    assert config["model"] == "yolox_nano"
    assert load(weights, image_size=(96, 64)).image_size == (96, 64)
    assert load(weights, "yolox_nano", ["red", "blue"]).classes == classes


def test_what_contradicts_the_checkpoint_is_refused(weights):
    with pytest.raises(ValueError, match="is a yolox_nano with the classes red, blue"):
        load(weights, "yolox_s")
    with pytest.raises(ValueError, match="leave out model= and classes="):
        load(weights, classes=["blue", "red"])
    with pytest.raises(ValueError, match="multiples of 32, such as 416,96"):
        load(weights, image_size=(420, 100))


def official(path, rows):
    model = nets.build("yolox_nano", rows)
    torch.save({"model": model.state_dict()}, path)
    return path, model


def test_official_file_without_names_needs_classes(tmp_path):
    path, _ = official(tmp_path / "w.pth", 3)
    with pytest.raises(CheckpointError, match="model= and classes="):
        load(path)
    with pytest.raises(ValueError, match="finds 3 classes, but does not name them: give classes=FILE"):
        load(path, "yolox_nano")
    with pytest.raises(ValueError, match="finds 3 classes, classes= has 2 names"):
        load(path, "yolox_nano", ["a", "b"])
    assert load(path, "yolox_nano", ["a", "b", "c"]).classes == ("a", "b", "c")


def test_classes_pick_rows_of_coco_weights_by_name(tmp_path):
    path, model = official(tmp_path / "w.pth", 80)
    loaded = load(path, "yolox_nano", ["dog", "person"])
    for name, rows in model.state_dict().items():
        if "class_predictors" in name:
            wanted = rows[[COCO_CLASSES.index("dog"), COCO_CLASSES.index("person")]]
            assert torch.equal(loaded.model.state_dict()[name], wanted)
    assert loaded.image_size == (416, 416) and load(path, "yolox_nano").classes == COCO_CLASSES
    with pytest.raises(ValueError, match="not all COCO's"):
        load(path, "yolox_nano", ["dog", "dragon"])


def test_official_yolov9_of_any_width_is_loaded_whole(tmp_path):
    """The class branches of t may have 80 channels; with two classes of our own they would have 64."""
    torch.manual_seed(0)
    model = nets.build("yolov9_t", 80, nets.build("yolov9_t", 40).state_dict())
    torch.save(model.state_dict(), tmp_path / "v9-t.pt")
    loaded = load(tmp_path / "v9-t.pt", "yolov9_t", ["dog", "person"])
    state = loaded.model.state_dict()
    assert state["head.class_convs.0.1.conv.weight"].shape[0] == 80 and loaded.image_size == (640, 640)
    rows = model.state_dict()["head.class_predictors.2.weight"]
    wanted = rows[[COCO_CLASSES.index("dog"), COCO_CLASSES.index("person")]]
    assert torch.equal(state["head.class_predictors.2.weight"], wanted)
    detector = Detector(tmp_path / "v9-t.pt", "yolov9_t", image_size=(64, 96), confidence=0.0, device="cpu")
    assert detector.model.letterbox == "centre" and len(detector(pictures(2))[1].scores) > 0


def test_wrong_model_for_official_weights_says_so(tmp_path):
    path, _ = official(tmp_path / "w.pth", 80)
    with pytest.raises(CheckpointError, match="Does model= name the model"):
        load(path, "yolox_tiny")


def test_newest_checkpoint_is_taken_and_none_has_a_cure(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match="python train.py"):
        load(None)
    old, new = (tiny_checkpoint(tmp_path / f"runs/{name}/best.pt") for name in ("z", "a"))
    os.utime(old, (1, 1))
    assert newest_checkpoint().resolve() == new and load(None).path.resolve() == new


def test_coco_needs_a_model():
    with pytest.raises(ValueError, match="say which model, one of yolox_nano"):
        load("coco")


def test_missing_file_stays_a_missing_file_with_a_model(tmp_path):
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        load(tmp_path / "no.pth", "yolox_nano")
