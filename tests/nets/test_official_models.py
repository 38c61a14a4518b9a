"""Official models out of the box: predict.py, evaluate.py, export.py and Detector with model= alone."""

import hashlib
import json
import os

import cv2
import numpy as np
import pytest
import torch
from lively import lively, tiny_checkpoint
from refused import refused
from weight_server import serving

import evaluate
import export
import nets
import predict
from deploy.detector import Detector
from deploy.load import load
from nets import pretrained
from nets.pretrained import COCO_CATEGORY_IDS, COCO_CLASSES, OfficialFile, PretrainedError

SIZE = (64, 96)


@pytest.fixture
def published(tmp_path, monkeypatch):
    """A local server that publishes official weights of tiny_n, and a run folder with a newer model of two classes."""
    with serving(tmp_path / "cache", monkeypatch) as server:
        torch.save({"model": lively(nets.build("tiny_n", 80), SIZE).state_dict()}, tmp_path / "weights.pth")
        server.data = (tmp_path / "weights.pth").read_bytes()
        file = OfficialFile("owner/tiny.pth", hashlib.sha256(server.data).hexdigest(), SIZE)
        monkeypatch.setitem(nets.MODELS, "tiny", nets.MODELS["tiny"]._replace(weights={"n": file}))
        monkeypatch.setattr(pretrained, "HOST", server.address)
        monkeypatch.chdir(tmp_path)
        tiny_checkpoint(tmp_path / "runs/mine/best.pt")
        cv2.imwrite("photo.png", np.random.default_rng(0).integers(0, 255, (48, 64, 3), dtype=np.uint8))
        yield server


def test_a_model_without_a_checkpoint_is_the_official_one(published, tmp_path):
    loaded = load(None, "tiny_n")
    assert loaded.path == tmp_path / "cache/tiny_n.pth" and loaded.classes == COCO_CLASSES
    assert load("coco", "tiny_n").path == loaded.path and Detector(model="tiny_n").image_size == SIZE
    assert load(None, "tiny_n", ["dog", "cat"]).classes == ("dog", "cat")
    assert published.paths == ["/owner/tiny.pth"]  # downloaded once


def test_predict_names_the_classes_of_coco(published, capsys):
    options = predict.Config(model="tiny_n", source="photo.png", device="cpu", confidence=0.05, output="out")
    entries = json.loads((predict.main(options) / "detections.json").read_text())
    assert entries and all(COCO_CLASSES[COCO_CATEGORY_IDS.index(e["category_id"])] == e["class"] for e in entries)
    assert "tiny_n.pth: 80 classes" in capsys.readouterr().out


@pytest.mark.slow
def test_evaluate_and_export_take_the_official_model_too(published, tmp_path, monkeypatch):
    images = [{"id": 1, "file_name": "photo.png", "width": 64, "height": 48}]
    names = zip(COCO_CATEGORY_IDS, COCO_CLASSES, strict=True)
    boxes = [{"id": 1, "image_id": 1, "category_id": 18, "bbox": [2, 2, 30, 30], "area": 900, "iscrowd": 0}]
    truth = {"images": images, "annotations": boxes, "categories": [{"id": i, "name": name} for i, name in names]}
    (tmp_path / "val.json").write_text(json.dumps(truth))
    settings = {"model": "tiny_n", "data": "val.json", "device": "cpu", "workers": 0, "output": "results"}
    assert evaluate.main(evaluate.Config(**settings))["per_class"]["dog"]["boxes"] == 1
    about = {}

    def write(file, model, description, *_):
        file.touch()
        about.update(description)

    monkeypatch.setattr(export, "write", write)
    monkeypatch.setattr(export, "verify", lambda *_: None)
    assert str(export.main(export.Config(model="tiny_n"))) == "tiny_n.onnx"  # in the current folder
    assert tuple(about["classes"]) == COCO_CLASSES and published.paths == ["/owner/tiny.pth"]


def test_messages_name_the_option_of_the_detector(published, monkeypatch):
    """The messages of a training name weights=, which predict.py does not have."""
    monkeypatch.setattr(pretrained, "HOST", "http://127.0.0.1:1")
    with refused(PretrainedError, "tiny_n.pth", "checkpoint=FILE"):
        load(None, "tiny_n")
    monkeypatch.setitem(nets.MODELS, "tiny", nets.MODELS["tiny"]._replace(weights={}))
    with refused(PretrainedError, "model=tiny_n", "checkpoint=FILE"):
        load(None, "tiny_n")
    with refused(ValueError, "model='resnet'", "yolox_nano"):
        load(None, "resnet")


def test_the_real_weights_detect_out_of_the_box(shared, tmp_path, monkeypatch):
    """The file of the data folder is in the place of the official download."""
    file, weights = nets.MODELS["yolox"].weights["nano"], shared / "weights/yolox_nano.pth"
    file = file._replace(sha256=hashlib.sha256(weights.read_bytes()).hexdigest())
    monkeypatch.setitem(nets.MODELS["yolox"].weights, "nano", file)
    monkeypatch.setenv("THAW_CACHE", str(tmp_path))
    os.symlink(weights, tmp_path / "yolox_nano.pth")
    (result,) = Detector(model="yolox_nano", device="cpu")(shared / "data/coco_val326/images/000000000139.jpg")
    assert {"person", "tv", "chair"} <= set(result.names)
