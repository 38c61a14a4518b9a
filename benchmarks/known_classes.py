"""Measures the default learning rate on data whose class names the weights were trained on: mAP before and after training.

    python -m benchmarks.known_classes data=FOLDER weights=yolox_nano.pth [seeds=0,1,2] [minutes=60]

`data` and `weights` are explained in benchmarks.small_data. Each run takes minutes and adds a row to known_classes.csv in
`results`; a run that has a row there is not repeated. After `minutes` no run begins; run the same command again to continue.
The page known_classes.md is written from all rows.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import torch

import train
from benchmarks.own_process import in_own_process
from benchmarks.small_data import DATA
from benchmarks.table import RESULTS, append_row, read_rows, where
from datasets.dataset import DetectionDataset
from datasets.sources import read_train_and_val
from engine.rates import LOWEST_RATE, usual_rate
from engine.run_folder import runs
from nets import SGDDefaults
from utils import checkpoint
from utils.config import ConfigError, override
from utils.script import run_script

USUAL = usual_rate("adamw", SGDDefaults())
RATES = {"default": None, "usual": USUAL, "lowest": USUAL * LOWEST_RATE}  # constant learning_rate
KEY = ("experiment", "rate", "seed")
COLUMNS = (*KEY, "learning_rate", "AP_before", "AP_best", "AP_last", "minutes", "date", "machine", "commit")
COCO_NAMES = {  # class -> one of COCO's names
    "bccd": {"RBC": "donut", "WBC": "orange", "Platelets": "mouse"},
    "chess": {
        **{"black-bishop": "person", "black-king": "bottle", "black-knight": "horse"},
        **{"black-pawn": "vase", "black-queen": "cat", "black-rook": "dog"},
    },
}

HEAD = """# The learning rate for data whose class names the weights were trained on

mAP50-95 in points, mean and standard deviation over the seeds. `default`: the rate that the run chooses. `usual`: .004. `lowest`:
.000125, a thirty-second of it. best.pt is the model that the run returns; it may be the initial weights.

| data | rate | `learning_rate` | seeds | before training | best.pt | last epoch |
|---|---|---:|---|---:|---:|---:|"""
METHOD = """
`python -m benchmarks.known_classes data=FOLDER weights=yolox_nano.pth`. YOLOX-nano from COCO weights with the defaults of
`train.py`, 20 epochs at 224 pixels (BCCD), 20 at 256 (chess) and 10 at 256 (COCO). Where `default` chooses the usual rate, both
rows are the same training. The rule was chosen on coco337 and its gray negatives; the other data had no part in it."""


class Experiment(NamedTuple):
    """Data and weights of a few runs that differ in the learning rate."""

    data: str  # of small_data.DATA
    text: str
    rates: tuple[str, ...] = ("default", "usual")
    renamed: bool = False  # classes get names of COCO's classes
    negatives: bool = False  # all images become gray negatives
    begun_with: int = 0  # training images of a first run, whose best.pt holds the initial weights; 0: no first run


EXPERIMENTS = {
    "bccd_renamed": Experiment("bccd", "BCCD, all 3 classes renamed to names of COCO", renamed=True),
    "continued": Experiment("bccd", "BCCD, continuing the best.pt of a run with 123 of the 205 images", begun_with=123),
    "chess_renamed": Experiment("chess", "chess, 6 of the 12 classes renamed to names of COCO", renamed=True),
    "coco337": Experiment("coco337", "337 images of COCO"),
    "negatives": Experiment(
        "coco337", "gray negatives of these images", ("default", "lowest", "usual"), negatives=True
    ),
}


@dataclass(frozen=True)
class Config:
    data: str = "."  # the folder of the data sets of benchmarks.small_data
    weights: str = "coco"  # coco: official weights of yolox_nano; or a file
    seeds: tuple[int, ...] = (0, 1, 2)
    only: tuple[str, ...] = ()  # experiments; (): all
    rates: tuple[str, ...] = ()  # default, usual or lowest; (): all of the experiment
    minutes: float = 0.0  # no run begins after this time; 0: no limit
    results: str = str(RESULTS)  # folder of the CSV file and the page


def main(cfg: Config) -> None:
    """Measures the runs that have no row yet, and writes the page."""
    if unknown := [name for name in cfg.only if name not in EXPERIMENTS]:
        raise ConfigError(f"only={','.join(unknown)}: choose from {', '.join(EXPERIMENTS)}")
    begin, file = time.monotonic(), Path(cfg.results) / "known_classes.csv"
    done = {tuple(row[name] for name in KEY) for row in read_rows(file)}
    for key in plan(cfg):
        if key in done:
            continue
        if cfg.minutes and time.monotonic() - begin > 60 * cfg.minutes:
            print(f"minutes={cfg.minutes:g} have passed: run the same command to continue")
            break
        row = dict(zip(KEY, key, strict=True)) | in_own_process(measure, key, cfg) | where()
        append_row(file, {name: row[name] for name in COLUMNS})
        print(row, flush=True)
    page = Path(cfg.results) / "known_classes.md"
    page.write_text(text_of(read_rows(file)), encoding="utf-8")
    print(page)


def plan(cfg: Config) -> Iterator[tuple[str, str, str]]:
    """Yields the key (see KEY) of each run: the default rate first, all experiments of a seed before the next."""
    for rate in RATES:
        for seed in cfg.seeds:
            for name in cfg.only or EXPERIMENTS:
                if rate in (cfg.rates or EXPERIMENTS[name].rates):
                    yield name, rate, str(seed)


def constants_of(experiment: Experiment, cfg: Config, rate: float | None, seed: int) -> dict[str, Any]:
    """Returns the constants of a run: the defaults of train.py, except for data, epochs, input size and rate."""
    data = DATA[experiment.data]
    constants: dict[str, Any] = {"epochs": data.epochs, "image_size": (data.side, data.side), "weights": cfg.weights}
    constants |= data.sources(cfg.data) | {"seed": seed, "learning_rate": rate, "workers": 0}
    if experiment.renamed:
        constants["merge"] = ",".join(f"{a}:{b}" for a, b in COCO_NAMES[experiment.data].items())
    return constants


class GrayNegatives(DetectionDataset):
    """All images become gray negatives, a little like a thermal camera's: known classes that look different."""

    def read(self, *args):
        """Returns the sample with its image as a gray negative."""
        sample = super().read(*args)
        gray = cv2.cvtColor(sample.image, cv2.COLOR_BGR2GRAY)
        return sample._replace(image=255 - np.repeat(gray[..., None], 3, 2))


