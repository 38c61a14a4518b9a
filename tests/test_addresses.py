"""Each program reads data, images and checkpoints at an address or in an archive, with the results of those in a folder."""

import json
import shutil
from pathlib import Path

import fsspec
import numpy as np
import pytest
from buckets import Faulty, upload
from lively import tiny_checkpoint
from refused import refused

import evaluate
import predict
from deploy.detector import Detector
from tools.check_report import check
from utils import checkpoint, remote

BUCKET = "faulty://bucket"


@pytest.fixture(autouse=True)
def empty(tmp_path, monkeypatch):
    """No cache, no objects."""
    monkeypatch.setenv("THAW_CACHE", str(tmp_path / "cache"))
    Faulty.store.clear()
    Faulty.faults.clear()


@pytest.fixture
def address(demo_images, tmp_path):
    """The address of a copy of the demo images, next to an archive with them."""
    archive = shutil.make_archive(str(tmp_path / "set"), "zip", demo_images)
    fsspec.filesystem("faulty").pipe_file("/bucket/set.zip", Path(archive).read_bytes())
    return upload(demo_images, f"{BUCKET}/set")


@pytest.fixture(scope="module")
def weights(demo_images, tmp_path_factory):
    classes = (demo_images / "classes.txt").read_text(encoding="utf-8").split()
    return tiny_checkpoint(tmp_path_factory.mktemp("trained") / "best.pt", classes, image_size=(64, 64))


def evaluated(weights, data, output):
    options = {"workers": 0, "device": "cpu", "confidence": 0.01, "report": False}
    return evaluate.main(evaluate.Config(checkpoint=str(weights), data=data, output=str(output), **options))


def test_an_evaluation_has_the_metrics_of_the_folder(address, demo_images, weights, tmp_path):
    ours = evaluated(weights, f"{address}/val.txt", tmp_path / "ours")
    assert ours == evaluated(weights, f"{demo_images}/val.txt", tmp_path / "theirs")
    with open(tmp_path / "ours" / "metrics.json", encoding="utf-8") as file:
        assert json.load(file)["settings"]["data"] == f"{address}/val.txt"


def test_the_address_in_a_checkpoint_is_not_requested(address, weights, tmp_path, monkeypatch):
    contents = checkpoint.load(weights)
    contents["config"] |= {"train": f"{address}/train.txt", "val": f"{address}/val.txt", "image_root": address}
    checkpoint.save(tmp_path / "others.pt", contents)
    monkeypatch.setattr(remote, "storage", lambda scheme: pytest.fail(scheme))
    with refused(ValueError, "data="):
        evaluated(tmp_path / "others.pt", None, tmp_path / "output")


@pytest.mark.parametrize("kind", ("folder", "archive", "image"))
def test_prediction_has_the_boxes_of_the_folder(address, demo_images, weights, tmp_path, kind):
    image = min(demo_images.rglob("*.png"))
    name = image.relative_to(demo_images).as_posix()
    source = {"folder": address, "archive": f"{address}.zip", "image": f"{address}/{name}"}[kind]
    local = image if kind == "image" else demo_images
    found = []
    for where, output in ((source, "ours"), (str(local), "theirs")):
        folder = str(tmp_path / output)
        cfg = predict.Config(checkpoint=str(weights), source=where, output=folder, device="cpu", confidence=0.05)
        found.append(json.loads((predict.main(cfg) / "detections.json").read_text(encoding="utf-8")))
    assert found[0] == found[1] and found[0]
    for ours, theirs in zip(*(Detector(weights, device="cpu")(str(one)) for one in (source, local)), strict=True):
        np.testing.assert_array_equal(ours.boxes, theirs.boxes)


def test_a_checkpoint_in_a_bucket_is_a_checkpoint(address, weights):
    upload(weights.parent, f"{BUCKET}/runs/one")
    detector = Detector(f"{BUCKET}/runs/one/best.pt", device="cpu")
    assert detector.classes == Detector(weights, device="cpu").classes
    with refused(ValueError, f"{BUCKET}/runs/one"):
        Detector(f"{BUCKET}/runs/one", device="cpu")


def test_the_check_reports_what_it_reports_of_the_folder(address, demo_images):
    reports = [check(f"{data}/train.txt", f"{data}/val.txt")[0] for data in (address, str(demo_images))]
    assert reports[0]["train"]["classes"] == reports[1]["train"]["classes"]
    assert reports[0]["train"]["boxes"] == reports[1]["train"]["boxes"] > 0
