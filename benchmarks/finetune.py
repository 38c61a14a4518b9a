"""Fine-tunes the official YOLOX-nano on BCCD, 205 pictures, 30 epochs at 416 pixels, and writes down how good it gets.

    python -m benchmarks.finetune data=BCCD weights=yolox_nano.pth

BCCD (MIT): blood cells, VOC XML; trained on its part train, measured on its part test. `weights=coco` fetches the official file.
"""

import json
import platform
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import train
from utils.config import override
from utils.run import read_log

PEER = "LibreYOLO 1.6, the same weights and budget (batch 16, float32), as reported, not measured here: mAP50-95 .597, mAP50 .899"


@dataclass(frozen=True)
class Config:
    data: str = "BCCD"  # the folder with Annotations, ImageSets and JPEGImages
    weights: str = "coco"  # coco: official weights; a file
    seed: int = 0
    output: str = "runs"  # the run folder is made in it


def main(cfg: Config) -> None:
    """Trains, and adds a row to benchmarks/results/finetune_bccd.md."""
    parts = {part: f"{cfg.data}/ImageSets/Main/{name}.txt" for part, name in (("train", "train"), ("val", "test"))}
    recipe = {"epochs": 30, "freeze_epochs": 5, "bad_boxes": "drop", "freeze_batch_size": 16, "workers": 0}
    begin = time.perf_counter()
    train.main(train.Config(**parts, **recipe, weights=cfg.weights, seed=cfg.seed, output=cfg.output, name="bccd"))
    minutes = (time.perf_counter() - begin) / 60
    folder = train.newest(cfg.output, "bccd")
    rows = [row for row in read_log(folder / "log.csv") if "AP" in row]
    best = max(rows, key=lambda row: float(row["AP"]))
    versions = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
    report(cfg, recipe, rows[-1], best, minutes, versions)


def report(cfg: Config, recipe: dict, last: dict, best: dict, minutes: float, versions: dict) -> None:
    """One row of the table; the head of the file when it is new."""
    path = Path(__file__).parent / "results" / "finetune_bccd.md"
    if not path.exists():
        words = " ".join(f"{name}={str(value).lower()}" for name, value in recipe.items())
        path.write_text(
            f"# YOLOX-nano on BCCD (train 205, test 72), 416 pixels\n\n"
            f"`python train.py train=BCCD/ImageSets/Main/train.txt val=BCCD/ImageSets/Main/test.txt weights=yolox_nano.pth "
            f"{words}`\n"
            f"(what `python -m benchmarks.finetune data=BCCD weights=yolox_nano.pth` runs). The other constants as shipped.\n"
            f"For comparison: {PEER}.\n\n"
            "| date | seed | mAP50-95 last epoch | mAP50 last epoch | best mAP50-95 | its mAP50 | minutes | machine |\n"
            "|---|---|---|---|---|---|---|---|\n",
            encoding="utf-8",
        )
    machine = f"{versions['device']}, {platform.machine()}, {versions['threads']} threads, torch {versions['torch']}"
    figures = [last["AP"], last["AP50"], best["AP"], best["AP50"]]
    cells = [time.strftime("%Y-%m-%d"), str(cfg.seed), *(f"{float(f):.4f}" for f in figures), f"{minutes:.1f}", machine]
    with open(path, "a", encoding="utf-8") as file:
        file.write(f"| {' | '.join(cells)} |\n")
    print(f"{path}: {' | '.join(cells)}")


if __name__ == "__main__":
    main(override(Config(), sys.argv[1:]))
