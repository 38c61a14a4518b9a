"""Measures what freezing and the other choices of a training are worth on small data: data sets x seeds x recipes.

    python -m benchmarks.small_data data=FOLDER weights=yolox_nano.pth stage=screen [minutes=60]

Each run adds a row to small_data.csv and its mAP over time to small_data_curves.csv, in benchmarks/results. A run whose row
is there is not repeated, also if it failed: delete the row to repeat it. `minutes` ends the program between two runs; the
same command continues. At the end benchmarks/small_data_page.py writes the page with tables and plot.
"""

import csv
import itertools
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks import small_data_hooks as hook
from benchmarks import small_data_peers
from benchmarks.small_data_run import Job, attempt, in_own_process
from benchmarks.table import RESULTS, machine
from utils.config import ConfigError, override, require, run_script, show
from utils.run import environment


class DataSet(NamedTuple):
    """A data set in the folder `data`, and how it is used."""

    choice: bool  # choices are made on it; otherwise it is only reported
    train: str
    val: str
    images: tuple[int, int]  # for training, for evaluation
    side: int  # median side of a box in pixels, if the longer side of the image has 640
    screen: tuple[int, int]  # epochs and pixels in the stage "screen": about 5,000 images seen
    image_root: str | None = None


BCCD = "bccd/BCCD/ImageSets/Main"
COCO = ("coco_train337/instances_train2017_subset.json", "coco_val326/instances_val2017_core326.json")
DATA = {
    "bccd": DataSet(True, f"{BCCD}/train.txt", f"{BCCD}/val.txt", (205, 87), 102, (20, 224)),
    "chess": DataSet(True, "more/chess/train.txt", "more/chess/val.txt", (230, 58), 45, (20, 256)),
    "deep_pcb": DataSet(True, "more/deep_pcb/train.txt", "more/deep_pcb/val.txt", (400, 100), 34, (15, 256)),
    "bccd_test": DataSet(False, f"{BCCD}/train.txt", f"{BCCD}/test.txt", (205, 72), 102, (20, 224)),
    "raccoon": DataSet(
        False,
        "raccoon/data/train_labels.csv",
        "raccoon/data/test_labels.csv",
        (160, 40),
        376,
        (20, 224),
        "raccoon/images",
    ),
    "hemocytometer": DataSet(
        False, "more/hemocytometer/train.txt", "more/hemocytometer/val.txt", (168, 42), 18, (20, 320)
    ),
    "dental_xray": DataSet(False, "more/dental_xray/train.txt", "more/dental_xray/val.txt", (400, 100), 55, (15, 256)),
    "coco337": DataSet(False, *COCO, (337, 326), 54, (15, 320)),
}


class Recipe(NamedTuple):
    """One row of a question's table: what differs from the shipped recipe."""

    question: str
    changes: dict[str, Any]  # constants of train.py, and the fractions of FRACTIONS
    hooks: tuple[hook.Hook, ...] = ()
    peer: str | None = None  # another trainer with its own defaults


# The constants of train.py before this benchmark, written down so that rows stay comparable when a default changes. Numbers of
# epochs are fractions of all epochs, so that short runs show what the default of 50 epochs does: 10 frozen epochs, and 10
# without augmentation.
SHIPPED = {
    **{"model": "yolox_nano", "freeze": 0.2, "no_aug": 0.2, "warmup_epochs": 1.0},
    **{"batch_size": 16, "freeze_batch_size": 32, "optimizer": "adamw", "weight_decay": 0.05},
    **{"learning_rate": 4e-3, "min_learning_rate": 2e-4, "schedule": "cosine", "multi_scale": 0.0},
    **{"mosaic": 0.5, "mixup": 0.0, "flip": 0.5, "rotation": 5.0, "scale": (0.5, 1.5), "hsv": (5.0, 30.0, 30.0)},
    **{"repeat": 0.0, "accumulate": 1, "ema": True},
}
FRACTIONS = {"freeze": "freeze_epochs", "no_aug": "no_aug_epochs", "warmup": "warmup_epochs"}
FREEZING = "1. Freezing, the batch norms of the backbone after the thaw, and its learning rate"
NORMS = "2. Stem, batch norms and a second warm-up"
LENGTH = "3. Length"
SIZE = "4. Input size"
OPTIMIZER = "5. Optimizer, learning rate, batch, weight decay and no-augmentation epochs"
AUGMENTATION = "6. Augmentation"
SCRATCH = "From scratch, and other trainers"


