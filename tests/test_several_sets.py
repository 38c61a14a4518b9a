"""A training on sets with different classes: from the files to best.pt, its evaluation and the check."""

import json
import shlex
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from buckets import Faulty, tar_of, upload
from files import coco, text, write_noise
from painted import drawn
from refused import refused
from small import assert_same_run, config, log_of, train_quietly

import evaluate
import train
from datasets import demo, sources
from datasets.errors import DataError
from datasets.formats.options import ReadOptions, read_options
from datasets.formats.read import read
from datasets.sources import read_train_and_val
from nets.losses import YOLOXCriterion
from tools.check import main as check_main
from tools.check_report import _warnings, check
from tools.convert import convert
from utils import checkpoint
from utils.config import ConfigError
from utils.images import read_bytes


@pytest.fixture(scope="module")
def two_sets(tmp_path_factory) -> str:
    """Two sets of generated images: the first has boxes of the first two classes, the second of the last two."""
    folders = []
    for name, numbers, classes in (("first", range(8), demo.CLASSES[:2]), ("second", range(8, 14), demo.CLASSES[1:3])):
        folder = drawn(tmp_path_factory.mktemp(name), {"all": numbers})
        convert(str(folder / "all.txt"), str(folder / "part.json"), classes=",".join(classes))
        folders.append(str(folder / "part.json"))
    return ",".join(folders)


def cfg_of(sets: str, output: Path, **changes) -> train.Config:
    return replace(config(Path(), output), train=sets, val=".4", epochs=2, mosaic=0.5, mixup=0.3, **changes)


@pytest.fixture(scope="module")
def finished(two_sets, tmp_path_factory):
    """The folder of a finished run, its best mAP and its output."""
    return train_quietly(cfg_of(two_sets, tmp_path_factory.mktemp("sets")))


def test_a_split_of_sets_without_ids_of_their_own_keeps_which_classes_are_annotated(tmp_path):
    parts = []
    for name, classes in (("first", demo.CLASSES[:2]), ("second", demo.CLASSES[1:3])):
        (tmp_path / name).mkdir()
        folder = drawn(tmp_path / name, {"all": range(6) if name == "first" else range(8, 14)})
        (tmp_path / f"{name}_part").mkdir()
        convert(str(folder / "all.txt"), str(tmp_path / f"{name}_part" / "part.txt"), classes=",".join(classes))
        parts.append(str(tmp_path / f"{name}_part" / "part.txt"))
    for data in read_train_and_val(",".join(parts), ".4", ReadOptions(bad_boxes="drop"), print):
        for index, annotated in enumerate(data.annotated_mask().tolist()):
            assert annotated == ([True, True, False] if "first" in data.path(index) else [False, True, True])


def test_the_output_names_the_classes_of_each_set(finished, two_sets):
    for source, names in zip(two_sets.split(","), (demo.CLASSES[:2], demo.CLASSES[1:3]), strict=True):
        assert any(source in line and all(map(line.__contains__, names)) for line in finished[2].splitlines())


def test_folders_have_the_names_that_the_user_gave(two_sets):
    """Their files may have one name."""
    folders = [str(Path(source).parent) for source in two_sets.split(",")]
    *_, table = read(",".join(folders), "train").notes
    assert [line.split()[0] for line in table.splitlines()[2:]] == folders


def test_numbers_next_to_names_are_named_as_the_message_advises(tmp_path):
    sources = [str(text(tmp_path / name / "all.json", coco(f"{name}.png"))) for name in "ab"]
    text(Path(sources[1]), coco("b.png") | {"categories": [{"id": 1, "name": "7"}]})
    with refused(DataError, sources[1]) as error:
        read(",".join(sources), "train")
    merge = shlex.split(str(error.value).rpartition(": ")[2].removeprefix("name them, as in "))[0]
    assert read(",".join(sources), "train", ReadOptions(merge=merge.removeprefix("merge="))).classes == (
        "cat",
        "class 7",
    )


def test_the_sets_without_a_split_for_validation_are_named(tmp_path):
    """The images of the first set were validation images, too, and the message was about the demo."""
    for name in ("first/all", "second/train", "second/val"):
        write_noise(tmp_path / f"{name}.png", seed=len(name)), text(tmp_path / f"{name}.json", coco(f"{name[-3:]}.png"))
        (tmp_path / f"{name}.png").rename((tmp_path / name).with_name(f"{name[-3:]}.png"))
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    lines = []
    with refused(ConfigError, f"in {first}:", "val=.2", f"val={second}"):
        read_train_and_val(f"{first},{second}", sources.DEMO[1], ReadOptions(), lines.append)
    assert sum("sets that are trained together" in line for line in lines) == 1
    _, val = read_train_and_val(f"{first},{second}", second, ReadOptions(), lines.append)
    assert [val.path(0)] == [f"{second}/val.png"]


def test_an_evaluation_of_the_checkpoint_has_the_metrics_of_the_training(finished, tmp_path):
    """Also after the validation images were written as val.json and read again."""
    best = checkpoint.load(finished[0] / "best.pt")
    assert Path(best["config"]["val"]).name == "val.json" and best["classes"] == list(demo.CLASSES[:3])
    options = {"checkpoint": str(finished[0] / "best.pt"), "output": str(tmp_path / "out"), "report": False}
    metrics = evaluate.main(evaluate.Config(**options, device="cpu", workers=0))
    assert f"{metrics['AP']:.4f}" == f"{finished[1]:.4f}"
    truth = json.loads((tmp_path / "out" / "ground_truth.json").read_text(encoding="utf-8"))
    found = json.loads((tmp_path / "out" / "detections.json").read_text(encoding="utf-8"))
    ids = {one["name"]: one["id"] for one in truth["categories"]}
    first = {one["id"] for one in truth["images"] if "first" in one["file_name"]}
    assert first and len(first) < len(truth["images"])
    of_first = {one["category_id"] for one in found if one["image_id"] in first}
    of_second = {one["category_id"] for one in found if one["image_id"] not in first}
    assert ids[demo.CLASSES[2]] not in of_first and ids[demo.CLASSES[0]] not in of_second


