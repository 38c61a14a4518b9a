"""nets/losses.py: official losses, images without boxes, and the same gradient for any number of processes."""

import math
from functools import partial

import official
import pytest
import torch
from toys import FAMILIES, detector

from nets import picodet, ppyoloe, yolov9
from nets.assigners import task_aligned
from nets.coder import decode_dfl, grid
from nets.losses import PicoDetCriterion, PPYOLOECriterion, YOLOv9Criterion, YOLOXCriterion, local_normalizer
from nets.yolox import Predictions
from utils.boxes import ciou, cxcywh_to_xyxy

STRIDES, SIZE = (8, 16, 32), (64, 96)
CRITERIA = {
    "yolox": partial(YOLOXCriterion, STRIDES, no_aug=True),
    "yolov9": partial(YOLOv9Criterion, STRIDES),
    "ppyoloe": partial(PPYOLOECriterion, STRIDES),
    "picodet": partial(PicoDetCriterion, picodet.PicoDet.strides),
}
BACKGROUND = dict.fromkeys(FAMILIES, "class") | {"yolox": "objectness"}  # the loss of anchor points without a box

every_family = pytest.mark.parametrize("family", FAMILIES)


def tiny_model(family="yolox"):
    """In evaluation mode, since batch norms in training mode mix the images of a batch."""
    return detector(family, 4).double().eval()


def some_batch(counts, dtype=torch.float64, seed=0):
    """Images, boxes and labels; `counts`: boxes per image."""
    torch.manual_seed(seed)
    images = torch.rand(len(counts), 3, *SIZE, dtype=dtype) * 255
    center = torch.rand(len(counts), max(1, *counts), 2) * torch.tensor([96.0, 64])
    boxes = cxcywh_to_xyxy(torch.cat([center, torch.rand(center.shape) * 40 + 4], -1))
    labels = torch.randint(4, boxes.shape[:2])
    for b, count in enumerate(counts):
        boxes[b, count:], labels[b, count:] = 0, -1
    return images, boxes, labels


def random_predictions(batch, dtype=torch.float32, num_points=126, num_classes=4, family="yolox"):
    torch.manual_seed(1)
    if family == "picodet":
        raw = 3 * torch.randn(batch, num_points + 2, 33 + num_classes, dtype=dtype)  # two of stride 64
        return picodet.Predictions(raw[..., :32], raw[..., 32], raw[..., 33:])
    if family != "yolox":
        predictions, width = {"yolov9": (yolov9.Predictions, 64), "ppyoloe": (ppyoloe.Predictions, 68)}[family]
        raw = 3 * torch.randn(batch, num_points, width + num_classes, dtype=dtype)
        return predictions(raw[..., :width], raw[..., width:])
    raw = torch.randn(batch, num_points, 5 + num_classes, dtype=dtype)
    return Predictions(raw[..., :4], raw[..., 4], raw[..., 5:])


def gradients(model):
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    model.zero_grad()
    return flat


def assert_same(losses, reference):
    """`reference`: total, box, objectness, class, l1, positives per box."""
    names = ["total", "box", "objectness", "class", "l1", "positives"]
    for name, value in zip(names, reference.tolist(), strict=True):
        if name == "positives" and not reference[1]:
            continue  # without boxes the official code counts 1
        assert losses.get(name, torch.zeros(())).item() == pytest.approx(value, rel=1e-4), name


@pytest.mark.parametrize("l1", [False, True])
@pytest.mark.parametrize("size", ["nano", "s"])
def test_losses_of_whole_models_equal_the_official_code(size, l1):
    reference = official.reference(f"yolox_{size}")
    raw = torch.from_numpy(reference["raw"]).double()
    logits = torch.logit(raw[..., 4:])
    boxes, labels = torch.from_numpy(reference["boxes"])[None], torch.from_numpy(reference["labels"])[None].long()
    predictions = Predictions(raw[..., :4], logits[..., 0], logits[..., 1:])
    assert_same(YOLOXCriterion(STRIDES, no_aug=l1)(predictions, boxes, labels, (96, 160)), reference[f"loss_l1_{l1}"])


@pytest.mark.parametrize("l1", [0, 1])
@pytest.mark.parametrize("case", range(4))
def test_losses_of_hard_cases_equal_the_official_code(case, l1):
    reference = official.reference("simota")
    raw, logits, boxes = (torch.from_numpy(reference[f"{case}_{name}"]) for name in ("raw", "logits", "labels"))
    labels = boxes[..., 0].long()
    for b, count in enumerate(reference[f"{case}_n"]):
        labels[b, count:] = -1
    predictions = Predictions(raw, logits[..., 0], logits[..., 1:])
    losses = YOLOXCriterion(STRIDES, no_aug=bool(l1))(predictions, cxcywh_to_xyxy(boxes[..., 1:]), labels, (128, 192))
    assert_same(losses, reference[f"{case}_losses_l1_{l1}"])


