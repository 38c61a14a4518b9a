"""Models that need no NMS: what their selector learns, what it leaves alone, and how it is trained, for both families."""

import math

import pytest
import torch
from small import assert_same_run, config, only_run, same
from test_models import IMAGE, tiny
from test_models import pictures as random_pictures
from toys import FAMILIES, make_updater

import evaluate
import nets
import train
from nets import yolov9, yolox
from nets.assigners import one_point
from nets.coder import encode_dfl, encode_yolox, grid, octaves_inside, octaves_of
from nets.losses import LOST, YOLOv9Criterion, YOLOXCriterion
from nets.postprocess import select
from nets.selector import agreed, claim
from utils import checkpoint
from utils.boxes import iou

SIZE, STRIDES = (64, 96), (8, 16, 32)
every_family = pytest.mark.parametrize("family", FAMILIES)
BOXES = torch.tensor([[[10.0, 10, 50, 50], [12, 12, 52, 52], [60, 5, 90, 60]]])
LABELS = torch.tensor([[0, 1, 2]])


def selecting(family, learned=True):
    model = tiny(family)
    model.add_selector()
    for predictor in model.selector.predictors if learned else ():
        torch.nn.init.normal_(predictor.weight)
    return model


def losses_of(model, criterion=None):
    criterion = criterion or nets.criterion(model)
    return criterion(model(random_pictures(1, *SIZE)), BOXES, LABELS, SIZE)


@every_family
def test_a_selector_changes_scores_and_nothing_else(family):
    model, plain, images = selecting(family).eval(), tiny(family).eval(), random_pictures(2, *SIZE)
    plain.load_state_dict({k: v for k, v in model.state_dict().items() if not k.startswith("selector.")})
    with torch.no_grad():
        out, usual = model(images), plain(images)
        found, expected = model.points(out, SIZE), plain.points(usual, SIZE)
    assert all(torch.equal(a, b) for a, b in zip(out.said, usual, strict=True))
    assert torch.equal(found[0], expected[0]) and torch.equal(found[2], expected[2])
    torch.testing.assert_close(found[1], expected[1] * out.chosen.sigmoid())
    assert out.chosen.shape == found[1].shape and out.chosen.std() > 0


@every_family
def test_what_a_selector_learns_changes_nothing_of_what_it_is_shown(family):
    model, plain = selecting(family).train(), tiny(family).train()
    plain.load_state_dict({k: v for k, v in model.state_dict().items() if not k.startswith("selector.")})
    criterion = {"yolox": YOLOXCriterion, "yolov9": YOLOv9Criterion}[family]
    found, expected = losses_of(model), losses_of(plain, criterion(STRIDES, by_size=True))
    assert list(found) == ["total", *list(expected)[1:], "selection"]
    found["total"].backward()
    expected["total"].backward()
    assert found["total"].item() == pytest.approx(expected["total"].item() + found["selection"].item(), rel=1e-6)
    theirs = dict(plain.named_parameters())
    for name, p in model.named_parameters():
        if name.startswith("selector."):
            assert p.grad.abs().max() > 0, name
        else:
            assert torch.equal(p.grad, theirs[name].grad), name


def slow_one_point(boxes, scores, found, claims, targets, labels):
    """One picture -> {point: box}."""
    wishes = {}
    for m in (m for m, label in enumerate(labels.tolist()) if label >= 0):
        voices = {}
        for a in range(len(boxes)):
            if iou(targets[m], boxes[a]) > 0.5 and found[a] == labels[m]:
                voices[a] = float(scores[a]) / (1 + math.exp(-float(claims[a])))
        if voices:
            best = max(voices, key=voices.get)
            wishes.setdefault(best, []).append((float(iou(targets[m], boxes[best])), m))
    return {a: max(wish)[1] for a, wish in wishes.items()}


