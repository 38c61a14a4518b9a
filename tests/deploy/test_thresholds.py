"""deploy/thresholds.py: a threshold for each class, from the validation to the detections of every program."""

import numpy as np
import pytest
import torch
from lively import lively_checkpoint
from refused import refused, told
from small import config, log_of, train_quietly

import evaluate
from deploy.detector import Detector, Result
from deploy.thresholds import threshold_text
from metrics.coco import class_thresholds
from utils import checkpoint

CLASSES = ("red", "blue", "green")
OWN = {"red": 0.6, "green": 0.2, "of another model": 0.9}
COMMON = 0.45
LEAST = [0.6, COMMON, 0.2]  # of CLASSES


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "best.pt"
    return lively_checkpoint(path, classes=CLASSES, metrics={"confidence": COMMON}, thresholds=OWN)


def images(count=6):
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, (48, 80, 3), dtype=np.uint8) for _ in range(count)]


def above(result: Result, least) -> Result:
    return result[result.scores >= np.float32(least)[result.labels]]


def assert_same(a: Result, b: Result):
    for field in ("boxes", "scores", "labels", "names"):
        assert np.array_equal(getattr(a, field), getattr(b, field))


def test_each_class_has_its_own_threshold(weights):
    """NMS works per class, so the result is the detections of a low threshold that are above the threshold of their class."""
    every = Detector(weights, confidence=0.05, device="cpu")(images())
    counts = np.zeros((2, 3), int)
    for one, result in zip(every, Detector(weights, confidence="per_class", device="cpu")(images()), strict=True):
        expected = above(one, LEAST)
        assert_same(result, expected)
        counts += [np.bincount(labels, minlength=3) for labels in (one.labels, result.labels)]
    assert (counts[0] > counts[1]).all() and (counts[1] > 0).all()
    assert Detector(weights, device="cpu").limits["confidence"] == COMMON  # none: the common one


def test_files_without_thresholds_and_other_words_are_refused(tmp_path, weights):
    older = lively_checkpoint(tmp_path / "older.pt", metrics={"confidence": COMMON})
    assert Detector(older, device="cpu").limits["confidence"] == COMMON
    for path in (older, lively_checkpoint(tmp_path / "other.pt", thresholds={"of another model": 0.5})):
        with refused(ValueError, path, "confidence=per_class", "confidence="):
            Detector(path, device="cpu", confidence="per_class")
    with refused(ValueError, "confidence=per-class", "per_class"):
        Detector(weights, device="cpu", confidence="per-class")


def test_the_thresholds_in_use_are_explained(tmp_path, weights):
    def text(path, confidence=None):
        detector = Detector(path, device="cpu", confidence=confidence)
        return threshold_text(detector.loaded, detector.limits["confidence"])

    told(text(weights), "confidence 0.45", "confidence=0.23", "confidence=per_class")
    nothing = text(lively_checkpoint(tmp_path / "a.pt"))
    told(nothing, "confidence 0.3")
    assert "per_class" not in nothing
    told(text(weights, "per_class"), "0.2 (green)", "0.6 (red)")


def test_thresholds_of_classes_are_rounded_down_and_left_out_without_a_correct_detection():
    rows = {"a": (0.61239, 0.8), "b": (0.9, 0.0), "c": (-1.0, -1.0), "d": (0.00125, 0.1)}
    per_class = {name: {"threshold": threshold, "f1": f1} for name, (threshold, f1) in rows.items()}
    assert class_thresholds(per_class) == {"a": 0.6123, "d": 0.0012}


def test_training_stores_the_thresholds_that_evaluate_prints(demo_images, tmp_path, capsys):
    """In best.pt and last.pt by class name, also for selected and joined classes, and not in the log."""
    cfg = config(demo_images, tmp_path / "runs", epochs=2, freeze_epochs=0)
    folder, *_ = train_quietly(cfg)
    measured = evaluate.main(evaluate.Config(str(folder / "last.pt"), output=str(tmp_path / "out"), device="cpu"))
    stored = checkpoint.load(folder / "last.pt")["thresholds"]
    assert stored == class_thresholds(measured["per_class"]) and stored
    assert checkpoint.load(folder / "best.pt")["thresholds"].keys() <= set(
        checkpoint.load(folder / "best.pt")["classes"]
    )
    assert not [name for name in log_of(folder)[0] if "threshold" in name]
    printed = capsys.readouterr().out.splitlines()
    head = next(line.split() for line in printed if line.startswith("class"))
    assert head[-4:] == ["precision", "recall", "f1", "threshold"]
    for name, least in stored.items():
        row = dict(zip(head, next(line.split() for line in printed if line.split()[:1] == [name]), strict=True))
        assert abs(float(row["threshold"]) - least) <= 1.01e-4
    detector = Detector(folder / "last.pt", device="cpu", confidence="per_class")
    common = measured["confidence"]
    assert torch.equal(detector.limits["confidence"], torch.tensor([stored.get(x, common) for x in detector.classes]))
