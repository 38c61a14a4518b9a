"""Measures what freezing costs and saves: a short frozen phase, first layers that stay frozen, and the thaw after a long phase.

    python -m benchmarks.freezing data=FOLDER weights=yolox_nano.pth [seeds=0,1,2] [only=bccd] [minutes=60]

`data` and `weights` are explained in benchmarks.small_data. Each run takes minutes and adds a row to freezing.csv in `results`; a
run that has a row there is not repeated. After `minutes` no run begins; run the same command again to continue. The page
freezing.md is written from all rows.
"""

import itertools
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

import train
from benchmarks.known_classes import spread
from benchmarks.own_process import in_own_process
from benchmarks.small_data import DATA
from benchmarks.table import RESULTS, append_row, read_rows, where
from engine.run_folder import runs
from engine.schedule import Schedule
from utils.config import ConfigError, override
from utils.script import run_script

KEY = ("experiment", "treatment", "seed")
COLUMNS = (*KEY, "AP", "cpu_minutes", "peak_MiB", "date", "machine", "torch", "commit")
STUDENT = {
    2: 12.706,
    3: 4.303,
    6: 2.571,
    9: 2.306,
    12: 2.201,
}  # 97.5 % quantile of Student's t for n - 1 degrees of freedom


class Experiment(NamedTuple):
    """The data, epochs and input size of a few runs."""

    data: str  # of small_data.DATA
    text: str
    epochs: int
    side: int  # of the input, in pixels
    long: bool = False  # a third of the epochs is frozen


EXPERIMENTS = {
    "bccd": Experiment("bccd", "BCCD", 20, 160),
    "chess": Experiment("chess", "chess", 20, 192),
    "raccoon": Experiment("raccoon", "raccoons", 20, 224),
    "raccoon_long": Experiment("raccoon", "raccoons, 320 pixels, 5 of 14 epochs frozen", 14, 320, True),
    "bccd_long": Experiment("bccd", "BCCD, 224 pixels, 7 of 20 epochs frozen", 20, 224, True),
    "chess_long": Experiment("chess", "chess, 192 pixels, 7 of 20 epochs frozen", 20, 192, True),
}


class Treatment(NamedTuple):
    """What is frozen, and when."""

    text: str
    freeze_epochs: int = 0
    stages: int = 0  # this many of the first parts of the backbone are frozen for the whole run
    long: bool = False  # for the experiments with a long frozen phase
    again: bool = False  # the learning rate warms up again after the thaw


TREATMENTS = {
    "thawed": Treatment("nothing is frozen (the default)"),
    "one": Treatment("`freeze_epochs=1`", 1),
    "two": Treatment("`freeze_epochs=2`, a tenth of the epochs", 2),
    "stem": Treatment("stem and first stage frozen for the whole run", stages=2),
    "stages": Treatment("stem and two stages frozen for the whole run", stages=3),
    "once": Treatment("once", long=True),
    "again": Treatment("again after the thaw", long=True, again=True),
}


class WarmUpAgain(Schedule):
    """The learning rate warms up again after the thaw, in the steps that the thawed backbone has its first updates."""

    def __call__(self, step: int) -> float:
        begin, warmup = self.plan.freeze_epochs, self.warmup_epochs
        factor = 1.0
        if begin <= self.plan.position(step) < begin + warmup:
            factor = (min(self.plan.position(step + 1) - begin, warmup) / warmup) ** 2
        return factor * super().__call__(step)


@dataclass(frozen=True)
class Config:
    """The constants."""

    data: str = "."  # the folder of the data sets of benchmarks.small_data
    weights: str = "coco"  # coco: official weights of yolox_nano; or a file
    seeds: tuple[int, ...] = (0, 1, 2)
    only: tuple[str, ...] = ()  # experiments; (): all
    minutes: float = 0.0  # no run begins after this time; 0: no limit
    results: str = str(RESULTS)  # folder of the CSV file and the page


