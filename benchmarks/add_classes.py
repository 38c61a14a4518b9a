"""Measures classes that are added to a trained model: the AP of old and new classes, compared with other ways to learn them.

    python -m benchmarks.add_classes data=FOLDER weights=yolox_nano.pth [seeds=0,1,2] [only=bccd] [minutes=60]

`data` and `weights` are explained in benchmarks.small_data. Each run takes minutes and adds a row to add_classes.csv in
`results`; a run that has a row there is not repeated. After `minutes` no run begins; run the same command again to continue.
"""

import shutil
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

import evaluate
import train
from benchmarks.own_process import in_own_process
from benchmarks.small_data import DATA
from benchmarks.table import RESULTS, append_row, read_rows, spread, where
from datasets.formats.options import read_options
from datasets.sources import read_train_and_val
from datasets.store import Annotations
from engine.runs import runs
from utils.config import ConfigError, override
from utils.script import run_script

METHODS = {
    "before": "before: the old classes only",
    "added": "`add_classes=true`: labels of the new classes only",
    "finetuned": "fine-tuning all weights with the same labels",
    "joint": "joint training: all labels, from COCO-pretrained weights",
    "sets": "joint training of two data sets, `train=A,B`, from COCO-pretrained weights",
}
EARLIER = "sets"  # classes of the other set had no loss; it has rows, and its code is at commit f20b8554
KEY = ("experiment", "method", "seed")
COLUMNS = (*KEY, "AP_old", "AP_new", "minutes", "cpu_minutes", "peak_MiB", "date", "machine", "commit")

HEAD = """| data | method | seeds | old classes | new classes | CPU minutes | peak MiB |
|---|---|---|---:|---:|---:|---:|"""


class Experiment(NamedTuple):
    """Data of which some classes are new."""

    data: str  # of small_data.DATA
    text: str
    new: tuple[str, ...]
    epochs: int
    side: int  # of the input, in pixels
    old: str | None = (
        None  # of small_data.DATA: images of the old classes, which official weights detect; None: the same images
    )


EXPERIMENTS = {
    "bccd": Experiment("bccd", "BCCD: Platelets added to RBC and WBC", ("Platelets",), 15, 160),
    "chess": Experiment("chess", "chess: both queens added to 10 pieces", ("black-queen", "white-queen"), 15, 192),
    "raccoon": Experiment("raccoon", "COCO's 80 classes and raccoons", ("raccoon",), 8, 160, old="coco337"),
    "cells": Experiment("bccd", "COCO's 80 classes and BCCD", ("RBC", "WBC", "Platelets"), 12, 160, old="coco337"),
}


@dataclass(frozen=True)
class Config:
    """The constants."""

    data: str = "."  # the folder of the data sets of benchmarks.small_data
    weights: str = "coco"  # coco: official weights of yolox_nano; or a file
    seeds: tuple[int, ...] = (0, 1, 2)
    only: tuple[str, ...] = ()  # experiments; (): all
    minutes: float = 0.0  # no run begins after this time; 0: no limit
    output: str = "runs/add_classes"  # folder of the trained models
    results: str = str(RESULTS)  # folder of the CSV file


def main(cfg: Config) -> None:
    """Measures the runs that have no row yet, and prints a table of all rows."""
    if unknown := [name for name in cfg.only if name not in EXPERIMENTS]:
        raise ConfigError(f"only={','.join(unknown)}: choose from {', '.join(EXPERIMENTS)}")
    begin, file = time.monotonic(), Path(cfg.results) / "add_classes.csv"
    for name, seed in plan(cfg):
        if cfg.minutes and time.monotonic() - begin > 60 * cfg.minutes:
            print(f"minutes={cfg.minutes:g} have passed: run the same command to continue")
            break
        measure_seed(name, seed, cfg, file)
    print(table(read_rows(file)))


def plan(cfg: Config) -> Iterator[tuple[str, int]]:
    """Yields experiment and seed: all experiments with one seed before the next seed."""
    for seed in cfg.seeds:
        for name in cfg.only or EXPERIMENTS:
            yield name, seed


def measure_seed(name: str, seed: int, cfg: Config, file: Path) -> None:
    """Adds the rows of all methods for one seed. The model before comes first, because two methods begin with it."""
    done = {tuple(row[column] for column in KEY) for row in read_rows(file)}
    missing = [method for method in METHODS if method != EARLIER and (name, method, str(seed)) not in done]
    if not missing:
        return
    folder = Path(cfg.output) / f"{name}_{seed}"
    shutil.rmtree(folder / "data", ignore_errors=True)
    write_data(folder / "data", EXPERIMENTS[name], cfg.data)
    for method in missing:
        row = {"experiment": name, "method": method, "seed": str(seed)}
        row |= in_own_process(measure, name, method, seed, str(folder), cfg.weights) | where()
        append_row(file, {column: row[column] for column in COLUMNS})


def write_data(folder: Path, experiment: Experiment, data: str) -> None:
    """Writes the data sets: `old`, `new` (labels of the new classes), `named` (these labels, names of all classes), `all`."""
    of_new = read(data, experiment.data)
    of_old = read(data, experiment.old) if experiment.old else ()
    names = list(dict.fromkeys(name for part in (*of_old[:1], of_new[0]) for name in part.classes))
    old = [name for name in names if name not in experiment.new]
    sets = {
        "old": (of_old or of_new, old, old),
        "new": (of_new, experiment.new, experiment.new),
        "named": (of_new, [*old, *experiment.new], experiment.new),
    }
    for name, (parts, named, labeled) in sets.items():
        write(folder / name, named, [(part, labeled) for part in parts])
    both = [*old, *experiment.new]
    if of_old:
        write(folder / "all", both, [(part, both) for part in (*of_old, *of_new)])
    else:
        write(folder / "all", both, [(part, both) for part in of_new])


