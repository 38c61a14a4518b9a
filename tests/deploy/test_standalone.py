"""detector.py decodes raw outputs as the families do, and its NMS is that of the product, to the bit."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lively import lively

import nets
from deploy.agreement import class_scores
from deploy.onnx_graph import RawGraph
from deploy.standalone import converters, detector
from nets.extended import extended
from nets.families import build_plain
from nets.picodet import joint_scores
from nets.postprocess import joined, select

ROOT = Path(__file__).parents[2]
SIZE = (96, 160)  # PicoDet has a row of half a grid cell at the stride 64
MODELS = {"yolox_nano": (80, ()), "yolov9_t": (1, (2,)), "ppyoloe_s": (80, ()), "picodet_s": (1, (3, 2))}
OTHERS = {"yolox_nano": (1, (2,)), "yolov9_t": (80, ()), "ppyoloe_s": (1, (3, 2)), "picodet_s": (80, (2,))}


def metadata(model, outputs, strides):
    classes = [str(label) for label in range(model.num_classes)]
    return {"classes": classes, "added": model.added_counts, "output_names": outputs, "strides": strides}


@pytest.mark.parametrize(
    "name, num_classes, added",
    [
        *((name, *counts) for name, counts in MODELS.items()),
        *(pytest.param(name, *counts, marks=pytest.mark.slow) for name, counts in OTHERS.items()),
    ],
)
@torch.no_grad()
def test_raw_outputs_are_decoded_as_by_the_family(name, num_classes, added):
    """The boxes and the scores of all classes of all anchor points, of each head."""
    model = lively(nets.build(name, num_classes), SIZE)
    for count in added:
        model = extended(model, lively(build_plain(name, count, {}), SIZE))
    graph = RawGraph(model.eval(), uint8_input=False, image_size=SIZE)
    images = torch.randint(0, 256, (1, 3, *SIZE), generator=torch.Generator().manual_seed(0)).float()
    outputs = [output[0].numpy() for output in graph(images)]
    about = metadata(model, graph.outputs, model.strides)
    boxes, scores = detector.decode(about, outputs, 0.0)
    first = 0
    for head in model.per_head(model(images)):
        expected, best, labels = (x[0].numpy() for x in head.model.decode(head.predictions, SIZE))
        last, classes = first + len(expected), slice(head.first_class, head.first_class + head.num_classes)
        np.testing.assert_allclose(boxes[first:last], expected, rtol=1e-5, atol=1e-3)
        np.testing.assert_allclose(scores[first:last, classes], class_scores(head.predictions)[0], atol=2e-6)
        np.testing.assert_allclose(scores[first:last].max(1), best, atol=2e-6)
        np.testing.assert_array_equal(scores[first:last].argmax(1), labels + head.first_class)
        first = last
    assert first == len(boxes) and boxes.std() > 10 and scores[scores >= 0].std() > 0.05
    some = scores.max(1).astype(np.float32) >= np.float32(0.3)
    few_boxes, few_scores = detector.decode(about, outputs, 0.3)
    np.testing.assert_array_equal(boxes[some], few_boxes)
    np.testing.assert_array_equal(scores[some], few_scores)


def test_boxes_that_are_not_finite_are_left_out_and_high_scores_stay_apart():
    cells = {"boxes": np.zeros((4, 1, 3), np.float32), "classes": np.full((2, 1, 3), 20, np.float32)}
    cells["boxes"][2:, 0, 0] = 1000.0, np.nan
    cells["classes"][1] += 0.5
    about = {"classes": "ab", "strides": [8], "output_names": [f"{name}_8" for name in cells]}
    boxes, scores = detector.decode(about, list(cells.values()), 0.5)
    assert boxes.tolist() == [[4.0, -4.0, 12.0, 4.0], [12.0, -4.0, 20.0, 4.0]] and scores.argmax(1).tolist() == [1, 1]


def test_low_scores_of_picodet_are_those_of_the_family():
    logits = torch.linspace(-40, 40, 9)
    cells = {"boxes": torch.zeros(32, 1, 9), "alignment": logits[None, None] - 5, "classes": logits[None, None]}
    about = {"classes": "a", "strides": [64], "output_names": [f"{name}_64" for name in cells]}
    _, scores = detector.decode(about, [cell.numpy() for cell in cells.values()], 0.0)
    np.testing.assert_allclose(scores, joint_scores(logits[:, None], logits - 5), rtol=1e-5)


def boxes_of(kind, count, rng):
    """Random boxes of a kind, float32 [count, 4]."""
    if kind == "whole pixels":  # equal boxes, overlaps of exactly a half, boxes without area, inverted boxes
        return rng.integers(0, 8, (count, 4)).astype(np.float32)
    corners = rng.uniform(-20, 400, (count, 2))
    boxes = np.concatenate([corners, corners + rng.uniform(0, 200, (count, 2))], 1).astype(np.float32)
    return boxes * np.float32(1e3) if kind == "far outside" else boxes


@pytest.mark.parametrize("kind", ["whole pixels", "usual", "far outside"])
@settings(max_examples=25)
@given(
    count=st.sampled_from([0, 1, 7, 60, 400, 4000]),
    counts=st.sampled_from([(1,), (3,), (2, 1), (1, 2, 3)]),
    levels=st.sampled_from([5, 10**6]),
    nms_iou=st.sampled_from([0.0, 0.25, 0.5, 1.0]),
    max_detections=st.sampled_from([1, 20, 3000]),
    seed=st.integers(0, 2**16),
)
def test_nms_equals_that_of_the_product(kind, count, counts, levels, nms_iou, max_detections, seed):
    """For any boxes, equal scores, more boxes than candidates, one threshold per class, and a limit for each head."""
    rng, classes = np.random.default_rng(seed), sum(counts)
    about = {"added": counts[1:], "max_detections": max_detections}
    ours = detector.Detector.__new__(detector.Detector)
    ours.about, ours.classes, ours.nms_iou = about, tuple("abcdef"[:classes]), nms_iou
    ours.thresholds = rng.uniform(0, 0.5, classes).astype(np.float32)
    boxes = boxes_of(kind, count, rng)
    heads = np.sort(rng.integers(0, len(counts), count))  # the anchor points of the first head come first
    ends = np.cumsum(counts)
    labels = rng.integers(ends[heads] - np.array(counts)[heads], ends[heads])
    best = (rng.integers(0, levels, count) / levels).astype(np.float32)
    scores = np.full((count, classes), -1.0)
    scores[np.arange(count), labels] = best
    transforms, found = torch.tensor([[640.0, 640.0, 1.0, 1.0, 0.0, 0.0]]), []
    limits = {"confidence": torch.from_numpy(ours.thresholds), "nms_iou": nms_iou, "max_detections": max_detections}
    for head in range(len(counts)):
        fields = (torch.from_numpy(field[heads == head])[None] for field in (boxes, best, labels))
        found.append(select(*fields, transforms, **limits))
    (expected,) = joined(found)
    for one, other in zip(ours.select(boxes, scores), expected, strict=True):
        np.testing.assert_array_equal(one, other.numpy())


@pytest.mark.parametrize(
    "words", [["deploy/standalone/detector.py", "{0}/a.onnx", "{0}/a.onnx", "b"], ["-c", "import utils, onnxruntime"]]
)
def test_onnxruntime_is_imported_without_its_telemetry(words, tmp_path):
    """It would write an identifier into the home folder."""
    (tmp_path / "a.onnx").touch()
    home = tmp_path / "home"
    home.mkdir()
    environment = {name: text for name, text in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    command = [sys.executable, *(word.format(tmp_path) for word in words)]
    done = subprocess.run(command, cwd=ROOT, env={**environment, "HOME": str(home)}, capture_output=True, text=True)
    assert done.returncode == 0 or "a.onnx cannot be opened" in done.stderr
    assert not list(home.iterdir())


def test_openvino_is_imported_without_its_telemetry(tmp_path, monkeypatch):
    """By what runs its files, and by what writes them."""
    (tmp_path / "openvino.py").write_text("import openvino_telemetry")
    (tmp_path / "openvino_telemetry.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "openvino_telemetry", None)
    for use in (lambda: detector.open_file(tmp_path, None, None), lambda: converters.openvino(None, None, None, None)):
        del sys.modules["openvino_telemetry"]
        with pytest.raises((ValueError, ImportError), match="openvino_telemetry"):
            use()
