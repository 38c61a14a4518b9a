"""nets/assigners.py: SimOTA against a slow, obvious reference, and against the official code's own numbers."""

import math

import numpy as np
import pytest
import torch

from nets import assigners
from nets.assigners import Assignment, candidates, simota
from nets.coder import decode_yolox, grid
from utils.boxes import cxcywh_to_xyxy

STRIDES = (8, 16, 32)


def slow_iou(a, b):
    wide = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    high = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    both = wide * high
    return both / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - both + 1e-9)


def slow_log(x):
    """Stops at -100, as in PyTorch's BCE."""
    return max(math.log(x), -100) if x > 0 else -100


def slow_cost(objectness, classes, label, overlap, inside):
    """BCE of sqrt(class * objectness) with the one-hot label, 3 * -log(IoU), and a million outside."""
    total = 0.0 if inside else 1e6
    for c, logit in enumerate(classes):
        p = math.sqrt(1 / (1 + math.exp(-logit)) / (1 + math.exp(-objectness)))
        total -= slow_log(p) if c == label else slow_log(1 - p)
    return total - 3 * math.log(overlap + 1e-8)


def slow_simota(boxes, objectness, classes, centres, strides, targets, labels):
    """One picture, plain floats -> {point: (box, IoU)}."""
    real = [m for m, label in enumerate(labels) if label >= 0]
    inside, overlap, cost = {}, {}, {}
    for m in real:
        x, y = (targets[m][0] + targets[m][2]) / 2, (targets[m][1] + targets[m][3]) / 2
        for a, (px, py) in enumerate(centres):
            inside[m, a] = abs(px - x) < 1.5 * strides[a] and abs(py - y) < 1.5 * strides[a]
    candidates = [a for a in range(len(centres)) if any(inside[m, a] for m in real)]
    for m in real:
        for a in candidates:
            overlap[m, a] = slow_iou(targets[m], boxes[a])
            cost[m, a] = slow_cost(objectness[a], classes[a], labels[m], overlap[m, a], inside[m, a])
    claims = {}
    for m in real:
        ten_best = sorted((overlap[m, a] for a in candidates), reverse=True)[:10]
        k = max(int(sum(ten_best)), 1)
        for a in sorted(candidates, key=lambda a: cost[m, a])[:k]:  # noqa: B023 used within the loop
            claims.setdefault(a, []).append(m)
    chosen = {a: ms[0] if len(ms) == 1 else min(real, key=lambda m: cost[m, a]) for a, ms in claims.items()}  # noqa: B023
    return {a: (m, overlap[m, a]) for a, m in chosen.items()}


def scene(targets, labels, seed=0, size=(64, 96), strides=STRIDES, num_classes=4, near=0.0, dtype=torch.float64):
    """Random predictions for the targets `[B, M, 4]`; `near`: the share of points that predict a target well."""
    torch.manual_seed(seed)
    cells, stride = grid(size, strides, torch.zeros(1, dtype=dtype))
    batch, points = len(targets), len(cells)
    boxes = decode_yolox(torch.randn(batch, points, 4, dtype=dtype), cells, stride)
    if near and targets.shape[1]:
        some = targets.to(dtype).gather(1, torch.randint(targets.shape[1], (batch, points, 1)).expand(-1, -1, 4))
        good = torch.rand(batch, points, 1) < near
        boxes = torch.where(good, some + torch.randn_like(boxes), boxes)
    logits = 2 * torch.randn(batch, points, 1 + num_classes, dtype=dtype)
    return boxes, logits[..., 0], logits[..., 1:], (cells + 0.5) * stride[:, None], stride, targets.to(dtype), labels


def random_targets(batch, most, seed, size=(64, 96), num_classes=4):
    torch.manual_seed(100 + seed)
    centre = torch.rand(batch, most, 2, dtype=torch.float64) * torch.tensor([size[1], size[0]])
    sides = torch.rand(batch, most, 2, dtype=torch.float64) * 50 + 2
    labels = torch.randint(num_classes, (batch, most))
    for b in range(batch):  # padding at the end, as in a batch
        labels[b, torch.randint(most + 1, ()) :] = -1
    return cxcywh_to_xyxy(torch.cat([centre, sides], -1)), labels


def check_against_reference(inputs) -> Assignment:
    found = simota(*inputs)
    boxes, objectness, classes, centres, strides, targets, labels = (x.tolist() for x in inputs)
    for b in range(len(boxes)):
        wanted = slow_simota(boxes[b], objectness[b], classes[b], centres, strides, targets[b], labels[b])
        points = found.positive[b].nonzero()[:, 0].tolist()
        assert points == sorted(wanted)
        assert [found.index[b, a].item() for a in points] == [wanted[a][0] for a in points]
        assert found.iou[b, points].tolist() == pytest.approx([wanted[a][1] for a in points], abs=1e-9)
        elsewhere = ~found.positive[b]
        assert not found.index[b][elsewhere].any() and not found.iou[b][elsewhere].any()
    assert found.iou.isfinite().all()
    return found


