"""engine/final_report.py: what a run evaluates and writes after its last epoch."""

import errno
import json
import os
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import tiny  # noqa: F401  registers model="tiny_n"
from buckets import upload
from refused import told
from small import assert_same_run, config, log_of, only_run, train_quietly

import evaluate
import train
from engine import final_report
from engine.evaluation import validate
from engine.final_report import MAX_ROWS, class_table, old_and_new
from utils import checkpoint
from utils.config import override


def test_a_run_ends_with_the_path_of_its_report_about_best_pt(demo_images, tmp_path):
    folder, best, text = train_quietly(config(demo_images, tmp_path / "with", epochs=2, report=True))
    path = Path(text.splitlines()[-1].split(maxsplit=1)[1])
    assert path == folder / "evaluation" / "report.html" and path.read_text(encoding="utf-8").endswith("</html>")
    metrics = json.loads((path.parent / "metrics.json").read_text())
    row = next(row for row in log_of(folder) if row["AP"] == str(best))
    assert [str(metrics[name]) for name in ("AP", "AP50", "precision", "recall")] == [
        row[name] for name in ("AP", "AP50", "precision", "recall")
    ]
    for name, of_class in metrics["per_class"].items():
        assert of_class["boxes"] == 0 or f"{name} " in text
    without, *_ = train_quietly(config(demo_images, tmp_path / "without", epochs=2))
    assert not (without / "evaluation").exists()
    assert_same_run(folder, without)


def rising(*args) -> dict:
    """An evaluation after which each epoch is the best one."""
    return validate(*args) | {"AP": args[5] / 10}


RISING = train.Parts(validate=rising)


class Killed(BaseException):
    """Stands for kill -9."""


def killed_after(monkeypatch, number: int, run) -> bool:
    """Runs, and stops it after this file that it replaces or deletes, counted from 1. Returns whether it came so far."""
    count, originals = [0], {name: getattr(os, name) for name in ("replace", "unlink")}

    def counted(name, *paths):
        originals[name](*paths)
        if not str(paths[0]).endswith(".tmp") or name == "replace":
            count[0] += 1
            if count[0] == number:
                raise Killed

    with monkeypatch.context() as patch:
        for name in originals:
            patch.setattr(os, name, lambda *paths, name=name: counted(name, *paths))
        try:
            run()
        except Killed:
            return True
    return False


def assert_one_run(folder: Path, expected: Path) -> None:
    """Asserts that all files of a run belong together, and are those of a run that was not stopped."""
    assert_same_run(folder, expected)
    best = checkpoint.load(folder / "best.pt")
    metrics, theirs = (json.loads((run / "evaluation" / "metrics.json").read_text()) for run in (folder, expected))
    assert [metrics[name] for name in ("AP", "AP50", "AR100")] == [theirs[name] for name in ("AP", "AP50", "AR100")]
    assert [metrics["settings"][name] for name in ("epoch", "AP", "date")] == [
        *(best["epoch"], best["metrics"]["AP"], best["date"])
    ]
    page = (folder / "evaluation" / "report.html").read_text()
    assert f"epoch {best['epoch']}," in page and best["date"] in page
    names = [{path.name for path in run.rglob("*") if "tfevents" not in path.name} for run in (folder, expected)]
    assert names[0] == names[1]


@pytest.fixture(scope="module")
def finished(demo_images, tmp_path_factory) -> dict[int, Path]:
    """{epochs: run folder} of a run of two epochs, and of the same run after another epoch, its best."""
    output = tmp_path_factory.mktemp("finished")
    first, *_ = train_quietly(config(demo_images, output / "2", epochs=2, report=True), parts=RISING)
    shutil.copytree(first.parent, output / "3")
    second, *_ = train_quietly(config(demo_images, output / "3", epochs=3, report=True, resume=True), parts=RISING)
    assert [checkpoint.load(run / "best.pt")["epoch"] for run in (first, second)] == [2, 3]
    return {2: first, 3: second}


@pytest.mark.parametrize("numbers", [range(14, 15), range(16, 17), pytest.param(range(1, 30), marks=pytest.mark.slow)])
def test_the_files_of_a_run_belong_together_whichever_of_them_was_the_last(
    demo_images, tmp_path, monkeypatch, finished, numbers
):
    """A run of two epochs is extended by one, which is the best, and killed between any two of its files; then it is resumed."""
    for number in numbers:
        output = tmp_path / str(number)
        shutil.copytree(finished[2].parent, output)
        more = config(demo_images, output, epochs=3, report=True, resume=True)
        was_killed = killed_after(monkeypatch, number, lambda more=more: train_quietly(more, parts=RISING))
        folder, _, text = train_quietly(more, parts=RISING)
        assert was_killed or "nothing to do" in text
        assert_one_run(folder, finished[3])
        if not was_killed:
            break
    assert not was_killed or len(numbers) == 1


