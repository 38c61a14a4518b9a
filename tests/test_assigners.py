"""nets/assigners.py against slow, obvious references, and SimOTA against the official code's own numbers."""

import math

import numpy as np
import pytest
import torch

from nets import assigners
from nets.assigners import Assignment, candidates, simota, task_aligned
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


def stride_of(box):
    """That of its size."""
    side = math.sqrt((box[2] - box[0]) * (box[3] - box[1]))
    return 8 if side < 45 else 16 if side < 150 else 32


def slow_simota(boxes, objectness, classes, centres, strides, targets, labels, by_size=False):
    """One picture, plain floats -> {point: (box, IoU)}."""
    real = [m for m, label in enumerate(labels) if label >= 0]
    inside, overlap, cost = {}, {}, {}
    for m in real:
        x, y = (targets[m][0] + targets[m][2]) / 2, (targets[m][1] + targets[m][3]) / 2
        for a, (px, py) in enumerate(centres):
            asked = not by_size or strides[a] == stride_of(targets[m])
            inside[m, a] = asked and abs(px - x) < 1.5 * strides[a] and abs(py - y) < 1.5 * strides[a]
    near = [a for a in range(len(centres)) if any(inside[m, a] for m in real)]
    claims = {}
    for m in real:
        candidates = [a for a in near if not by_size or strides[a] == stride_of(targets[m])]
        for a in candidates:
            overlap[m, a] = slow_iou(targets[m], boxes[a])
            cost[m, a] = slow_cost(objectness[a], classes[a], labels[m], overlap[m, a], inside[m, a])
        ten_best = sorted((overlap[m, a] for a in candidates), reverse=True)[:10]
        k = max(int(sum(ten_best)), 1)
        for a in sorted(candidates, key=lambda a: cost[m, a])[:k]:  # noqa: B023 used within the loop
            claims.setdefault(a, []).append(m)
    asking = {a: [m for m in real if (m, a) in cost] for a in claims}
    chosen = {a: ms[0] if len(ms) == 1 else min(asking[a], key=lambda m: cost[m, a]) for a, ms in claims.items()}  # noqa: B023
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


def random_targets(batch, most, seed, size=(64, 96), num_classes=4, all_sizes=False):
    torch.manual_seed(100 + seed)
    centre = torch.rand(batch, most, 2, dtype=torch.float64) * torch.tensor([size[1], size[0]])
    sides = torch.rand(batch, most, 2, dtype=torch.float64)
    sides = 4 * 80**sides if all_sizes else sides * 50 + 2
    labels = torch.randint(num_classes, (batch, most))
    for b in range(batch):  # padding at the end, as in a batch
        labels[b, torch.randint(most + 1, ()) :] = -1
    return cxcywh_to_xyxy(torch.cat([centre, sides], -1)), labels