@pytest.mark.parametrize("seed", range(12))
def test_equals_the_reference_on_random_scenes(seed):
    targets, labels = random_targets(3, [3, 8, 40][seed % 3], seed)
    found = check_against_reference(scene(targets, labels, seed, near=[0.0, 0.3, 0.9][seed // 4]))
    assert found.positive.any()


def test_reference_scenes_hold_contested_points_and_boxes_with_many_points():
    """Otherwise the test above would not show what it says."""
    wanted = []
    for seed, most in ((9, 3), (10, 8), (11, 40)):
        inputs = scene(*random_targets(3, most, seed), seed, near=0.9)
        alone = [simota(*inputs[:5], inputs[5][:, [m]], inputs[6][:, [m]]).positive for m in range(most)]
        wanted.append(torch.stack(alone).sum(0).max())  # boxes that would take the same point
        wanted.append(max(a.sum(1).max() for a in alone))  # points of one box
    assert wanted[4] > 1 and max(wanted[1], wanted[3]) > 4


def test_no_boxes():
    for labels in (torch.zeros(2, 0, dtype=torch.int64), torch.full((2, 3), -1)):
        found = check_against_reference(scene(torch.zeros(2, labels.shape[1], 4), labels))
        assert not found.positive.any() and found.positive.shape == found.index.shape == found.iou.shape == (2, 126)


def test_no_boxes_in_one_picture_of_the_batch():
    targets, labels = random_targets(3, 5, 0)
    labels[0], labels[1] = -1, 2
    found = check_against_reference(scene(targets, labels))
    assert found.positive.any(1).tolist()[:2] == [False, True]


def test_one_point():
    targets = torch.tensor([[[1.0, 1, 8, 8], [0, 0, 3, 3]]])
    found = check_against_reference(scene(targets, torch.tensor([[1, 2]]), size=(8, 8), strides=(8,)))
    assert found.positive.tolist() == [[True]]


@pytest.mark.parametrize("labels", [[1] * 6, [0, 1, 2, 3, 0, 1]])
@pytest.mark.parametrize("near", [0.0, 1.0])
def test_all_boxes_the_same(labels, near):
    targets = torch.tensor([[20.0, 10, 60, 50]]).expand(1, 6, 4)
    found = check_against_reference(scene(targets, torch.tensor([labels]), near=near))
    if labels == [1] * 6:  # equal costs: the first one has them all
        assert found.index.unique().tolist() == [0]


@pytest.mark.parametrize("size, strides", [((8, 16), (8,)), ((32, 32), (32,)), ((32, 32), (8,))])
def test_more_boxes_than_points(size, strides):
    targets, labels = random_targets(2, 50, 3, size)
    labels[:] = torch.randint(4, labels.shape)
    found = check_against_reference(scene(targets, labels, size=size, strides=strides, near=0.5))
    assert found.positive.float().mean() > 0.5


def test_boxes_outside_of_the_picture_take_no_point_from_the_others():
    far = torch.tensor([[[500.0, 500, 520, 540], [-300, -10, -200, 30]]])
    assert not check_against_reference(scene(far, torch.tensor([[0, 1]]))).positive.any()
    near = torch.tensor([[[10.0, 10, 40, 40], [60, 20, 90, 60]]])
    alone = check_against_reference(scene(near, torch.tensor([[0, 1]]), near=0.5))
    inputs = scene(near, torch.tensor([[0, 1]]), near=0.5)
    labels = torch.tensor([[0, 1, 2, 3]])
    together = check_against_reference([*inputs[:5], torch.cat([near, far], 1).double(), labels])
    assert alone.positive.sum() > 3 and (together.positive >= alone.positive).all()
    assert torch.equal(together.index[alone.positive], alone.index[alone.positive])


def test_tiny_and_empty_boxes_get_a_point():
    targets = torch.tensor([[[30.0, 30, 30, 30], [50, 20, 50.5, 20.5], [5, 5, 5, 25]]])
    found = check_against_reference(scene(targets, torch.tensor([[0, 1, 2]])))
    assert set(found.index[found.positive].tolist()) == {0, 1, 2}


def test_padding_rows_in_the_middle_count_for_nothing():
    targets, labels = random_targets(2, 6, 5)
    labels[:] = torch.arange(6) % 4
    plain = simota(*scene(targets, labels, near=0.5))
    where = torch.tensor([1, 2, 5, 6, 8, 9])
    for rubbish in (0.0, 40.0, 1e30, math.nan):
        padded, marks = torch.full((2, 11, 4), rubbish, dtype=torch.float64), torch.full((2, 11), -1)
        padded[:, where], marks[:, where] = targets, labels
        inputs = scene(targets, labels, near=0.5)
        found = simota(*inputs[:5], padded, marks)
        assert torch.equal(found.positive, plain.positive) and torch.equal(found.iou, plain.iou)
        assert torch.equal(found.index[found.positive], where[plain.index[plain.positive]])


def test_pictures_of_a_batch_do_not_see_each_other():
    inputs = scene(*random_targets(3, 8, 7), near=0.5)
    whole = simota(*inputs)
    for b in range(3):
        one = [x if i in (3, 4) else x[b : b + 1] for i, x in enumerate(inputs)]
        assert all(torch.equal(w[b : b + 1], a) for w, a in zip(whole, simota(*one), strict=True))


@pytest.mark.parametrize("most", [1, 2000, 5000])
def test_many_boxes_are_taken_a_few_pictures_at_a_time(monkeypatch, most):
    inputs = scene(*random_targets(5, 12, 3), near=0.5)
    whole = simota(*inputs)
    monkeypatch.setattr(assigners, "MOST_PAIRS", most)  # 12 boxes and 126 points a picture
    assert all(torch.equal(a, b) for a, b in zip(whole, simota(*inputs), strict=True))


@pytest.mark.parametrize("most", [1, 4, 50])
def test_candidates_are_all_the_points_that_can_be_chosen(most):
    inputs = scene(*random_targets(4, most, most), near=0.5)
    boxes, objectness, classes, centres, strides, targets, labels = inputs
    whole, near = simota(*inputs), candidates(centres, strides, len(STRIDES), targets, labels)
    assert near.shape == (4, min(126, 27 * most)) and all(len(row.unique()) == near.shape[1] for row in near)
    at = near[..., None].expand(-1, -1, 4)  # four values of a box, four classes
    few = simota(
        boxes.gather(1, at),
        objectness.gather(1, near),
        classes.gather(1, at),
        centres[near],
        strides[near],
        *inputs[5:],
    )
    assert whole.positive.any()
    for name in Assignment._fields:
        some = getattr(few, name)
        assert torch.equal(torch.zeros(4, 126, dtype=some.dtype).scatter(1, near, some), getattr(whole, name))


def test_no_box_has_more_than_nine_points_of_a_level():
    """Boxes on a grid finer than the points, the borders of centre regions among them."""
    x = torch.arange(0, 96, 0.5)
    targets = torch.stack([x - 4, x - 4, x + 4, x + 4], -1)[:, None]
    boxes, _, _, centres, strides, *_ = scene(targets, torch.ones(len(x), 1, dtype=torch.int64), dtype=torch.float32)
    chosen = candidates(centres, strides, len(STRIDES), targets, torch.ones(len(x), 1, dtype=torch.int64))
    middle = targets[:, :, :2] + 4
    inside = (centres - middle).abs().amax(-1) < 1.5 * strides
    assert inside[:, strides == 8].sum(1).max() == 9 and inside.gather(1, chosen).sum() == inside.sum()


def test_logarithms_of_sure_predictions_stop_at_100():
    inputs = list(scene(*random_targets(2, 8, 1), near=0.5))
    for i in (1, 2):
        inputs[i] = torch.tensor([-300.0, 0, 60], dtype=torch.float64)[torch.randint(3, inputs[i].shape)]
    assert check_against_reference(inputs).positive.any()


@pytest.mark.parametrize("logit", [-200.0, 200.0])
def test_saturated_predictions_stay_finite(logit):
    targets, labels = random_targets(2, 8, 1)
    inputs = list(scene(targets, labels, near=0.5, dtype=torch.float32))
    inputs[1], inputs[2] = torch.full_like(inputs[1], logit), torch.full_like(inputs[2], logit)
    found = simota(*inputs)
    assert found.positive.any() and found.iou.isfinite().all() and (found.index < 8).all()


def test_ten_perfect_points_are_ten_points():
    """int(sum of IoUs) must not lose one to rounding in float32."""
    targets = torch.tensor([[[20.0, 10, 60, 50]]])
    inputs = list(scene(targets, torch.tensor([[1]]), dtype=torch.float32))
    inputs[0] = targets.expand(1, 126, 4).contiguous()
    assert simota(*inputs).positive.sum() == 10


def test_gives_no_gradient():
    boxes, *others = scene(*random_targets(2, 4, 0))
    assert not simota(boxes.requires_grad_(), *others).iou.requires_grad


@pytest.mark.parametrize("case", range(4))
def test_assignments_equal_the_official_code(shared, case):
    reference = np.load(shared / "parity" / "simota.npz")
    raw, logits, boxes = (torch.from_numpy(reference[f"{case}_{name}"]) for name in ("raw", "logits", "labels"))
    labels = boxes[..., 0].long()
    for b, count in enumerate(reference[f"{case}_n"]):
        labels[b, count:] = -1
    cells, strides = grid((128, 192), STRIDES, raw)
    points = decode_yolox(raw, cells, strides), logits[..., 0], logits[..., 1:], (cells + 0.5) * strides[:, None]
    found = simota(*points, strides, cxcywh_to_xyxy(boxes[..., 1:]), labels)
    for b, count in enumerate(reference[f"{case}_n"]):
        positive = found.positive[b]
        if count == 0:
            assert not positive.any()
            continue
        assert np.array_equal(positive, reference[f"{case}_{b}_fg"])
        assert np.array_equal(found.index[b][positive], reference[f"{case}_{b}_gt"])
        assert np.abs(found.iou[b][positive].numpy() - reference[f"{case}_{b}_iou"]).max() < 1e-5
