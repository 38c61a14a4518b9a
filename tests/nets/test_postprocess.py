"""nets/postprocess.py: confidence threshold, NMS per class, limits, and conversion to pixels of the original image."""

import pytest
import torch
from torchvision.ops import batched_nms
from toys import detector

from nets import postprocess
from nets.postprocess import FAR, MAX_CANDIDATES, select
from nets.yolox import Predictions

IDENTITY = [1000.0, 1000, 1, 1, 0, 0]  # the letterbox transform of an image that already has the input size


def slow_nms(boxes, scores, labels, threshold):
    """By the definition: best first, without boxes that overlap a better one of the same class by more than the threshold."""

    def iou(a, b):
        width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
        overlap = max(width, 0) * max(height, 0)
        return overlap / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - overlap)

    kept = []
    for i in sorted(range(len(scores)), key=lambda i: -scores[i]):
        if all(labels[i] != labels[k] or iou(boxes[i], boxes[k]) <= threshold for k in kept):
            kept.append(i)
    return kept


def crowd(count, classes, seed=0, batch=1, spread=100.0):
    """Overlapping boxes `[batch, count, 4]`, with scores and labels `[batch, count]`."""
    torch.manual_seed(seed)
    corner = torch.rand(batch, count, 2) * spread
    boxes = torch.cat([corner, corner + 20 + 40 * torch.rand(batch, count, 2)], -1)
    return boxes, torch.rand(batch, count), torch.randint(classes, (batch, count))


def detect(boxes, scores, labels, confidence=0.0, nms_iou=0.65, max_detections=10_000, **more):
    transforms = torch.tensor([IDENTITY] * len(boxes))
    return select(boxes, scores, labels, transforms, confidence, nms_iou, max_detections, **more)


def detect_one(*scene, **limits):
    (detections,) = detect(*scene, **limits)
    return detections


def assert_kept(detections, boxes, scores, labels, kept):
    """The detections of one image are the rows `kept`, in this order."""
    assert torch.equal(detections.boxes, boxes[kept]) and torch.equal(detections.scores, scores[kept])
    assert torch.equal(detections.labels, labels[kept])


@pytest.mark.parametrize("count, classes, threshold", [(200, 1, 0.65), (150, 80, 0.3)])
def test_nms_equals_torchvision_in_float64(count, classes, threshold):
    """Image by image, class by class."""
    batch = crowd(count, classes, batch=3)
    for detections, boxes, scores, labels in zip(detect(*batch, nms_iou=threshold), *batch, strict=True):
        kept = batched_nms(boxes.double(), scores.double(), labels, threshold)
        assert 0 < len(kept) < count
        assert_kept(detections, boxes, scores, labels, kept)


@pytest.mark.parametrize("huge", [None, 1e30])
def test_nms_equals_the_definition_also_with_a_huge_box(huge):
    """A box of any size does not cost the others digits."""
    boxes, scores, labels = crowd(200, 5)
    if huge:
        boxes[0, 7], scores[0, 7] = torch.tensor([-huge, -huge, huge, huge]), 1.0
    kept = slow_nms(boxes[0].tolist(), scores[0].tolist(), labels[0].tolist(), 0.65)
    assert_kept(detect_one(boxes, scores, labels), boxes[0], scores[0], labels[0], kept)


def test_class_agnostic_nms_is_that_of_a_single_class_and_keeps_the_labels():
    boxes, scores, labels = crowd(400, 5)
    kept = slow_nms(boxes[0].tolist(), scores[0].tolist(), [0] * 400, 0.5)
    for most in (10, 10_000):
        detections = detect_one(boxes, scores, labels, class_agnostic=True, nms_iou=0.5, max_detections=most)
        assert_kept(detections, boxes[0], scores[0], labels[0], kept[:most])
        assert len(detections.labels.unique()) > 1
    assert len(detect_one(boxes, scores, labels, nms_iou=0.5).scores) > len(kept)


def test_boxes_of_two_classes_never_overlap_in_nms_wherever_they_are():
    """Along the diagonal of what NMS distinguishes, from edge to edge: the classes are moved apart by its whole length."""
    corner = torch.arange(-FAR, FAR, FAR / 10)
    boxes = torch.stack([corner, corner, corner + 20, corner + 20], 1).repeat(2, 1)[None]
    labels, scores = torch.arange(2).repeat_interleave(20)[None], torch.linspace(0.9, 0.1, 40)[None]
    assert len(detect_one(boxes, scores, labels).scores) == 40


@pytest.mark.parametrize("count, spread, limit", [(400, 100.0, 30), (400, 1.0, 3), (3000, 60.0, 50)])
def test_detection_limit_keeps_exactly_the_best(count, spread, limit):
    """Also if most of the boxes are suppressed, so that the best 3 * limit do not give enough."""
    scene = crowd(count, 2, spread=spread)
    limited, everything = detect_one(*scene, max_detections=limit), detect_one(*scene)
    assert len(limited.scores) == min(limit, len(everything.scores)) and (limited.scores.diff() <= 0).all()
    assert all(torch.equal(a, b[:limit]) for a, b in zip(limited, everything, strict=True))


