"""nets/postprocess.py: thresholds, class-wise NMS and the way back into the original picture."""

import time

import numpy as np
import pytest
import torch

from datasets.transforms import boxes_into, letterbox
from nets.coder import grid
from nets.postprocess import MAX_CANDIDATES, into_original, select
from nets.yolox import YOLOX, Predictions

PLAIN = [1000.0, 1000, 1, 0, 0]  # the frame of a picture that fits as it is


def slow_nms(boxes, scores, labels, limit):
    """By the definition: the best first, and no second one of its class that overlaps it more than `limit`."""

    def overlap(a, b):
        wide, high = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
        both = max(wide, 0) * max(high, 0)
        return both / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - both)

    kept = []
    for i in sorted(range(len(scores)), key=lambda i: -scores[i]):
        if all(labels[i] != labels[k] or overlap(boxes[i], boxes[k]) <= limit for k in kept):
            kept.append(i)
    return kept


def crowd(points, classes, seed=0, spread=100.0):
    """Boxes that overlap a lot: `[1, points, 4]`, scores `[1, points]`, labels `[1, points]`."""
    torch.manual_seed(seed)
    corner = torch.rand(1, points, 2) * spread
    boxes = torch.cat([corner, corner + 20 + 40 * torch.rand(1, points, 2)], -1)
    return boxes, torch.rand(1, points), torch.randint(classes, (1, points))


def select_one(boxes, scores, labels, confidence=0.0, nms_iou=0.65, max_detections=10_000, frame=PLAIN):
    return select(boxes, scores, labels, torch.tensor([frame]), confidence, nms_iou, max_detections)[0]


@pytest.mark.parametrize("kind", ["corner", "centre"])
@pytest.mark.parametrize("width, height", [(640, 480), (101, 333), (50, 40)])
def test_into_original_is_the_inverse_of_the_letterbox(kind, width, height):
    _, frame = letterbox(np.zeros((height, width, 3), np.uint8), (96, 160), kind)
    boxes = np.random.default_rng(0).uniform(-10, 500, (20, 4)).astype(np.float32)
    inside = torch.from_numpy(boxes_into(boxes, frame))
    assert np.abs(into_original(inside, torch.tensor(frame)).numpy() - boxes).max() < 1e-2
    assert not torch.allclose(inside, torch.from_numpy(boxes), atol=1)


@pytest.mark.parametrize("points, classes, limit", [(200, 1, 0.65), (200, 5, 0.65), (150, 80, 0.3), (1200, 3, 0.5)])
def test_nms_a_class_equals_the_reference(points, classes, limit):
    boxes, scores, labels = crowd(points, classes)
    found = select_one(boxes, scores, labels, nms_iou=limit)
    kept = slow_nms(boxes[0].tolist(), scores[0].tolist(), labels[0].tolist(), limit)
    assert len(kept) < points
    assert torch.equal(found.boxes, boxes[0, kept]) and torch.equal(found.scores, scores[0, kept])
    assert torch.equal(found.labels, labels[0, kept])


@pytest.mark.parametrize("absurd", [1e9, 1e30])
def test_an_absurdly_large_box_does_not_blur_the_others(absurd):
    boxes, scores, labels = crowd(200, 5)
    boxes[0, 7], scores[0, 7] = torch.tensor([-absurd, -absurd, absurd, absurd]), 1.0
    found = select_one(boxes, scores, labels)
    kept = slow_nms(boxes[0].tolist(), scores[0].tolist(), labels[0].tolist(), 0.65)
    assert torch.equal(found.scores, scores[0, kept]) and torch.equal(found.boxes, boxes[0, kept])


def test_only_what_reaches_the_confidence_is_left():
    boxes, scores, labels = crowd(300, 3)
    found = select_one(boxes, scores, labels, confidence=0.8)
    all_of_them = select_one(boxes, scores, labels)
    count = int((all_of_them.scores >= 0.8).sum())
    assert 0 < count < len(all_of_them.scores) and torch.equal(found.scores, all_of_them.scores[:count])