def main(cfg: Config) -> None:
    """Measures the runs that have no row yet, and writes the page."""
    if unknown := [name for name in cfg.only if name not in EXPERIMENTS]:
        raise ConfigError(f"only={','.join(unknown)}: choose from {', '.join(EXPERIMENTS)}")
    begin, file = time.monotonic(), Path(cfg.results) / "freezing.csv"
    done = {tuple(row[name] for name in KEY) for row in read_rows(file)}
    for key in planned(cfg):
        if tuple(map(str, key)) in done:
            continue
        if cfg.minutes and time.monotonic() - begin > 60 * cfg.minutes:
            print(f"minutes={cfg.minutes:g} have passed: run the same command to continue")
            break
        row = dict(zip(KEY, key, strict=True)) | in_own_process(measure, *key, cfg.data, cfg.weights) | where()
        append_row(file, {name: row[name] for name in COLUMNS})
    page = Path(cfg.results) / "freezing.md"
    page.write_text(text_of(read_rows(file)), encoding="utf-8")
    print(page)


def planned(cfg: Config) -> Iterator[tuple[str, str, int]]:
    """Yields experiment, treatment and seed of each run: all of a seed before the next seed."""
    for seed, name in itertools.product(cfg.seeds, cfg.only or EXPERIMENTS):
        for treatment in of_experiment(name):
            yield name, treatment, seed


def of_experiment(name: str) -> list[str]:
    """Returns the treatments of an experiment."""
    return [key for key, treatment in TREATMENTS.items() if treatment.long == EXPERIMENTS[name].long]


def measure(name: str, treatment: str, seed: int, data: str, weights: str) -> dict[str, Any]:
    """Trains, and returns the mAP50-95 of every epoch in one text."""
    torch.set_num_threads(1)
    experiment, chosen = EXPERIMENTS[name], TREATMENTS[treatment]
    freeze_epochs = round(0.35 * experiment.epochs) if chosen.long else chosen.freeze_epochs
    with tempfile.TemporaryDirectory(prefix="freezing_") as folder:
        constants = train.Config(
            **DATA[experiment.data].sources(data),
            weights=weights,
            image_size=(experiment.side, experiment.side),
            epochs=experiment.epochs,
            freeze_epochs=freeze_epochs,
            freeze_batch_size=8,
            seed=seed,
            workers=0,
            device="cpu",
            report=False,
            output=folder,
            name="run",
        )
        parts = train.Parts(schedule=WarmUpAgain) if chosen.again else train.Parts()
        if chosen.stages:
            parts = train.Parts(build_model=FirstStagesFrozen(chosen.stages))
        train.main(constants, parts=parts)
        rows = read_rows(runs(folder, "run")[-1] / "log.csv")
    return {"AP": " ".join(f"{float(row['AP']):.4f}" for row in rows if row["epoch"] != "0")}


class FirstStagesFrozen:
    """Builds a model whose first `count` parts of the backbone have no gradients and stay in evaluation mode."""

    def __init__(self, count: int):
        self.count = count

    def __call__(self, *arguments: Any) -> tuple:
        model, pretraining = train.build_model(*arguments)
        for part in list(model.backbone.children())[: self.count]:
            part.eval().requires_grad_(False)
            part.train = lambda mode=True, part=part: part
        model.freeze_backbone = lambda frozen: None  # there is no frozen phase, and no thaw
        return model, pretraining


def text_of(rows: list[dict[str, str]]) -> str:
    """Returns the page."""
    lines = [*SHORT, *short_rows(rows), *LONG, *long_rows(rows), *METHOD]
    for text in dict.fromkeys(f"{row['machine']}, {row['date']}" for row in rows):
        lines += ["", f"Measured on {text}."]
    return "\n".join(lines) + "\n"


SHORT = """# Freezing: what it costs and what it saves

## A short frozen phase, and first layers that stay frozen

mAP50-95 of the last epoch in points, mean and standard deviation over the seeds. "Difference" is that to the training with
nothing frozen and the same seed: its mean over all data sets and seeds, and its 95 % interval.

| frozen | BCCD | chess | raccoons | difference | CPU minutes | peak MiB |
|---|---:|---:|---:|---:|---:|---:|""".split("\n")