@pytest.mark.parametrize("seed", range(6))
def test_one_point_equals_the_reference_on_random_scenes(seed):
    generator = torch.Generator().manual_seed(seed)
    corners = torch.rand(3, 7, 2, 2, generator=generator, dtype=torch.float64).sort(2).values * torch.tensor(
        [96.0, 64.0]
    )
    targets = corners.flatten(2)
    targets[..., 2:] += 4
    labels = torch.randint(-1, 3, (3, 7), generator=generator)
    near = torch.randint(0, 7, (3, 126), generator=generator)
    boxes = targets.gather(1, near[..., None].expand(-1, -1, 4))
    boxes = boxes + 3 * torch.randn(boxes.shape, generator=generator, dtype=torch.float64)
    boxes[..., 2:] = torch.maximum(boxes[..., 2:], boxes[..., :2] + 1)
    scores = torch.rand(3, 126, generator=generator, dtype=torch.float64)
    found = torch.randint(0, 3, (3, 126), generator=generator)
    claims = 4 * torch.randn(3, 126, generator=generator, dtype=torch.float64)
    match = one_point(boxes, scores, found, claims, targets, labels)
    for b in range(3):
        wanted = slow_one_point(boxes[b], scores[b], found[b], claims[b], targets[b], labels[b])
        assert {a: int(match.index[b, a]) for a in match.positive[b].nonzero()[:, 0].tolist()} == wanted
    assert 0 < match.positive.sum() <= (labels >= 0).sum()


@every_family
def test_the_loss_of_selection_is_that_of_the_definition(family):
    model = selecting(family).eval()
    with torch.no_grad():
        out = model(random_pictures(1, *SIZE))
        boxes, scores, found = model.decode(out.said, SIZE)
        targets, labels = boxes[:, [3, 40, 100]], found[:, [3, 40, 100]]
        match = one_point(boxes, scores, found, out.claims, targets, labels)
        losses = nets.criterion(model)(out, targets, labels, SIZE)
    wanted = 0.0
    for a, logit in enumerate(out.chosen[0].tolist()):
        speaks = match.positive[0, a]
        loss = LOST * math.log1p(math.exp(-logit)) if speaks else float(scores[0, a]) * math.log1p(math.exp(logit))
        wanted += loss
    assert 1 <= match.positive.sum() <= 3 and losses["selection"].item() == pytest.approx(wanted / 3, rel=1e-4)


@every_family
def test_a_selector_begins_with_what_points_say_of_themselves(family):
    """That one speaks that has the predicted centre in its cell, at the stride of its size."""
    model, box = selecting(family, learned=False), torch.tensor([[16.0, 9, 72, 57]])  # 56 x 48, centre 44, 33
    cells, strides = grid(SIZE, STRIDES, box)
    if family == "yolox":
        raw = encode_yolox(box.expand(126, 4), cells, strides)
    else:  # all weight on the two bins beside the distance
        distances = encode_dfl(box.expand(126, 4), cells, strides).clamp(0, 14.99)
        raw = -30 * (torch.arange(16) - distances[..., None]).abs().clamp(max=1)
        low = distances.floor()
        weights = torch.stack([low + 1 - distances, distances - low], -1).clamp(min=1e-9).log()
        raw = (raw * 0 - 60).scatter(-1, torch.stack([low, low + 1], -1).long(), weights).flatten(1)
    maps, start = [], 0
    for stride in STRIDES:
        h, w = SIZE[0] // stride, SIZE[1] // stride
        maps.append(raw[start : start + h * w].T.reshape(1, -1, h, w))
        start += h * w
    score = [torch.zeros(1, 3, *x.shape[2:]) for x in maps]
    if family == "yolox":
        levels = [yolox.Predictions(x, y[:, :1], y) for x, y in zip(maps, score, strict=True)]
    else:
        levels = [yolov9.Predictions(x, y) for x, y in zip(maps, score, strict=True)]
    features = [torch.zeros(1, c, *x.shape[2:]) for c, x in zip(model.head.channels, maps, strict=True)]
    chosen, claims = model.selector(features, [model.head.seen(x) for x in levels])
    assert all(torch.equal(a, b) for a, b in zip(chosen, claims, strict=True))  # nothing is learned yet
    chosen = torch.cat([x.flatten() for x in chosen])
    assert (chosen > 0).nonzero().flatten().tolist() == [96 + 2 * 6 + 2]  # row 2, column 2 of stride 16
    assert chosen.min() == -10


