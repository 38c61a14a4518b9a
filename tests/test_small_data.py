"""benchmarks/small_data.py: runs have one row each, another trainer gets the same images and is judged by our evaluator."""

import csv
import sys

import cv2
import pytest
from refused import refused
from small import TINY_WEIGHTS

import train
from benchmarks import small_data
from benchmarks.own_process import in_own_process
from benchmarks.small_data import DATA, STAGES, Config, DataSet, Recipe, Run
from benchmarks.table import RESULTS, read_rows
from datasets.formats.options import read_options
from datasets.sources import read_train_and_val
from utils.config import ConfigError

TINY = {"model": "tiny_n", "learning_rate": 0.01, "min_learning_rate": 0.001, "batch_size": 4, "freeze_batch_size": 6}


@pytest.fixture
def tiny_stage(monkeypatch, demo_images, tmp_path):
    """A stage of two runs on generated images; measured in this process."""
    monkeypatch.setattr(small_data, "DATA", {"drawn": DataSet("train.txt", "val.txt", (9, 5), 2, 64)})
    monkeypatch.setattr(small_data, "RECIPES", {"new": Recipe(TINY), "other": Recipe(TINY)})
    listed = [Run("report", "drawn", 3, name, 64, 2) for name in small_data.RECIPES]
    monkeypatch.setattr(small_data, "STAGES", {"report": listed})
    monkeypatch.setattr(small_data, "in_own_process", lambda measure, *arguments: measure(*arguments))
    return Config(str(demo_images), str(TINY_WEIGHTS), results=str(tmp_path / "rows.csv"))


def test_each_run_has_one_row_and_is_not_repeated(tiny_stage, tmp_path, capfd, monkeypatch):
    small_data.main(tiny_stage)
    rows = read_rows(tmp_path / "rows.csv")
    assert [row["recipe"] for row in rows] == ["new", "other"]
    assert {(row["images_seen"], row["epochs"], row["seed"]) for row in rows} == {("18", "2", "3")}
    assert all(0 <= float(row["AP"]) <= float(row["best_AP"]) and float(row["minutes"]) > 0 for row in rows)
    before = (tmp_path / "rows.csv").read_bytes()
    monkeypatch.setattr(small_data, "in_own_process", None)  # a second start trains nothing
    small_data.main(tiny_stage)
    assert (tmp_path / "rows.csv").read_bytes() == before
    assert capfd.readouterr().out.count("| report | drawn | 64 | 2 | other | 1 |") == 2


def test_every_run_has_constants_that_a_training_takes():
    for run in (run for stage in STAGES.values() for run in stage):
        constants = small_data.constants_of(run, Config())
        train.checked(train.Config(**constants))
        assert constants["image_size"] == (run.image_size, run.image_size) and constants["epochs"] == run.epochs


def test_the_stages_have_the_runs_of_the_page():
    """Every data set, seed, size and length of the report and of the runs from scratch has its row in small_data.csv."""
    with open(RESULTS / "small_data.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    names = Run._fields[1:]
    measured = {tuple(row[name] for name in names) for row in rows if not row["error"]}
    missing = [run for run in STAGES["report"] + STAGES["scratch"] if tuple(map(str, run[1:])) not in measured]
    assert not missing


@pytest.mark.parametrize(
    "changes, named",
    [
        ({"data": "nowhere"}, "nowhere/train.txt"),
        ({"recipes": ("newer",)}, "recipes=newer"),
        ({"peers": "no_python"}, "peers=no_python"),
        ({"stage": "reports"}, "stage=reports"),
    ],
)
def test_what_is_missing_is_named_before_the_first_run(tiny_stage, changes, named):
    with pytest.raises(ConfigError) as error:
        small_data.checked(small_data.replace(tiny_stage, **changes))
    assert named in str(error.value)


def test_libreyolo_needs_a_file_of_weights(tiny_stage, monkeypatch):
    monkeypatch.setitem(small_data.RECIPES, "new", Recipe(peer="libreyolo"))
    with refused(ConfigError, "weights=coco", "weights=FILE"):
        small_data.checked(small_data.replace(tiny_stage, weights="coco", peers=sys.executable))


PERFECT = """
import json, sys
from pathlib import Path

assert sys.argv[1] == "train"
task = json.load(open(sys.argv[2]))
assert "train: images/train" in open(task["data"]).read() and task["peer"] == "libreyolo"
found = {"numbers": [], "boxes": [], "scores": [], "labels": []}
labels = sorted((Path(task["folder"]) / "labels" / "val").iterdir())
links = sorted((Path(task["folder"]) / "images" / "val").iterdir())
assert [str(link.resolve()) for link in links] == task["images"]
sizes = SIZES
for number, path in enumerate(labels):
    for line in path.read_text().splitlines():
        label, x, y, w, h = map(float, line.split())
        width, height = sizes[number]
        box = [(x - w / 2) * width, (y - h / 2) * height, (x + w / 2) * width, (y + h / 2) * height]
        for name, value in zip(found, (number, box, 0.9, int(label))):
            found[name].append(value)
print("a line of the peer")
if task["epochs"] == 9:
    sys.exit(3)
json.dump({**found, "version": "1.2", "torch": "2.9", "minutes": 2.0}, open(task["result"], "w"))
"""


def test_detections_of_a_peer_are_judged_by_our_evaluator(demo_images, tmp_path, monkeypatch):
    paths = [demo_images / line.split()[0] for line in (demo_images / "val.txt").read_text().splitlines()]
    script = tmp_path / "peer.py"
    sizes = [cv2.imread(str(path)).shape[1::-1] for path in paths]
    script.write_text(PERFECT.replace("SIZES", str(sizes)), encoding="utf-8")
    monkeypatch.setattr(small_data, "PEERS_SCRIPT", script)
    constants = DataSet("train.txt", "val.txt", (9, 5), 4, 64).sources(str(demo_images))
    constants |= {"epochs": 4, "image_size": (64, 64), "seed": 0, "weights": None}
    result = small_data.train_peer(sys.executable, "libreyolo", constants)
    assert result["AP"] == 1 and result["images_seen"] == 36 and result["images_per_second"] == pytest.approx(0.3)
    assert result["minutes"] == 2 and result["cpu_minutes"] > 0
    with pytest.raises(RuntimeError, match="exit code 3: a line of the peer"):
        small_data.train_peer(sys.executable, "libreyolo", constants | {"epochs": 9})


def fail() -> dict:
    raise ValueError("no such thing")


@pytest.mark.slow  # a new process imports torch
def test_a_measurement_in_its_own_process_has_its_memory_and_its_errors():
    assert in_own_process(dict)["peak_MiB"] > 10
    with pytest.raises(ValueError, match="no such thing"):
        in_own_process(fail)


@pytest.mark.slow  # reads the heads of 3,000 images
@pytest.mark.parametrize("name", DATA)
def test_the_table_of_data_sets_is_true(name, shared):
    paths = DATA[name].sources(str(shared / "data"))
    options = read_options(image_root=paths["image_root"])
    found = read_train_and_val(paths["train"], paths["val"], options, lambda note: None)
    assert tuple(map(len, found)) == DATA[name].images