def read(data: str, name: str) -> tuple[Annotations, Annotations]:
    """Reads the training and the validation data of a data set of small_data."""
    sources = DATA[name].sources(data)
    options = read_options(None, None, sources["image_root"], "drop", "error")
    return read_train_and_val(sources["train"], sources["val"], options, lambda *_: None)


def write(folder: Path, names: Iterable[str], parts: Sequence[tuple[Annotations, Iterable[str]]]) -> None:
    """Writes train.txt, val.txt and classes.txt. `parts`: training and validation data in turn, with the labeled classes."""
    folder.mkdir(parents=True)
    names = list(names)
    (folder / "classes.txt").write_text("\n".join(names) + "\n")
    for split, chosen in (("train", parts[0::2]), ("val", parts[1::2])):
        lines = [line for data, labeled in chosen for line in lines_of(data, names, set(labeled))]
        (folder / f"{split}.txt").write_text("\n".join(lines) + "\n")


def lines_of(data: Annotations, names: list[str], labeled: set[str]) -> Iterator[str]:
    """Yields a line per image, with the boxes of the `labeled` classes. Crowd boxes are left out."""
    for index in range(len(data)):
        cells = [str(Path(data.path(index)).resolve())]
        for box, label, crowd in zip(*data.boxes_of(index), strict=True):
            name = data.classes[label]
            if name in labeled and not crowd:
                cells.append(",".join(f"{value:g}" for value in box) + f",{names.index(name)}")
        yield " ".join(cells)


def measure(name: str, method: str, seed: int, folder: str, weights: str) -> dict[str, Any]:
    """Trains with one method, and returns the mAP over old and new classes of the last epoch, and the minutes."""
    torch.set_num_threads(1)
    experiment = EXPERIMENTS[name]
    begin = time.perf_counter()
    if method == "before" and experiment.old:  # official weights have learned the old classes
        checkpoint = weights
    else:
        checkpoint = str(trained(experiment, method, seed, Path(folder), weights) / "last.pt")
    minutes = (time.perf_counter() - begin) / 60
    return {"minutes": minutes} | averages(experiment, method, checkpoint, Path(folder))


def trained(experiment: Experiment, method: str, seed: int, folder: Path, weights: str) -> Path:
    """Trains with one method and returns the run folder."""
    before = weights
    if not experiment.old and method != "before":
        before = str(runs(folder, "before")[-1] / "best.pt")
    sources, start = {
        "before": (["old"], weights),
        "added": (["new"], before),
        "finetuned": (["named"], before),
        "joint": (["all"], weights),
    }[method]
    constants = {
        "epochs": experiment.epochs,
        "image_size": (experiment.side, experiment.side),
        "seed": seed,
        "workers": 0,
    }
    for split in ("train", "val"):
        constants[split] = ",".join(str(folder / "data" / source / f"{split}.txt") for source in sources)
    constants |= {"weights": start, "device": "cpu", "output": str(folder), "name": method}
    train.main(train.Config(**constants, add_classes=method == "added", report=False))
    return runs(folder, method)[-1]


def averages(experiment: Experiment, method: str, checkpoint: str, folder: Path) -> dict[str, float]:
    """Evaluates on the validation images and returns the mAP over the old and over the new classes."""
    of_class: dict[str, float] = {}
    sets = ["old"] if method == "before" else ["old", "new"] if experiment.old else ["all"]
    for name in sets:
        classes = (folder / "data" / name / "classes.txt").read_text().splitlines()
        result = evaluate.main(
            evaluate.Config(
                checkpoint=checkpoint,
                model="yolox_nano" if checkpoint.endswith(".pth") else None,
                data=str(folder / "data" / name / "val.txt"),
                image_size=(experiment.side, experiment.side),
                output=str(folder / f"evaluation_{method}_{name}"),
                report=False,
                workers=0,
                device="cpu",
            )
        )
        of_class |= {one: result["per_class"][one]["AP"] for one in classes if result["per_class"][one]["AP"] >= 0}
    old = [value for one, value in of_class.items() if one not in experiment.new]
    new = [value for one, value in of_class.items() if one in experiment.new]
    return {"AP_old": statistics.fmean(old), "AP_new": statistics.fmean(new) if new else float("nan")}


def table(rows: list[dict[str, str]]) -> str:
    """Returns the mean and the standard deviation over the seeds of each experiment and method, as a Markdown table."""
    lines = [HEAD]
    for name, experiment in EXPERIMENTS.items():
        for method, text in METHODS.items():
            found = [row for row in rows if (row["experiment"], row["method"]) == (name, method)]
            if not found:
                continue
            cells = [spread([float(row["AP_old"]) for row in found]), ""]
            if method != "before":
                cells[1] = spread([float(row["AP_new"]) for row in found])
            cells.append(f"{statistics.fmean(float(row['cpu_minutes']) for row in found):.1f}")
            cells.append(f"{statistics.fmean(float(row['peak_MiB']) for row in found):.0f}")
            seeds = ", ".join(row["seed"] for row in found)
            lines.append(f"| {experiment.text} | {text} | {seeds} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    run_script(lambda: main(override(Config(), sys.argv[1:])), stopped="stopped", memory_advice="lower image_size=")
