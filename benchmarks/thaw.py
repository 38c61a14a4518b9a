"""Measures the thaw after a long frozen phase: how the mAP falls, and whether a warm-up of the thawed weights helps.

    python -m benchmarks.thaw data=FOLDER weights=yolox_nano.pth [only=bccd] [minutes=60]

`data` and `weights` are explained in benchmarks.small_data. Each run takes minutes and adds a row to thaw.csv in `results`; a run
that has a row there is not repeated. After `minutes` no run begins; run the same command again to continue. The page thaw.md is
written from all rows.
"""

import itertools
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import train
from benchmarks.own_process import in_own_process
from benchmarks.small_data import DATA
from benchmarks.table import RESULTS, append_row, read_rows, spread, where
from engine.optimizer import Updater, build_optimizer
from engine.run_folder import runs
from engine.schedule import Schedule
from utils.config import ConfigError, override
from utils.script import run_script

KEY = ("data", "treatment", "seed")
COLUMNS = (*KEY, "AP", "cpu_minutes", "peak_MiB", "date", "machine", "torch", "commit")
SETS = {"raccoon": ("raccoons", 320), "bccd": ("BCCD", 160), "chess": ("chess", 160)}  # name, input size in pixels
EPOCHS, FROZEN, BATCH = 14, 5, 8


def warmup_factor(schedule: Schedule, step: int) -> float:
    """Returns the factor of a quadratic warm-up that begins at the thaw, as long as that of the run."""
    begin, warmup = schedule.plan.freeze_epochs, schedule.warmup_epochs
    if not begin <= schedule.plan.position(step) < begin + warmup:
        return 1.0
    return (min(schedule.plan.position(step + 1) - begin, warmup) / warmup) ** 2


def build_split(name: str, model: nn.Module, weight_decay: float) -> torch.optim.Optimizer:
    """Builds an optimizer that has the parameters of the backbone in separate groups."""
    optimizer = build_optimizer(name, model, weight_decay)
    backbone = {id(p) for p in model.backbone.parameters()}
    for group in list(optimizer.param_groups):
        inside = [p for p in group["params"] if id(p) in backbone]
        group["params"] = [p for p in group["params"] if id(p) not in backbone]
        optimizer.add_param_group({**group, "params": inside, "thaws": True})
    return optimizer


class BackboneWarmsUp(Updater):
    """Only the thawed weights warm up."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self.optimizer.register_step_pre_hook(self._scale)

    def _scale(self, *_: Any) -> None:
        for group in self.optimizer.param_groups:
            if group.get("thaws"):
                group["lr"] *= warmup_factor(self.schedule, self.step_number)


def build_fixed(**arguments: Any) -> tuple:
    """Builds a model whose backbone keeps its batch-norm statistics, also after the thaw."""
    model, pretraining = train.build_model(**arguments)
    type(model.backbone).train = lambda self, mode=True: nn.Module.train(self, False)  # the process ends after this run
    return model, pretraining


TREATMENTS = {
    "none": ("no warm-up (the default)", train.Parts()),
    "backbone": (
        "the backbone warms up",
        train.Parts(build_optimizer=build_split, updater=BackboneWarmsUp),
    ),
    "fixed": ("no warm-up, fixed statistics", train.Parts(build_model=build_fixed)),
}


@dataclass(frozen=True)
class Config:
    """The constants."""

    data: str = "."  # the folder of the data sets of benchmarks.small_data
    weights: str = "coco"  # coco: official weights of yolox_nano; or a file
    seeds: tuple[int, ...] = (0, 1, 2)
    only: tuple[str, ...] = tuple(SETS)  # data sets
    treatments: tuple[str, ...] = tuple(TREATMENTS)
    minutes: float = 0.0  # no run begins after this time; 0: no limit
    results: str = str(RESULTS)  # folder of the CSV file and the page


def main(cfg: Config) -> None:
    """Measures the runs that have no row yet, and writes the page."""
    for name, known in (("only", SETS), ("treatments", TREATMENTS)):
        if unknown := [word for word in getattr(cfg, name) if word not in known]:
            raise ConfigError(f"{name}={','.join(unknown)}: choose from {', '.join(known)}")
    begin, file = time.monotonic(), Path(cfg.results) / "thaw.csv"
    done = {tuple(row[name] for name in KEY) for row in read_rows(file)}
    for seed, data, treatment in itertools.product(cfg.seeds, cfg.only, cfg.treatments):
        key = (data, treatment, seed)
        if tuple(map(str, key)) in done:
            continue
        if cfg.minutes and time.monotonic() - begin > 60 * cfg.minutes:
            print(f"minutes={cfg.minutes:g} have passed: run the same command to continue")
            break
        row = dict(zip(KEY, key, strict=True)) | in_own_process(measure, *key, cfg.data, cfg.weights) | where()
        append_row(file, {name: row[name] for name in COLUMNS})
    page = Path(cfg.results) / "thaw.md"
    page.write_text(text_of(read_rows(file)), encoding="utf-8")
    print(page)


def measure(data: str, treatment: str, seed: int, folder: str, weights: str) -> dict[str, Any]:
    """Trains, and returns the mAP50-95 of every epoch in one text."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="thaw_") as output:
        constants = train.Config(
            **DATA[data].sources(folder),
            weights=weights,
            image_size=(SETS[data][1], SETS[data][1]),
            epochs=EPOCHS,
            freeze_epochs=FROZEN,
            batch_size=BATCH,
            freeze_batch_size=BATCH,
            seed=seed,
            workers=0,
            device="cpu",
            report=False,
            output=output,
            name="run",
        )
        train.main(constants, parts=TREATMENTS[treatment][1])
        rows = read_rows(runs(output, "run")[-1] / "log.csv")
    return {"AP": " ".join(f"{float(row['AP']):.4f}" for row in rows if row["epoch"] != "0")}