def rates(factor: float, lowest: float | None = None) -> dict[str, float]:
    """Returns the learning rates of the shipped recipe times `factor`, the lowest one times `lowest` if given."""
    return {"learning_rate": 4e-3 * factor, "min_learning_rate": 2e-4 * (factor if lowest is None else lowest)}


def sgd(factor: float) -> dict[str, Any]:
    """Returns the constants of SGD with `factor` times the learning rate of YOLOX."""
    rate = {"learning_rate": 0.01 * factor, "min_learning_rate": 5e-4 * factor}
    return {"optimizer": "sgd", "weight_decay": 5e-4, **rate}


def batch(images: int) -> dict[str, int]:
    """Returns the batch sizes with `images` per step after the thaw and twice as many before."""
    return {"batch_size": images, "freeze_batch_size": 2 * images}


# In the order of expected worth: a search that is cut off has measured the first ones on all data sets.
RECIPES = {
    "shipped": Recipe("0. The shipped recipe", {}),
    "rate_0.5": Recipe(OPTIMIZER, rates(0.5)),
    "rate_0.25": Recipe(OPTIMIZER, rates(0.25)),
    "freeze_0": Recipe(FREEZING, {"freeze": 0}),
    "freeze_0.1": Recipe(FREEZING, {"freeze": 0.1}),
    "freeze_all": Recipe(FREEZING, {"freeze": 1.0}),
    "backbone_0.3": Recipe(FREEZING, {}, ((hook.backbone_rate, 0.3),)),
    "backbone_0.1": Recipe(FREEZING, {}, ((hook.backbone_rate, 0.1),)),
    "momentum_0.1": Recipe(NORMS, {}, ((hook.norm_momentum, 0.1),)),
    "no_aug_0.4": Recipe(OPTIMIZER, {"no_aug": 0.4}),
    "no_aug_0.1": Recipe(OPTIMIZER, {"no_aug": 0.1}),
    "second_warmup_1": Recipe(NORMS, {}, ((hook.second_warmup, 1.0),)),
    "rotation_0": Recipe(AUGMENTATION, {"rotation": 0.0}),
    "mosaic_1": Recipe(AUGMENTATION, {"mosaic": 1.0}),
    # the rest of the questions
    "rate_0.5_freeze_0": Recipe(OPTIMIZER, {"freeze": 0, **rates(0.5)}),
    "warmup_0.1_freeze_0": Recipe(NORMS, {"freeze": 0, "warmup": 0.1}),
    "batch_8": Recipe(OPTIMIZER, batch(8)),
    "batch_frozen_16": Recipe(OPTIMIZER, {"freeze_batch_size": 16}),
    "unscaled": Recipe("0. The shipped recipe", {"freeze_epochs": 10, "no_aug_epochs": 10}),
    "eval_norms": Recipe(FREEZING, {}, ((hook.eval_norms,),)),
    "freeze_0_backbone_0.3": Recipe(FREEZING, {"freeze": 0}, ((hook.backbone_rate, 0.3),)),
    "freeze_0_backbone_0.1": Recipe(FREEZING, {"freeze": 0}, ((hook.backbone_rate, 0.1),)),
    "freeze_0_eval_norms": Recipe(FREEZING, {"freeze": 0}, ((hook.eval_norms,),)),
    "eval_norms_backbone_0.3": Recipe(FREEZING, {}, ((hook.eval_norms,), (hook.backbone_rate, 0.3))),
    "eval_norms_backbone_0.1": Recipe(FREEZING, {}, ((hook.eval_norms,), (hook.backbone_rate, 0.1))),
    "freeze_0_eval_norms_backbone_0.3": Recipe(
        FREEZING, {"freeze": 0}, ((hook.eval_norms,), (hook.backbone_rate, 0.3))
    ),
    "freeze_0.5": Recipe(FREEZING, {"freeze": 0.5}),
    "frozen_stem": Recipe(NORMS, {}, ((hook.frozen_stem,),)),
    "second_warmup_3": Recipe(NORMS, {}, ((hook.second_warmup, 3.0),)),
    "new_statistics": Recipe(NORMS, {}, ((hook.new_statistics, 128),)),
    "warmup_0.1": Recipe(NORMS, {"warmup": 0.1}),
    "rate_0.25_same_lowest": Recipe(OPTIMIZER, rates(0.25, 1.0)),
    "rate_1_lowest_0.2": Recipe(OPTIMIZER, rates(1.0, 0.2)),
    "rate_2": Recipe(OPTIMIZER, rates(2.0)),
    "sgd_1": Recipe(OPTIMIZER, sgd(1.0)),
    "sgd_0.5": Recipe(OPTIMIZER, sgd(0.5)),
    "sgd_2": Recipe(OPTIMIZER, sgd(2.0)),
    "sgd_0.25": Recipe(OPTIMIZER, sgd(0.25)),
    "sgd_1_no_clipping": Recipe(OPTIMIZER, sgd(1.0), ((hook.no_clipping,),)),
    "batch_32": Recipe(OPTIMIZER, batch(32)),
    "batch_32_square_root": Recipe(OPTIMIZER, batch(32), ((hook.rescaled_rate, 0.5),)),
    "batch_8_square_root": Recipe(OPTIMIZER, batch(8), ((hook.rescaled_rate, 0.5),)),
    "decay_0.01": Recipe(OPTIMIZER, {"weight_decay": 0.01}),
    "decay_0.2": Recipe(OPTIMIZER, {"weight_decay": 0.2}),
    "no_aug_0": Recipe(OPTIMIZER, {"no_aug": 0}),
    "mosaic_0": Recipe(AUGMENTATION, {"mosaic": 0.0}),
    "mixup_0.5": Recipe(AUGMENTATION, {"mixup": 0.5}),
    "copy_paste_0.5": Recipe(AUGMENTATION, {}, ((hook.copy_paste, 0.5),)),
    "repeat_0.5": Recipe(AUGMENTATION, {"repeat": 0.5}),
    "size_320": Recipe(SIZE, {"image_size": (320, 320)}),
    "size_416": Recipe(SIZE, {"image_size": (416, 416)}),
    "epochs_30": Recipe(LENGTH, {"epochs": 30}),
    "epochs_60": Recipe(LENGTH, {"epochs": 60}),
    "epochs_100": Recipe(LENGTH, {"epochs": 100}),
    "size_640": Recipe(SIZE, {"image_size": (640, 640)}),
    "epochs_200": Recipe(LENGTH, {"epochs": 200}),
}
FROM_SCRATCH = {
    "scratch_yolox_nano": Recipe(SCRATCH, {"weights": None, "freeze": 0}),
    "scratch_yolov9_t": Recipe(SCRATCH, {"weights": None, "freeze": 0, "model": "yolov9_t"}),
}
PEERS = {name: Recipe(SCRATCH, {}, peer=name) for name in small_data_peers.PEERS}
FINALISTS = ("shipped", "rate_0.5", "freeze_0")  # the shipped recipe and the best two of the search