def slow_agreed(seen):
    """One picture, `[5, H, W]`."""
    _, rows, columns = seen.shape
    found = torch.zeros(4, rows, columns, dtype=seen.dtype)
    for i in range(rows):
        for j in range(columns):
            x, y, w, h = seen[:4, i, j].tolist()
            total, weights = torch.zeros(4, dtype=seen.dtype), 0.0
            for r in range(max(i - 2, 0), min(i + 3, rows)):
                for c in range(max(j - 2, 0), min(j + 3, columns)):
                    theirs = seen[:4, r, c] + torch.tensor([c - j, r - i, 0, 0])
                    apart = max(abs(float(theirs[0]) - x) / 2**w, abs(float(theirs[1]) - y) / 2**h)
                    apart = max(apart, abs(float(theirs[2]) - w), abs(float(theirs[3]) - h))
                    score = 1 / (1 + math.exp(-4 * float(seen[4, r, c]))) + 1e-3
                    weight = score * max(1 - 4 * apart, 0)
                    total, weights = total + weight * theirs, weights + weight
            found[:, i, j] = total / weights
    return found


def test_neighbours_agree_as_in_the_reference():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.meshgrid(torch.arange(7.0), torch.arange(6.0), indexing="xy")
    seen = torch.stack([3.3 - x, 2.6 - y, x * 0 + 1, x * 0 + 2, x * 0], 0).double()
    seen = seen + 0.2 * torch.randn(2, 5, 6, 7, generator=generator, dtype=torch.float64)
    found = torch.cat(agreed(seen), 1)
    for b in range(2):
        torch.testing.assert_close(found[b], slow_agreed(seen[b]))
    assert (found - seen[:, :4]).abs().mean() > 0.05  # they say something else than each for himself
    single = torch.cat(agreed(seen.float()), 1)
    torch.testing.assert_close(single, found.float(), rtol=1e-4, atol=1e-4)


def test_neighbours_that_differ_by_little_leave_an_object_to_one_of_them():
    """The centre is on the border of two cells; each thinks it is the other's. One mean decides."""
    x, y = torch.meshgrid(torch.arange(8.0), torch.arange(8.0), indexing="xy")
    seen = torch.stack([3.5 - x, 3.0 - y, x * 0 + 2, x * 0 + 2, x * 0 + 1], 0)[None]
    seen[0, 0, 3, 3] += 0.03  # column 3 says 3.53, column 4 says 3.45, the others 3.5 and .01 more
    seen[0, 0, 3, 4] -= 0.05
    seen[0, 0] += 0.01
    alone = seen[0, :2].abs().amax(0) < 0.5
    assert not alone.any()
    assert (claim(seen, 16)[0, 0] > 0).nonzero().tolist() == [[3, 4]]


@pytest.mark.parametrize("wild", [0.0, 1e4, -1e4, 1e30, torch.inf, -torch.inf, torch.nan])
def test_claims_are_finite_whatever_a_point_says_and_its_neighbours_keep_theirs(wild):
    assert claim(torch.full((1, 5, 4, 4), wild), 8).abs().max() <= 10
    x, y = torch.meshgrid(torch.arange(8.0), torch.arange(8.0), indexing="xy")
    seen = torch.stack([3.2 - x, 3.1 - y, x * 0 + 2, x * 0 + 2, x * 0 + 1], 0)[None]
    seen[0, :4, 3, 4] = wild  # beside the point that claims
    assert (claim(seen, 16)[0, 0] > 0).nonzero().tolist() == [[3, 3]]


@pytest.mark.parametrize(
    "size, stride", [(3, 8), (44.9, 8), (45, 16), (45.1, 16), (149, 16), (150, 32), (151, 32), (4000, 32)]
)
def test_every_size_has_one_stride(size, stride):
    log2_size, strides = torch.tensor(float(size)).log2(), torch.tensor([8.0, 16.0, 32.0])
    low, high = octaves_of(strides)
    assert ((low <= log2_size) & (log2_size < high)).tolist() == [s == stride for s in STRIDES]
    if size not in (45, 150):
        assert (octaves_inside(log2_size, strides) > 0).tolist() == [s == stride for s in STRIDES]


@every_family
def test_a_box_is_learned_at_the_stride_of_its_size_where_there_is_a_selector(family):
    """A box of 60 pixels: of all points those of stride 16 get gradients that pull, the others only such that push away."""
    model = selecting(family).train()
    out = model(random_pictures(1, *SIZE))
    out.said.classes.retain_grad()
    nets.criterion(model)(out, torch.tensor([[[10.0, 2, 70, 62]]]), torch.tensor([[1]]), SIZE)["total"].backward()
    pulled = (out.said.classes.grad[0] < 0).any(-1)
    assert pulled[96:120].any() and not pulled[:96].any() and not pulled[120:].any()


