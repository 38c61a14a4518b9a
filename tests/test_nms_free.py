"""Models with a second head that needs no NMS: what it learns, what it leaves alone, and how it is trained, for both families."""

import pytest
import torch
from small import assert_same_run, config, only_run, same
from test_models import IMAGE, tiny
from test_models import pictures as random_pictures
from toys import FAMILIES, make_updater

import evaluate
import nets
import train
from nets.assigners import simota, task_aligned
from nets.blocks import Both
from nets.coder import decode_dfl, decode_yolox, grid
from nets.losses import DualCriterion
from nets.postprocess import select
from utils import checkpoint

SIZE = (64, 96)
every_family = pytest.mark.parametrize("family", FAMILIES)
BOXES = torch.tensor([[[10.0, 10, 50, 50], [12, 12, 52, 52], [60, 5, 90, 60]]])
LABELS = torch.tensor([[0, 1, 2]])


def dual(family):
    model = tiny(family)
    model.add_one_head()
    return model


def losses_of(model, progress=0.5):
    return nets.criterion(model, progress=progress)(model(random_pictures(1, *SIZE)), BOXES, LABELS, SIZE)


@every_family
def test_the_second_head_begins_as_a_copy_and_decides(family):
    model, images = dual(family), random_pictures(2, *SIZE)
    plain = tiny(family).eval()
    plain.load_state_dict({k: v for k, v in model.state_dict().items() if not k.startswith("one_head.")})
    assert all(torch.equal(a, b) for a, b in zip(model.eval()(images), plain(images), strict=True))
    for p in model.one_head.parameters():
        torch.nn.init.normal_(p)
    assert not torch.equal(model(images).classes, plain(images).classes)


@every_family
def test_in_training_both_heads_answer_and_the_second_one_teaches_nobody_else(family):
    model = dual(family).train()
    both = model(random_pictures(1, *SIZE))
    assert isinstance(both, Both) and type(both.many) is type(both.one)
    sum(x.square().mean() for x in both.one).backward()
    touched = {name.partition(".")[0] for name, p in model.named_parameters() if p.grad is not None}
    assert touched == {"one_head"}


@every_family
def test_losses_of_both_heads_are_weighed_by_the_progress(family):
    model = dual(family).train()
    model.one_head.load_state_dict(model.head.state_dict())
    found = {progress: losses_of(model, progress) for progress in (0.0, 0.5, 1.0)}
    for progress, weight in ((0.0, 0.8), (0.5, 0.45), (1.0, 0.1)):
        criterion = nets.criterion(model, progress=progress)
        assert isinstance(criterion, DualCriterion) and criterion.weight == pytest.approx(weight)
        names = [name for name in found[progress] if name.startswith("one_")]
        one = sum(found[progress][name] for name in names)
        many = sum(found[progress][name.removeprefix("one_")] for name in names)
        assert found[progress]["total"].item() == pytest.approx((weight * many + (1 - weight) * one).item(), rel=1e-5)
    losses_of(model)["total"].backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_the_narrowing_goes_from_seven_points_to_one():
    model = dual("yolov9")
    assert [nets.criterion(model, progress=p / 6).one.most for p in range(7)] == [7, 6, 5, 4, 3, 2, 1]
    assert nets.criterion(dual("yolox"), progress=0).one.most == 1
    assert nets.criterion(model).many.most == 10


@every_family
def test_one_point_a_box(family):
    model = dual(family).eval()
    with torch.no_grad():
        predictions = model(random_pictures(1, *SIZE))
    cells, strides = grid(SIZE, model.strides, predictions.classes)
    centres, scene = (cells + 0.5) * strides[:, None], (BOXES, LABELS)
    if family == "yolox":
        outputs = decode_yolox(predictions.boxes, cells, strides), predictions.objectness, predictions.classes
        few, many = (simota(*outputs, centres, strides, *scene, most=most) for most in (1, 10))
    else:
        outputs = decode_dfl(predictions.boxes, cells, strides), predictions.classes
        few, many = (task_aligned(*outputs, centres, strides, *scene, most=most) for most in (1, 10))
    found = few.index[few.positive].sort().values.tolist()
    # SimOTA: of two boxes that want the same point one has none.
    assert found == ([1, 2] if family == "yolox" else [0, 1, 2])
    assert many.positive.sum() >= 3