def test_a_run_stopped_in_the_middle_ends_with_the_same_bits(finished, two_sets, tmp_path, monkeypatch):
    calls, original = [], YOLOXCriterion.__call__

    def call(self, *args):
        calls.append(args)
        if len(calls) == 3:
            signal.raise_signal(signal.SIGINT)
        return original(self, *args)

    monkeypatch.setattr(YOLOXCriterion, "__call__", call)
    cfg = cfg_of(two_sets, tmp_path, resume=True)
    folder, *_ = train_quietly(cfg)
    assert len(log_of(folder)) < 2
    train_quietly(cfg)
    assert_same_run(folder, finished[0])


@pytest.mark.slow
def test_all_labeled_is_the_same_training_with_another_evaluation(finished, two_sets, tmp_path):
    folder, *_ = train_quietly(cfg_of(two_sets, tmp_path, all_labeled=True))
    labeled, federated = (log_of(one)[-1] for one in (folder, finished[0]))
    assert labeled["loss"] == federated["loss"] and labeled["AP"] != federated["AP"]


@pytest.mark.slow
def test_the_check_shows_which_classes_are_annotated(two_sets, tmp_path):
    report, _ = check(two_sets, ".4")
    assert report["train"]["annotated"] == dict(zip(demo.CLASSES[:3], (8, 14, 6), strict=True))
    assert not any("annotated in few" in warning for warning in report["warnings"])
    many = drawn(tmp_path, {"all": range(20, 90)})
    few, _ = check(f"{two_sets.split(',')[1]},{many / 'all.txt'}", ".4")
    assert not any("annotated in few" in warning for warning in few["warnings"])  # the larger set has all classes
    (many / "classes.txt").write_text("\n".join(["one", "two", *demo.CLASSES[2:]]))
    few, _ = check(f"{two_sets.split(',')[1]},{many / 'all.txt'}", ".4")
    assert any("annotated in few" in warning and demo.CLASSES[1] in warning for warning in few["warnings"])


def test_a_warning_of_the_check_names_few_of_many_classes():
    """In LVIS, each of 1,203 classes is annotated in a few images."""
    part = {"images": 1000, "classes": {f"class {i}": 9 for i in range(1203)}}
    (warning,) = _warnings("train", part | {"annotated": dict.fromkeys(part["classes"], 5)})
    assert "class 0" in warning and "1203" in warning and len(warning) < 500


def test_the_check_names_all_sets(two_sets, tmp_path, capsys):
    sets = [*two_sets.split(","), *(str(drawn(tmp_path, {f"{i}": [20 + i]}) / f"{i}.txt") for i in range(4))]
    with pytest.raises(SystemExit, match="^0$"):
        check_main([",".join(sets), "val=.4"])
    lines = capsys.readouterr().out.splitlines()
    assert all(any(line.split()[:1] == [name] for line in lines) for name in sets)


def test_the_check_takes_the_options_of_a_training(two_sets):
    """all_labeled= and ignore_regions= change what it finds."""
    reports = {}
    for options in ({}, {"all_labeled": True}, {"ignore_regions": demo.CLASSES[1]}):
        reports[str(options)] = check(two_sets, ".4", options=read_options(**options))[0]["train"]
    plain, labeled, opened = reports.values()
    assert plain["annotated"] and "annotated" not in labeled
    assert plain["crowd"] == 0 and demo.CLASSES[1] not in opened["classes"]
    assert opened["crowd"] == plain["classes"][demo.CLASSES[1]] > 0  # although a region is there once for each class


@pytest.mark.parametrize("kind", ("tar", "address"))
def test_a_set_in_a_tar_or_at_an_address_is_the_folder(kind, two_sets, tmp_path, monkeypatch):
    """Next to a local set; also its name in the table of sets is the one that the user gave."""
    monkeypatch.setenv("THAW_CACHE", str(tmp_path / "cache"))
    Faulty.store.clear()
    first, second = two_sets.split(",")
    folder = tmp_path / "second"
    shutil.copytree(Path(second).parent, folder, ignore=shutil.ignore_patterns("*.txt"))
    elsewhere = str(tmp_path / "second.tar")
    Path(elsewhere).write_bytes(tar_of(folder))
    if kind == "address":
        elsewhere = f"{upload(folder, 'faulty://bucket/second')}/{Path(second).name}"
    ours, theirs = read(f"{first},{elsewhere}", "all"), read(two_sets, "all")
    assert ours.classes == theirs.classes and ours.image_ids.tolist() == theirs.image_ids.tolist()
    assert ours.boxes.tolist() == theirs.boxes.tolist() and ours.labels.tolist() == theirs.labels.tolist()
    assert (ours.annotated_mask() == theirs.annotated_mask()).all() and ours.annotated is not None
    for i in range(len(ours)):
        assert read_bytes(ours.path(i)) == read_bytes(theirs.path(i))
    assert any(elsewhere in line for note in ours.notes for line in note.splitlines() if "classes" not in line)


def test_a_conversion_that_loses_what_is_unknown_tells_it(two_sets, tmp_path):
    assert any("annotated" in line and "JSON" in line for line in convert(two_sets, str(tmp_path / "a.txt")))
    assert not any("are lost" in line for line in convert(two_sets, str(tmp_path / "a.json")))
