"""nets/assigners.py compared with slow reference implementations, and SimOTA with outputs of the official code."""

import math

import numpy as np
import official
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nets import assigners
from nets.assigners import Assignment, atss, candidates, simota, task_aligned
from nets.coder import decode_yolox, grid
from nets.losses import PPYOLOECriterion
from utils.boxes import cxcywh_to_xyxy

STRIDES = (8, 16, 32)


def slow_iou(a, b):
    wide = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    high = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    both = wide * high
    return both / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - both + 1e-9)


def scene(targets, labels, seed=0, size=(64, 96), strides=STRIDES, num_classes=4, good=0.0, dtype=torch.float64):
    """Random predictions for the targets `[B, M, 4]`; `good`: the fraction of anchor points that predict a target well."""
    torch.manual_seed(seed)
    cells, stride = grid(size, strides, torch.zeros(1, dtype=dtype))
    batch, count = len(targets), len(cells)
    boxes = decode_yolox(torch.randn(batch, count, 4, dtype=dtype), cells, stride)
    if good and targets.shape[1]:
        some = targets.to(dtype).gather(1, torch.randint(targets.shape[1], (batch, count, 1)).expand(-1, -1, 4))
        near = torch.rand(batch, count, 1) < good
        boxes = torch.where(near, some + torch.randn_like(boxes), boxes)
    logits = 2 * torch.randn(batch, count, 1 + num_classes, dtype=dtype)
    return boxes, logits[..., 0], logits[..., 1:], (cells + 0.5) * stride[:, None], stride, targets.to(dtype), labels


def random_targets(batch, max_boxes, seed, size=(64, 96), num_classes=4):
    """At most `max_boxes` boxes per image, with padding at the end."""
    torch.manual_seed(100 + seed)
    center = torch.rand(batch, max_boxes, 2, dtype=torch.float64) * torch.tensor([size[1], size[0]])
    sides = torch.rand(batch, max_boxes, 2, dtype=torch.float64) * 50 + 2
    labels = torch.randint(num_classes, (batch, max_boxes))
    for b in range(batch):
        labels[b, torch.randint(max_boxes + 1, ()) :] = -1
    return cxcywh_to_xyxy(torch.cat([center, sides], -1)), labels


def slow_ciou(a, b):
    def angle(x1, y1, x2, y2):
        return math.atan((x2 - x1) / (y2 - y1 + 1e-9))

    overlap = slow_iou(a, b)
    diagonal = (max(a[2], b[2]) - min(a[0], b[0])) ** 2 + (max(a[3], b[3]) - min(a[1], b[1])) ** 2
    distance = ((a[0] + a[2] - b[0] - b[2]) ** 2 + (a[1] + a[3] - b[1] - b[3]) ** 2) / 4
    shape = 4 / math.pi**2 * (angle(*a) - angle(*b)) ** 2
    return overlap - distance / (diagonal + 1e-9) - shape**2 / (1 - overlap + shape + 1e-9)


def slow_task_aligned(boxes, classes, centers, strides, targets, labels):
    """One image, plain floats -> {anchor point: (box, score)}."""
    takers, overlap, alignment, points = {}, {}, {}, range(len(centers))
    for m in (m for m, label in enumerate(labels) if label >= 0):
        x1, y1, x2, y2 = targets[m]
        for a in points:
            overlap[m, a] = max(0.0, slow_ciou(targets[m], boxes[a]))
            alignment[m, a] = (1 / (1 + math.exp(-classes[a][labels[m]]))) ** 0.5 * overlap[m, a] ** 6
        inside = [a for a in points if x1 < centers[a][0] < x2 and y1 < centers[a][1] < y2]
        chosen = sorted((a for a in inside if alignment[m, a] > 0), key=lambda a: -alignment[m, a])[:10]  # noqa: B023
        if not chosen and max(alignment[m, a] for a in points) > 0:
            chosen = [max(points, key=lambda a: alignment[m, a])]  # noqa: B023
        elif not chosen:
            finest = [a for a in points if strides[a] == min(strides)]
            chosen = [min(finest, key=lambda a: math.dist(centers[a], ((x1 + x2) / 2, (y1 + y2) / 2)))]  # noqa: B023
        for place, a in enumerate(chosen):
            takers.setdefault(a, []).append((place == 0, overlap[m, a], -m))
    matched = {a: -max(ranked)[2] for a, ranked in takers.items()}
    expected = {}
    for a, m in matched.items():
        own = [p for p in matched if matched[p] == m]
        highest, widest = max(alignment[m, p] for p in own), max(overlap[m, p] for p in own)
        expected[a] = (m, (alignment[m, a] / highest if highest else 1.0) * widest)
    return expected


