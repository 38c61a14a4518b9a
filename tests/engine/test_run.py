"""engine/run_folder.py: run folders that are never overwritten, a log without gaps, TensorBoard and curves."""

import csv
import errno
import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from refused import refused, told

from engine import run_folder as run_module
from engine.environment import changes_of_code, changes_of_rounding, code_digest, environment, last_start, source_digest
from engine.resume import refuse_missing
from engine.run_folder import Run, tensorboard_scalars
from engine.runs import best_of, check_name, create, runs
from report.plots import draw_curves
from tools import compare
from utils.config import ConfigError

ROOT = Path(__file__).parents[2]


def rows_of(folder):
    """The rows of log.csv without empty cells."""
    with open(folder / "log.csv", encoding="utf-8", newline="") as file:
        return [{key: value for key, value in row.items() if value} for row in csv.DictReader(file)]


def test_run_folders_are_numbered_and_never_overwritten(tmp_path):
    first = create(tmp_path / "runs", "demo")
    (first / "best.pt").write_text("precious")
    second = create(tmp_path / "runs", "demo")
    assert first.name.startswith("demo-20") and first.name.endswith("-1") and second.name.endswith("-2")
    assert (first / "best.pt").read_text() == "precious" and not list(second.iterdir())


def test_new_run_sorts_last_after_the_clock_was_set_back(tmp_path):
    """`resume=true` continues the run that sorts last."""
    (tmp_path / "demo-2999-12-31-4").mkdir()
    assert [create(tmp_path, "demo").name for _ in range(2)] == ["demo-2999-12-31-5", "demo-2999-12-31-6"]


def test_runs_that_start_together_get_different_folders(tmp_path):
    with ThreadPoolExecutor(16) as pool:
        made = list(pool.map(lambda _: create(tmp_path, "demo"), range(64)))
    assert len(set(made)) == 64
    assert sorted(int(path.name.rpartition("-")[2]) for path in made) == list(range(1, 65))


def test_a_misspelled_run_gets_the_nearest_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/dogs-2026-01-31-1").mkdir(parents=True)
    (tmp_path / "runs/dogs-2026-01-31-1/best.pt").touch()
    with refused(ConfigError, "did you mean", "resume=dogs"):
        refuse_missing("dog", "runs")
    with refused(ConfigError, "did you mean", "weights=dogs"):
        best_of("runs", "dgs", "weights=")
    with refused(ConfigError, "did you mean", "runs/dogs-2026-01-31-1/best.pt"):
        best_of("runs", "dogs/best.pt", "weights=")
    assert (
        best_of("runs", "cars", "weights=") is None and best_of("runs", "https://mirror.org/dogs", "weights=") is None
    )
    with pytest.raises(SystemExit):
        compare.main(["dog"])
    told(capsys.readouterr().out, "did you mean dogs")


def test_runs_are_sorted_by_date_and_number(tmp_path):
    assert runs(tmp_path / "nothing", "demo") == []
    for name in ("demo-2026-01-31-9", "demo-2026-01-31-10", "demo-2025-12-31-11", "demo-a-2026-09-09-1", "demo-x"):
        (tmp_path / name).mkdir()
    (tmp_path / "demo-2026-12-31-1").write_text("a file, not a run")
    assert [path.name[5:] for path in runs(tmp_path, "demo")] == ["2025-12-31-11", "2026-01-31-9", "2026-01-31-10"]
    assert [path.name for path in runs(tmp_path, "demo-a")] == ["demo-a-2026-09-09-1"]
    assert runs(tmp_path, "dem") == []


def test_digest_of_the_code_changes_with_the_code_only(tmp_path):
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets" / "a.py").write_text("x = 1")
    first = code_digest(tmp_path)
    (tmp_path / "nets" / "notes.txt").write_text("y")
    assert code_digest(tmp_path) == first
    (tmp_path / "nets" / "a.py").write_text("x = 2")
    assert code_digest(tmp_path) != first


def first(image):
    return image


def second(image):
    return 255 - image


class Shift:
    def __call__(self, image, boxes):
        return image, boxes + 1


def test_source_digest_changes_with_the_source_only():
    digests = [source_digest(function) for function in (first, second, len, Shift())]
    assert len(set(digests)) == 4 and digests[3] == source_digest(Shift())
    parts = [source_digest(partial(*words)) for words in ((first, 1), (first, 2), (second, 1), (first, 1))]
    assert len(set(parts)) == 3 and parts[0] == parts[3]
    assert source_digest(partial(first, object())) == source_digest(partial(first, object()))  # at another address