@pytest.mark.parametrize("spoil", ["log.csv", "best.pt", "evaluation/metrics.json", "evaluation/report.html"])
def test_a_finished_run_writes_what_it_lacks(demo_images, tmp_path, finished, spoil):
    shutil.copytree(finished[3].parent, tmp_path / "runs")
    more = config(demo_images, tmp_path / "runs", epochs=3, report=True, resume=True)
    (only_run(tmp_path / "runs") / spoil).unlink()
    for expected in ("done: ", "nothing to do"):
        folder, _, text = train_quietly(more, parts=RISING)
        assert expected in text
        assert_one_run(folder, finished[3])


@pytest.mark.parametrize("boxes", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_run_that_learned_nothing_ends_with_a_report_too(demo_images, tmp_path, boxes):
    """Its mAP is 0, or the validation images have no boxes: the report shows what was missed, or detected wrongly."""
    images = shutil.copytree(demo_images, tmp_path / "images")
    if not boxes:
        (images / "val.txt").write_text((images / "val.txt").read_text().split()[0] + "\n")
    cfg = config(images, tmp_path / "runs", report=True, weights=None, epochs=1, freeze_epochs=0, learning_rate=1e-9)
    folder, best, text = train_quietly(replace(cfg, min_learning_rate=0.0))
    path = Path(text.splitlines()[-1].split(maxsplit=1)[1])
    assert best == 0 and path == folder / "evaluation" / "report.html" and path.exists()
    assert ("class  " in text) == boxes


def test_a_large_validation_set_is_left_to_evaluate_py(demo_images, tmp_path, monkeypatch):
    monkeypatch.setattr(final_report, "MAX_IMAGES", 1)
    folder, _, text = train_quietly(config(demo_images, tmp_path, report=True, epochs=1, freeze_epochs=0))
    assert f"python evaluate.py checkpoint={folder / 'best.pt'} " in text.splitlines()[-1]
    assert not (folder / "evaluation").exists()


def test_the_command_for_a_large_validation_set_at_an_address_names_it(demo_images, tmp_path, monkeypatch):
    """evaluate.py requests no address that a checkpoint names."""
    monkeypatch.setenv("THAW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(final_report, "MAX_IMAGES", 1)
    address = upload(demo_images, "faulty://bucket/set")
    cfg = config(demo_images, tmp_path / "runs", report=True, epochs=1, freeze_epochs=0, val=f"{address}/val.txt")
    *_, text = train_quietly(cfg)
    words = shlex.split(text.splitlines()[-1], comments=True)[3:]
    options = {"device": "cpu", "report": False}
    metrics = evaluate.main(override(replace(evaluate.Config(), **options), words, {}))
    assert metrics["AP"] >= 0


def test_a_report_that_cannot_be_written_is_written_by_a_resume(demo_images, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device", "report.html")

    cfg = config(demo_images, tmp_path, report=True, epochs=1, freeze_epochs=0)
    with monkeypatch.context() as patch:
        patch.setattr("report.analysis.write", full)
        *_, text = train_quietly(cfg)
    told(text.splitlines()[-1], "report.html", "resume")
    folder, _, text = train_quietly(replace(cfg, resume=True))
    assert text.splitlines()[-1].endswith("report.html") and (folder / "evaluation" / "report.html").exists()


def row_of(mean_ap: float, boxes: int = 1) -> dict:
    names = ("AP50", "precision", "recall", "threshold")
    return {"AP": mean_ap, "boxes": boxes, **dict.fromkeys(names, 0.5)}


def test_a_long_table_has_the_best_and_the_worst_classes():
    per_class = {f"c{n}": row_of(n / 100) for n in range(50)} | {"unseen": row_of(-1.0, 0)}
    lines = class_table(per_class, dict.fromkeys(per_class, 7))
    names = [line.split()[0] for line in lines[1:-2]]
    assert names == [*(f"c{n}" for n in range(49, 39, -1)), "...", *(f"c{n}" for n in range(9, -1, -1))]
    assert f"{50 - MAX_ROWS} classes" in lines[11]
    assert lines[1].split()[1:4] == ["7", "1", "49.00"]
    short = class_table(dict(list(per_class.items())[:MAX_ROWS]), {})
    assert len(short) == MAX_ROWS + 3 and not any("..." in line for line in short)


def test_a_model_with_added_classes_says_the_map_of_old_and_new_classes():
    rows = {
        "cat": {"AP": 0.5, "boxes": 3},
        "dog": {"AP": -1.0, "boxes": 0},
        "cup": {"AP": 0.25, "boxes": 2},
        "pen": {"AP": 0.75, "boxes": 9},
    }
    old, new, _ = old_and_new(rows, first_class=2)
    told(old, "old", "50.00", "1 class")
    told(new, "new", "50.00", "2 classes")
    old, *_ = old_and_new(rows | {"cat": {"AP": -1.0, "boxes": 0}}, first_class=2)
    assert not re.search(r"\d\.\d", old)
    assert old_and_new(rows, first_class=0) == []