def test_without_nms_the_best_remain_whatever_they_overlap():
    boxes = torch.tensor([[[10.0, 10, 50, 50], [11, 10, 50, 50], [60, 5, 90, 60], [1, 1, 9, 9]]])
    scores, labels = torch.tensor([[0.5, 0.9, 0.7, 0.1]]), torch.tensor([[1, 1, 1, 0]])
    (found,) = select(boxes, scores, labels, IMAGE, 0.2, None, 300)
    assert found.scores.tolist() == pytest.approx([0.9, 0.7, 0.5]) and torch.equal(found.boxes, boxes[0, [1, 2, 0]])
    assert len(select(boxes, scores, labels, IMAGE, 0.2, 0.5, 300)[0].scores) == 2
    assert select(boxes, scores, labels, IMAGE, 0.2, None, 2)[0].scores.tolist() == pytest.approx([0.9, 0.7])
    assert len(select(boxes, scores, labels, IMAGE, 0.95, None, 2)[0].scores) == 0


@every_family
def test_models_with_a_selector_do_not_ask_for_nms(family):
    limits = {"confidence": 0.0, "nms_iou": 0.3}
    (free,), (fewer,) = (
        m.detect(random_pictures(1, *SIZE), IMAGE, **limits) for m in (selecting(family), tiny(family))
    )
    assert len(free.scores) == 126 > len(fewer.scores)


@every_family
def test_only_the_selector_moves_where_all_else_is_frozen(family):
    model = selecting(family)
    model.freeze("backbone", "neck", "head")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    updater = make_updater(model, "adamw")
    for _ in range(3):
        model.train()
        updater.step(losses_of(model)["total"])
    for state in (model.state_dict(), updater.ema.model.state_dict()):
        moved = {name for name, value in state.items() if not torch.equal(value, before[name])}
        assert moved and all(name.startswith("selector.") for name in moved)
    model.freeze_backbone(False)
    assert all(p.requires_grad for p in model.parameters()) and model.train().head.training


@every_family
def test_a_state_dict_says_whether_there_is_a_selector(family):
    name = {"yolox": "yolox_nano", "yolov9": "yolov9_t"}[family]
    with torch.device("meta"):
        model = nets.build(name, 3, nms_free=True)
        again = nets.build(name, 3, model.state_dict())
        assert again.state_dict().keys() == model.state_dict().keys() > nets.build(name, 3).state_dict().keys()
        assert nets.build(name, 3, model.state_dict(), nms_free=False).selector is None


def test_an_nms_free_run_resumes_to_the_bit_evaluates_and_becomes_an_ordinary_one_again(pictures, tmp_path):
    two = {"epochs": 2, "freeze_epochs": 1, "nms_free": True}
    train.main(config(pictures, tmp_path / "whole", **two))
    whole = only_run(tmp_path / "whole")
    rows = (whole / "log.csv").read_text().splitlines()[0].split(",")
    assert {"loss_box", "loss_selection"} <= set(rows)

    saved = train.Saver.__call__
    with pytest.MonkeyPatch.context() as patch:

        def save_and_die(self, state, *rest, **options):
            saved(self, state, *rest, **options)
            raise KeyboardInterrupt

        patch.setattr(train.Saver, "__call__", save_and_die)
        with pytest.raises(KeyboardInterrupt):
            train.main(config(pictures, tmp_path / "stopped", **two))
    train.main(config(pictures, tmp_path / "stopped", **two, resume=True))
    assert_same_run(only_run(tmp_path / "stopped"), whole)

    figures = evaluate.main(evaluate.Config(checkpoint=str(whole / "last.pt"), output=str(tmp_path / "figures")))
    last = checkpoint.load(whole / "last.pt")
    assert figures["AP"] == last["metrics"]["AP"]

    weights = {"weights": str(whole / "last.pt"), "freeze_epochs": 0, "epochs": 1}
    train.main(config(pictures, tmp_path / "head", nms_free="head", **weights))
    train.main(config(pictures, tmp_path / "plain", **weights))
    after = checkpoint.load(only_run(tmp_path / "head") / "last.pt")["model"]
    kept = [name for name in after if not name.startswith("selector.")]
    assert same({name: after[name] for name in kept}, {name: last["model"][name] for name in kept})
    assert not same(after, last["model"])
    assert not any(
        name.startswith("selector.") for name in checkpoint.load(only_run(tmp_path / "plain") / "last.pt")["model"]
    )