def test_nothing_found_gives_empty_tensors_of_the_right_shapes_and_types():
    boxes, scores, labels = crowd(50, 3)
    first, second = select(
        boxes.expand(2, -1, -1),
        torch.cat([scores * 0, scores]),
        labels.expand(2, -1),
        torch.tensor([PLAIN, PLAIN]),
        0.001,
        0.65,
        300,
    )
    assert first.boxes.shape == (0, 4) and first.scores.shape == first.labels.shape == (0,)
    assert [x.dtype for x in first] == [x.dtype for x in second] == [torch.float32, torch.float32, torch.int64]
    assert len(second.scores) > 0


def test_best_first_and_no_more_than_asked_for():
    boxes, scores, labels = crowd(400, 80)
    found = select_one(boxes, scores, labels, max_detections=30)
    assert found.boxes.shape == (30, 4) and (found.scores.diff() <= 0).all()
    assert torch.equal(found.scores, select_one(boxes, scores, labels).scores[:30])


def test_no_more_than_the_best_candidates_reach_the_nms():
    points = MAX_CANDIDATES + 500
    corner = torch.arange(points)[:, None] * torch.tensor([[3.0, 0.0]])
    boxes = torch.cat([corner, corner + 2], 1)[None]  # no two overlap
    scores = torch.linspace(0.1, 1, points)[None]
    found = select_one(boxes, scores, torch.zeros(1, points, dtype=torch.int64))
    assert len(found.scores) == MAX_CANDIDATES
    assert torch.equal(found.scores, scores[0].flip(0)[:MAX_CANDIDATES])


def test_boxes_that_are_no_numbers_are_left_out():
    boxes, scores, labels = crowd(20, 2)
    boxes[0, 3, 1], boxes[0, 4, 2], scores[0, 5] = torch.nan, torch.inf, torch.nan
    found = select_one(boxes, scores, labels, nms_iou=1.0)
    assert len(found.scores) == 17 and found.boxes.isfinite().all() and found.scores.isfinite().all()


def test_boxes_come_back_into_the_frame_of_their_own_picture_and_are_not_clipped():
    boxes = torch.tensor([[[-8.0, 16, 40, 48]]]).expand(2, 1, 4)
    frames = torch.tensor([[640.0, 480, 0.25, 0, 0], [64.0, 48, 2, 10, 6]])
    found = select(boxes, torch.ones(2, 1), torch.zeros(2, 1, dtype=torch.int64), frames, 0.1, 0.65, 300)
    assert found[0].boxes.tolist() == [[-32, 64, 160, 192]]
    assert found[1].boxes.tolist() == [[-9, 5, 15, 21]]


def test_a_picture_has_the_same_detections_alone_and_in_a_batch():
    parts = [crowd(300, 4, seed) for seed in range(3)]
    batch = [torch.cat(x) for x in zip(*parts, strict=True)]
    together = select(*batch, torch.tensor([PLAIN] * 3), 0.1, 0.5, 300)
    for part, found in zip(parts, together, strict=True):
        alone = select_one(*part, confidence=0.1, nms_iou=0.5, max_detections=300)
        assert all(torch.equal(a, b) for a, b in zip(alone, found, strict=True))


def test_pitfall_32_a_model_that_is_sure_of_everything_is_quick():
    """8,400 points of 640 x 640 with high scores in 80 classes, four pictures: a second, not minutes."""
    torch.manual_seed(0)
    model = YOLOX(0.33, 0.125, True, 80)
    points = len(grid((640, 640), model.strides, torch.zeros(1))[0])
    predictions = Predictions(torch.randn(4, points, 4), torch.full((4, points), 5.0), torch.randn(4, points, 80))
    begin = time.perf_counter()
    found = model.detections(predictions, (640, 640), torch.tensor([PLAIN] * 4))
    assert time.perf_counter() - begin < 5
    assert points == 8400 and [len(f.scores) for f in found] == [300] * 4