def test_a_start_names_the_code_that_changed_since_the_last_one(tmp_path, capsys):
    """environment.json keeps the digests of the files for the last start only: a restart in a loop adds little."""
    folder = tmp_path / "run"
    Run(folder, {}).close()
    Run(folder, {}).close()
    assert "code" not in capsys.readouterr().out
    start = last_start(folder)
    assert "code" not in start["earlier_starts"][0] and {"train.py", "nets/losses.py"} <= start["code"].keys()
    start["code"] |= {"nets/losses.py": "another"}
    del start["code"]["datasets/mosaic.py"]  # new since then
    (folder / "environment.json").write_text(json.dumps(start))
    Run(folder, {}).close()
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "code" in line]
    assert line.startswith("WARNING") and "datasets/mosaic.py, nets/losses.py;" in line
    many = changes_of_code({"code": {str(n): "" for n in range(20)}}, {"code": {}})
    assert many == "0, 1, 10, 11, 12, 13, 14, 15, ... and 12 more"


@pytest.mark.parametrize("name", ["", "a/b", "..\\x", "C:x", ".", "..", "x" * 256, "狗" * 85])
def test_names_that_cannot_be_folder_names_are_refused(name):
    with refused(ValueError, "name=", "letters") as caught:
        check_name(name)
    assert len(str(caught.value)) < 400 and "\n" not in str(caught.value)


def test_log_starts_with_the_epoch_and_adds_new_columns(tmp_path):
    run = Run(tmp_path, {})
    run.log({"AP": 0.1, "epoch": 0, "total": 1 / 3})
    run.log({"epoch": 1, "AP": None, "total": 0.25, "l1": 7})
    text = (tmp_path / "log.csv").read_text(encoding="utf-8")
    assert text.splitlines() == ["epoch,AP,total,l1", f"0,0.1,{1 / 3!r},", "1,,0.25,7"]
    assert rows_of(tmp_path)[1] == {"epoch": "1", "total": "0.25", "l1": "7"}


