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
from nets.coder import encode_dfl, encode_yolox, grid
from nets.postprocess import select
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


def losses_of(model):
    return nets.criterion(model)(model(random_pictures(1, *SIZE)), BOXES, LABELS, SIZE)


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
    found, expected = losses_of(model), losses_of(plain)
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


def slow_one_point(boxes, scores, found, centres, strides, targets, labels):
    """One picture -> {point: box}."""
    wishes = {}
    for m in (m for m, label in enumerate(labels.tolist()) if label >= 0):
        costs = {}
        for a, box in enumerate(boxes.tolist()):
            overlap = float(iou(targets[m], boxes[a]))
            if overlap <= 0.5:
                continue
            score = float(scores[a]) if found[a] == labels[m] else 0.0
            x, y = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
            away = max(abs(x - float(centres[a, 0])), abs(y - float(centres[a, 1]))) / float(strides[a])
            side = math.sqrt((box[2] - box[0]) * (box[3] - box[1]))
            fit = 3 * away + 3 * abs(math.log2(side / (4 * float(strides[a]))))
            costs[a] = -math.log(score + 1e-8) + fit
        if costs:
            best = min(costs, key=costs.get)
            wishes.setdefault(best, []).append((costs[best], m))
    return {a: min(wish)[1] for a, wish in wishes.items()}


@pytest.mark.parametrize("seed", range(6))
def test_one_point_equals_the_reference_on_random_scenes(seed):
    generator = torch.Generator().manual_seed(seed)
    cells, strides = grid(SIZE, STRIDES, torch.zeros((), dtype=torch.float64))
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
    scene = (cells + 0.5) * strides[:, None], strides
    match = one_point(boxes, scores, found, *scene, targets, labels)
    for b in range(3):
        wanted = slow_one_point(boxes[b], scores[b], found[b], *scene, targets[b], labels[b])
        assert {a: int(match.index[b, a]) for a in match.positive[b].nonzero()[:, 0].tolist()} == wanted
    assert 0 < match.positive.sum() <= (labels >= 0).sum()


@every_family
def test_the_loss_of_selection_is_that_of_the_definition(family):
    model = selecting(family).eval()
    with torch.no_grad():
        out = model(random_pictures(1, *SIZE))
        boxes, scores, found = model.decode(out.said, SIZE)
        cells, strides = grid(SIZE, STRIDES, boxes)
        targets = boxes[:, [3, 40, 100]]
        match = one_point(boxes, scores, found, (cells + 0.5) * strides[:, None], strides, targets, LABELS)
        losses = nets.criterion(model)(out, targets, LABELS, SIZE)
    wanted = 0.0
    for a, logit in enumerate(out.chosen[0].tolist()):
        wanted += (
            math.log1p(math.exp(-logit)) if match.positive[0, a] else float(scores[0, a]) * math.log1p(math.exp(logit))
        )
    assert 1 <= match.positive.sum() <= 3 and losses["selection"].item() == pytest.approx(wanted / 3, rel=1e-4)


@every_family
def test_a_selector_begins_with_what_points_say_of_themselves(family):
    """Those speak that have the predicted centre in their cell, and loudest the one of the stride of a quarter of the size."""
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
    chosen = torch.cat([x.flatten() for x in model.selector(features, [model.head.seen(x) for x in levels])])
    assert (chosen > 0).nonzero().flatten().tolist() == [
        4 * 12 + 5,
        96 + 2 * 6 + 2,
    ]  # row 4, column 5 of stride 8; 2, 2 of 16
    assert chosen.argmax() == 96 + 2 * 6 + 2 and chosen.min() >= -10


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