def test_at_most_the_best_candidates_reach_nms():
    count = MAX_CANDIDATES + 500
    corner = torch.arange(count)[:, None] * torch.tensor([[3.0, 0.0]])
    boxes = torch.cat([corner, corner + 2], 1)[None]  # no two boxes overlap
    scores = torch.linspace(0.1, 1, count)[None]
    found = detect_one(boxes, scores, torch.zeros(1, count, dtype=torch.int64))
    assert torch.equal(found.scores, scores[0].flip(0)[:MAX_CANDIDATES])


def test_equal_scores_keep_the_order_of_the_anchor_points_in_every_batch():
    """As from an untrained model; the other image changes neither the choice nor the order."""
    boxes, _, labels = crowd(5000, 80, spread=5000.0, batch=2)
    scores = torch.full((2, 5000), 0.01)
    alone = detect_one(boxes[:1], scores[:1], labels[:1], max_detections=300)
    order = [(boxes[0] == box).all(1).nonzero()[0, 0].item() for box in alone.boxes]
    assert len(order) == 300 and order == sorted(order) and order[0] == 0
    scores[1, 100:] = 0.5
    together, _ = detect(boxes, scores, labels, max_detections=300)
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


def test_boxes_and_scores_that_are_not_finite_are_left_out():
    boxes, scores, labels = crowd(20, 2)
    boxes[0, 3, 1], boxes[0, 4, 2], scores[0, 5] = torch.nan, torch.inf, torch.nan
    found = detect_one(boxes, scores, labels, nms_iou=1.0)
    assert len(found.scores) == 17 and found.boxes.isfinite().all() and found.scores.isfinite().all()


def assert_empty(detections):
    assert detections.boxes.shape == (0, 4) and detections.scores.shape == detections.labels.shape == (0,)
    assert [x.dtype for x in detections] == [torch.float32, torch.float32, torch.int64]


def test_images_without_candidates_give_empty_tensors():
    """No image of the batch has a candidate, one has none, the batch is empty, there are no anchor points."""
    boxes, scores, labels = crowd(50, 3, batch=2)
    for empty in detect(boxes, scores * 0, labels, confidence=0.001):
        assert_empty(empty)
    first, second = detect(boxes, scores * torch.tensor([[0.0], [1.0]]), labels, confidence=0.001)
    assert_empty(first)
    assert len(second.scores) > 0 and [x.dtype for x in second] == [x.dtype for x in first]
    assert select(boxes[:0], scores[:0], labels[:0], torch.zeros(0, 5), 0.001, 0.65, 300) == []
    assert_empty(detect_one(boxes[:1, :0], scores[:1, :0], labels[:1, :0]))


@pytest.mark.parametrize("empty", [False, True])
def test_devices_without_float64_give_the_same_detections(monkeypatch, empty):
    """The only branch that depends on the device moves the tensors to the CPU."""
    boxes, scores, labels = crowd(300, 4, batch=2)
    expected = detect(boxes, scores * (not empty), labels, confidence=0.01)
    monkeypatch.setattr(postprocess, "NO_FLOAT64", ("cpu",))
    for ours, theirs in zip(detect(boxes, scores * (not empty), labels, confidence=0.01), expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True)) and (len(ours.scores) == 0) == empty


@pytest.mark.gpu
def test_a_gpu_gives_the_detections_of_the_cpu_also_for_empty_scenes():
    for factor in (torch.tensor([[1.0], [1.0]]), torch.tensor([[1.0], [0.0]]), torch.zeros(2, 1)):
        boxes, scores, labels = crowd(300, 4, batch=2)
        transforms = torch.tensor([IDENTITY] * 2)
        arguments = boxes, scores * factor, labels, transforms
        on_gpu = select(*(x.cuda() for x in arguments), 0.01, 0.5, 100)
        for ours, theirs in zip(on_gpu, select(*arguments, 0.01, 0.5, 100), strict=True):
            assert all(torch.equal(a.cpu(), b) for a, b in zip(ours, theirs, strict=True))


def test_clipped_boxes_end_at_the_borders_of_their_image():
    boxes = torch.tensor([[[-8.0, 16, 40, 48], [150, 100, 170, 130], [10, 20, 30, 40]]])
    scores, labels = torch.tensor([[0.9, 0.8, 0.7]]), torch.tensor([[0, 1, 2]])
    transforms = torch.tensor([[640.0, 480, 0.25, 0.25, 0, 0]])
    (found,) = select(boxes, scores, labels, transforms, 0.1, 0.65, 300, clip=True)
    assert found.boxes.tolist() == [[0, 64, 160, 192], [600, 400, 640, 480], [40, 80, 120, 160]]
    assert found.labels.tolist() == [0, 1, 2] and found.scores.tolist() == pytest.approx([0.9, 0.8, 0.7])


@pytest.mark.parametrize("clips", [True, False])
def test_a_model_of_this_program_clips_by_default(clips):
    torch.manual_seed(0)
    model = detector("yolox", 3)
    assert model.clips
    model.clips = clips
    predictions = Predictions(torch.randn(1, 8400, 4), torch.full((1, 8400), 5.0), torch.randn(1, 8400, 3))
    (found,) = model.detections(predictions, (640, 640), torch.tensor([[60.0, 50, 10, 10, 0, 0]]))
    inside = (found.boxes >= 0) & (found.boxes <= torch.tensor([60.0, 50, 60, 50]))
    assert len(found.boxes) > 50 and bool(inside.all()) == clips