def text_of(rows: list[dict[str, str]]) -> str:
    """Returns the page."""
    maps = {tuple(row[name] for name in KEY): [float(value) for value in row["AP"].split()] for row in rows}
    lines = [HEAD]
    for data, treatment in itertools.product(SETS, TREATMENTS):
        of_seeds = {seed: maps[one, other, seed] for one, other, seed in maps if (one, other) == (data, treatment)}
        if of_seeds:
            name, side = SETS[data]
            cells = [f"{name}, {side} pixels", TREATMENTS[treatment][0], *cells_of(list(of_seeds.values()))]
            gains = [100 * (one[-1] - maps[data, "none", seed][-1]) for seed, one in of_seeds.items()]
            each = ", ".join(f"{gain:+.1f}" for gain in gains)
            cells.append("" if treatment == "none" else f"{statistics.fmean(gains):+.1f} ({each})")
            lines.append(f"| {' | '.join(cells)} |")
    lines.append(METHOD)
    lines += dict.fromkeys(f"\nMeasured on {row['machine']}, {row['date']}." for row in rows)
    return "\n".join(lines) + "\n"


def cells_of(maps: list[list[float]]) -> list[str]:
    """Returns the cells of a row from the mAP of each epoch of each run."""
    kept = min(one[FROZEN] / one[FROZEN - 1] for one in maps)
    before, first, last = (spread([one[epoch] for one in maps]) for epoch in (FROZEN - 1, FROZEN, -1))
    return [before, first, f"{kept:.2f}", spread([max(one) for one in maps]), last]


HEAD = """# The thaw after a long frozen phase

Whether the learning rate of the backbone should warm up when it is thawed. Until then its weights have no gradients, so AdamW
has no moments of them, and its first steps move every weight by about the whole rate. By default there is no second warm-up.

mAP50-95 in points, mean and standard deviation over the seeds 0, 1 and 2. "Kept" is the mAP of the first thawed epoch divided by
that of the last frozen epoch, for the worst seed. The difference is that of the last epoch to the run without warm-up, the mean
and that of each seed. [thaw.csv](thaw.csv) has the mAP of each epoch of each run.

| data | after the thaw | last frozen epoch | first thawed epoch | kept | best epoch | last epoch | difference |
|---|---|---:|---:|---:|---:|---:|---:|"""

METHOD = """
With the warm-up, all three runs on raccoons ended higher, and all six runs on BCCD and chess lower, so it is not the default. On
raccoons the mAP fell less in the first thawed epoch, so the first steps of AdamW are a part of the fall there. On BCCD it fell as
much as without the warm-up or more, so they are not its cause there.

At the thaw, the batch norms of the backbone also change: from the statistics of the initial weights to those of each batch.
"Fixed statistics" keeps the former. On BCCD the mAP then rose at the thaw, but ended lower than by default. On raccoons it fell
to between .04 and .30 in the first thawed epoch. This was not measured on chess.

## Method

`python -m benchmarks.thaw data=FOLDER weights=yolox_nano.pth`. One thread, YOLOX-nano with official COCO weights, 5 of 14 epochs
frozen, batches of 8 images in all phases, all else default. The warm-up is that of the start of the run again, quadratic in 1.4
epochs (28 to 41 steps), but only for the weights of the backbone. Nothing was chosen by these runs. A second warm-up of all
weights is in [freezing.md](freezing.md#the-thaw-after-a-long-frozen-phase)."""


if __name__ == "__main__":
    run_script(lambda: main(override(Config(), sys.argv[1:])), stopped="stopped", memory_advice="lower image_size=")
