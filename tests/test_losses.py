"""nets/losses.py: the official numbers, empty pictures, and the same gradient for any number of processes."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from toys import FAMILIES, detector

from nets import yolov9
from nets.assigners import task_aligned
from nets.coder import decode_dfl, grid
from nets.losses import YOLOv9Criterion, YOLOXCriterion, at_least_one
from nets.yolox import Predictions
from utils.boxes import ciou, cxcywh_to_xyxy

STRIDES, SIZE = (8, 16, 32), (64, 96)
CRITERIA = {"yolox": partial(YOLOXCriterion, STRIDES, l1=True), "yolov9": partial(YOLOv9Criterion, STRIDES)}
EVERYWHERE = {"yolox": "objectness", "yolov9": "class"}  # the loss that points without a box have

every_family = pytest.mark.parametrize("family", FAMILIES)


def tiny_model(family="yolox"):
    """In evaluation mode: batch norms do not mix the pictures."""
    return detector(family, 4).double().eval()


def some_batch(counts, dtype=torch.float64, seed=0):
    """Pictures and boxes; `counts`: boxes a picture."""
    torch.manual_seed(seed)
    images = torch.rand(len(counts), 3, *SIZE, dtype=dtype) * 255
    centre = torch.rand(len(counts), max(1, *counts), 2) * torch.tensor([96.0, 64])
    boxes = cxcywh_to_xyxy(torch.cat([centre, torch.rand(centre.shape) * 40 + 4], -1))
    labels = torch.randint(4, boxes.shape[:2])
    for b, count in enumerate(counts):
        boxes[b, count:], labels[b, count:] = 0, -1
    return images, boxes, labels


def random_predictions(batch, dtype=torch.float32, points=126, num_classes=4, family="yolox"):
    torch.manual_seed(1)
    if family == "yolov9":
        raw = 3 * torch.randn(batch, points, 64 + num_classes, dtype=dtype)
        return yolov9.Predictions(raw[..., :64], raw[..., 64:])
    raw = torch.randn(batch, points, 5 + num_classes, dtype=dtype)
    return Predictions(raw[..., :4], raw[..., 4], raw[..., 5:])


def gradients(model):
    found = torch.cat([p.grad.flatten() for p in model.parameters()])
    model.zero_grad()
    return found


def assert_same(found, reference):
    """`reference`: total, box, objectness, class, l1, positives a box."""
    names = ["total", "box", "objectness", "class", "l1", "positives"]
    for name, value in zip(names, reference.tolist(), strict=True):
        if name == "positives" and not reference[1]:
            continue  # without boxes the official code says 1 for 0 of 0
        assert found.get(name, torch.zeros(())).item() == pytest.approx(value, rel=1e-4), name


@pytest.mark.parametrize("l1", [False, True])
@pytest.mark.parametrize("size", ["nano", "s", "m"])
def test_losses_of_whole_models_equal_the_official_code(shared, size, l1):
    reference = np.load(shared / "parity" / f"yolox_{size}.npz")
    raw = torch.from_numpy(reference["raw"]).double()
    logits = torch.logit(raw[..., 4:])
    boxes, labels = torch.from_numpy(reference["boxes"])[None], torch.from_numpy(reference["labels"])[None].long()
    predictions = Predictions(raw[..., :4], logits[..., 0], logits[..., 1:])
    assert_same(YOLOXCriterion(STRIDES, l1=l1)(predictions, boxes, labels, (96, 160)), reference[f"loss_l1_{l1}"])


@pytest.mark.parametrize("l1", [0, 1])
@pytest.mark.parametrize("case", range(4))
def test_losses_of_hard_cases_equal_the_official_code(shared, case, l1):
    reference = np.load(shared / "parity" / "simota.npz")
    raw, logits, boxes = (torch.from_numpy(reference[f"{case}_{name}"]) for name in ("raw", "logits", "labels"))
    labels = boxes[..., 0].long()
    for b, count in enumerate(reference[f"{case}_n"]):
        labels[b, count:] = -1
    predictions = Predictions(raw, logits[..., 0], logits[..., 1:])
    losses = YOLOXCriterion(STRIDES, l1=bool(l1))(predictions, cxcywh_to_xyxy(boxes[..., 1:]), labels, (128, 192))
    assert_same(losses, reference[f"{case}_losses_l1_{l1}"])


def test_total_is_the_sum_and_l1_is_there_only_when_asked_for():
    predictions, (_, boxes, labels) = random_predictions(2), some_batch([3, 2])
    plain = YOLOXCriterion(STRIDES)(predictions, boxes, labels, SIZE)
    late = YOLOXCriterion(STRIDES, l1=True)(predictions, boxes, labels, SIZE)
    assert list(plain) == ["total", "box", "objectness", "class", "positives"]
    assert list(late) == ["total", "box", "objectness", "class", "l1", "positives"]
    for losses in (plain, late):
        parts = sum(v for k, v in losses.items() if k not in ("total", "positives"))
        assert losses["total"].item() == pytest.approx(parts.item())
    assert late["l1"] > 0 and late["total"] - plain["total"] == pytest.approx(late["l1"].item(), rel=1e-4)


@every_family
@pytest.mark.parametrize("rows", [0, 3])
def test_pitfall_12_a_batch_without_boxes_has_finite_loss_and_gradients(rows, family):
    model, (images, *_) = tiny_model(family), some_batch([0, 0])
    boxes, labels = torch.zeros(2, rows, 4), torch.full((2, rows), -1)
    losses = CRITERIA[family]()(model(images), boxes, labels, SIZE)
    losses["total"].backward()
    assert losses["total"] == losses[EVERYWHERE[family]] > 0 and losses["positives"] == 0
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert gradients(model).abs().max() > 0


@every_family
def test_pitfall_12_a_background_beside_boxes_only_adds_to_the_loss_of_all_points(family):
    predictions, (_, boxes, labels) = random_predictions(2, family=family), some_batch([3, 0])
    both = CRITERIA[family]()(predictions, boxes, labels, SIZE)
    first = CRITERIA[family]()(type(predictions)(*(x[:1] for x in predictions)), boxes[:1], labels[:1], SIZE)
    for name in both.keys() - {"total", "positives"}:
        assert both[name] > first[name] if name == EVERYWHERE[family] else both[name] == first[name]


class Pretend:
    """`share` of one of several processes: first it notes the counts, then it answers with those of all."""

    def __init__(self):
        self.own, self.answers = [], None

    def __call__(self, count):
        if self.answers is None:
            self.own.append(count)
            return at_least_one(count)
        return next(self.answers)


def gradient_of_parts(model, batch, parts, criterion):
    """The mean over pretended processes, of which each sees the pictures of its part."""
    images, boxes, labels = batch
    shares = [Pretend() for _ in parts]

    def run(share, part):
        return criterion(share=share)(model(images[part]), boxes[part], labels[part], SIZE)

    for share, part in zip(shares, parts, strict=True):
        run(share, part)
    together = [torch.stack(every).sum(0).clamp(min=1) for every in zip(*(s.own for s in shares), strict=True)]
    losses = []
    for share, part in zip(shares, parts, strict=True):
        share.answers = (count / len(parts) for count in together)
        losses.append(run(share, part))
    (sum(one["total"] for one in losses) / len(parts)).backward()
    return gradients(model), {k: sum(one[k] for one in losses).item() / len(parts) for k in losses[0]}


@pytest.mark.parametrize("counts", [[5, 0, 1, 2], [0, 0, 4, 7], [0, 0, 0, 0]])
@pytest.mark.parametrize("parts", [[[0, 1], [2, 3]], [[0], [1, 2, 3]], [[0], [1], [2], [3]]])
@every_family
def test_pitfall_13_processes_together_have_the_gradient_of_the_whole_batch(counts, parts, family):
    model, batch = tiny_model(family), some_batch(counts)
    whole = CRITERIA[family]()(model(batch[0]), *batch[1:], SIZE)
    whole["total"].backward()
    wanted = gradients(model)
    found, losses = gradient_of_parts(model, batch, parts, CRITERIA[family])
    assert wanted.abs().max() > 1e-3
    assert (found - wanted).abs().max() < 1e-9 * wanted.abs().max()
    assert losses == pytest.approx({k: v.item() for k, v in whole.items()}, rel=1e-9)


@every_family
def test_share_is_asked_for_positives_and_for_boxes(family):
    """With a share of ones the losses are plain sums: what the validation loss is made of."""
    predictions, (_, boxes, labels) = random_predictions(2, family=family), some_batch([9, 8])
    means = CRITERIA[family]()(predictions, boxes, labels, SIZE)
    sums = CRITERIA[family](share=torch.ones_like)(predictions, boxes, labels, SIZE)
    assert means["positives"].item() == pytest.approx(sums["positives"].item() / 17)
    assert sums["positives"] > 1 and (sums["positives"] == sums["positives"].round()) == (family == "yolox")
    assert sums["total"].item() == pytest.approx(means["total"].item() * sums["positives"].item(), rel=1e-5)


@every_family
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_predictions_are_computed_in_float32(dtype, family):
    half, (_, boxes, labels) = random_predictions(2, dtype, family=family), some_batch([3, 2])
    leaves = type(half)(*(x.clone().requires_grad_() for x in half))
    losses = CRITERIA[family]()(leaves, boxes, labels, SIZE)
    exact = CRITERIA[family]()(type(half)(*(x.float() for x in half)), boxes, labels, SIZE)
    assert all(value.dtype == torch.float32 for value in losses.values())
    assert all(torch.equal(losses[k], exact[k]) for k in exact)
    losses["total"].backward()
    assert all(x.grad.dtype == dtype and x.grad.isfinite().all() for x in leaves)


def test_a_background_point_whose_size_overflows_spoils_no_gradient():
    predictions, (_, boxes, labels) = random_predictions(2), some_batch([3, 2])
    raw = predictions.boxes.clone()
    raw[:, 5, 2:] = 1000.0  # exp gives infinity; the point lies far from every box
    raw.requires_grad_()
    losses = YOLOXCriterion(STRIDES, l1=True)(predictions._replace(boxes=raw), boxes, labels, SIZE)
    losses["total"].backward()
    assert losses["total"].isfinite() and raw.grad.isfinite().all() and raw.grad.abs().sum() > 0


@every_family
def test_padding_and_the_order_of_boxes_do_not_matter(family):
    predictions, (_, boxes, labels) = random_predictions(2, family=family), some_batch([4, 4])
    plain = CRITERIA[family]()(predictions, boxes, labels, SIZE)
    order = torch.tensor([2, 4, 0, 3, 4, 1])  # 4: a row of padding
    boxes, labels = torch.cat([boxes, torch.full((2, 1, 4), 33.0)], 1), torch.cat([labels, torch.full((2, 1), -1)], 1)
    other = CRITERIA[family]()(predictions, boxes[:, order], labels[:, order], SIZE)
    assert {k: v.item() for k, v in other.items()} == pytest.approx({k: v.item() for k, v in plain.items()}, rel=1e-6)


def test_a_perfect_prediction_costs_next_to_nothing():
    """Stride 32 of a 64 x 96 input has 2 x 3 points; the last but one predicts the box, the others nothing."""
    raw = torch.zeros(1, 126, 9)
    raw[..., 4] = -20
    raw[0, 124, :] = torch.tensor([0.5, 0.5, 0, math.log(2), 20, -20, 20, -20, -20])
    box = torch.tensor([[[32.0, 16, 64, 80]]])  # centre 48, 48; 32 x 64
    predictions = Predictions(raw[..., :4], raw[..., 4], raw[..., 5:])
    losses = YOLOXCriterion(STRIDES, l1=True)(predictions, box, torch.tensor([[1]]), SIZE)
    assert losses["positives"] == 1 and losses["total"] < 1e-3
    wrong = YOLOXCriterion(STRIDES, l1=True)(predictions, box + 8, torch.tensor([[1]]), SIZE)
    assert wrong["box"] > 0.5 and wrong["l1"].item() == pytest.approx(0.5, abs=1e-4)


def slow_yolov9(predictions, boxes, labels):
    """Point by point and class by class."""
    cells, strides = grid(SIZE, STRIDES, predictions.boxes)
    seen, centres = decode_dfl(predictions.boxes, cells, strides), (cells + 0.5) * strides[:, None]
    match = task_aligned(seen, predictions.classes, centres, strides, boxes, labels)
    sums = dict.fromkeys(("box", "class", "dfl"), 0.0)
    for b in range(len(boxes)):
        for a in range(len(cells)):
            score, m = float(match.score[b, a]), int(match.index[b, a])
            for c, logit in enumerate(predictions.classes[b, a].sigmoid().tolist()):
                target = score if match.positive[b, a] and c == labels[b, m] else 0.0
                sums["class"] -= target * math.log(logit) + (1 - target) * math.log(1 - logit)
            if not match.positive[b, a]:
                continue
            (x, y), (x1, y1, x2, y2), stride = centres[a].tolist(), boxes[b, m].tolist(), float(strides[a])
            sums["box"] += score * (1 - float(ciou(seen[b, a], boxes[b, m])))
            for side, distance in enumerate((x - x1, y - y1, x2 - x, y2 - y)):
                log_p = predictions.boxes[b, a, 16 * side : 16 * side + 16].log_softmax(0).tolist()
                distance = min(max(distance / stride, 0), 14.99)
                low = int(distance)
                sums["dfl"] -= score * ((low + 1 - distance) * log_p[low] + (distance - low) * log_p[low + 1]) / 4
    return sums, float(match.score.sum()), match


@pytest.mark.parametrize("counts", [[3, 2], [1, 12], [60, 0], [0, 0]])
def test_losses_of_yolov9_are_those_of_the_definition(counts):
    predictions = random_predictions(2, torch.float64, family="yolov9")
    _, boxes, labels = some_batch(counts, seed=3)
    sums, weight, match = slow_yolov9(predictions, boxes.double(), labels)
    found = YOLOv9Criterion(STRIDES)(predictions, boxes, labels, SIZE)
    assert list(found) == ["total", "box", "class", "dfl", "positives"]
    wanted = {"box": 7.5 * sums["box"], "class": 0.5 * sums["class"], "dfl": 1.5 * sums["dfl"]}
    wanted = {name: value / max(weight, 1) for name, value in wanted.items()}
    wanted |= {"total": sum(wanted.values()), "positives": weight / max(sum(counts), 1)}
    assert {k: v.item() for k, v in found.items()} == pytest.approx(wanted, rel=1e-9)
    assert int(match.positive.sum()) >= min(sum(counts), 100) * 0.6


def test_a_step_against_the_gradient_of_yolov9_brings_boxes_and_classes_nearer(monkeypatch):
    """Of the same points: each loss for itself, since a nearer box also has a higher target."""
    predictions, (_, boxes, labels) = random_predictions(2, torch.float64, family="yolov9"), some_batch([3, 2])
    _, _, match = slow_yolov9(predictions, boxes.double(), labels)
    monkeypatch.setattr("nets.losses.task_aligned", lambda *_, **__: match)
    leaves = yolov9.Predictions(*(x.clone().requires_grad_() for x in predictions))
    before = YOLOv9Criterion(STRIDES)(leaves, boxes, labels, SIZE)
    for name, field in (("box", "boxes"), ("dfl", "boxes"), ("class", "classes")):
        leaf = getattr(leaves, field)
        (gradient,) = torch.autograd.grad(before[name], leaf, retain_graph=True)
        after = YOLOv9Criterion(STRIDES)(leaves._replace(**{field: leaf - 0.01 * gradient}), boxes, labels, SIZE)
        assert after[name] < before[name], name


def test_a_perfect_prediction_of_yolov9_costs_next_to_nothing():
    raw, classes = torch.zeros(1, 126, 64), torch.full((1, 126, 4), -20.0)
    raw[0, 120, torch.tensor([0, 16, 33, 49])] = (
        50.0  # cell 0, 0 of stride 32: from its centre one stride to the right and down
    )
    classes[0, 120, 2] = 20.0
    box, label = torch.tensor([[[16.0, 16, 48, 48]]]), torch.tensor([[2]])
    losses = YOLOv9Criterion(STRIDES)(yolov9.Predictions(raw, classes), box - 0.001, label, SIZE)
    assert losses["positives"] > 0.99 and losses["total"] < 0.05
    wrong = YOLOv9Criterion(STRIDES)(yolov9.Predictions(raw, classes), box + 8, label, SIZE)
    assert wrong["box"] > 1 and wrong["dfl"] > 1