@every_family
def test_batch_without_boxes_has_finite_loss_and_gradients(family):
    model, (images, *_) = tiny_model(family), some_batch([0, 0])
    boxes, labels = torch.zeros(2, 3, 4), torch.full((2, 3), -1)
    losses = CRITERIA[family]()(model(images), boxes, labels, SIZE)
    losses["total"].backward()
    assert losses["total"] == losses[BACKGROUND[family]] > 0 and losses["positives"] == 0
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert gradients(model).abs().max() > 0


@every_family
def test_background_image_adds_to_the_background_loss_only(family):
    predictions, (_, boxes, labels) = random_predictions(2, family=family), some_batch([3, 0])
    both = CRITERIA[family]()(predictions, boxes, labels, SIZE)
    first = CRITERIA[family]()(type(predictions)(*(x[:1] for x in predictions)), boxes[:1], labels[:1], SIZE)
    for name in both.keys() - {"total", "positives"}:
        assert both[name] > first[name] if name == BACKGROUND[family] else both[name] == first[name]


class Process:
    """Normalizer of one of several processes: it collects the local counts first, and then returns the global normalizers."""

    def __init__(self):
        self.counts, self.normalizers = [], None

    def __call__(self, count):
        if self.normalizers is None:
            self.counts.append(count)
            return local_normalizer(count)
        return next(self.normalizers)


def gradient_of_shards(model, batch, shards, criterion):
    """The mean gradient and the mean losses of simulated processes, each with the images of its shard."""
    images, boxes, labels = batch
    processes = [Process() for _ in shards]

    def run(process, shard):
        return criterion(normalizer=process)(model(images[shard]), boxes[shard], labels[shard], SIZE)

    for process, shard in zip(processes, shards, strict=True):
        run(process, shard)
    sums = [torch.stack(counts).sum(0).clamp(min=1) for counts in zip(*(p.counts for p in processes), strict=True)]
    losses = []
    for process, shard in zip(processes, shards, strict=True):
        process.normalizers = (count / len(shards) for count in sums)
        losses.append(run(process, shard))
    (sum(one["total"] for one in losses) / len(shards)).backward()
    return gradients(model), {k: sum(one[k] for one in losses).item() / len(shards) for k in losses[0]}


@pytest.mark.parametrize("counts, shards", [([5, 0, 1, 2], [[0], [1, 2, 3]]), ([0, 0, 0, 0], [[0, 1], [2, 3]])])
@every_family
def test_processes_together_have_the_gradient_of_the_whole_batch(counts, shards, family):
    model, batch = tiny_model(family), some_batch(counts)
    whole = CRITERIA[family]()(model(batch[0]), *batch[1:], SIZE)
    whole["total"].backward()
    expected = gradients(model)
    gradient, losses = gradient_of_shards(model, batch, shards, CRITERIA[family])
    assert expected.abs().max() > 1e-4
    assert (gradient - expected).abs().max() < 1e-9 * expected.abs().max()
    assert losses == pytest.approx({k: v.item() for k, v in whole.items()}, rel=1e-9)


@every_family
def test_normalizer_divides_positives_and_boxes(family):
    """With a normalizer of ones the losses are sums, from which the validation loss is computed."""
    predictions, (_, boxes, labels) = random_predictions(2, family=family), some_batch([9, 8])
    means = CRITERIA[family]()(predictions, boxes, labels, SIZE)
    sums = CRITERIA[family](normalizer=torch.ones_like)(predictions, boxes, labels, SIZE)
    assert means["positives"].item() == pytest.approx(sums["positives"].item() / 17)
    assert sums["positives"] > 1 and (sums["positives"] == sums["positives"].round()) == (family == "yolox")
    assert sums["total"].item() == pytest.approx(means["total"].item() * sums["positives"].item(), rel=1e-5)


@every_family
def test_half_precision_predictions_are_computed_in_float32(family):
    dtype = torch.float16
    half, (_, boxes, labels) = random_predictions(2, dtype, family=family), some_batch([3, 2])
    leaves = type(half)(*(x.clone().requires_grad_() for x in half))
    losses = CRITERIA[family]()(leaves, boxes, labels, SIZE)
    exact = CRITERIA[family]()(type(half)(*(x.float() for x in half)), boxes, labels, SIZE)
    assert all(value.dtype == torch.float32 for value in losses.values())
    assert all(torch.equal(losses[k], exact[k]) for k in exact)
    losses["total"].backward()
    assert all(x.grad.dtype == dtype and x.grad.isfinite().all() for x in leaves)


