"""Trains on small data sets with the defaults of train.py, and compares them with other trainers.

    python -m benchmarks.small_data data=FOLDER weights=yolox_nano.pth peers=PYTHON
    python -m benchmarks.small_data data=FOLDER stage=scratch peers=PYTHON

Each run takes minutes and adds a row to the file `results`. A run that has a row is not repeated, so the same command
resumes. benchmarks/results/small_data.md describes the data sets in `data` and what was measured.

LibreYOLO has its defaults, its schedule scaled to the length, 8 images per step as Thaw has, and the best of the eleven
settings that `stage=choose` measures on data that are not reported, with one seed. `stage=report` has 15 or 20 epochs and
three seeds, `stage=long` 60 epochs. `stage=few` trains on 30 images.
"""

import itertools
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import train
from benchmarks import small_data_tables
from benchmarks.own_process import in_own_process
from benchmarks.peer_task import run_peer, write_data, write_task
from benchmarks.table import append_row, read_rows, where
from datasets.formats.options import read_options
from datasets.sources import read_train_and_val
from datasets.store import Annotations
from engine.runs import runs
from metrics.coco import coco_metrics, to_coco
from utils.config import ConfigError, override, require
from utils.script import run_script


class DataSet(NamedTuple):
    """A data set: the paths of its files, its size, and the length of its short runs."""

    train: str
    val: str
    images: tuple[int, int]  # number for training, number for evaluation
    epochs: int
    side: int  # of the input, in pixels, in short runs
    image_root: str | None = None

    def sources(self, folder: str) -> dict[str, str | None]:
        """Returns the constants of train.py with the paths, for data sets in `folder`."""
        root = self.image_root and f"{folder}/{self.image_root}"
        return {"train": f"{folder}/{self.train}", "val": f"{folder}/{self.val}", "image_root": root}


BCCD = "bccd/BCCD/ImageSets/Main"
COCO = "coco_train337/instances_train2017_subset.json", "coco_val326/instances_val2017_core326.json"
RACCOON = "raccoon/data/train_labels.csv", "raccoon/data/test_labels.csv"
DATA = {
    "bccd": DataSet(f"{BCCD}/train.txt", f"{BCCD}/val.txt", (205, 87), 20, 224),
    "chess": DataSet("more/chess/train.txt", "more/chess/val.txt", (230, 58), 20, 256),
    "coco337": DataSet(*COCO, (337, 326), 10, 256),
    "bccd_test": DataSet(f"{BCCD}/train.txt", f"{BCCD}/test.txt", (205, 72), 20, 224),
    "raccoon": DataSet(*RACCOON, (160, 40), 20, 224, "raccoon/images"),
    "hemocytometer": DataSet("more/hemocytometer/train.txt", "more/hemocytometer/val.txt", (168, 42), 20, 320),
    "dental_xray": DataSet("more/dental_xray/train.txt", "more/dental_xray/val.txt", (400, 100), 15, 256),
    "cards": DataSet(
        "cards/images/train_labels.csv", "cards/images/test_labels.csv", (296, 67), 10, 128, "cards/images"
    ),
}


class Recipe(NamedTuple):
    """A way to train: constants that differ from the defaults of train.py, or another trainer and its options."""

    constants: dict[str, Any] = {}
    peer: str | None = None  # libreyolo or ultralytics
    options: dict[str, Any] = {}  # of the other trainer, which has its own defaults otherwise
    scaled: bool = False  # warm-up and epochs without augmentation are scaled to the length of the run
    images: int = 0  # for training, chosen by the seed; 0: all