def read_few(images: int, *args, **options) -> tuple:
    """Returns `images` of the training images, evenly spaced in their list, and the validation data."""
    train_data, val_data = read_train_and_val(*args, **options)
    return train_data.select(np.linspace(0, len(train_data) - 1, images).round()), val_data


def measure(key: tuple[str, str, str], cfg: Config) -> dict[str, Any]:
    """Trains, and returns the learning rate that the run used, and its mAP before training, of best.pt and of the last epoch."""
    torch.set_num_threads(1)
    name, rate, seed = key
    experiment = EXPERIMENTS[name]
    constants = constants_of(experiment, cfg, RATES[rate], int(seed))
    options = {"parts": train.Parts(dataset=GrayNegatives)} if experiment.negatives else {}
    with tempfile.TemporaryDirectory(prefix="known_classes_") as folder:
        if experiment.begun_with:
            first = train.Config(**constants | {"learning_rate": None}, output=folder, name="first")
            train.main(first, parts=train.Parts(read_data=partial(read_few, experiment.begun_with)))
            constants["weights"] = str(runs(folder, "first")[-1] / "best.pt")
        begin = time.perf_counter()
        train.main(train.Config(**constants, output=folder, name="run"), **options)
        minutes = (time.perf_counter() - begin) / 60
        made = runs(folder, "run")[-1]
        rows = read_rows(made / "log.csv")
        used = checkpoint.load(made / "best.pt")["config"]["learning_rate"]
    maps = [float(row["AP"]) for row in rows]
    before = maps[0] if rows[0]["epoch"] == "0" else float("nan")
    return {"learning_rate": used, "AP_before": before, "AP_best": max(maps), "AP_last": maps[-1], "minutes": minutes}


def text_of(rows: list[dict[str, str]]) -> str:
    """Returns the page."""
    lines = [HEAD]
    for name, experiment in EXPERIMENTS.items():
        for rate in RATES:
            found = [row for row in rows if (row["experiment"], row["rate"]) == (name, rate)]
            if found:
                rates = ", ".join(dict.fromkeys(f"{float(row['learning_rate']):.3g}" for row in found))
                seeds = ", ".join(row["seed"] for row in found)
                cells = [
                    spread([float(row[column]) for row in found]) for column in ("AP_before", "AP_best", "AP_last")
                ]
                lines.append(f"| {experiment.text} | {rate} | {rates} | {seeds} | {' | '.join(cells)} |")
    lines.append(METHOD)
    for text in dict.fromkeys(f"{row['machine']}, {row['date']}" for row in rows):
        lines += ["", f"Measured on {text}."]
    return "\n".join(lines) + "\n"


def spread(values: list[float]) -> str:
    """Returns mean and standard deviation of values, in points."""
    mean = f"{100 * statistics.fmean(values):.1f}"
    return f"{mean} ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else mean


if __name__ == "__main__":
    run_script(lambda: main(override(Config(), sys.argv[1:])), stopped="stopped", memory_advice="lower image_size=")