def test_log_after_resume_has_neither_gaps_nor_repeated_epochs(tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for folder in (whole, cut):
        folder.mkdir()
    values = np.random.default_rng(0).normal(size=6).tolist()
    run = Run(whole, {})
    for epoch, value in enumerate(values):
        run.log({"epoch": epoch, "AP": value})
    run = Run(cut, {})
    for epoch in range(4):
        run.log({"epoch": epoch, "AP": values[epoch] if epoch < 2 else -1})
    run = Run(cut, {}, rows=run.rows[:2])  # killed after logging epoch 3, saved after epoch 1
    assert [row["epoch"] for row in rows_of(cut)] == ["0", "1"]
    for epoch in range(2, 6):
        run.log({"epoch": epoch, "AP": values[epoch]})
    assert (cut / "log.csv").read_bytes() == (whole / "log.csv").read_bytes()


def test_config_and_environment_are_written(tmp_path):
    Run(tmp_path, {"image_size": (64, 96), "classes": None, "train": "数据.txt"})
    assert json.loads((tmp_path / "config.json").read_text(encoding="utf-8")) == {
        "image_size": [64, 96],
        "classes": None,
        "train": "数据.txt",
    }
    Run(tmp_path, {"train": "\udcff.txt"})  # a file name that is not UTF-8
    assert json.loads((tmp_path / "config.json").read_bytes()) == {"train": "\udcff.txt"}
    Run(tmp_path, {"epochs": 3})
    assert json.loads((tmp_path / "config.json").read_text(encoding="utf-8")) == {"epochs": 3}
    written = json.loads((tmp_path / "environment.json").read_text(encoding="utf-8"))
    assert written["torch"] == torch.__version__ and written["cv2"] == cv2.__version__
    assert written["numpy"] == np.__version__ and written["threads"] == torch.get_num_threads()
    assert written["device"] == "cpu" and written["command"][1:] == sys.argv
    assert len(written["earlier_starts"]) == 2 and written["earlier_starts"][0]["torch"] == torch.__version__


@pytest.mark.skipif(not shutil.which("git"), reason="no git")
def test_environment_holds_the_git_commit_if_there_is_one(tmp_path, monkeypatch):
    def git(*words):
        subprocess.run(["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", *words], check=True)

    monkeypatch.setattr("engine.environment.__file__", str(tmp_path / "engine" / "environment.py"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert environment("cpu")["commit"] is None and environment("cpu")["uncommitted_changes"] is None
    git("init", "-q")
    (tmp_path / "a.txt").write_text("1")
    git("add", "a.txt")
    git("commit", "-qm", "one")
    assert len(environment("cpu")["commit"]) == 40 and environment("cpu")["uncommitted_changes"] is False
    (tmp_path / "a.txt").write_text("2")
    assert environment("cpu")["uncommitted_changes"] is True


@pytest.mark.parametrize("name", ["torch", "processes"])
def test_a_resumed_run_notes_what_changes_its_bits(tmp_path, capsys, name):
    """Not: the host, the commit (resume compares the constants), the number of workers."""
    Run(tmp_path, {}, facts={"processes": 1}).close()
    Run(tmp_path, {}, rows=[{"epoch": 1}], facts={"processes": 1}).close()
    assert "note" not in capsys.readouterr().out
    start = json.loads((tmp_path / "environment.json").read_text())
    (tmp_path / "environment.json").write_text(json.dumps({**start, name: "other", "host": "other", "commit": "other"}))
    Run(tmp_path, {}, rows=[{"epoch": 1}], facts={"processes": 1}).close()
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note")]
    assert f"{name} other is now {start[name]}" in line and "commit" not in line


def test_threads_of_the_cpu_decide_no_bits_of_a_gpu():
    gpu = {"device": "NVIDIA H100", "threads": 8, "cuda": "13.2"}
    assert changes_of_rounding(gpu, {**gpu, "threads": 4}) == ""
    assert changes_of_rounding(gpu, {**gpu, "cuda": "12.4"}) == "cuda 13.2 is now 12.4"
    assert changes_of_rounding({}, gpu) == ""  # of a version that stored nothing


def test_tensorboard_holds_numbers_and_a_resumed_run_hides_later_events(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = Run(tmp_path, {})
    for step in range(5):
        run.scalars({"loss/total": step / 4, "AP": 0.5}, step)
    image = np.full((16, 32, 3), (200, 90, 20), np.uint8)  # blue; JPEG keeps a uniform color up to rounding
    run.image("batch", image)
    run.close()
    run = Run(tmp_path, {}, rows=[{"epoch": 2}])
    run.scalars({"loss/total": 9.0}, 3)
    run.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(e.step, e.value) for e in events.Scalars("loss/total")] == [(0, 0.0), (1, 0.25), (2, 0.5), (3, 9.0)]
    assert np.abs(cv2.imread(str(tmp_path / "batch.jpg")).astype(int) - image).max() <= 2


def test_an_image_for_later_is_drawn_once_with_the_curves(tmp_path):
    drawn, run = [], Run(tmp_path, {})
    for number in (1, 2):
        run.image_later("late", lambda number=number: drawn.append(number) or np.zeros((8, 8, 3), np.uint8))
    assert not drawn and not (tmp_path / "late.jpg").exists()
    run.log({"epoch": 1, "loss": 1.0}, is_last=True)
    run.log({"epoch": 2, "loss": 1.0}, is_last=True)
    assert drawn == [2] and (tmp_path / "late.jpg").exists()


def test_scalars_of_tensorboard_are_grouped_and_metrics_of_nothing_are_left_out():
    row = {"epoch": 3, "loss": 2.0, "loss_box": 1.0, "val_loss": 0.5, "learning_rate": 0.1, "seconds": 9.0}
    scalars = tensorboard_scalars(row | {"AP50": 0.25, "AP_small": -1, "AR1": 0.0})
    assert scalars == {
        **{"loss/total": 2.0, "loss/box": 1.0, "loss/validation": 0.5, "training/learning_rate": 0.1},
        **{"time/seconds": 9.0, "metrics/AP50": 0.25, "metrics/AR1": 0.0},
    }


def test_tensorboard_misses_only_the_points_of_a_full_disk(tmp_path, monkeypatch, capsys):
    """A warning by default is an error in these tests, also one from a thread."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    run, seen = Run(tmp_path, {}), set()
    for epoch in range(1, 7):
        with monkeypatch.context() as patch:
            if epoch in (2, 3):
                patch.setattr(SummaryWriter, "flush", full)
            run.scalars({"AP": epoch / 10}, epoch)
    run.close()
    assert capsys.readouterr().out.count("WARNING: [Errno 28] No space left on device") == 2
    for path in tmp_path.glob("events*"):
        events = EventAccumulator(str(path)).Reload()
        seen |= {event.step for event in events.Scalars("AP")} if "AP" in events.Tags()["scalars"] else set()
    assert {1, 4, 5, 6} <= seen


def test_curves_that_cannot_be_drawn_are_a_warning(tmp_path, monkeypatch, capsys):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("report.plots.draw_curves", full)
    monkeypatch.setattr(run_module, "CURVES_EVERY", -1)
    run = Run(tmp_path, {})
    run.log({"epoch": 1, "AP": 0.5})
    run.close()
    assert capsys.readouterr().out.count("WARNING: [Errno 28]") == 2 and len(rows_of(tmp_path)) == 1


def test_curves_are_drawn_from_the_log(tmp_path):
    run = Run(tmp_path, {}, marks={"thaw": 2, "no augmentation": 5})
    run.close()
    assert not (tmp_path / "curves.png").exists()  # nothing was logged
    for epoch in range(7):
        ap = {"AP": epoch / 10, "AP50": epoch / 8} if epoch % 2 else {}
        run.log(
            {"epoch": epoch, "loss": 9 - epoch, "loss_box": 2.0, "val_loss": float("nan"), "learning_rate": 0.01, **ap}
        )
    run.close()
    with_marks = cv2.imread(str(tmp_path / "curves.png"))
    draw_curves(rows_of(tmp_path), tmp_path / "again.png", {"thaw": 2, "no augmentation": 5})  # from the file alone
    assert np.array_equal(cv2.imread(str(tmp_path / "again.png")), with_marks)
    draw_curves(rows_of(tmp_path), tmp_path / "unmarked.png")
    assert not np.array_equal(cv2.imread(str(tmp_path / "unmarked.png")), with_marks)