RATE_OF_LIBREYOLO = 0.01  # its default, for 16 images per step
LIBREYOLO = {  # its schedule as it is, with three learning rates, and scaled, with two, because it keeps a rate high for longer
    "libreyolo_yolox_nano": Recipe(peer="libreyolo"),
    "libreyolo_rate_0.25": Recipe(peer="libreyolo", options={"lr0": RATE_OF_LIBREYOLO / 4}),
    "libreyolo_rate_4": Recipe(peer="libreyolo", options={"lr0": RATE_OF_LIBREYOLO * 4}),
    "libreyolo_scaled": Recipe(peer="libreyolo", scaled=True),
    "libreyolo_scaled_rate_0.25": Recipe(peer="libreyolo", options={"lr0": RATE_OF_LIBREYOLO / 4}, scaled=True),
    "libreyolo_batch_8": Recipe(peer="libreyolo", options={"batch": 8}),  # as many steps as with the defaults of Thaw
    "libreyolo_batch_4": Recipe(peer="libreyolo", options={"batch": 4}),
    "libreyolo_adamw_0.001": Recipe(peer="libreyolo", options={"optimizer": "adamw", "lr0": 0.001}),
    "libreyolo_adamw_0.004": Recipe(peer="libreyolo", options={"optimizer": "adamw", "lr0": 0.004}),
    "libreyolo_adamw_scaled": Recipe(peer="libreyolo", options={"optimizer": "adamw", "lr0": 0.001}, scaled=True),
    "libreyolo_adamw_batch_8": Recipe(peer="libreyolo", options={"optimizer": "adamw", "lr0": 0.004, "batch": 8}),
}
RECIPES = {
    "new": Recipe(),  # YOLOX-nano with the defaults of train.py
    **LIBREYOLO,
    "new_30_images": Recipe(images=30),
    "scratch_new_yolox_nano": Recipe({"weights": None}),
    "ultralytics_yolo11n_scratch": Recipe({"weights": None}, peer="ultralytics"),
}


class Run(NamedTuple):
    """What identifies a run."""

    stage: str
    data: str
    seed: int
    recipe: str
    image_size: int
    epochs: int


REPORT = ("bccd_test", "raccoon", "hemocytometer", "dental_xray")
# batch_8: as many steps as with the defaults of Thaw; batch_4: the best where we chose; rate_4: of the first five settings
REPORTED = ("new", *(f"libreyolo_{name}" for name in ("yolox_nano", "batch_8", "batch_4", "rate_4", "scaled")))
LONG = ("hemocytometer", "raccoon")
LONG_RECIPES = ("new", "libreyolo_yolox_nano", "libreyolo_batch_8")
CHOICE = ("bccd", "chess")  # not reported; defaults of Thaw were chosen on them, too
FROM_SCRATCH = {"scratch_new_yolox_nano": 75, "ultralytics_yolo11n_scratch": 60}  # epochs that take about equal minutes
STAGES: dict[str, list[Run]] = {
    "choose": [
        Run("choose", name, 1, recipe, DATA[name].side, DATA[name].epochs)
        for name, recipe in itertools.product(CHOICE, LIBREYOLO)
    ],
    "report": [
        Run("report", name, seed, recipe, 320, DATA[name].epochs)
        for seed, recipe, name in itertools.product((4, 5, 6), REPORTED, REPORT)
    ],
    "long": [
        Run("long", name, seed, recipe, 320, 60)
        for seed, name, recipe in itertools.product((4, 5, 6), LONG, LONG_RECIPES)
    ],
    "few": [
        Run("few", name, seed, "new_30_images", DATA[name].side, 50)
        for seed, name in itertools.product((0, 1, 2), CHOICE)
    ],
    "scratch": [
        Run("scratch", "bccd", seed, recipe, 224, epochs)
        for seed, (recipe, epochs) in itertools.product((1, 2, 3), FROM_SCRATCH.items())
    ],
}


@dataclass(frozen=True)
class Config:
    data: str = "."  # the folder of the data sets
    weights: str = "coco"  # coco: official weights of yolox_nano; or a file, which LibreYOLO needs
    stage: str = "report"  # report: 15 or 20 epochs; long: 60; few: 30 images; choose: of LibreYOLO; scratch
    only: tuple[str, ...] = ()  # data sets; (): all of the stage
    recipes: tuple[str, ...] = ()  # (): all of the stage
    peers: str | None = None  # the Python of an environment with libreyolo and ultralytics; none: without them
    minutes: float = 0.0  # no run begins after this time; 0: no limit
    results: str = "small_data.csv"  # the table