ASSIGNERS = ("simota", "task_aligned")
LEVELS = (96, 24, 6)  # anchor points of each stride in a scene of the usual size
every_assigner = pytest.mark.parametrize("name", ASSIGNERS)
every_rule = pytest.mark.parametrize("name", [*ASSIGNERS, "ppyoloe", "atss"])


def run(name, boxes, objectness, classes, *others) -> Assignment:
    """Calls an assigner; only SimOTA takes the objectness, and ATSS takes no scores at all."""
    if name == "simota":
        return simota(boxes, objectness, classes, *others)
    if name == "atss":
        return atss(boxes, *others, level_sizes=LEVELS)
    rule = {"rule": PPYOLOECriterion.alignment} if name == "ppyoloe" else {}
    return task_aligned(boxes, classes, *others, **rule)


def check(name, inputs) -> Assignment:
    """Compares a task-aligned assignment with its reference implementation; for SimOTA the official code is the reference."""
    match = run(name, *inputs)
    boxes, _, classes, centers, strides, targets, labels = (x.tolist() for x in inputs)
    for b in range(len(boxes) if name == "task_aligned" else 0):
        expected = slow_task_aligned(boxes[b], classes[b], centers, strides, targets[b], labels[b])
        points = match.positive[b].nonzero()[:, 0].tolist()
        assert points == sorted(expected)
        assert [match.index[b, a].item() for a in points] == [expected[a][0] for a in points]
        assert match.score[b, points].tolist() == pytest.approx([expected[a][1] for a in points], rel=1e-6, abs=1e-9)
    assert not match.index[~match.positive].any() and not match.score[~match.positive].any()
    assert match.score.min() >= 0 and match.score.max() <= 1
    return match


@pytest.mark.parametrize("case", range(4))
def test_simota_equals_the_official_code(case):
    reference = official.reference("simota")
    raw, logits, boxes = (torch.from_numpy(reference[f"{case}_{name}"]) for name in ("raw", "logits", "labels"))
    labels = boxes[..., 0].long()
    for b, count in enumerate(reference[f"{case}_n"]):
        labels[b, count:] = -1
    cells, strides = grid((128, 192), STRIDES, raw)
    predictions = decode_yolox(raw, cells, strides), logits[..., 0], logits[..., 1:]
    match = simota(*predictions, (cells + 0.5) * strides[:, None], strides, cxcywh_to_xyxy(boxes[..., 1:]), labels)
    for b, count in enumerate(reference[f"{case}_n"]):
        positive = match.positive[b]
        if count == 0:
            assert not positive.any()
            continue
        assert np.array_equal(positive, reference[f"{case}_{b}_fg"])
        assert np.array_equal(match.index[b][positive], reference[f"{case}_{b}_gt"])
        assert np.abs(match.score[b][positive].numpy() - reference[f"{case}_{b}_iou"]).max() < 1e-5


@pytest.mark.parametrize("max_boxes, good", [(40, 0.0), (8, 0.3), (40, 0.9)])
def test_task_alignment_equals_the_reference_on_random_scenes(max_boxes, good):
    """Few and many boxes per image, with predictions of bad, mixed and good quality."""
    targets, labels = random_targets(2, max_boxes, 1)
    assert check("task_aligned", scene(targets, labels, 1, good=good)).positive.any()


@every_assigner
def test_images_without_boxes_have_no_positives(name):
    match = check(name, scene(torch.zeros(2, 3, 4), torch.full((2, 3), -1)))
    assert not match.positive.any() and match.positive.shape == match.index.shape == match.score.shape == (2, 126)
    targets, labels = random_targets(3, 5, 0)
    labels[0], labels[1] = -1, 2
    assert check(name, scene(targets, labels)).positive.any(1).tolist()[:2] == [False, True]


