"""Measures the thaw: mAP after each epoch, with and without a second warm-up of the learning rate.

    python -m benchmarks.thaw data=FOLDER weights=yolox_nano.pth [seeds=0,1,2] [only=raccoon]

`data` and `weights` are explained in benchmarks.small_data. Each run takes minutes and adds a row to thaw.csv in `results`; a run
that has a row there is not repeated. The page thaw.md is written from all rows.
"""

import sys
import tempfile
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

HEAD = """# The thaw

`python -m benchmarks.thaw data=FOLDER weights=yolox_nano.pth`. YOLOX-nano from COCO weights, the backbone frozen in the first
epochs, batches of 8 images in both phases, all else default. `once`: the default. `again`: the learning rate warms up again after
the thaw. mAP50-95 in points, mean and standard deviation over the seeds. The largest fall is that of any epoch after the thaw,
relative to the last frozen epoch, as the worst of the seeds. `again` was chosen among six treatments that were tried on the
raccoons (also a warm-up of the backbone alone, and a tenth of the rate for it), so its rows there are optimistic. BCCD has one
seed and shows no gain, so `again` is no default. The rows of 2026-11-25 are of an earlier form of the script with the same
learning rates; their mAP has three decimals.

| data | warm-up | seeds | last frozen epoch | first thawed epoch | largest fall | last epoch |
|---|---|---|---:|---:|---:|---:|"""


class Experiment(NamedTuple):
    """The data, epochs and input size of a few runs."""

    text: str
    epochs: int
    freeze_epochs: int
    side: int  # of the input, in pixels


EXPERIMENTS = {
    "raccoon": Experiment("raccoons, 320 pixels, 5 of 14 epochs frozen", 14, 5, 320),
    "bccd": Experiment("BCCD, 224 pixels, 7 of 20 epochs frozen", 20, 7, 224),
}


class WarmUpAgain(Schedule):
    """The learning rate warms up again after the thaw, in the steps that the thawed backbone has its first updates."""

    def __call__(self, step: int) -> float:
        begin, warmup = self.plan.freeze_epochs, self.warmup_epochs
        factor = 1.0
        if begin <= self.plan.position(step) < begin + warmup:
            factor = (min(self.plan.position(step + 1) - begin, warmup) / warmup) ** 2
        return factor * super().__call__(step)


SCHEDULES = {"once": Schedule, "again": WarmUpAgain}


@dataclass(frozen=True)
class Config:
    """The constants."""

    data: str = "."  # the folder of the data sets of benchmarks.small_data
    weights: str = "coco"  # coco: official weights of yolox_nano; or a file
    seeds: tuple[int, ...] = (0, 1, 2)
    only: tuple[str, ...] = ()  # experiments; (): all
    results: str = str(RESULTS)  # folder of the CSV file and the page


def main(cfg: Config) -> None:
    """Measures the runs that have no row yet, and writes the page."""
    if unknown := [name for name in cfg.only if name not in EXPERIMENTS]:
        raise ConfigError(f"only={','.join(unknown)}: choose from {', '.join(EXPERIMENTS)}")
    file = Path(cfg.results) / "thaw.csv"
    done = {(row["experiment"], row["warmup"], row["seed"]) for row in read_rows(file)}
    for seed in cfg.seeds:
        for name in cfg.only or EXPERIMENTS:
            for warmup in SCHEDULES:
                if (name, warmup, str(seed)) not in done:
                    row = {"experiment": name, "warmup": warmup, "seed": seed}
                    result = in_own_process(measure, name, warmup, seed, cfg.data, cfg.weights)
                    append_row(file, row | {"AP": result["AP"]} | where())
    page = Path(cfg.results) / "thaw.md"
    page.write_text(text_of(read_rows(file)), encoding="utf-8")
    print(page)


def measure(name: str, warmup: str, seed: int, data: str, weights: str) -> dict[str, Any]:
    """Trains, and returns the mAP50-95 of every epoch in one text."""
    torch.set_num_threads(1)
    experiment = EXPERIMENTS[name]
    with tempfile.TemporaryDirectory(prefix="thaw_") as folder:
        constants = train.Config(
            **DATA[name].sources(data),
            weights=weights,
            image_size=(experiment.side, experiment.side),
            epochs=experiment.epochs,
            freeze_epochs=experiment.freeze_epochs,
            freeze_batch_size=8,
            seed=seed,
            workers=0,
            device="cpu",
            report=False,
            output=folder,
            name="run",
        )
        train.main(constants, parts=train.Parts(schedule=SCHEDULES[warmup]))
        rows = read_rows(runs(folder, "run")[-1] / "log.csv")
    return {"AP": " ".join(f"{float(row['AP']):.4f}" for row in rows if row["epoch"] != "0")}


def text_of(rows: list[dict[str, str]]) -> str:
    """Returns the page."""
    lines = [HEAD]
    for name, experiment in EXPERIMENTS.items():
        for warmup in SCHEDULES:
            found = [row for row in rows if (row["experiment"], row["warmup"]) == (name, warmup)]
            if not found:
                continue
            maps = [[float(value) for value in row["AP"].split()] for row in found]
            frozen = experiment.freeze_epochs
            fall = max(max(0.0, 1 - min(one[frozen:]) / one[frozen - 1]) for one in maps)
            cells = [spread([one[epoch] for one in maps]) for epoch in (frozen - 1, frozen, -1)]
            cells.insert(2, f"{100 * fall:.1f} %")
            seeds = ", ".join(row["seed"] for row in found)
            lines.append(f"| {experiment.text} | {warmup} | {seeds} | {' | '.join(cells)} |")
    for text in dict.fromkeys(f"{row['machine']}, {row['date']}" for row in rows):
        lines += ["", f"Measured on {text}."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    run_script(lambda: main(override(Config(), sys.argv[1:])), stopped="stopped", memory_advice="lower image_size=")