@pytest.mark.parametrize(
    ("family", "static", "count"), [("yolov9", False, 10), ("ppyoloe", False, 13), ("picodet", True, 13)]
)
def test_every_positive_anchor_point_of_a_box_learns(family, static, count):
    """ATSS gives this box more anchor points than it takes of one level."""
    box, labels = torch.tensor([[[49.0, 81, 159, 111]]]), torch.zeros(1, 1, dtype=torch.int64)
    with torch.no_grad():
        predictions = detector(family, 4).eval()(torch.zeros(1, 3, 192, 192))
    leaves = type(predictions)(*(torch.zeros_like(x).requires_grad_() for x in predictions))
    losses = CRITERIA[family](static=static)(leaves, box, labels, (192, 192))
    losses["box"].backward()
    assert (leaves.boxes.grad.abs().sum(-1) > 0).sum() == count


def test_overflow_of_a_background_box_leaves_gradients_finite():
    predictions, (_, boxes, labels) = random_predictions(2), some_batch([3, 2])
    raw = predictions.boxes.clone()
    raw[:, 5, 2:] = 1000.0  # exp gives infinity; the anchor point is far from every box
    raw.requires_grad_()
    losses = YOLOXCriterion(STRIDES, no_aug=True)(predictions._replace(boxes=raw), boxes, labels, SIZE)
    losses["total"].backward()
    assert losses["total"].isfinite() and raw.grad.isfinite().all() and raw.grad.abs().sum() > 0


@every_family
def test_padding_and_the_order_of_boxes_do_not_matter(family):
    predictions, (_, boxes, labels) = random_predictions(2, family=family), some_batch([4, 4])
    before = CRITERIA[family]()(predictions, boxes, labels, SIZE)
    order = torch.tensor([2, 4, 0, 3, 4, 1])  # 4: a row of padding
    boxes, labels = torch.cat([boxes, torch.full((2, 1, 4), 33.0)], 1), torch.cat([labels, torch.full((2, 1), -1)], 1)
    after = CRITERIA[family]()(predictions, boxes[:, order], labels[:, order], SIZE)
    assert {k: v.item() for k, v in after.items()} == pytest.approx({k: v.item() for k, v in before.items()}, rel=1e-6)


def slow_yolov9(predictions, boxes, labels):
    """A reference implementation: anchor point by anchor point, class by class."""
    cells, strides = grid(SIZE, STRIDES, predictions.boxes)
    decoded, centers = decode_dfl(predictions.boxes, cells, strides), (cells + 0.5) * strides[:, None]
    match = task_aligned(decoded, predictions.classes, centers, strides, boxes, labels)
    sums = dict.fromkeys(("box", "class", "dfl"), 0.0)
    for b in range(len(boxes)):
        for a in range(len(cells)):
            score, m = float(match.score[b, a]), int(match.index[b, a])
            for c, logit in enumerate(predictions.classes[b, a].sigmoid().tolist()):
                target = score if match.positive[b, a] and c == labels[b, m] else 0.0
                sums["class"] -= target * math.log(logit) + (1 - target) * math.log(1 - logit)
            if not match.positive[b, a]:
                continue
            (x, y), (x1, y1, x2, y2), stride = centers[a].tolist(), boxes[b, m].tolist(), float(strides[a])
            sums["box"] += score * (1 - float(ciou(decoded[b, a], boxes[b, m])))
            for side, distance in enumerate((x - x1, y - y1, x2 - x, y2 - y)):
                log_p = predictions.boxes[b, a, 16 * side : 16 * side + 16].log_softmax(0).tolist()
                distance = min(max(distance / stride, 0), 14.99)
                low = int(distance)
                sums["dfl"] -= score * ((low + 1 - distance) * log_p[low] + (distance - low) * log_p[low + 1]) / 4
    return sums, float(match.score.sum()), match


@pytest.mark.parametrize("counts", [[1, 12], [60, 0]])
def test_losses_of_yolov9_equal_the_reference(counts):
    predictions = random_predictions(2, torch.float64, family="yolov9")
    _, boxes, labels = some_batch(counts, seed=3)
    sums, weight, match = slow_yolov9(predictions, boxes.double(), labels)
    losses = YOLOv9Criterion(STRIDES)(predictions, boxes, labels, SIZE)
    assert list(losses) == ["total", "box", "class", "dfl", "positives"]
    expected = {"box": 7.5 * sums["box"], "class": 0.5 * sums["class"], "dfl": 1.5 * sums["dfl"]}
    expected = {name: value / max(weight, 1) for name, value in expected.items()}
    expected |= {"total": sum(expected.values()), "positives": weight / max(sum(counts), 1)}
    assert {k: v.item() for k, v in losses.items()} == pytest.approx(expected, rel=1e-9)
    assert int(match.positive.sum()) >= min(sum(counts), 100) * 0.6