@every_assigner
@pytest.mark.parametrize("size, strides", [((8, 8), (8,)), ((32, 32), (8,))])
def test_more_boxes_than_anchor_points(size, strides, name):
    targets, labels = random_targets(2, 50, 3, size)
    labels[:] = torch.randint(4, labels.shape)
    match = check(name, scene(targets, labels, size=size, strides=strides, good=0.5))
    assert match.positive.float().mean() > 0.5


def test_simota_gives_no_anchor_point_to_boxes_outside_of_the_image():
    outside = torch.tensor([[[500.0, 500, 520, 540], [-300, -10, -200, 30]]])
    assert not check("simota", scene(outside, torch.tensor([[0, 1]]))).positive.any()
    inputs = scene(torch.tensor([[[10.0, 10, 40, 40], [60, 20, 90, 60]]]), torch.tensor([[0, 1]]), good=0.5)
    alone = check("simota", inputs)
    together = check("simota", [*inputs[:5], torch.cat([inputs[5], outside], 1), torch.tensor([[0, 1, 2, 3]])])
    assert alone.positive.sum() > 3 and (together.positive >= alone.positive).all()
    assert torch.equal(together.index[alone.positive], alone.index[alone.positive])


@every_assigner
def test_tiny_and_empty_boxes_get_an_anchor_point(name):
    targets = torch.tensor([[[30.0, 30, 30, 30], [50, 20, 50.5, 20.5], [5, 5, 5, 25]]])
    match = check(name, scene(targets, torch.tensor([[0, 1, 2]])))
    assert set(match.index[match.positive].tolist()) == {0, 1, 2}


@every_rule
def test_padding_changes_nothing(name):
    """Padding rows anywhere, with any contents: boxes that hold the others, and NaN."""
    targets, labels = random_targets(2, 6, 5)
    labels[:] = torch.arange(6) % 4
    inputs, rows = scene(targets, labels, good=0.5), torch.tensor([1, 2, 5, 6, 8, 9])
    compact = run(name, *inputs)
    assert compact.positive.any()
    for value in (0.0, 40.0, 1e30, math.nan, [0.0, 0, 96, 64], [10.0, 10, 50, 50]):
        padded = torch.tensor(value, dtype=torch.float64).expand(2, 11, 4).clone()
        marks = torch.full((2, 11), -1)
        padded[:, rows], marks[:, rows] = targets, labels
        match = run(name, *inputs[:5], padded, marks)
        assert torch.equal(match.positive, compact.positive) and torch.equal(match.score, compact.score)
        assert torch.equal(match.index[match.positive], rows[compact.index[compact.positive]])


@every_rule
def test_images_are_independent_and_processed_in_chunks(monkeypatch, name):
    inputs = scene(*random_targets(5, 12, 3), good=0.5)
    whole = run(name, *inputs)
    for b in range(5):
        one = [x if i in (3, 4) else x[b : b + 1] for i, x in enumerate(inputs)]
        assert all(torch.equal(w[b : b + 1], a) for w, a in zip(whole, run(name, *one), strict=True))
    monkeypatch.setattr(
        assigners, "MAX_PAIRS", 5000
    )  # three images in a chunk: an image has 12 boxes and 126 anchor points
    assert all(torch.equal(a, b) for a, b in zip(whole, run(name, *inputs), strict=True))