def check_against_reference(inputs, by_size=False) -> Assignment:
    found = simota(*inputs, by_size=by_size)
    boxes, objectness, classes, centres, strides, targets, labels = (x.tolist() for x in inputs)
    for b in range(len(boxes)):
        wanted = slow_simota(boxes[b], objectness[b], classes[b], centres, strides, targets[b], labels[b], by_size)
        points = found.positive[b].nonzero()[:, 0].tolist()
        assert points == sorted(wanted)
        assert [found.index[b, a].item() for a in points] == [wanted[a][0] for a in points]
        assert found.score[b, points].tolist() == pytest.approx([wanted[a][1] for a in points], abs=1e-9)
        elsewhere = ~found.positive[b]
        assert not found.index[b][elsewhere].any() and not found.score[b][elsewhere].any()
    assert found.score.isfinite().all()
    return found


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("by_size", [False, True])
def test_equals_the_reference_on_random_scenes(seed, by_size):
    targets, labels = random_targets(3, [3, 8, 40][seed % 3], seed, all_sizes=by_size)
    found = check_against_reference(scene(targets, labels, seed, near=[0.0, 0.3, 0.9][seed // 4]), by_size)
    assert found.positive.any()


def test_sizes_of_the_scenes_are_those_of_every_stride():
    boxes, labels = random_targets(3, 40, 2, all_sizes=True)
    assert {stride_of(box) for box in boxes[labels >= 0].tolist()} == {8, 16, 32}


@pytest.mark.parametrize("assign", ["simota", "task_aligned"])
def test_by_size_a_box_has_points_of_its_own_stride_only(assign):
    targets, labels = random_targets(4, 40, 5, all_sizes=True)
    boxes, objectness, classes, *others = scene(targets, labels, 5, near=0.9)
    if assign == "simota":
        found = simota(boxes, objectness, classes, *others, by_size=True)
    else:
        found = task_aligned(boxes, classes, *others, by_size=True)
    for b, a in found.positive.nonzero().tolist():
        assert others[1][a] == stride_of(targets[b, found.index[b, a]].tolist())
    assert found.positive[:, :96].any() and found.positive[:, 96:120].any() and found.positive[:, 120:].any()


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
        assert not found.positive.any() and found.positive.shape == found.index.shape == found.score.shape == (2, 126)


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
        assert torch.equal(found.positive, plain.positive) and torch.equal(found.score, plain.score)
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
@pytest.mark.parametrize("by_size", [False, True])
def test_candidates_are_all_the_points_that_can_be_chosen(most, by_size):
    inputs = scene(*random_targets(4, most, most, all_sizes=by_size), near=0.5)
    boxes, objectness, classes, centres, strides, targets, labels = inputs
    levels = 1 if by_size else len(STRIDES)
    whole = simota(*inputs, by_size)
    near = candidates(centres, strides, levels, targets, labels, by_size)
    assert near.shape == (4, min(126, 9 * levels * most)) and all(len(row.unique()) == near.shape[1] for row in near)
    at = near[..., None].expand(-1, -1, 4)  # four values of a box, four classes
    few = simota(
        boxes.gather(1, at),
        objectness.gather(1, near),
        classes.gather(1, at),
        centres[near],
        strides[near],
        *inputs[5:],
        by_size,
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
    assert found.positive.any() and found.score.isfinite().all() and (found.index < 8).all()


def test_ten_perfect_points_are_ten_points():
    """int(sum of IoUs) must not lose one to rounding in float32."""
    targets = torch.tensor([[[20.0, 10, 60, 50]]])
    inputs = list(scene(targets, torch.tensor([[1]]), dtype=torch.float32))
    inputs[0] = targets.expand(1, 126, 4).contiguous()
    assert simota(*inputs).positive.sum() == 10


def test_gives_no_gradient():
    boxes, *others = scene(*random_targets(2, 4, 0))
    assert not simota(boxes.requires_grad_(), *others).score.requires_grad


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
        assert np.abs(found.score[b][positive].numpy() - reference[f"{case}_{b}_iou"]).max() < 1e-5


def slow_ciou(a, b):
    def angle(x1, y1, x2, y2):
        return math.atan((x2 - x1) / (y2 - y1 + 1e-9))

    overlap = slow_iou(a, b)
    around = (max(a[2], b[2]) - min(a[0], b[0])) ** 2 + (max(a[3], b[3]) - min(a[1], b[1])) ** 2
    apart = ((a[0] + a[2] - b[0] - b[2]) ** 2 + (a[1] + a[3] - b[1] - b[3]) ** 2) / 4
    shape = 4 / math.pi**2 * (angle(*a) - angle(*b)) ** 2
    return overlap - apart / (around + 1e-9) - shape**2 / (1 - overlap + shape + 1e-9)


def slow_task_aligned(boxes, classes, centres, strides, targets, labels, most, least_side, by_size):
    """One picture, plain floats -> {point: (box, score)}."""
    claims, fit, alignment = {}, {}, {}
    for m in (m for m, label in enumerate(labels) if label >= 0):
        points = [a for a in range(len(centres)) if not by_size or strides[a] == stride_of(targets[m])]
        x1, y1, x2, y2 = targets[m]
        x, y = (x1 + x2) / 2, (y1 + y2) / 2
        reach_x, reach_y = max(x2 - x1, least_side) / 2, max(y2 - y1, least_side) / 2
        for a in range(len(centres)):
            fit[m, a] = max(0.0, slow_ciou(targets[m], boxes[a]))
            alignment[m, a] = (1 / (1 + math.exp(-classes[a][labels[m]]))) ** 0.5 * fit[m, a] ** 6
        inside = [a for a in points if abs(centres[a][0] - x) < reach_x and abs(centres[a][1] - y) < reach_y]
        chosen = sorted((a for a in inside if alignment[m, a] > 0), key=lambda a: -alignment[m, a])[:most]  # noqa: B023
        if not chosen and max(alignment[m, a] for a in points) > 0:
            chosen = [max(points, key=lambda a: alignment[m, a])]  # noqa: B023
        elif not chosen:
            finest = [a for a in points if strides[a] == min(strides[p] for p in points)]
            chosen = [min(finest, key=lambda a: math.dist(centres[a], (x, y)))]  # noqa: B023
        for place, a in enumerate(chosen):
            claims.setdefault(a, []).append((place == 0, fit[m, a], -m))
    owner = {a: -max(wishes)[2] for a, wishes in claims.items()}
    found = {}
    for a, m in owner.items():
        mine = [p for p in owner if owner[p] == m]
        highest, widest = max(alignment[m, p] for p in mine), max(fit[m, p] for p in mine)
        found[a] = (m, (alignment[m, a] / highest if highest else 1.0) * widest)
    return found


def check_task_aligned(inputs, most=10, least_side=0.0, by_size=False) -> Assignment:
    boxes, _, *others = inputs
    found = task_aligned(boxes, *others, most=most, least_side=least_side, by_size=by_size)
    boxes, classes, centres, strides, targets, labels = (x.tolist() for x in (boxes, *others))
    for b in range(len(boxes)):
        scene_b = boxes[b], classes[b], centres, strides, targets[b], labels[b]
        wanted = slow_task_aligned(*scene_b, most, least_side, by_size)
        points = found.positive[b].nonzero()[:, 0].tolist()
        assert points == sorted(wanted)
        assert [found.index[b, a].item() for a in points] == [wanted[a][0] for a in points]
        assert found.score[b, points].tolist() == pytest.approx([wanted[a][1] for a in points], rel=1e-6, abs=1e-9)
        elsewhere = ~found.positive[b]
        assert not found.index[b][elsewhere].any() and not found.score[b][elsewhere].any()
    assert found.score.isfinite().all() and found.score.min() >= 0 and found.score.max() <= 1
    return found


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("by_size", [False, True])
def test_task_aligned_equals_the_reference_on_random_scenes(seed, by_size):
    targets, labels = random_targets(3, [3, 8, 40][seed % 3], seed, all_sizes=by_size)
    inputs = scene(targets, labels, seed, near=[0.0, 0.3, 0.9][seed // 4])
    found = check_task_aligned(inputs, [10, 1, 7][seed // 4], [0.0, 16.0][seed % 2], by_size)
    assert found.positive.any()


def test_task_aligned_reference_scenes_hold_what_is_hard():
    """Contested points, boxes with ten points, with no point inside, and with a first choice that another wants more."""
    targets, labels = random_targets(3, 40, 2)
    inputs = scene(targets, labels, 2, near=0.9)
    boxes, _, classes, centres, strides, *_ = inputs
    alone = [task_aligned(boxes, classes, centres, strides, targets[:, [m]], labels[:, [m]]) for m in range(40)]
    taken = torch.stack([one.positive for one in alone], 1)  # [B, M, A]
    counts = taken.sum(2)[labels >= 0]
    assert taken.sum(1).max() > 1 and counts.max() == 10 and counts.min() == 1
    inside = (centres[None, None] > targets[:, :, None, :2]) & (centres[None, None] < targets[:, :, None, 2:])
    assert (inside.all(-1).sum(2)[labels >= 0] == 0).any()
    fit = torch.stack([one.score for one in alone], 1)
    found = task_aligned(*inputs[:1], *inputs[2:])
    assert (found.index != fit.argmax(1))[found.positive].any()


def test_task_aligned_takes_the_ten_best_aligned_points_inside():
    """All points predict the box perfectly: the class alone decides, and the target is in proportion to the root of its score."""
    targets, labels = torch.tensor([[[8.0, 8, 56, 56]]]), torch.tensor([[2]])
    _, _, classes, centres, strides, *_ = scene(targets, labels, dtype=torch.float32)
    found = task_aligned(targets.expand(1, 126, 4).contiguous(), classes, centres, strides, targets, labels)
    inside = ((centres > 8) & (centres < 56)).all(1)
    best = classes[0, :, 2].where(inside, -torch.inf).topk(10)
    assert found.positive[0].nonzero()[:, 0].tolist() == sorted(best.indices.tolist())
    wanted = (best.values.sigmoid() / best.values[0].sigmoid()).sqrt()
    assert torch.allclose(found.score[0, best.indices], wanted, atol=1e-5) and not found.index.any()


def test_every_box_gets_a_point_of_its_own():
    """Tiny boxes between the points, among them some within a large box to which all points predict."""
    tiny = torch.tensor([[24.0, 24, 24.5, 24.5], [41, 9, 43, 11], [90, 60, 91, 64], [55, 40, 60, 40.1]])
    targets = torch.cat([torch.tensor([[0.0, 0, 96, 64]]), tiny])[None]
    labels = torch.tensor([[0, 1, 2, 3, 1]])
    inputs = list(scene(targets, labels))
    inputs[0] = targets[:, :1].double().expand(1, 126, 4).contiguous()
    found = check_task_aligned(inputs)
    strides = inputs[4].expand(1, -1)
    assert [int((found.index == m)[found.positive].sum()) for m in range(1, 5)] == [1] * 4
    assert (strides[found.positive & (found.index > 0)] == 8).all() and (found.index == 0)[found.positive].sum() >= 6


def test_small_targets_get_more_points_by_the_rule():
    counts = []
    for target in ([30.0, 30, 34, 34], [60.0, 7, 66, 23], [8.0, 8, 40, 40]):
        inputs = scene(torch.tensor([[target]]), torch.tensor([[1]]), near=1.0)
        inputs[0][:] = inputs[5]  # every point predicts it
        counts.append([int(check_task_aligned(inputs, 100, side).positive.sum()) for side in (0.0, 16.0)])
    (small, more), (thin, wider), large = counts
    assert small == 1 and more >= 4 and wider > thin and large[0] == large[1] > 10


def test_task_aligned_without_boxes():
    for labels in (torch.zeros(2, 0, dtype=torch.int64), torch.full((2, 3), -1)):
        found = check_task_aligned(scene(torch.zeros(2, labels.shape[1], 4), labels))
        assert not found.positive.any() and found.positive.shape == found.index.shape == found.score.shape == (2, 126)


@pytest.mark.parametrize("size, strides", [((8, 16), (8,)), ((32, 32), (32,)), ((32, 32), (8,))])
def test_task_aligned_with_more_boxes_than_points(size, strides):
    targets, labels = random_targets(2, 50, 3, size)
    labels[:] = torch.randint(4, labels.shape)
    found = check_task_aligned(scene(targets, labels, size=size, strides=strides, near=0.5))
    assert found.positive.float().mean() > 0.5


def test_task_aligned_does_not_see_padding_or_other_pictures():
    targets, labels = random_targets(3, 6, 5)
    labels[:] = torch.arange(6) % 4
    inputs, where = scene(targets, labels, near=0.5), torch.tensor([1, 2, 5, 6, 8, 9])
    boxes, _, classes, centres, strides, *_ = inputs
    plain = task_aligned(boxes, classes, centres, strides, targets, labels)
    for rubbish in (0.0, 40.0, 1e30, math.nan):
        padded, marks = torch.full((3, 11, 4), rubbish, dtype=torch.float64), torch.full((3, 11), -1)
        padded[:, where], marks[:, where] = targets, labels
        found = task_aligned(boxes, classes, centres, strides, padded, marks)
        assert torch.equal(found.positive, plain.positive) and torch.equal(found.score, plain.score)
        assert torch.equal(found.index[found.positive], where[plain.index[plain.positive]])
    for b in range(3):
        one = slice(b, b + 1)
        found = task_aligned(boxes[one], classes[one], centres, strides, targets[one], labels[one])
        assert all(torch.equal(w[one], a) for w, a in zip(plain, found, strict=True))


@pytest.mark.parametrize("most", [1, 2000, 5000])
def test_task_aligned_takes_a_few_pictures_at_a_time(monkeypatch, most):
    boxes, _, *others = scene(*random_targets(5, 12, 3), near=0.5)
    whole = task_aligned(boxes, *others)
    monkeypatch.setattr(assigners, "MOST_PAIRS", most)  # 12 boxes and 126 points a picture
    assert all(torch.equal(a, b) for a, b in zip(whole, task_aligned(boxes, *others), strict=True))


@pytest.mark.parametrize("logit", [-200.0, 0.0, 200.0])
def test_task_aligned_stays_finite_for_saturated_classes_and_boxes_without_area(logit):
    boxes, _, classes, *others = scene(*random_targets(2, 8, 1), near=0.5, dtype=torch.float32)
    boxes[:, ::2, 2:] = boxes[:, ::2, :2]
    found = task_aligned(boxes.requires_grad_(), torch.full_like(classes, logit), *others)
    assert found.positive.any() and found.score.isfinite().all() and not found.score.requires_grad