class Stage(NamedTuple):
    """Which runs belong together. Differences between recipes are taken within a stage."""

    choice: tuple[bool, ...]  # of its data sets
    seeds: tuple[int, ...]
    recipes: tuple[str, ...]
    length: tuple[int, int] | None  # epochs and pixels; None: those of the data set


STAGES = {
    "screen": Stage((True,), (0,), tuple(RECIPES), None),
    "confirm": Stage((True,), (1, 2, 3), FINALISTS, (50, 320)),
    "report": Stage((False,), (1, 2, 3), FINALISTS, (50, 320)),
    "peers": Stage((True, False), (1,), ("shipped", *FROM_SCRATCH, *PEERS), (50, 320)),
}
KEY = ("stage", "data", "seed", "recipe", "overrides", "image_size", "epochs")  # identifies a run
COLUMNS = (
    *KEY,
    *("batch_size", "images_seen", "AP", "AP50", "best_AP", "frozen_AP", "thawed_AP_1", "thawed_AP_2"),
    *("minutes", "minutes_in_all", "cpu_minutes", "images_per_second", "peak_MiB"),
    *("date", "machine", "torch", "commit", "error"),
)
CURVE_COLUMNS = (*KEY, "minutes", "AP")


@dataclass(frozen=True)
class Config:
    data: str | None = None  # the folder of the data sets of DATA
    weights: str | None = "coco"  # coco: official weights of yolox_nano; or a file
    stage: str = "screen"  # screen, confirm, report or peers
    only: tuple[str, ...] = ()  # data sets; (): those of the stage
    seeds: tuple[int, ...] = ()  # (): those of the stage
    recipes: tuple[str, ...] = ()  # (): those of the stage
    epochs: int = 0  # 0: those of the stage
    image_size: int = 0  # 0: that of the stage
    minutes: float = 0.0  # no run begins after this time; 0: no limit
    peers: str | None = None  # the Python of an environment with libreyolo and ultralytics, for the stage peers
    results: str = str(RESULTS)  # folder of the two CSV files and the page


