"""deploy/exported_model.py: exported files as models; files that are damaged, foreign or contradict the caller."""

import numpy as np
import onnx
import pytest
import torch
from lively import lively, lively_checkpoint
from refused import refused

import export
import nets
from datasets import demo
from deploy.detector import Detector
from deploy.exported_model import ExportedModel
from deploy.load import device_for
from nets.extended import extended
from utils import checkpoint
from utils.file_checks import CheckpointError


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return lively_checkpoint(tmp_path_factory.mktemp("weights") / "best.pt")


@pytest.fixture(scope="module")
def file(weights):
    """A file for two images at a time."""
    return export.main(export.Config(str(weights), check_images=2, batch_size=2))


def with_metadata(file, path, **changes):
    """A copy of the file with other metadata (None: without this entry)."""
    proto = onnx.load(file)
    values = {entry.key: entry.value for entry in proto.metadata_props} | changes
    del proto.metadata_props[:]
    for name, value in values.items():
        if value is not None:
            proto.metadata_props.add(key=name, value=value)
    onnx.save(proto, path)
    return path


def test_results_do_not_depend_on_the_number_of_images(file):
    images = [demo.draw_image(number)[0] for number in range(5)]
    model = ExportedModel(file)
    inputs, transforms = Detector(file).prepare(images)
    together = model.detections(model(inputs), (64, 96), transforms, confidence=0.3)
    assert len(together) == 5 and min(len(one.scores) for one in together) > 5
    for number in range(5):
        one = slice(number, number + 1)
        (alone,) = model.detections(model(inputs[one]), (64, 96), transforms[one], confidence=0.3)
        assert all(torch.equal(a, b) for a, b in zip(alone, together[number], strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("outputs", ["detections", pytest.param("raw", marks=pytest.mark.slow)])
def test_boxes_are_clipped_as_by_the_exported_checkpoint(weights, tmp_path, outputs):
    clipped = export.main(export.Config(str(weights), str(tmp_path / "a.onnx"), check_images=2, outputs=outputs))
    unclipped = with_metadata(clipped, tmp_path / "b.onnx", clip="false")  # as of official weights
    image = demo.draw_image(1)[0]
    height, width = image.shape[:2]
    ours, *theirs = (Detector(path, confidence=0.1)(image)[0] for path in (weights, clipped, unclipped))
    np.testing.assert_allclose(theirs[0].boxes, ours.boxes, atol=0.05)
    for found in (ours, theirs[0]):
        assert len(found.boxes) > 20 and found.boxes.min() == 0
        assert found.boxes[:, 2].max() == width and found.boxes[:, 3].max() == height
    for found in theirs[1:]:
        assert found.boxes.min() < -1 and len(found.boxes) >= len(ours.boxes)


@pytest.mark.slow
def test_each_head_of_a_file_has_its_own_limit_and_classes(tmp_path):
    """As in the model with added classes that was exported."""
    model, *fresh = (lively(nets.build("tiny_n", count), (64, 96)) for count in (3, 2, 1))
    for one in fresh:
        model = extended(model, one).eval()
    contents = {"config": {"model": "tiny_n", "image_size": (64, 96), "val": None}, "classes": list("abcdef")}
    contents |= {"epoch": 1, "step": 1, "metrics": {}, "model": model.state_dict()}
    checkpoint.save(tmp_path / "best.pt", contents)
    path = export.main(export.Config(str(tmp_path / "best.pt"), check_images=2, max_detections=6))
    inputs, transforms = Detector(path).prepare([demo.draw_image(0)[0]])
    for most in (6, 4):
        limits = {"confidence": 0.01, "max_detections": most}
        with torch.inference_mode():
            (theirs,) = model.detections(model(inputs), (64, 96), transforms, **limits)
        (ours,) = ExportedModel(path).detections(inputs, (64, 96), transforms, **limits)
        assert len(ours.scores) == 3 * most and torch.equal(ours.labels, theirs.labels)
        torch.testing.assert_close(ours.scores, theirs.scores, atol=1e-4, rtol=0)


def test_files_that_are_missing_damaged_or_foreign_are_refused(file, tmp_path):
    with refused(CheckpointError, tmp_path / "none.onnx", "python export.py"):
        Detector(tmp_path / "none.onnx")
    (tmp_path / "bad.onnx").write_bytes(b"no network")
    with refused(CheckpointError, tmp_path / "bad.onnx"):
        Detector(tmp_path / "bad.onnx")
    (tmp_path / "cut.onnx").write_bytes(file.read_bytes()[:5000])
    with refused(CheckpointError, tmp_path / "cut.onnx"):
        Detector(tmp_path / "cut.onnx")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (dict.fromkeys(("model", "dynamic_size")), ["model, dynamic_size"]),
        (dict.fromkeys(("version", "clip")), ["version, clip"]),
        ({"version": "9"}, ["version", "export.py"]),
        ({"classes": "[" * 9000}, ["JSON"]),
        ({"classes": "5"}, ["classes"]),
        ({"image_size": "[1000000, 1000000]"}, ["image_size"]),
        ({"thresholds": '{"red": "high"}'}, ["thresholds"]),
    ],
    ids=["foreign", "of another program", "newer", "no JSON", "classes", "size", "thresholds"],
)
def test_metadata_that_are_not_supported_are_refused(file, tmp_path, changes, named):
    with refused(CheckpointError, "other.onnx", *named):
        Detector(with_metadata(file, tmp_path / "other.onnx", **changes))


def test_arguments_that_contradict_the_file_are_refused(file, weights):
    with refused(ValueError, file, "image_size=64,96", "dynamic_size=true"):
        Detector(file, image_size=(96, 96))
    with refused(ValueError, file, "tiny_n", "red, blue, green", "model="):
        Detector(file, "yolox_s")
    with refused(ValueError, ".onnx", "cuda:0", "device=cpu"):
        ExportedModel(file).to("cuda:0")
    assert device_for(file, "auto") == "cpu" and device_for(weights, "auto") == "auto"
    assert device_for(file, "cuda") == "cuda"
