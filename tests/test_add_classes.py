"""train.py add_classes=true: new classes in a trained model whose old detections keep their bits, through every program."""

import json
import shlex
from dataclasses import replace

import pytest
import torch
from lively import lively_checkpoint
from old_classes import differences
from refused import mentions, refused, told
from simulated_gpu import simulated_gpu
from small import assert_same_run, config, train_quietly

import evaluate
import predict
from datasets import demo
from datasets.errors import DataError
from utils import checkpoint
from utils.config import ConfigError

OLD = ("cat", "dog", "red car")


@pytest.fixture(scope="module")
def old(tmp_path_factory):
    """The checkpoint of a model with three classes."""
    return lively_checkpoint(
        tmp_path_factory.mktemp("old") / "best.pt", classes=OLD, image_size=(64, 64), thresholds={"cat": 0.6}
    )


def constants(images, output, weights, **changes):
    fixed = {
        "freeze_epochs": 0,
        "weights": weights and str(weights),
        "add_classes": True,
        "image_size": None,
        "epochs": 2,
    }
    return config(images, output, **{**fixed, **changes})


@pytest.fixture(scope="module")
def run(old, demo_images, tmp_path_factory):
    """A finished run that adds the five classes of the demo: its folder, best mAP and printed text."""
    return train_quietly(constants(demo_images, tmp_path_factory.mktemp("added"), old))


def test_old_classes_keep_their_bits(run, old, demo_images):
    assert differences(old, run[0] / "best.pt", demo_images) == differences(old, run[0] / "last.pt", demo_images) == []


def test_one_changed_bit_of_a_frozen_part_is_found(run, old, demo_images, tmp_path):
    """The comparison of these tests can fail."""
    contents, part = checkpoint.load(run[0] / "best.pt"), "head.class_predictors.1.bias"
    first = (0,) * contents["model"][part].ndim
    contents["model"][part][first] = torch.nextafter(contents["model"][part][first], torch.tensor(torch.inf))
    checkpoint.save(tmp_path / "changed.pt", contents)
    assert part in differences(old, tmp_path / "changed.pt", demo_images)


def test_the_run_says_what_is_frozen_and_what_is_trained(run):
    folder, best, text = run
    (line,) = (line for line in text.splitlines() if line.startswith("frozen"))
    told(line, "3 classes", f"5 new: {', '.join(demo.CLASSES)}")
    assert "boxes: circle" in text and "cat" not in text.replace(line, "")  # no warning about the old classes either
    contents = checkpoint.load(folder / "best.pt")
    assert contents["classes"] == [*OLD, *demo.CLASSES] and contents["config"]["image_size"] == (64, 64)
    assert contents["thresholds"]["cat"] == 0.6  # which this run has not measured


