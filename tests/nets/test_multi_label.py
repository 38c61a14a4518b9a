"""benchmarks/multi_label.py: evaluation as published metrics are measured."""

import numpy as np
import pytest
import torch
from toys import FAMILIES, detector

from benchmarks.multi_label import MultiLabel, pairs
from nets import picodet, ppyoloe, yolov9, yolox
from utils.boxes import clip

SIZE = (64, 96)
POINTS = 8 * 12 + 4 * 6 + 2 * 3


def predictions(family, classes=5, batch=3, seed=0):
    """Random outputs: overlapping boxes, and scores of all sizes."""
    torch.manual_seed(seed)
    if family == "yolox":
        boxes = torch.cat([torch.randn(batch, POINTS, 2), 0.5 * torch.randn(batch, POINTS, 2) + 1], -1)
        return yolox.Predictions(boxes, torch.randn(batch, POINTS), torch.randn(batch, POINTS, classes) * 2)
    if family == "picodet":
        boxes, alignment = torch.randn(batch, POINTS + 2, 32), 2 * torch.randn(batch, POINTS + 2)  # two of stride 64
        return picodet.Predictions(boxes, alignment, 2 * torch.randn(batch, POINTS + 2, classes))
    family, width = {"yolov9": (yolov9, 64), "ppyoloe": (ppyoloe, 68)}[family]
    return family.Predictions(torch.randn(batch, POINTS, width), torch.randn(batch, POINTS, classes) * 2)


def identity(batch=3):
    return torch.tensor([[SIZE[1], SIZE[0], 1.0, 1.0, 0, 0]] * batch)


def scores_of(raw):
    """Scores `[B, A, C]` in float64, by the definitions of the families."""
    scores = raw.classes.double().sigmoid()
    if isinstance(raw, picodet.Predictions):
        return (scores * raw.alignment.double().sigmoid()[..., None] + 1e-9).sqrt().numpy()
    if isinstance(raw, yolox.Predictions):
        scores = scores * raw.objectness.double().sigmoid()[..., None]
    return scores.numpy()


def reference(boxes, scores, confidence, nms_iou, most):
    """By the definition, for one image in float64: every class of every anchor point is a separate candidate."""
    pairs = [
        (scores[p, c], p, c) for p in range(len(boxes)) for c in range(scores.shape[1]) if scores[p, c] >= confidence
    ]
    kept = []
    for score, p, c in sorted(pairs, key=lambda pair: -pair[0]):
        same = np.array([boxes[q] for _, q, d in kept if d == c]).reshape(-1, 4)
        low, high = np.maximum(boxes[p, :2], same[:, :2]), np.minimum(boxes[p, 2:], same[:, 2:])
        inside = np.clip(high - low, 0, None).prod(1)
        union = (boxes[p, 2:] - boxes[p, :2]).prod() + (same[:, 2:] - same[:, :2]).prod(1) - inside
        if (inside <= nms_iou * union).all():
            kept.append((score, p, c))
    return kept[:most]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("confidence", "most"), [(0.05, 10_000), (1e-4, 40)])
def test_several_labels_equal_the_definition(family, confidence, most):
    model, raw = detector(family, 5), predictions(family)
    boxes = model.decode(raw, SIZE)[0].double().numpy()
    limits = {"confidence": confidence, "nms_iou": 0.7, "max_detections": most}
    found = MultiLabel(model).detections(raw, SIZE, identity(), **limits)
    for b, one in enumerate(found):
        kept = reference(boxes[b], scores_of(raw)[b], confidence, 0.7, most)
        assert one.labels.tolist() == [c for _, _, c in kept] and len(kept) > 30
        np.testing.assert_allclose(one.scores, [score for score, *_ in kept], atol=1e-6)
        expected = clip(boxes[b][[p for _, p, _ in kept]].astype(np.float32), *SIZE[::-1])
        np.testing.assert_array_equal(one.boxes, expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_best_label_of_each_point_is_that_of_a_single_label(family):
    """And with one class nothing changes, to the bit."""
    model, raw = detector(family, 5), predictions(family)
    _, best, labels = model.decode(raw, SIZE)
    _, scores, classes = pairs(model, raw, SIZE)
    np.testing.assert_allclose(scores[:, 0], best.amax(1), atol=1e-6)
    assert classes[:, 0].tolist() == labels.gather(1, best.argmax(1)[:, None])[:, 0].tolist()
    model, raw = detector(family, 1), predictions(family, 1)
    for one, other in zip(
        model.detections(raw, SIZE, identity()), MultiLabel(model).detections(raw, SIZE, identity()), strict=True
    ):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True)) and len(one.scores) > 20
