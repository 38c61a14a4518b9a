"""The whole program on small drawn pictures: what a run leaves behind, and that interruptions leave no trace."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from small import assert_same_run, config, log_of, only_run, same

import evaluate
import nets
import train
from datasets import demo
from utils import checkpoint
from utils.detector import Detector

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def whole(pictures, tmp_path_factory):
    """A run of four epochs that nobody disturbed."""
    output = tmp_path_factory.mktemp("whole")
    train.main(config(pictures, output))
    return only_run(output)


@pytest.mark.parametrize("stop", [1, 2, 3])  # 1: at the thaw; 3: where the plain epochs begin
def test_4_resumed_run_has_the_same_bits_as_one_that_was_left_alone(pictures, whole, tmp_path, monkeypatch, stop):
    save = train.Saver.__call__

    def save_and_die(self, state, *rest, **options):
        save(self, state, *rest, **options)
        if state.epoch == stop:
            raise KeyboardInterrupt

    monkeypatch.setattr(train.Saver, "__call__", save_and_die)
    with pytest.raises(KeyboardInterrupt):
        train.main(config(pictures, tmp_path))
    assert checkpoint.load(only_run(tmp_path) / "last.pt")["epoch"] == stop
    monkeypatch.setattr(train.Saver, "__call__", save)
    train.main(config(pictures, tmp_path, resume=True))

    assert_same_run(only_run(tmp_path), whole)


def test_36_the_same_seed_gives_the_same_bits_and_another_seed_does_not(pictures, whole, tmp_path):
    train.main(config(pictures, tmp_path / "a"))
    train.main(config(pictures, tmp_path / "b", seed=1))
    first = checkpoint.load(whole / "last.pt")["model"]
    assert same(checkpoint.load(only_run(tmp_path / "a") / "last.pt")["model"], first)
    assert not same(checkpoint.load(only_run(tmp_path / "b") / "last.pt")["model"], first)


def test_5_frozen_backbone_keeps_every_bit_and_thaws_afterwards(pictures, tmp_path):
    torch.manual_seed(0)
    fresh = nets.build("yolox_nano", len(demo.CLASSES)).state_dict()
    train.main(config(pictures, tmp_path / "frozen", epochs=2, freeze_epochs=2))
    train.main(config(pictures, tmp_path / "thawed", epochs=2, freeze_epochs=1))
    frozen, thawed = (checkpoint.load(only_run(tmp_path / name) / "last.pt") for name in ("frozen", "thawed"))
    backbone = [name for name in fresh if name.startswith("backbone.")]
    others = [name for name in fresh if not name.startswith("backbone.") and name.endswith("weight")]
    for weights in (frozen["model"], frozen["resume"]["model"]):  # the moving average and the raw weights
        assert all(torch.equal(weights[name], fresh[name]) for name in backbone)
        assert not any(torch.equal(weights[name], fresh[name]) for name in others)
    changed = [name for name in backbone if not torch.equal(thawed["resume"]["model"][name], fresh[name])]
    assert len(changed) == len(backbone)


def test_the_run_folder_holds_what_it_should(whole, capsys):
    names = {path.name for path in whole.iterdir()}
    expected = {"config.json", "environment.json", "log.csv", "curves.png", "best.pt", "last.pt", "train_batch_1.jpg"}
    assert expected <= names and "val_predictions.jpg" in names
    assert any(name.startswith("events.out.tfevents") for name in names)
    rows = log_of(whole)
    assert [row["epoch"] for row in rows] == ["1", "2", "3", "4"]
    assert {"AP", "AP50", "val_loss", "loss", "loss_box", "learning_rate"} <= rows[0].keys()
    assert [bool(row["loss_l1"]) for row in rows] == [False, False, False, True]  # only in the plain epoch
    assert json.loads((whole / "config.json").read_text())["batch_size"] == 4
    best = checkpoint.load(whole / "best.pt")
    assert "resume" not in best and best["classes"] == list(demo.CLASSES)


def test_the_last_line_names_the_folder_and_the_best_figure(pictures, tmp_path, capsys):
    best = train.main(config(pictures, tmp_path, epochs=1))
    last = capsys.readouterr().out.strip().splitlines()[-1]
    assert last == f"{only_run(tmp_path)}  best mAP50-95 {best:.4f}"


def test_15_best_checkpoint_is_the_best_and_evaluates_to_the_same_number(pictures, whole, tmp_path):
    rows = log_of(whole)
    best = checkpoint.load(whole / "best.pt")
    assert best["metrics"]["AP"] == max(float(row["AP"]) for row in rows)
    cfg = evaluate.Config(
        checkpoint=str(whole / "best.pt"), data=str(pictures / "val.txt"), output=str(tmp_path), workers=0, device="cpu"
    )
    figures = evaluate.main(cfg)
    assert figures["AP"] == best["metrics"]["AP"] and figures["AR100"] == best["metrics"]["AR100"]


def test_resume_on_a_finished_run_changes_nothing_and_says_so(pictures, whole, capsys):
    before = (whole / "last.pt").read_bytes(), (whole / "log.csv").read_bytes()
    best = train.main(config(pictures, whole.parent, resume=True))
    assert best == max(float(row["AP"]) for row in log_of(whole))
    assert "nothing to do" in capsys.readouterr().out
    assert ((whole / "last.pt").read_bytes(), (whole / "log.csv").read_bytes()) == before


def test_resume_refuses_other_constants_and_names_them(pictures, whole):
    with pytest.raises(train.ConfigError, match=r"batch_size=5 \(was 4\)"):
        train.main(config(pictures, whole.parent, resume=True, batch_size=5))
    with pytest.raises(train.ConfigError, match=r"training data=5 pictures.*\(was 9 pictures"):
        train.main(config(pictures, whole.parent, resume=True, train=str(pictures / "val.txt")))
    with pytest.raises(train.ConfigError, match="only last.pt can be resumed"):
        train.main(config(pictures, whole.parent, resume=str(whole / "best.pt")))
    names = pictures / "other names.txt"
    names.write_text("\n".join(reversed(demo.CLASSES)))
    with pytest.raises(train.ConfigError, match="classes=heart,star"):
        train.main(config(pictures, whole.parent, resume=True, classes=str(names)))


def test_resume_true_without_a_run_starts_one_and_a_missing_path_fails(pictures, tmp_path):
    train.main(config(pictures, tmp_path, epochs=1, resume=True))
    assert (only_run(tmp_path) / "last.pt").exists()
    with pytest.raises(checkpoint.CheckpointError, match="there is no checkpoint"):
        train.main(config(pictures, tmp_path, resume=str(tmp_path / "nowhere")))


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": "sgd", "schedule": "step", "accumulate": 2, "learning_rate": 0.001},
        {"amp": "bf16", "multi_scale": 0.5, "ema": False},
        {"optimizer": "adam", "mixup": 1.0, "mosaic": 1.0, "workers": 1, "image_size": (64, 96)},
    ],
)
def test_other_recipes_train(pictures, tmp_path, changes):
    train.main(config(pictures, tmp_path, epochs=2, **changes))
    contents = checkpoint.load(only_run(tmp_path) / "last.pt")
    rows = log_of(only_run(tmp_path))
    assert np.isfinite([float(row["loss"]) for row in rows]).all() and rows[-1]["skipped_steps"] == "0"
    steps = 2 + 3 if "accumulate" not in changes else 1 + 2  # 9 pictures: by 6, then by 4
    assert contents["step"] == steps
    if changes.get("ema") is False:
        assert same(contents["model"], contents["resume"]["model"])


def test_25_learning_rate_an_image_is_continuous_at_the_thaw(pictures, tmp_path):
    cfg = config(pictures, tmp_path, epochs=40, freeze_epochs=20, plain_epochs=0)
    plan = train.make_plan(cfg, 900, cfg.freeze_epochs)
    updater = train.make_updater(cfg, nets.build("yolox_nano", 5), plan)
    thaw = plan.before(20)
    before, after = (updater.schedule(step) / plan.images_at(step) for step in (thaw - 1, thaw))
    assert plan.images_at(thaw - 1) == 6 and plan.images_at(thaw) == 4
    assert before == pytest.approx(after, rel=0.01)


def test_a_size_that_is_no_multiple_of_32_names_the_nearest(pictures, tmp_path):
    with pytest.raises(ValueError, match="such as 416,640"):
        train.main(config(pictures, tmp_path, image_size=(410, 650)))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_18_35_trains_with_few_pictures_and_a_batch_larger_than_the_data(pictures, tmp_path, count):
    lines = (pictures / "train.txt").read_text().splitlines()[:count]
    few = pictures / f"few{count}.txt"
    few.write_text("\n".join(lines))
    train.main(config(pictures, tmp_path, train=str(few), epochs=2, batch_size=8, mosaic=1.0, mixup=1.0))
    assert np.isfinite([float(row["loss"]) for row in log_of(only_run(tmp_path))]).all()


def test_35_a_last_batch_of_one(pictures, tmp_path):
    train.main(config(pictures, tmp_path, epochs=2, batch_size=1, freeze_batch_size=1))
    assert len(log_of(only_run(tmp_path))) == 2


def test_18_no_boxes_and_too_few_pictures_are_told_apart(pictures, tmp_path, capsys):
    empty = pictures / "empty.txt"
    empty.write_text("0.png\n1.png\n")
    with pytest.raises(train.DataError, match="no boxes"):
        train.main(config(pictures, tmp_path, train=str(empty)))
    nothing = pictures / "nothing.txt"
    nothing.write_text("\n")
    with pytest.raises(train.DataError, match="no pictures"):
        train.main(config(pictures, tmp_path, train=str(nothing)))
    train.main(config(pictures, tmp_path, epochs=1))
    assert "only 9 training pictures" in capsys.readouterr().out


def test_2_a_run_of_non_finite_steps_stops_naming_pictures_and_keeps_the_checkpoint(pictures, tmp_path, monkeypatch):
    broken = []

    class Criterion(nets.YOLOXCriterion):
        def __call__(self, *args):
            losses = super().__call__(*args)
            return {**losses, "total": losses["total"] * (float("inf") if broken else 1.0)}

    monkeypatch.setattr(nets, "YOLOXCriterion", Criterion)
    monkeypatch.setattr("utils.optim.MOST_BAD_STEPS", 3)
    save = train.Saver.__call__
    monkeypatch.setattr(train.Saver, "__call__", lambda *args, **options: (save(*args, **options), broken.append(1)))
    with pytest.raises(SystemExit, match=r"not finite.*\d\.png"):
        train.main(config(pictures, tmp_path, batch_size=2))
    contents = checkpoint.load(only_run(tmp_path) / "last.pt")
    assert contents["epoch"] == 1
    assert all(value.isfinite().all() for value in contents["model"].values())


def test_patience_stops_and_period_checkpoints_stay(pictures, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(train.Training, "validate", lambda *_: {"AP": 0.1, "AP50": 0.2, "val_loss": 1.0})
    train.main(config(pictures, tmp_path, epochs=9, patience=2, save_every=2))
    assert "no better mAP for 2 epochs" in capsys.readouterr().out
    assert len(log_of(only_run(tmp_path))) == 3
    assert (only_run(tmp_path) / "epoch_0002.pt").exists()
    train.main(config(pictures, tmp_path, epochs=9, patience=2, save_every=2, resume=True))  # a finished run stays so
    assert "nothing to do: no better mAP" in capsys.readouterr().out
    assert len(log_of(only_run(tmp_path))) == 3


def test_patience_waits_for_an_evaluation(pictures, tmp_path):
    train.main(config(pictures, tmp_path, epochs=3, patience=1, evaluate_every=3))
    assert len(log_of(only_run(tmp_path))) == 3 and (only_run(tmp_path) / "best.pt").exists()


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"batch_size": -1}, "batch_size=-1: it must be at least 0"),
        ({"evaluate_every": 0}, "evaluate_every=0: it must be at least 1"),
        ({"mosaic": 50.0}, "mosaic=50: it must be at most 1"),
        ({"scale": (0.0, 1.0)}, "scale=0,1: it must be at least 0.01"),
        ({"optimizer": "adamx"}, "did you mean adam"),
        ({"model": "yolox_xl"}, "did you mean yolox_"),
        ({"val": train.Config.val}, "val= still names the demo"),
    ],
)
def test_constants_that_make_no_sense_are_named_before_anything_happens(pictures, tmp_path, changes, message):
    with pytest.raises(train.ConfigError, match=message):
        train.main(config(pictures, tmp_path / "runs", **changes))
    assert not (tmp_path / "runs").exists()


def test_phases_that_leave_no_room_are_a_warning(pictures, tmp_path, capsys):
    train.main(config(pictures, tmp_path, epochs=1))
    said = capsys.readouterr().out
    assert "freeze_epochs=1 of epochs=1: the backbone is never thawed" in said
    assert "plain_epochs=1 of epochs=1: after the thaw there is no mosaic" in said


def test_validation_pictures_without_boxes_are_said_and_the_last_epoch_is_the_best(pictures, tmp_path, capsys):
    empty = pictures / "no boxes.txt"
    empty.write_text("10.png\n11.png\n")
    train.main(config(pictures, tmp_path, val=str(empty), epochs=2))
    assert "no boxes.txt has no boxes" in capsys.readouterr().out
    assert checkpoint.load(only_run(tmp_path) / "best.pt")["epoch"] == 2


def test_the_demo_learns_from_nothing_when_the_weights_cannot_be_had(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "PICTURES", {"train": 4, "val": 2})
    cfg = train.Config(**{**train.DEMO, "epochs": 1, "image_size": (64, 64), "weights": "http://127.0.0.1:9"})
    train.main(cfg)
    said = capsys.readouterr().out
    assert "FROM SCRATCH" in said and "by hand" in said
    with pytest.raises(train.pretrained.PretrainedError, match="by hand"):  # own data: an error with its cure
        own = str(tmp_path / "data/demo/val.txt")
        train.main(train.Config(train=own, val=own, weights="http://127.0.0.1:9"))


def test_yolov9_goes_the_whole_way_with_class_branches_as_wide_as_those_of_its_weights(pictures, tmp_path, capsys):
    """From weights of another number of classes to a checkpoint, its figures and its detections, all through the same code."""
    torch.manual_seed(1)
    given = nets.build("yolov9_t", 40).state_dict()  # 80 channels; for the classes of the demo it would have 64
    torch.save(given, tmp_path / "given.pt")
    changes = {"model": "yolov9_t", "weights": str(tmp_path / "given.pt"), "epochs": 2, "freeze_epochs": 1}
    train.main(config(pictures, tmp_path / "runs", **changes, amp="bf16"))
    run = only_run(tmp_path / "runs")
    said, rows = capsys.readouterr().out, log_of(run)
    assert re.search(r"backbone +(\d+) of \1 tensors taken", said) and "mixed precision" in said
    assert all(float(row[name]) > 0 for row in rows for name in ("loss_box", "loss_class", "loss_dfl", "val_loss"))
    contents = checkpoint.load(run / "last.pt")
    assert contents["model"]["head.class_predictors.0.weight"].shape == (len(demo.CLASSES), 80, 1, 1)
    moved = {name for name, value in contents["resume"]["model"].items() if not torch.equal(value, given[name])}
    assert "backbone.stem.conv.weight" in moved  # thawed in the second epoch
    train.main(config(pictures, tmp_path / "runs", **changes | {"epochs": 3}, amp="bf16", resume=True))
    figures = evaluate.main(
        evaluate.Config(str(run / "best.pt"), output=str(tmp_path / "out"), workers=0, device="cpu")
    )
    assert figures["AP"] == pytest.approx(max(float(row["AP"]) for row in log_of(run)), abs=1e-6)
    assert len(log_of(run)) == 3 and (tmp_path / "out/metrics.json").exists()
    (found,) = Detector(run / "best.pt", confidence=0.0, device="cpu")(str(pictures / "0.png"))
    assert len(found.scores) > 0 and np.isfinite(found.boxes).all()


def test_freezing_without_weights_is_a_warning(pictures, tmp_path, capsys):
    train.main(config(pictures, tmp_path, epochs=1))
    assert "a frozen random backbone learns nothing" in capsys.readouterr().out


@pytest.mark.slow
def test_1_overfits_eight_real_pictures(shared, tmp_path):
    names = (shared / "data/bccd/BCCD/ImageSets/Main/train.txt").read_text().split()[:8]
    from datasets import formats
    from datasets.annotations import annotation_line

    data = formats.read(str(shared / "data/bccd/BCCD/ImageSets/Main/train.txt"), "train", bad_boxes="drop")
    lines = [annotation_line(data.path(i), *data.boxes_of(i)) for i in range(len(names))]
    (tmp_path / "eight.txt").write_text("\n".join(lines))
    (tmp_path / "classes.txt").write_text("\n".join(data.classes))
    same_pictures = {"train": str(tmp_path / "eight.txt"), "val": str(tmp_path / "eight.txt")}
    still = {"mosaic": 0.0, "flip": 0.0, "rotation": 0.0, "scale": (1.0, 1.0)}
    cfg = train.Config(
        **same_pictures, **still, hsv=(0.0, 0.0, 0.0), plain_epochs=0, epochs=60, evaluate_every=60, freeze_epochs=0,
        batch_size=4, image_size=(320, 320), schedule="constant", learning_rate=0.02, workers=0, device="cpu",
        weights=str(shared / "weights/yolox_nano.pth"), output=str(tmp_path / "runs"),
    )  # fmt: skip
    train.main(cfg)
    assert float(log_of(only_run(tmp_path / "runs"))[-1]["AP50"]) > 0.95


@pytest.fixture(scope="module")
def demo_run(tmp_path_factory):
    """`demo_run(name, words, *torchrun)` trains the demo in a folder of that name -> folder, best mAP50-95."""

    def start(name, words, *torchrun):
        place = tmp_path_factory.mktemp(name)
        command = [sys.executable, *torchrun, str(ROOT / "train.py"), *words]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=place, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
        return place, float(re.fullmatch(r"\S+  best mAP50-95 ([\d.]+)", done.stdout.splitlines()[-1])[1])

    return start


@pytest.mark.slow
def test_the_demo_learns_from_nothing_to_more_than_60(demo_run):
    place, best = demo_run("nothing", ["weights=http://127.0.0.1:9"])
    assert best > 0.60
    again = subprocess.run([sys.executable, str(ROOT / "predict.py")], cwd=place, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr[-2000:]  # what the end of the run recommends


@pytest.mark.slow
def test_the_demo_ends_the_same_with_one_process_and_with_two(demo_run, shared):
    """From the weights that it has by default. From nothing rounding alone moves the figure by more."""
    words = [f"weights={shared / 'weights/yolox_nano.pth'}", "epochs=12"]
    _, alone = demo_run("one", words)
    _, together = demo_run("two", words, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
    assert min(alone, together) > 0.8 and abs(together - alone) <= 0.03


@pytest.mark.slow
def test_official_weights_reach_the_official_figures(shared, tmp_path):
    cfg = evaluate.Config(
        checkpoint=str(shared / "weights/yolox_nano.pth"),
        model="yolox_nano",
        data=str(shared / "data/coco_val326/instances_val2017_core326.json"),
        output=str(tmp_path),
        workers=0,
        device="cpu",
    )
    figures = evaluate.main(cfg)
    assert abs(figures["AP"] - 0.2880) <= 0.0005 and abs(figures["AP50"] - 0.4480) <= 0.0005