def main(cfg: Config) -> None:
    """Measures the runs that have no row yet, and prints the mAP of all."""
    cfg, begin, file = checked(cfg), time.monotonic(), Path(cfg.results)
    done = {tuple(row[name] for name in Run._fields) for row in read_rows(file)}
    for run in planned(cfg):
        if tuple(map(str, run)) in done:
            continue
        if cfg.minutes and time.monotonic() - begin > 60 * cfg.minutes:
            print(f"minutes={cfg.minutes:g} have passed: run the same command to continue")
            break
        print(" ".join(map(str, run)), flush=True)
        if RECIPES[run.recipe].peer:
            cells = train_peer(cfg.peers, RECIPES[run.recipe], constants_of(run, cfg))
        else:
            cells = in_own_process(train_once, run, constants_of(run, cfg))
        append_row(file, {**run._asdict(), **cells, **where()})
    print(tables(read_rows(file), cfg.stage))


def tables(rows: list[dict[str, str]], stage: str) -> str:
    """Returns the results of a stage in Markdown."""
    if stage in ("scratch", "few"):
        return small_data_tables.summary([row for row in rows if row["stage"] == stage])
    if stage == "choose":
        return small_data_tables.choice(rows, LIBREYOLO)
    sets = {"report": REPORT, "long": LONG}[stage]
    return small_data_tables.comparison(rows, stage, sets, ("shipped", *LIBREYOLO))  # shipped: former defaults of Thaw


def checked(cfg: Config) -> Config:
    """Returns the constants with absolute paths. Raises ConfigError that names the fix."""
    require(cfg, {"minutes": 0}, {}, {"stage": tuple(STAGES)})
    for name, known in (("only", DATA), ("recipes", RECIPES)):
        if unknown := [word for word in getattr(cfg, name) if word not in known]:
            raise ConfigError(f"{name}={','.join(unknown)}: choose from {', '.join(known)}")
    sets = {run.data: DATA[run.data] for run in planned(cfg)}.values()
    paths = [path for data in sets for path in data.sources(cfg.data).values() if path]
    if missing := [path for path in dict.fromkeys(paths) if not Path(path).exists()]:
        raise ConfigError(
            f"data={cfg.data}: missing {', '.join(missing)}; benchmarks/results/small_data.md describes the data sets"
        )
    if cfg.weights == "coco" and "libreyolo" in {RECIPES[run.recipe].peer for run in planned(cfg)}:
        raise ConfigError("weights=coco: give weights=FILE of yolox_nano, from which LibreYOLO starts too")
    if cfg.peers and not shutil.which(cfg.peers):
        raise ConfigError(
            f"peers={cfg.peers}: not found; give the Python of an environment with libreyolo and ultralytics"
        )
    # Not resolved: the python of a virtual environment is a link, and finds its packages by where the link is.
    peers = cfg.peers and os.path.abspath(shutil.which(cfg.peers))
    weights = cfg.weights if cfg.weights == "coco" else os.path.abspath(cfg.weights)
    return replace(cfg, data=os.path.abspath(cfg.data), weights=weights, peers=peers)


def planned(cfg: Config) -> Iterator[Run]:
    """Yields the runs of the stage that the constants leave."""
    for run in STAGES[cfg.stage]:
        chosen = run.data in (cfg.only or DATA) and run.recipe in (cfg.recipes or RECIPES)
        if chosen and (cfg.peers or not RECIPES[run.recipe].peer):
            yield run