LONG = """
## The thaw after a long frozen phase

Whether the learning rate should warm up again when the backbone is thawed. The largest fall is that of any epoch after the thaw,
relative to the last frozen epoch, as the worst of the seeds.

| data | warm-up | seeds | last frozen epoch | first thawed epoch | largest fall | last epoch |
|---|---|---|---:|---:|---:|---:|""".split("\n")

METHOD = """
## Method

`python -m benchmarks.freezing data=FOLDER weights=yolox_nano.pth`. YOLOX-nano from COCO weights, one thread, batches of 8 images
in both phases, all else default. Short phase: 20 epochs at 160 (BCCD), 192 (chess) and 224 pixels (raccoons). CPU minutes and
peak memory are of whole runs with an evaluation after each epoch.

The second warm-up was chosen among six treatments that were tried on the raccoons (also a warm-up of the backbone alone, and a
tenth of the rate for it), so its rows there are optimistic. The rows of raccoons at 320 pixels, and of BCCD at 224 pixels with
seed 0, are of an earlier form of the script with the same learning rates.""".split("\n")


def short_rows(rows: list[dict[str, str]]) -> Iterator[str]:
    """Yields a row per treatment of the experiments with a short frozen phase or none."""
    last = {tuple(row[name] for name in KEY): float(row["AP"].split()[-1]) for row in rows}
    names = [name for name, experiment in EXPERIMENTS.items() if not experiment.long]
    for treatment in of_experiment(names[0]):
        found = [row for row in rows if row["treatment"] == treatment and row["experiment"] in names]
        if not found:
            continue
        cells = [spread([last[key] for key in last if key[:2] == (name, treatment)] or [math.nan]) for name in names]
        pairs = [(last[key], last.get((key[0], "thawed", key[2]))) for key in last if key[1] == treatment]
        cells.append("" if treatment == "thawed" else interval([a - b for a, b in pairs if b is not None]))
        for column in ("cpu_minutes", "peak_MiB"):
            cells.append(f"{statistics.fmean(float(row[column]) for row in found):.3g}")
        yield f"| {TREATMENTS[treatment].text} | {' | '.join(cells)} |"


def interval(differences: list[float]) -> str:
    """Returns the mean of differences in points, and its 95 % interval by Student's t-distribution."""
    count, mean = len(differences), 100 * statistics.fmean(differences)
    if count not in STUDENT:
        return f"{mean:+.1f}"
    half = STUDENT[count] * 100 * statistics.stdev(differences) / math.sqrt(count)
    return f"{mean:+.1f} [{mean - half:.1f}, {mean + half:.1f}]"


def long_rows(rows: list[dict[str, str]]) -> Iterator[str]:
    """Yields a row per experiment with a long frozen phase, and treatment."""
    for name, experiment in EXPERIMENTS.items():
        for treatment in of_experiment(name) if experiment.long else ():
            found = [row for row in rows if (row["experiment"], row["treatment"]) == (name, treatment)]
            if not found:
                continue
            maps = [[float(value) for value in row["AP"].split()] for row in found]
            frozen = round(0.35 * experiment.epochs)
            fall = max(max(0.0, 1 - min(one[frozen:]) / one[frozen - 1]) for one in maps)
            cells = [spread([one[epoch] for one in maps]) for epoch in (frozen - 1, frozen, -1)]
            cells.insert(2, f"{100 * fall:.1f} %")
            seeds = ", ".join(row["seed"] for row in found)
            yield f"| {experiment.text} | {TREATMENTS[treatment].text} | {seeds} | {' | '.join(cells)} |"


if __name__ == "__main__":
    run_script(lambda: main(override(Config(), sys.argv[1:])), stopped="stopped", memory_advice="lower image_size=")