def main(cfg: Config, measure: Callable[[Job], dict[str, Any]] = in_own_process) -> None:
    """Measures the runs that have no row yet, and writes the page."""
    cfg, begin = checked(cfg), time.monotonic()
    planned = list(plan(cfg))
    done = {key_of(row) for row in read(Path(cfg.results) / "small_data.csv")}
    missing = [(key, job) for key, job in planned if key_of(key) not in done]
    print(f"{len(planned)} runs, {len(missing)} to measure", flush=True)
    for number, (key, job) in enumerate(missing, 1):
        if cfg.minutes and time.monotonic() - begin > 60 * cfg.minutes:
            print(f"minutes={show(cfg.minutes)} are over: {len(missing) - number + 1} runs are left")
            break
        result = attempt(job, partial(small_data_peers.measure, cfg.peers)) if job.peer else measure(job)
        add(Path(cfg.results), key, job, result)
        outcome = result.get("error") or f"mAP50-95 {result['AP']:.4f} in {result['minutes']:.1f} minutes"
        print(f"{number}/{len(missing)} {key['data']} seed {key['seed']} {key['recipe']}: {outcome}", flush=True)
    from benchmarks import small_data_page

    print(small_data_page.write(Path(cfg.results)))


def checked(cfg: Config) -> Config:
    """Returns the constants with the lists of the stage in place of empty ones. Raises ConfigError that names the fix."""
    require(cfg, {"minutes": 0, "epochs": 0, "image_size": 0}, {}, {"stage": tuple(STAGES)})
    stage = STAGES[cfg.stage]
    if not cfg.data or not Path(cfg.data).is_dir():
        raise ConfigError(f"data={show(cfg.data)}: give the folder of the data sets {', '.join(DATA)}")
    for name, known in (("only", DATA), ("recipes", recipes())):
        if unknown := [word for word in getattr(cfg, name) if word not in known]:
            raise ConfigError(f"{name}={show(tuple(unknown))}: choose from {', '.join(known)}")
    sets = tuple(name for name, data in DATA.items() if data.choice in stage.choice)
    defaults = {"only": sets, "seeds": stage.seeds, "recipes": stage.recipes}
    cfg = replace(cfg, **{name: value for name, value in defaults.items() if not getattr(cfg, name)})
    if not cfg.peers and set(cfg.recipes) & set(PEERS):
        print("other trainers are skipped; give peers=PYTHON of an environment with libreyolo and ultralytics")
        cfg = replace(cfg, recipes=tuple(name for name in cfg.recipes if name not in PEERS))
    return cfg


def recipes() -> dict[str, Recipe]:
    """Returns all recipes, also those of other trainers, by name."""
    return RECIPES | FROM_SCRATCH | PEERS


