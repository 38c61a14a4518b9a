"""nets/extended.py: the old classes of a model keep their bits while a new head learns new ones, in every family."""

import copy

import pytest
import torch
from lively import lively
from refused import refused
from tiny import Tiny
from toys import FAMILIES, SIZES, make_updater

import nets
from benchmarks.multi_label import MultiLabel
from nets.extended import MAX_ADDED, ExtendedModel, extended
from utils import checkpoint
from utils.file_checks import CheckpointError
from utils.processes import Ranks

SIZE = (64, 64)


def in_turn(names):
    """Parameters of tests: the names of models, of which two are quick."""
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in names]


WIDTHS = {"yolov9": {"class_width": 24}}  # of the class branches of weights of another number of classes
QUICK = ("tiny", "yolov9")  # without and with class branches whose width follows the weights
MODELS = {**FAMILIES, "tiny": lambda num_classes: Tiny(8, num_classes)}
every_model = pytest.mark.parametrize("family", in_turn(MODELS))
every_family = pytest.mark.parametrize("family", in_turn(FAMILIES))
TRANSFORMS = torch.tensor([[64.0, 64, 1, 1, 0, 0]] * 2)
IMAGES = torch.randint(0, 256, (2, 3, *SIZE), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def old_model(family, num_classes=3):
    torch.manual_seed(0)
    return lively(MODELS[family](num_classes=num_classes), SIZE).eval()


def with_head(model, family, count=2):
    torch.manual_seed(1)
    return extended(model, MODELS[family](num_classes=count)).eval()


@torch.no_grad()
def outputs(model, heads=1):
    """Boxes, scores and labels of the first heads before NMS, and the detections of their classes after it."""
    predictions = model.eval()(IMAGES)
    found = model.decode_heads(predictions, SIZE)[:heads]
    most = sum(head.num_classes for head in model.per_head(predictions)[:heads])
    for one in model.detections(predictions, SIZE, TRANSFORMS, max_detections=5):
        found.append([x[one.labels < most] for x in one])
    return [x.clone() for part in found for x in part]


def assert_equal_bits(ours, theirs):
    assert len(ours) == len(theirs) > 0 and all(len(x) > 0 for x in ours)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def fit(model, steps=3, **options):
    """Trains some steps on two boxes of the newest classes, with weight decay and a moving average -> the Updater."""
    model.freeze_backbone(False)  # as a training does that has no frozen epochs
    updater = make_updater(model, **options)
    criterion, first = nets.criterion(model), model.first_class
    boxes = torch.tensor([[[8.0, 8, 40, 48]], [[20.0, 4, 60, 30]]])
    model.train()
    for _ in range(steps):
        losses = criterion(model(IMAGES), boxes, torch.tensor([[first], [first + 1]]), SIZE)
        updater.backward(losses["total"])
    return updater


@pytest.mark.parametrize(("family", "optimizer"), [*((family, "adamw") for family in MODELS), ("tiny", "sgd")])
def test_training_changes_no_bit_of_the_old_classes(family, optimizer):
    old = old_model(family)
    old.clips = optimizer == "sgd"
    before, state = outputs(old), copy.deepcopy(old.state_dict())
    model = with_head(old, family)
    fresh = copy.deepcopy(model.added.state_dict())
    updater = fit(model, optimizer=optimizer)
    for trained in (updater.model, updater.ema.model):
        assert_equal_bits(outputs(trained), before)
        now = trained.state_dict()
        assert all(torch.equal(now[name], value) for name, value in state.items())
        changed = {name for name, value in trained.added.state_dict().items() if not torch.equal(value, fresh[name])}
        assert {name.split(".")[:3][-1] for name in changed} == {
            name.split(".")[:3][-1] for name in fresh
        }  # every kind of layer


@pytest.mark.parametrize("frozen", [True, False])
def test_the_backbone_stays_frozen_while_classes_are_added(frozen):
    model = with_head(old_model("tiny"), "tiny").train()
    model.freeze_backbone(frozen)
    assert {p for p in model.parameters() if p.requires_grad} == set(model.added[-1].parameters())
    assert not any(module.training for module in model.backbone.modules()) and model.added[-1].training


@pytest.mark.parametrize("family", ["tiny", *(pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES)])
def test_a_second_addition_freezes_the_first_one(family):
    first = with_head(old_model(family), family)
    fit(first)
    before = outputs(first, heads=2)
    second = with_head(first, family, 3)
    fit(second)
    assert second.added_counts == (2, 3) and second.num_classes == 8 and second.first_class == 5
    assert_equal_bits(outputs(second, heads=2), before)
    labels = second.decode_heads(second.eval()(IMAGES), SIZE)[2][2]
    assert labels.min() >= 5 and labels.max() <= 7


@every_family
def test_a_new_head_starts_with_the_weights_of_the_old_one_except_its_classes(family, tmp_path, monkeypatch):
    monkeypatch.setitem(nets.MODELS[family].sizes, "toy", SIZES[family])
    old = lively(FAMILIES[family](num_classes=3, **WIDTHS.get(family, {})), SIZE)
    checkpoint.save(tmp_path / "best.pt", {"classes": [*"abc"], "config": {}, "model": old.state_dict()})
    arguments = f"{family}_toy", [*"abcdef"], str(tmp_path / "best.pt"), Ranks(), print
    model, _ = nets.build_pretrained(*arguments, add_classes=True)
    new, state = model.added[0].state_dict(), old.state_dict()
    assert any("class_predictors" in name for name in new) and any(name.startswith("neck.") for name in new)
    for name, value in new.items():
        assert torch.equal(state[name], value) == ("class_predictors" not in name), name


@every_model
def test_many_detections_of_new_classes_crowd_out_no_old_ones(family):
    """Neither by the limit of detections per image nor by the limit of candidates before NMS; also with several labels."""
    old = old_model(family)
    model = with_head(old, family)
    for predictor in model.added[0].head.class_predictors:
        torch.nn.init.constant_(predictor.bias, 9.0)  # every anchor point detects
    limits = {"max_detections": 5, "max_candidates": 20}
    with torch.no_grad():
        ours, theirs = old(IMAGES), model(IMAGES)
    found = []
    for kind in (lambda model: model, MultiLabel):
        both = (kind(m).detections(p, SIZE, TRANSFORMS, **limits) for m, p in ((old, ours), (model, theirs)))
        found += zip(*both, strict=True)
    for one, other in found:
        is_old = other.labels < 3
        assert len(one.scores) == 5 and int((~is_old).sum()) > 2
        assert all(torch.equal(x, y[is_old]) for x, y in zip(one, other, strict=True))
        assert (other.scores.diff() <= 0).all()


def test_class_agnostic_nms_compares_boxes_of_old_and_new_classes():
    old = old_model("tiny")
    model = with_head(old, "tiny")
    predictions = model(IMAGES)
    both = model.detections(predictions, SIZE, TRANSFORMS, max_detections=300)
    one = model.detections(predictions, SIZE, TRANSFORMS, max_detections=300, class_agnostic=True)
    assert all(len(a.scores) < len(b.scores) for a, b in zip(one, both, strict=True))


@every_model
def test_boxes_of_old_classes_are_background_for_the_new_head(family):
    model = with_head(old_model(family), family).train()
    boxes = torch.tensor([[[8.0, 8, 40, 48], [0, 0, 30, 30]], [[20.0, 4, 60, 30], [9, 9, 50, 50]]])
    cases = (boxes, [[2, 3], [4, 0]]), (boxes[[0, 1], [1, 0]][:, None], [[3], [4]])  # with and without the old classes
    found = [nets.criterion(model)(model(IMAGES), these, torch.tensor(labels), SIZE) for these, labels in cases]
    ours, theirs = ({name: float(value.detach()) for name, value in losses.items()} for losses in found)
    assert ours == pytest.approx(theirs, rel=1e-5) and ours["positives"] > 0


@every_family
def test_the_state_of_a_model_tells_how_it_is_built(family, monkeypatch):
    monkeypatch.setitem(nets.MODELS[family].sizes, "toy", SIZES[family])
    old, *fresh = (FAMILIES[family](num_classes=count, **WIDTHS.get(family, {})) for count in (3, 2, 4))
    model = extended(extended(old, fresh[0]), fresh[1])
    state = model.state_dict()
    again = nets.build(f"{family}_toy", 9, state)
    again.load_state_dict(state)
    assert isinstance(again, ExtendedModel) and again.added_counts == (2, 4)
    assert_equal_bits(outputs(lively(again, SIZE), 3), outputs(lively(model, SIZE), 3))
    copied = copy.deepcopy(model)
    assert copied.base.backbone is copied.backbone is not model.backbone


@pytest.mark.parametrize("what", ["a gap", "too many", "too few classes", "no classes"])
def test_states_with_impossible_heads_are_refused(what):
    state = with_head(old_model("tiny"), "tiny").state_dict()
    head = {name: value for name, value in state.items() if name.startswith("added.0.")}
    number, num_classes = 1, 5
    if what == "a gap":
        state |= {name.replace("added.0.", "added.2."): value for name, value in head.items()}
        number = 0
    if what == "too many":
        for i in range(1, MAX_ADDED + 1):
            state |= {name.replace("added.0.", f"added.{i}."): value for name, value in head.items()}
        number = MAX_ADDED - 1
    if what == "too few classes":
        num_classes = number = 2
    if what == "no classes":
        state = {name: value for name, value in state.items() if "added.0.head.class_predictors.0.bias" not in name}
        number = 5
    with refused(CheckpointError, *([] if number == 0 else [number]), "added"):
        nets.build("tiny_n", num_classes, state)