class LargestTensor(TorchDispatchMode):
    """Records the number of elements of the largest tensor that an operation returns."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            self.elements = max(self.elements, tensor.numel() if isinstance(tensor, torch.Tensor) else 0)
        return result


@pytest.mark.parametrize("name", ["candidates", *ASSIGNERS])
def test_memory_is_bounded_for_any_number_of_boxes(monkeypatch, name):
    """The largest tensors have x and y of every pair of a box and an anchor point, for one chunk of images."""
    boxes, objectness, classes, *others = scene(*random_targets(8, 12, 3), good=0.5)

    def assign():
        if name == "candidates":
            return candidates(*others[:2], len(STRIDES), *others[2:])
        return run(name, boxes, objectness, classes, *others)

    whole = assign()
    monkeypatch.setattr(assigners, "MAX_PAIRS", 3 * 12 * 126)  # three images
    with LargestTensor() as largest:
        parts = assign()
    assert largest.elements <= 2 * assigners.MAX_PAIRS
    assert all(torch.equal(a, b) for a, b in zip(whole, parts, strict=True))


@pytest.mark.parametrize("max_boxes", [4, 50])
def test_candidates_are_all_anchor_points_that_simota_can_choose(max_boxes):
    inputs = scene(*random_targets(4, max_boxes, max_boxes), good=0.5)
    boxes, objectness, classes, centers, strides, targets, labels = inputs
    whole = simota(*inputs)
    index = candidates(centers, strides, len(STRIDES), targets, labels)
    assert index.shape == (4, min(126, 9 * 3 * max_boxes)) and all(len(row.unique()) == index.shape[1] for row in index)
    columns = index[..., None].expand(-1, -1, 4)  # four values of a box, four classes
    chosen = boxes.gather(1, columns), objectness.gather(1, index), classes.gather(1, columns)
    fewer = simota(*chosen, centers[index], strides[index], targets, labels)
    assert whole.positive.any()
    for name in Assignment._fields:
        values = getattr(fewer, name)
        assert torch.equal(torch.zeros(4, 126, dtype=values.dtype).scatter(1, index, values), getattr(whole, name))


def test_a_center_region_has_at_most_nine_anchor_points_per_level():
    """Boxes on a grid finer than the anchor points, among them those on the border of center regions."""
    x = torch.arange(0, 96, 0.5)
    targets, labels = torch.stack([x - 4, x - 4, x + 4, x + 4], -1)[:, None], torch.ones(len(x), 1, dtype=torch.int64)
    _, _, _, centers, strides, *_ = scene(targets, labels, dtype=torch.float32)
    chosen = candidates(centers, strides, len(STRIDES), targets, labels)
    inside = (centers - (targets[:, :, :2] + 4)).abs().amax(-1) < 1.5 * strides
    assert inside[:, strides == 8].sum(1).max() == 9 and inside.gather(1, chosen).sum() == inside.sum()


@every_assigner
@pytest.mark.parametrize("logit", [-200.0, 0.0, 200.0])
def test_saturated_predictions_and_boxes_without_area_stay_finite(logit, name):
    inputs = list(scene(*random_targets(2, 8, 1), good=0.5, dtype=torch.float32))
    inputs[1], inputs[2] = torch.full_like(inputs[1], logit), torch.full_like(inputs[2], logit)
    inputs[0][:, ::2, 2:] = inputs[0][:, ::2, :2]
    inputs[0].requires_grad_()
    match = run(name, *inputs)
    assert match.positive.any() and match.score.isfinite().all() and (match.index < 8).all()
    assert not match.score.requires_grad


@every_assigner
def test_rounding_does_not_decide_ties(name):
    """All predictions are alike, as in a network from scratch: anchor points at the same distance from a box tie.

    Many anchor points predict the third box perfectly, so that the sum of its IoUs is 10 or a little less.
    """
    targets = torch.tensor([[[10.0, 6, 22, 18], [70, 10, 82, 22], [8, 38, 64, 62]]])
    boxes, objectness, classes, centers, strides, _, labels = scene(
        targets, torch.tensor([[0, 1, 2]]), dtype=torch.float32
    )
    half = strides[:, None] * 0.75
    boxes = torch.cat([centers - half, centers + half], 1)[None]
    boxes[0, centers[:, 1] > 36] = targets[0, 2]
    inputs = [boxes, torch.zeros_like(objectness), torch.zeros_like(classes)]

    def assign(rounding):
        predictions = [x * (1 + rounding * torch.randn_like(x)) + rounding * torch.randn_like(x) for x in inputs]
        return run(name, *predictions, centers, strides, targets, labels)

    expected = assign(0.0)
    assert (expected.positive & (expected.index == 2)).sum() == 10
    for seed in range(5):
        torch.manual_seed(seed)
        match = assign(1e-7)
        assert torch.equal(match.positive, expected.positive) and torch.equal(match.index, expected.index)