def plan(cfg: Config) -> Iterator[tuple[dict[str, Any], Job]]:
    """Yields the key (see KEY) and the job of each run. All data sets of a recipe come before the next recipe."""
    stage, own = STAGES[cfg.stage], {name: getattr(cfg, name) for name in ("epochs", "image_size")}
    label = " ".join([cfg.stage, *(f"{name}={value}" for name, value in own.items() if value)])
    for seed, name, data in itertools.product(cfg.seeds, cfg.recipes, cfg.only):
        recipe = recipes()[name]
        epochs, pixels = stage.length or DATA[data].screen
        pixels = cfg.image_size or pixels
        base = {"epochs": cfg.epochs or epochs, "image_size": (pixels, pixels), "weights": cfg.weights, "seed": seed}
        job = Job(constants(base | SHIPPED, recipe.changes) | sources(cfg.data, DATA[data]), recipe.hooks, recipe.peer)
        key = {"stage": label, "data": data, "seed": seed, "recipe": name, "overrides": overrides(recipe)}
        yield key | {"image_size": job.constants["image_size"][0], "epochs": job.constants["epochs"]}, job


def constants(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Returns constants of train.py: `changes` replace `base`, and fractions of the epochs become numbers of epochs.

    A constant and its fraction replace each other."""
    other = FRACTIONS | {target: name for name, target in FRACTIONS.items()}
    settings = {name: value for name, value in base.items() if other.get(name) not in changes} | changes
    result = {name: value for name, value in settings.items() if name not in FRACTIONS}
    epochs = {FRACTIONS[name]: round(settings[name] * settings["epochs"]) for name in FRACTIONS if name in settings}
    return result | epochs | {"bad_boxes": "drop", "workers": 0}


def sources(folder: str, data: DataSet) -> dict[str, str | None]:
    """Returns the constants that name the images and the annotations."""
    root = data.image_root and f"{folder}/{data.image_root}"
    return {"train": f"{folder}/{data.train}", "val": f"{folder}/{data.val}", "image_root": root}


def overrides(recipe: Recipe) -> str:
    """Returns what differs from the shipped recipe, as text: changed constants and fractions, then hooks."""
    words = [f"{name}={show(value)}" for name, value in recipe.changes.items()]
    return " ".join([*words, *filter(None, [hook.text(recipe.hooks)])])


def key_of(row: dict[str, Any]) -> tuple[str, ...]:
    """Returns what identifies the run of a row, as text."""
    return tuple(str(row[name]) for name in KEY)


def read(path: Path) -> list[dict[str, str]]:
    """Returns the rows of a CSV file, none if there is no file."""
    if not path.exists():
        return []
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def add(folder: Path, key: dict[str, Any], job: Job, result: dict[str, Any]) -> None:
    """Appends the row of a run to small_data.csv and its curve to small_data_curves.csv."""
    about = environment("cpu")
    commit = (about["commit"] or "")[:10] + ("+" if about["uncommitted_changes"] else "")
    where = {"date": time.strftime("%Y-%m-%d"), "machine": machine(), "torch": torch.__version__, "commit": commit}
    row = {**key, "batch_size": job.constants["batch_size"], **result, **where}
    append(folder / "small_data.csv", COLUMNS, {name: cell(row.get(name)) for name in COLUMNS})
    if "error" not in result:
        minutes, curve = ([cell(value) for value in result[f"curve_{name}"]] for name in ("minutes", "AP"))
        curves = {**key, "minutes": " ".join(minutes), "AP": " ".join(curve)}
        append(folder / "small_data_curves.csv", CURVE_COLUMNS, curves)


def cell(value: Any) -> str:
    """Returns a value as text, numbers with four digits after the point."""
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.4f}"
    return "" if value is None else str(value)


def append(path: Path, columns: tuple[str, ...], row: dict[str, str]) -> None:
    """Appends a row to a CSV file; a new file begins with the names of the columns."""
    new = not path.exists()
    with open(path, "a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(row)
        file.flush()
        os.fsync(file.fileno())


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that the process of the run ends too
    run_script(lambda: main(override(Config(), sys.argv[1:])), stopped="stopped", memory_advice="lower image_size=")
