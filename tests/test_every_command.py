"""Every command of the README with the models of PaddleDetection: a stopped and resumed run, and all that is made of it."""

from dataclasses import replace
from pathlib import Path

import pytest
from lively import lively_checkpoint
from old_classes import differences
from small import assert_same_run, config, train_quietly

import evaluate
import export
import predict
from datasets import demo
from tools import suspects
from utils import checkpoint

pytestmark = pytest.mark.slow
SIZE = (64, 64)


@pytest.fixture(scope="module", params=["picodet_s", "ppyoloe_s"])
def name(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def trained(name, demo_images, tmp_path_factory) -> Path:
    """A run of two epochs without a stop."""
    return train_quietly(config(demo_images, tmp_path_factory.mktemp("run"), model=name, epochs=2))[0]


@pytest.fixture(scope="module")
def weights(name, demo_images, tmp_path_factory) -> Path:
    """A checkpoint that detects something, of a training on the images of the demo."""
    data = {split: str(demo_images / f"{split}.txt") for split in ("train", "val")}
    path = tmp_path_factory.mktemp("weights") / "best.pt"
    return lively_checkpoint(path, name, demo.CLASSES, SIZE, **data)


def test_a_stopped_run_is_resumed(name, trained, demo_images, tmp_path):
    cfg = config(demo_images, tmp_path, model=name, epochs=2)

    def stop(row, run):
        if row["epoch"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_quietly(cfg, on_row=stop)
    folder, *_ = train_quietly(replace(cfg, resume=True))
    assert_same_run(folder, trained)


def test_detections_and_tiles_are_written(weights, demo_images, tmp_path):
    source = {"checkpoint": str(weights), "source": str(demo_images), "device": "cpu", "confidence": 0.1}
    for options in ({}, {"tile": 64}):
        folder = predict.main(predict.Config(**source, output=str(tmp_path / str(len(options))), **options))
        assert '"class"' in (folder / "detections.json").read_text(encoding="utf-8")


def test_exported_files_have_the_metrics_of_the_checkpoint(weights, demo_images, tmp_path):
    def ap(file, **options):
        fixed = {"data": str(demo_images / "val.txt"), "device": "cpu", "workers": 0, "report": False}
        return evaluate.main(evaluate.Config(checkpoint=str(file), output=str(tmp_path / "out"), **fixed, **options))[
            "AP"
        ]

    expected = ap(weights)
    for options in ({}, {"outputs": "raw", "uint8_input": False}, {"batch_size": 0, "dynamic_size": True}):
        file = export.main(export.Config(checkpoint=str(weights), output=str(tmp_path / "x.onnx"), **options))
        assert ap(file) == pytest.approx(expected, abs=1e-4)
    file = export.main(export.Config(checkpoint=str(weights), output=str(tmp_path / "x.onnx"), int8=True, int8_loss=1))
    assert 0 <= ap(file) <= 1 and 0 <= ap(weights, tile=64) <= 1 and 0 <= ap(weights, multi_label=True) <= 1


def test_added_classes_leave_old_detections_alone(name, demo_images, tmp_path, capsys):
    old = lively_checkpoint(tmp_path / "old.pt", name, ("cat", "dog"), SIZE)
    changes = {"model": name, "weights": str(old), "add_classes": True, "epochs": 1, "freeze_epochs": 0}
    folder, *_ = train_quietly(replace(config(demo_images, tmp_path / "runs"), **changes))
    assert differences(old, folder / "best.pt", demo_images) == []
    assert checkpoint.load(folder / "best.pt")["classes"] == ["cat", "dog", *demo.CLASSES]


def test_suspects_are_found(name, demo_images, tmp_path):
    words = {"data": str(demo_images / "train.txt"), "model": name, "weights": None, "epochs": 1, "image_size": SIZE}
    suspects.main(suspects.Config(**words, output=str(tmp_path / "suspects")))
    assert (tmp_path / "suspects/suspects.html").is_file()