def test_without_nms_the_best_remain_whatever_they_overlap():
    boxes = torch.tensor([[[10.0, 10, 50, 50], [11, 10, 50, 50], [60, 5, 90, 60], [1, 1, 9, 9]]])
    scores, labels = torch.tensor([[0.5, 0.9, 0.7, 0.1]]), torch.tensor([[1, 1, 1, 0]])
    (found,) = select(boxes, scores, labels, IMAGE, 0.2, None, 300)
    assert found.scores.tolist() == pytest.approx([0.9, 0.7, 0.5]) and torch.equal(found.boxes, boxes[0, [1, 2, 0]])
    assert len(select(boxes, scores, labels, IMAGE, 0.2, 0.5, 300)[0].scores) == 2
    assert select(boxes, scores, labels, IMAGE, 0.2, None, 2)[0].scores.tolist() == pytest.approx([0.9, 0.7])
    assert len(select(boxes, scores, labels, IMAGE, 0.95, None, 2)[0].scores) == 0


@every_family
def test_nms_free_models_do_not_ask_for_nms(family):
    model, plain = dual(family), tiny(family)
    limits = {"confidence": 0.0, "nms_iou": 0.3}
    (free,), (fewer,) = (m.detect(random_pictures(1, *SIZE), IMAGE, **limits) for m in (model, plain))
    assert len(free.scores) == 126 > len(fewer.scores) and set(fewer.scores.tolist()) <= set(free.scores.tolist())


@every_family
def test_only_the_second_head_moves_where_all_else_is_frozen(family):
    model = dual(family)
    model.freeze("backbone", "neck", "head")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    updater = make_updater(model, "adamw")
    for _ in range(3):
        model.train()
        assert model(random_pictures(1, *SIZE)).many is None
        updater.step(losses_of(model)["total"])
    for state in (model.state_dict(), updater.ema.model.state_dict()):
        moved = {name for name, value in state.items() if not torch.equal(value, before[name])}
        assert moved and all(name.startswith("one_head.") for name in moved)
    model.freeze_backbone(False)
    assert all(p.requires_grad for p in model.parameters()) and model.train().head.training


@every_family
def test_a_state_dict_says_whether_there_is_a_second_head(family):
    name = {"yolox": "yolox_nano", "yolov9": "yolov9_t"}[family]
    with torch.device("meta"):
        model = nets.build(name, 3, nms_free=True)
        again = nets.build(name, 3, model.state_dict())
        assert again.state_dict().keys() == model.state_dict().keys() > nets.build(name, 3).state_dict().keys()
        assert nets.build(name, 3, model.state_dict(), nms_free=False).one_head is None


def test_an_nms_free_run_resumes_to_the_bit_evaluates_and_becomes_an_ordinary_one_again(pictures, tmp_path):
    two = {"epochs": 2, "freeze_epochs": 1, "nms_free": True}
    train.main(config(pictures, tmp_path / "whole", **two))
    whole = only_run(tmp_path / "whole")
    rows = (whole / "log.csv").read_text().splitlines()[0].split(",")
    assert {"loss_box", "loss_one_box", "loss_one_class"} <= set(rows)

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
    kept = [name for name in after if not name.startswith("one_head.")]
    assert same({name: after[name] for name in kept}, {name: last["model"][name] for name in kept})
    assert not same(after, last["model"])
    assert not any(
        name.startswith("one_head.") for name in checkpoint.load(only_run(tmp_path / "plain") / "last.pt")["model"]
    )
