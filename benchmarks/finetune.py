"""Measures training on BCCD, 205 images: fine-tuning from official weights, or training from scratch.

    python -m benchmarks.finetune data=BCCD weights=yolox_nano.pth          30 epochs at 416 from official weights
    python -m benchmarks.finetune data=BCCD weights=none model=yolov9_t     50 epochs at 320 from scratch

BCCD (MIT): blood cells, VOC XML. Trains on its part train and evaluates on its part test. `weights=coco` downloads the
official file.
"""

import csv
import sys
import time
from dataclasses import dataclass

import train
from benchmarks.table import add_row
from engine.run_folder import runs
from utils.config import ConfigError, override, show

RECIPE = {"epochs": 30, "workers": 0}
# The defaults before November 23, 2026, so that the rows stay comparable.
SCRATCH = {"epochs": 50, "image_size": (320, 320), "batch_size": 16, "rotation": 5.0, "workers": 0}


def words(recipe: dict) -> str:
    """Returns constants as they are written on the command line."""
    return " ".join(f"{name}={show(value)}" for name, value in recipe.items())


HEAD = f"""# YOLOX-nano on BCCD (train 205, test 72), 416 pixels, 30 epochs

`python train.py train=BCCD/ImageSets/Main/train.txt val=BCCD/ImageSets/Main/test.txt weights=yolox_nano.pth
{words(RECIPE)}`,
which is what `python -m benchmarks.finetune data=BCCD weights=yolox_nano.pth` runs. All other constants have their default.
`yolox_nano.pth` is the file described in [official.md](official.md). "Best" is the best of the 30 evaluations on the test images,
so it is chosen on them: quote the last epoch."""
HEAD_SCRATCH = f"""# From scratch on BCCD (train 205, test 72), 320 pixels, 50 epochs

`python train.py train=BCCD/ImageSets/Main/train.txt val=BCCD/ImageSets/Main/test.txt weights=none model=MODEL
{words(SCRATCH)}`,
which is what `python -m benchmarks.finetune data=BCCD weights=none model=MODEL` runs. All other constants have their default."""


@dataclass(frozen=True)
class Config:
    data: str = "BCCD"  # the folder with Annotations, ImageSets and JPEGImages
    model: str = "yolox_nano"
    weights: str | None = "coco"  # coco: official weights; a file; none: from scratch
    seed: int = 0
    epochs: int = 0  # 0: as in the recipe
    output: str = "runs"  # folder of the run folder


def main(cfg: Config) -> None:
    """Trains, and adds a row to benchmarks/results/finetune_bccd.md, or scratch_bccd.md without weights."""
    parts = {"train": f"{cfg.data}/ImageSets/Main/train.txt", "val": f"{cfg.data}/ImageSets/Main/test.txt"}
    name = f"bccd_{cfg.model}_{cfg.seed}"  # seeds may run side by side
    chosen = {"model": cfg.model, "weights": cfg.weights, "seed": cfg.seed, "output": cfg.output, "name": name}
    if cfg.weights and cfg.model != "yolox_nano":
        raise ConfigError("fine-tuning is measured with yolox_nano only; weights=none takes any model")
    recipe = (RECIPE if cfg.weights else SCRATCH) | ({"epochs": cfg.epochs} if cfg.epochs else {})
    begin = time.perf_counter()
    train.main(train.Config(**parts, **recipe, **chosen))
    cells = {"seed": str(cfg.seed), **results(cfg.output, name, begin)}
    other = f", epochs={cfg.epochs}" if cfg.epochs else ""
    if cfg.weights:
        add_row("finetune_bccd", HEAD, {**cells, "seed": cells["seed"] + other})
    else:
        add_row("scratch_bccd", HEAD_SCRATCH, {"model": cfg.model + other, **cells})


def results(output: str, name: str, begin: float) -> dict[str, str]:
    """Returns the cells of the table, by column, for the newest run of that name, which began at `begin`."""
    minutes = (time.perf_counter() - begin) / 60
    with open(runs(output, name)[-1] / "log.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    best = max(rows, key=lambda row: float(row["AP"]))
    found = {
        "mAP50-95 last epoch": rows[-1]["AP"],
        "mAP50 last epoch": rows[-1]["AP50"],
        "best mAP50-95": best["AP"],
        "its mAP50": best["AP50"],
    }
    return {name: f"{float(value):.4f}" for name, value in found.items()} | {"minutes": f"{minutes:.1f}"}


if __name__ == "__main__":
    main(override(Config(), sys.argv[1:]))