def constants_of(run: Run, cfg: Config) -> dict[str, Any]:
    """Returns the constants of train.py for a run."""
    recipe = RECIPES[run.recipe]
    return {
        **DATA[run.data].sources(cfg.data),
        "model": "yolox_nano",
        "weights": cfg.weights,
        "workers": 0,
        "epochs": run.epochs,
        "image_size": (run.image_size, run.image_size),
        "seed": run.seed,
        **recipe.constants,
    }


def train_once(run: Run, constants: dict[str, Any]) -> dict[str, Any]:
    """Trains and returns the cells of the row. Minutes count training alone, without evaluations."""
    with tempfile.TemporaryDirectory(prefix="small_data_") as folder:
        if count := RECIPES[run.recipe].images:
            constants = some_images(count, run.seed, constants, Path(folder))
        train.main(train.Config(**constants, output=folder, name="run"))
        made = runs(folder, "run")[-1]
        rows = [row for row in read_rows(made / "log.csv") if row["epoch"] != "0"]  # 0: before training
        images = json.loads((made / "environment.json").read_text(encoding="utf-8"))["training_images"]
    if len(rows) < run.epochs:
        raise SystemExit(f"stopped after epoch {len(rows)} of {run.epochs}")
    maps, seconds = [float(row["AP"]) for row in rows], sum(float(row["seconds"]) for row in rows)
    seen = images * len(rows)
    return {
        "images_seen": seen,
        "AP": maps[-1],
        "AP50": float(rows[-1]["AP50"]),
        "best_AP": max(maps),
        "minutes": seconds / 60,
        "images_per_second": seen / seconds,
    }


def some_images(count: int, seed: int, constants: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Writes label files of `count` random training images and of all for evaluation, and returns constants that name them."""
    data = train_and_val(constants)
    chosen = np.sort(np.random.default_rng(seed).permutation(len(data[0]))[:count])
    constants = {name: value for name, value in constants.items() if name not in ("val", "image_root")}
    return {**constants, "train": write_data(folder, data[0].select(chosen), data[1])}


def train_and_val(constants: dict[str, Any]) -> tuple[Annotations, Annotations]:
    """Reads the data of a run."""
    reading = read_options(image_root=constants["image_root"])
    return read_train_and_val(constants["train"], constants["val"], reading, lambda note: None)


def options_of(recipe: Recipe, epochs: int) -> dict[str, Any]:
    """Returns the options of the other trainer; a scaled schedule has at least one epoch of each kind."""
    if not recipe.scaled:
        return recipe.options
    lengths = {"warmup_epochs": 5, "no_aug_epochs": 15}  # LibreYOLO's defaults, made for 300 epochs
    return {**recipe.options, **{name: max(1, round(n * epochs / 300)) for name, n in lengths.items()}}


def train_peer(python: str, recipe: Recipe, constants: dict[str, Any]) -> dict[str, Any]:
    """Trains another trainer on the same images, and judges its detections with our evaluator."""
    train_data, val_data = train_and_val(constants)
    options = options_of(recipe, constants["epochs"])
    with tempfile.TemporaryDirectory(prefix="small_data_") as name:
        task = write_task(Path(name), recipe.peer, train_data, val_data, {**constants, "options": options})
        usage = run_peer(python, Path(name), task)
        result = json.loads(Path(task["result"]).read_text(encoding="utf-8"))
    boxes, labels = np.array(result["boxes"], np.float64).reshape(-1, 4), np.array(result["labels"], np.int64)
    columns = (boxes, np.array(result["scores"], np.float64), labels, np.array(result["numbers"], np.int64))
    metrics = coco_metrics(val_data.coco(), to_coco([columns], val_data))
    seen = len(train_data) * constants["epochs"]
    return {
        "images_seen": seen,
        "AP": metrics["AP"],
        "AP50": metrics["AP50"],
        "best_AP": "",
        "minutes": result["minutes"],
        "images_per_second": seen / (60 * result["minutes"]),
        **usage,
    }


if __name__ == "__main__":
    run_script(lambda: main(override(Config(), sys.argv[1:])), stopped="stopped", memory_advice="lower image_size=")
