"""Measures what freezing costs and saves: a short frozen phase, first layers that stay frozen, and the thaw after a long phase.

    python -m benchmarks.freezing data=FOLDER [weights=yolox_nano.pth] [weights_yolov9=yolov9_t.pt] [only=bccd] [minutes=60]

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

import cv2
import numpy as np
import torch

import evaluate
import train
from benchmarks.add_classes import lines_of, read
from benchmarks.known_classes import spread
from benchmarks.own_process import in_own_process
from benchmarks.small_data import DATA
from benchmarks.table import RESULTS, append_row, read_rows, where
from engine.run_folder import runs
from engine.schedule import Schedule
from utils.config import ConfigError, override
from utils.script import run_script

KEY = ("experiment", "treatment", "seed")
COLUMNS = (*KEY, "AP", "AP_camera", "cpu_minutes", "peak_MiB", "date", "machine", "torch", "commit")
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
    treatments: tuple[str, ...]
    model: str = "yolox_nano"


class Treatment(NamedTuple):
    """What is frozen, and when."""

    text: str
    frozen: float = 0.0  # the fraction of the epochs in which the backbone is frozen
    stages: int = 0  # this many of the first parts of the backbone are frozen for the whole run
    again: bool = False  # the learning rate warms up again after the thaw


TREATMENTS = {
    "thawed": Treatment("nothing (the default)"),
    "one": Treatment("backbone, 1 of 20 epochs", 0.05),
    "two": Treatment("backbone, 2 of 20 epochs", 0.1),
    "third": Treatment("backbone, 7 of 20 epochs", 0.35),
    "third_again": Treatment("backbone, 7 of 20 epochs, second warm-up after the thaw", 0.35, again=True),
    "stem": Treatment("stem and first stage, all epochs", stages=2),
}
LONG, SHORT = ("third", "third_again"), ("thawed", "one")
EXPERIMENTS = {
    "bccd": Experiment("bccd", "BCCD, 160 pixels, 7 of 20 epochs frozen", 20, 160, tuple(TREATMENTS)),
    "chess": Experiment("chess", "chess, 192 pixels, 7 of 20 epochs frozen", 20, 192, tuple(TREATMENTS)),
    "raccoon": Experiment("raccoon", "raccoons, 224 pixels, 7 of 20 epochs frozen", 20, 224, tuple(TREATMENTS)),
    "raccoon_320": Experiment("raccoon", "raccoons, 320 pixels, 5 of 14 epochs frozen", 14, 320, LONG),
    "bccd_yolov9": Experiment("bccd", "BCCD, 160 pixels", 20, 160, SHORT, "yolov9_t"),
    "chess_yolov9": Experiment("chess", "chess, 160 pixels", 20, 160, SHORT, "yolov9_t"),
    "raccoon_yolov9": Experiment("raccoon", "raccoons, 160 pixels", 20, 160, SHORT, "yolov9_t"),
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
    weights_yolov9: str = "coco"  # coco: official weights of yolov9_t; or a file
    seeds: tuple[int, ...] = (0, 1, 2)
    only: tuple[str, ...] = ()  # experiments; (): all
    treatments: tuple[str, ...] = ()  # (): all of the experiment
    minutes: float = 0.0  # no run begins after this time; 0: no limit
    results: str = str(RESULTS)  # folder of the CSV file and the page


def main(cfg: Config) -> None:
    """Measures the runs that have no row yet, and writes the page."""
    for name, known in (("only", EXPERIMENTS), ("treatments", TREATMENTS)):
        if unknown := [word for word in getattr(cfg, name) if word not in known]:
            raise ConfigError(f"{name}={','.join(unknown)}: choose from {', '.join(known)}")
    begin, file = time.monotonic(), Path(cfg.results) / "freezing.csv"
    done = {tuple(row[name] for name in KEY) for row in read_rows(file)}
    for key in planned(cfg):
        if tuple(map(str, key)) in done:
            continue
        if cfg.minutes and time.monotonic() - begin > 60 * cfg.minutes:
            print(f"minutes={cfg.minutes:g} have passed: run the same command to continue")
            break
        weights = cfg.weights if EXPERIMENTS[key[0]].model == "yolox_nano" else cfg.weights_yolov9
        row = dict(zip(KEY, key, strict=True)) | in_own_process(measure, *key, cfg.data, weights) | where()
        append_row(file, {name: row[name] for name in COLUMNS})
    page = Path(cfg.results) / "freezing.md"
    page.write_text(text_of(read_rows(file)), encoding="utf-8")
    print(page)


def planned(cfg: Config) -> Iterator[tuple[str, str, int]]:
    """Yields experiment, treatment and seed of each run: all of a seed before the next seed."""
    for seed, name in itertools.product(cfg.seeds, cfg.only or EXPERIMENTS):
        for treatment in EXPERIMENTS[name].treatments:
            if treatment in (cfg.treatments or TREATMENTS):
                yield name, treatment, seed


def measure(name: str, treatment: str, seed: int, data: str, weights: str) -> dict[str, Any]:
    """Trains, and returns the mAP50-95 of every epoch in one text, and the mAP of last.pt on images of a simulated camera."""
    torch.set_num_threads(1)
    experiment, chosen = EXPERIMENTS[name], TREATMENTS[treatment]
    with tempfile.TemporaryDirectory(prefix="freezing_") as folder:
        constants = train.Config(
            **DATA[experiment.data].sources(data),
            model=experiment.model,
            weights=weights,
            image_size=(experiment.side, experiment.side),
            epochs=experiment.epochs,
            freeze_epochs=round(chosen.frozen * experiment.epochs),
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
        run = runs(folder, "run")[-1]
        rows = read_rows(run / "log.csv")
        text = " ".join(f"{float(row['AP']):.4f}" for row in rows if row["epoch"] != "0")
        return {
            "AP": text,
            "AP_camera": average_of_other_camera(experiment.data, data, str(run / "last.pt"), Path(folder)),
        }


def average_of_other_camera(name: str, data: str, checkpoint: str, folder: Path) -> float:
    """Returns the mAP50-95 of a checkpoint on the validation images as a simulated, worse camera would take them."""
    val = read(data, name)[1]
    images = folder / "camera"
    images.mkdir()
    lines = []
    for number, line in enumerate(lines_of(val, list(val.classes), set(val.classes))):
        path = images / f"{number}.jpg"
        image = worse_camera(cv2.imread(val.path(number)), np.random.default_rng(number))
        cv2.imwrite(str(path), image, [cv2.IMWRITE_JPEG_QUALITY, 40])
        lines.append(" ".join([str(path), *line.removeprefix(str(Path(val.path(number)).resolve())).split()]))
    (images / "classes.txt").write_text("\n".join(val.classes) + "\n")
    (images / "val.txt").write_text("\n".join(lines) + "\n")
    cfg = evaluate.Config(
        checkpoint=checkpoint,
        data=str(images / "val.txt"),
        output=str(folder / "evaluation"),
        report=False,
        worst=0,
        workers=0,
        device="cpu",
    )
    return evaluate.main(cfg)["AP"]


def worse_camera(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Returns an image with half of the resolution, another white balance, other contrast, and noise; uint8 [H, W, 3] BGR."""
    height, width = image.shape[:2]
    half = cv2.resize(image, (max(width // 2, 1), max(height // 2, 1)), interpolation=cv2.INTER_AREA)
    light = cv2.resize(half, (width, height), interpolation=cv2.INTER_LINEAR) / 255
    light = (light * (0.8, 0.95, 1.1)).clip(0, 1) ** 1.4
    return (255 * light + rng.normal(0, 8, image.shape)).clip(0, 255).astype(np.uint8)


class FirstStagesFrozen:
    """Builds a model whose first `count` parts of the backbone have no gradients and stay in evaluation mode."""

    def __init__(self, count: int):
        self.count = count

    def __call__(self, **arguments: Any) -> tuple:
        model, pretraining = train.build_model(**arguments)
        for part in list(model.backbone.children())[: self.count]:
            part.eval().requires_grad_(False)
            part.train = lambda mode=True, part=part: part
        model.freeze_backbone = lambda frozen: None  # there is no frozen phase, and no thaw
        return model, pretraining


def text_of(rows: list[dict[str, str]]) -> str:
    """Returns the page."""
    lines = [*FROZEN, *HEAD, *frozen_rows(rows, "yolox_nano")]
    if yolov9 := list(frozen_rows(rows, "yolov9_t")):
        lines += [*YOLOV9, *HEAD, *yolov9]
    lines += [*THAW, *thaw_rows(rows), *METHOD]
    for text in dict.fromkeys(f"{row['machine']}, {row['date']}" for row in rows):
        lines += ["", f"Measured on {text}."]
    return "\n".join(lines) + "\n"


FROZEN = """# Freezing: what it costs and what it saves

## What is frozen, and for how long

mAP50-95 of the last epoch in points, mean and standard deviation over the seeds 0, 1 and 2. A mAP without ± has seed 0 only, and
"-" was not measured. A difference is that to the training with nothing frozen and the same seed: the mean over all measured
pairs, and its 95 % interval. "Other camera" is the difference on validation images that were changed as if by a worse
camera, see "Method". CPU minutes and memory are means over the measured data sets, which differ between the rows.

YOLOX-nano, official COCO weights:""".split("\n")

YOLOV9 = """
YOLOv9-t at 160 pixels, official COCO weights:""".split("\n")

HEAD = """
| frozen | BCCD | chess | raccoons | difference | difference, other camera | CPU minutes | peak MiB |
|---|---:|---:|---:|---:|---:|---:|---:|""".split("\n")

THAW = """
## The thaw after a long frozen phase

Whether the learning rate should warm up again when the backbone is thawed. By default it does
not. "Largest fall" is how far the mAP of any epoch after the thaw is below that of the last frozen epoch, in percent of the
latter, for the worst seed.

| data | second warm-up | seeds | last frozen epoch | first thawed epoch | largest fall | last epoch |
|---|---|---|---:|---:|---:|---:|""".split("\n")

METHOD = """
## Method

`python -m benchmarks.freezing data=FOLDER weights=yolox_nano.pth weights_yolov9=yolov9_t.pt`. One thread, batches of 8 images in
all phases, 20 epochs, YOLOX-nano at 160 (BCCD), 192 (chess) and 224 pixels (raccoons), all else default. CPU minutes and peak
memory are of whole runs with an evaluation after each epoch. The simulated camera has half of the resolution, another white
balance, other contrast, noise, and JPEG quality 40.

Of six ways to thaw that were tried on the raccoons at 320 pixels (14 epochs), among them a warm-up of the backbone alone and a
tenth of the learning rate for it, the second warm-up was the best, so its rows there are optimistic. These rows are of an earlier
form of the script with the same learning rates. Two runs on BCCD at 224 pixels ended at 59.5 without it and at 58.5 with
it.""".split("\n")


def frozen_rows(rows: list[dict[str, str]], model: str) -> Iterator[str]:
    """Yields a row per treatment of a model: mAP of each data set, differences to "nothing frozen", minutes and memory."""
    names = [name for name, one in EXPERIMENTS.items() if one.model == model and "thawed" in one.treatments]
    rows = [row for row in rows if row["experiment"] in names]
    last = {tuple(row[name] for name in KEY): float(row["AP"].split()[-1]) for row in rows}
    camera = {tuple(row[name] for name in KEY): float(row["AP_camera"]) for row in rows}
    for treatment, (text, *_) in TREATMENTS.items():
        found = [row for row in rows if row["treatment"] == treatment]
        if not found:
            continue
        maps = [[last[key] for key in last if key[:2] == (name, treatment)] for name in names]
        cells = [spread(one) if one else "-" for one in maps]
        for of_key in (last, camera):
            pairs = [(of_key[key], of_key.get((key[0], "thawed", key[2]))) for key in of_key if key[1] == treatment]
            cells.append("" if treatment == "thawed" else interval([a - b for a, b in pairs if b is not None]))
        for column in ("cpu_minutes", "peak_MiB"):
            cells.append(f"{statistics.fmean(float(row[column]) for row in found):.4g}")
        yield f"| {text} | {' | '.join(cells)} |"


def interval(differences: list[float]) -> str:
    """Returns the mean of differences in points, and its 95 % interval by Student's t-distribution."""
    count, mean = len(differences), 100 * statistics.fmean(differences)
    if count not in STUDENT:
        return f"{mean:+.1f}"
    half = STUDENT[count] * 100 * statistics.stdev(differences) / math.sqrt(count)
    return f"{mean:+.1f} [{mean - half:.1f}, {mean + half:.1f}]"


def thaw_rows(rows: list[dict[str, str]]) -> Iterator[str]:
    """Yields a row per experiment and treatment with a long frozen phase."""
    for (name, experiment), treatment in itertools.product(EXPERIMENTS.items(), LONG):
        found = [row for row in rows if (row["experiment"], row["treatment"]) == (name, treatment)]
        if not found:
            continue
        maps = [[float(value) for value in row["AP"].split()] for row in found]
        frozen = round(TREATMENTS[treatment].frozen * experiment.epochs)
        fall = max(max(0.0, 1 - min(one[frozen:]) / one[frozen - 1]) for one in maps)
        cells = [spread([one[epoch] for one in maps]) for epoch in (frozen - 1, frozen, -1)]
        cells.insert(2, f"{100 * fall:.1f} %")
        warmup = "yes" if TREATMENTS[treatment].again else "no"
        yield f"| {experiment.text} | {warmup} | {', '.join(row['seed'] for row in found)} | {' | '.join(cells)} |"


if __name__ == "__main__":
    run_script(lambda: main(override(Config(), sys.argv[1:])), stopped="stopped", memory_advice="lower image_size=")