def test_a_resumed_run_ends_with_the_same_bits_without_the_file_of_the_old_model(run, old, demo_images, tmp_path):
    stopped = constants(demo_images, tmp_path / "stopped", old)

    def stop(row, run):
        if row["epoch"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_quietly(stopped, on_row=stop)
    moved = old.rename(tmp_path / "moved.pt")
    try:
        folder, *_ = train_quietly(replace(stopped, resume=True))
    finally:
        moved.rename(old)
    assert_same_run(folder, run[0])
    assert differences(old, folder / "last.pt", demo_images) == []


def renamed(images, folder, names):
    """The demo images with other class names."""
    for part in ("train", "val"):
        lines = (images / f"{part}.txt").read_text().splitlines()
        (folder / f"{part}.txt").write_text("\n".join(f"{images}/{line}" for line in lines))
    (folder / "classes.txt").write_text("\n".join(names))
    return folder


def test_classes_can_be_added_again(run, old, demo_images, tmp_path):
    data = renamed(demo_images, tmp_path, ["a", "b", "c", "d", "e"])
    folder, _, text = train_quietly(constants(data, tmp_path / "runs", run[0] / "best.pt", epochs=1))
    assert checkpoint.load(folder / "best.pt")["classes"] == [*OLD, *demo.CLASSES, *"abcde"]
    told(text, "8 classes", "5 new")
    for before in (old, run[0] / "best.pt"):
        assert differences(before, folder / "best.pt", demo_images) == []


def test_labels_of_old_classes_are_evaluated_but_not_trained(old, demo_images, tmp_path):
    data = renamed(demo_images, tmp_path, ["cat", "b", "c", "d", "e"])
    folder, _, text = train_quietly(constants(data, tmp_path / "runs", old, epochs=1))
    rows = {line.split()[1]: line.split()[-2:] for line in text.splitlines() if line.startswith("boxes: ")}
    assert rows["cat"][0] == "0" and int(rows["cat"][1]) > 0 and int(rows["b"][0]) > 0
    assert "dog" not in rows and "note" in text
    contents = checkpoint.load(folder / "best.pt")
    assert contents["classes"] == [*OLD, *"bcde"]
    assert contents["config"]["val"] == str(folder / "val.txt")  # with the classes of the model


def test_validation_data_of_their_own_may_have_old_classes(old, demo_images, tmp_path):
    sources = {}
    for part, names in (("train", [*"abcde"]), ("val", ["dog", *"abcd"])):
        (tmp_path / part).mkdir()
        sources[part] = str(renamed(demo_images, tmp_path / part, names) / f"{part}.txt")
    folder, best, text = train_quietly(
        constants(demo_images, tmp_path / "runs", old, **sources, classes="b,c", epochs=1)
    )
    rows = {line.split()[1]: line.split()[-2:] for line in text.splitlines() if line.startswith("boxes: ")}
    assert rows["dog"][0] == "0" and int(rows["dog"][1]) > 0 and "cat" not in rows
    assert checkpoint.load(folder / "best.pt")["classes"] == [*OLD, *"bc"]
    assert (
        evaluate.main(evaluate.Config(str(folder / "best.pt"), output=str(tmp_path / "e"), device="cpu"))["AP"] == best
    )


def test_validation_data_with_unknown_classes_are_refused(old, demo_images, tmp_path):
    sources = {}
    for part, names in (("train", [*"abcde"]), ("val", ["other", *"abcd"])):
        (tmp_path / part).mkdir()
        sources[part] = str(renamed(demo_images, tmp_path / part, names) / f"{part}.txt")
    with refused(DataError, "'other'", sources["val"], "python -m tools.convert"):
        train_quietly(constants(demo_images, tmp_path / "runs", old, **sources))


@pytest.mark.parametrize(
    ("names", "changes", "expected"),
    [
        (OLD, {}, ["cat", "merge=", "add_classes"]),
        ("Cat b c d e".split(), {}, ["'Cat'", "'cat'", "merge=Cat:cat "]),
        ("cat b c d e".split(), {"classes": "b,cat"}, ["'cat'", "classes=b,cat"]),
        ("a b c d e".split(), {"freeze_epochs": 1}, ["freeze_epochs=1", "add_classes=true"]),
        ("a b c d e".split(), {"weights": None}, ["add_classes=true", "weights="]),
        ("a b c d e".split(), {"model": "yolox_s"}, ["model=yolox_s", "is a tiny_n", "leave out model="]),
    ],
    ids=["nothing new", "another case", "a chosen class that exists", "frozen epochs", "no weights", "another model"],
)
def test_what_cannot_be_added_is_refused_with_the_fix(old, demo_images, tmp_path, names, changes, expected):
    data = renamed(demo_images, tmp_path, (*names, *"xyz")[:5] if names is not OLD else (*OLD, "cat2", "dog2"))
    if names is OLD:  # boxes of three classes only
        changes = {"classes": "cat,dog,red car"}
        expected = ["'cat'", "classes=cat,dog,red car"]
    with refused((ConfigError, DataError), *expected):
        train_quietly(constants(data, tmp_path / "runs", **{"weights": old, **changes}))
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_evaluation_measures_the_map_of_the_training_and_predict_writes_detections(run, demo_images, tmp_path):
    folder, best, _ = run
    cfg = evaluate.Config(checkpoint=str(folder / "best.pt"), output=str(tmp_path / "e"), workers=0, device="cpu")
    metrics = evaluate.main(cfg)
    assert metrics["AP"] == best
    assert [row["boxes"] > 0 for row in metrics["per_class"].values()] == [False] * 3 + [True] * 5
    assert evaluate.main(replace(cfg, tile=48, output=str(tmp_path / "t")))["AP"] >= 0
    options = {"output": str(tmp_path / "p"), "labels": "yolo", "device": "cpu"}
    predict.main(predict.Config(str(folder / "best.pt"), str(demo_images / "0.png"), confidence=0.1, **options))
    assert (tmp_path / "p/drawn/0.png").is_file()


def test_detections_of_old_classes_without_labels_are_no_mistakes(run, old, demo_images, tmp_path, capsys):
    options = {"output": str(tmp_path / "e"), "workers": 0, "device": "cpu", "show_confidence": 0.01}
    evaluate.main(evaluate.Config(checkpoint=str(run[0] / "best.pt"), **options))
    told(capsys.readouterr().out, "3 classes", "cat, dog, red car")
    assert json.loads((tmp_path / "e/metrics.json").read_text())["settings"]["unlabeled"] == list(OLD)
    labels = {one["category_id"] for one in json.loads((tmp_path / "e/detections.json").read_text())}
    assert labels & {0, 1, 2}  # the files for other programs have all detections

    folder, _, text = train_quietly(constants(demo_images, tmp_path / "runs", old, epochs=1, report=True))
    told(text, "unlabeled", "cat, dog, red car")
    assert json.loads((folder / "evaluation/metrics.json").read_text())["settings"]["unlabeled"] == list(OLD)


def test_fine_tuning_an_extended_model_starts_from_its_first_head(run, demo_images, tmp_path):
    cfg = constants(demo_images, tmp_path, run[0] / "best.pt", add_classes=False, epochs=1)
    folder, _, text = train_quietly(cfg)
    (line,) = (line for line in text.splitlines() if line.startswith("new classes"))
    assert all(name in line for name in demo.CLASSES)
    assert not any(name.startswith("added") for name in checkpoint.load(folder / "best.pt")["model"])


def test_a_class_with_a_new_name_is_kept_by_the_merge_that_the_run_prints(old, demo_images, tmp_path):
    cfg = constants(demo_images, tmp_path, old, add_classes=False, epochs=1)
    *_, text = train_quietly(cfg)
    (line,) = (line for line in text.splitlines() if "dropped" in line)
    assert all(mentions(line, name) for name in OLD)
    (merge,) = (word.removeprefix("merge=") for word in shlex.split(line) if word.startswith("merge="))
    name, kept = merge.split(":")
    *_, text = train_quietly(replace(cfg, merge=merge, output=str(tmp_path / "merged")))
    fresh, dropped = (line for line in text.splitlines() if "initialized" in line or "dropped" in line)
    assert not mentions(fresh, name) and not mentions(dropped, kept)


@pytest.mark.slow
def test_a_training_with_fp16_and_cuda_graphs_on_a_gpu_keeps_the_bits(old, demo_images, tmp_path):
    with simulated_gpu():
        folder, *_ = train_quietly(constants(demo_images, tmp_path, old, device="auto", batch_size=0, amp="fp16"))
    assert differences(old, folder / "last.pt", demo_images) == []
    ours, theirs = (checkpoint.load(path)["model"] for path in (old, folder / "last.pt"))
    assert all(torch.equal(value, theirs[name]) and value.dtype == theirs[name].dtype for name, value in ours.items())


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["tiny_n", "yolox_nano", "yolov9_t", "ppyoloe_s", "picodet_s"])
def test_a_training_on_a_real_gpu_keeps_the_bits(name, demo_images, tmp_path):
    old = lively_checkpoint(tmp_path / "old.pt", name, OLD, (64, 64))
    cfg = constants(demo_images, tmp_path / "runs", old, model="yolox_nano", device="cuda:0", amp="fp16")
    folder, _, text = train_quietly(replace(cfg, weights=str(old)))
    assert "CUDA graphs are not used" not in text
    for device in ("cpu", "cuda:0"):
        assert differences(old, folder / "last.pt", demo_images, device) == []
