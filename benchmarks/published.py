"""Trains on two data sets of which an AP50 of YOLOv5s, YOLOv7 and YOLOv8s is published, with the same split of the images.

    python -m benchmarks.published data=FOLDER weights=yolox_nano.pth

FOLDER has chess-pieces (COCO, folders train, valid and test) and bccd (VOC). The constants are the defaults of train.py except
image_size=640, epochs=100 and evaluate_every. best.pt is chosen on the valid part; AP is computed on the valid and the test part
by pycocotools. Each run adds a row to the file `results`. The same command resumes: a run that has a row is not repeated, and one
that was stopped continues from its folder in `output`.
"""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import train
from benchmarks.aquarium import pycocotools_metrics
from benchmarks.own_process import in_own_process
from benchmarks.table import append_row, read_rows, where
from deploy.load import load
from engine.runs import runs
from utils.config import ConfigError, override, require
from utils.script import run_script

PARTS = ("train", "valid", "test")


class DataSet(NamedTuple):
    """Numbers of images of the parts, and the published AP50, in percent, of one run each of other trainers."""

    images: tuple[int, int, int]
    yolov5s: float
    yolov7: float
    yolov8s: float


# https://github.com/roboflow/roboflow-100-benchmark, metadata/datasets_stats.csv; models and sizes: the train.sh of each trainer.
PUBLISHED = {
    "chess-pieces": DataSet((202, 58, 29), 97.7, 83.0, 98.8),
    "bccd": DataSet((255, 73, 36), 91.2, 92.2, 92.7),
}
# The numbers of the images BloodImage_00000.jpg ... in Roboflow's parts of BCCD; all others are for training.
BCCD_PARTS = {
    "valid": """
        0 4 12 17 21 26 50 57 63 69 70 71 75 76 86 92 93 104 107 108 109 110 123 126 127 130 135 141 161 182 183 187 205 211
        216 217 221 225 228 245 246 252 258 259 263 270 272 273 274 276 277 281 296 297 298 300 309 315 319 331 335 344 348
        355 364 371 377 384 392 402 403 404 410
    """,
    "test": """
        38 44 62 90 99 112 113 120 133 134 154 160 190 191 204 227 235 241 254 265 266 275 278 284 289 301 302 325 334 336 337
        350 359 369 385 386
    """,
}


@dataclass(frozen=True)
class Config:
    data: str = "."  # the folder of the data sets
    model: str = "yolox_nano"
    weights: str = "coco"  # coco: official weights; or a file
    only: tuple[str, ...] = tuple(PUBLISHED)  # data sets
    seeds: tuple[int, ...] = (0, 1, 2)
    image_size: int = 640
    epochs: int = 100
    evaluate_every: int = 5  # epochs, for best.pt
    workers: int | None = 0  # of each run
    output: str = "published_runs"  # folder of the run folders
    results: str = "published.csv"


def main(cfg: Config) -> None:
    """Trains the runs that have no row yet, and prints the table."""
    require(cfg, {"epochs": 1}, {}, {})
    if unknown := [name for name in cfg.only if name not in PUBLISHED]:
        raise ConfigError(f"only={','.join(unknown)}: choose from {', '.join(PUBLISHED)}")
    file = Path(cfg.results)
    same = (cfg.model, str(cfg.image_size), str(cfg.epochs))
    rows = [row for row in read_rows(file) if (row["model"], row["image_size"], row["epochs"]) == same]
    done = {(row["data"], row["seed"]) for row in rows}
    for seed in cfg.seeds:
        for name in cfg.only:
            if (name, str(seed)) not in done:
                cells = in_own_process(train_once, cfg, name, seed)
                append_row(file, {"data": name, "seed": seed, **cells, **where()})
    print(table(read_rows(file)))


def parts(cfg: Config, name: str, folder: Path) -> dict[str, str]:
    """Returns the annotation file of each part; for bccd, lists of the published parts are written to `folder`."""
    data = Path(cfg.data).absolute() / name
    if name != "bccd":
        return {part: str(data / part / "_annotations.coco.json") for part in PARTS}
    lists = folder / "ImageSets" / "Main"
    lists.mkdir(parents=True, exist_ok=True)
    for linked in ("JPEGImages", "Annotations"):
        if not (folder / linked).exists():
            os.symlink(data / linked, folder / linked)
    chosen = {
        part: {f"BloodImage_{int(number):05d}" for number in numbers.split()} for part, numbers in BCCD_PARTS.items()
    }
    everything = {path.stem for path in (data / "Annotations").iterdir()}
    chosen["train"] = everything - chosen["valid"] - chosen["test"]
    for part, stems in chosen.items():
        (lists / f"{part}.txt").write_text("\n".join(sorted(stems)) + "\n", encoding="utf-8")
    return {part: str(lists / f"{part}.txt") for part in PARTS}


def images_in(file: str) -> int:
    """Returns how many images an annotation file has: a COCO JSON, or a list with one per line."""
    text = Path(file).read_text(encoding="utf-8")
    return len(json.loads(text)["images"]) if file.endswith(".json") else len(text.split())


def train_once(cfg: Config, name: str, seed: int) -> dict[str, Any]:
    """Trains, evaluates last.pt and best.pt on two parts, and returns the cells of the row."""
    folder = Path(cfg.output).absolute() / f"{name}_{seed}"
    sources = parts(cfg, name, folder)
    if (images := tuple(map(images_in, sources.values()))) != PUBLISHED[name].images:
        raise ConfigError(
            f"data={cfg.data}: the parts of {name} have {images} images, published {PUBLISHED[name].images}"
        )
    constants = {"model": cfg.model, "weights": cfg.weights, "seed": seed, "workers": cfg.workers}
    constants |= {"image_size": (cfg.image_size, cfg.image_size), "epochs": cfg.epochs, "report": False}
    constants |= {"evaluate_every": cfg.evaluate_every, "output": str(folder), "name": "run", "resume": True}
    constants |= {"bad_boxes": "drop", "train": sources["train"], "val": sources["valid"]}
    train.main(train.Config(**constants))
    made = runs(folder, "run")[-1]
    rows = [row for row in read_rows(made / "log.csv") if row["epoch"] != "0"]  # 0: before training
    if len(rows) < cfg.epochs:
        raise RuntimeError(f"stopped after epoch {len(rows)}")
    cells: dict[str, Any] = {"model": cfg.model, "image_size": cfg.image_size, "epochs": cfg.epochs}
    for which in ("best", "last"):
        for part in ("valid", "test"):
            AP, AP50 = pycocotools_metrics(made / f"{which}.pt", folder / f"{which}_{part}", sources[part])
            cells |= {f"{which}_{part}_AP": AP, f"{which}_{part}_AP50": AP50}
    model = load(str(made / "last.pt")).model
    seconds = sum(float(row["seconds"]) for row in rows)
    return {**cells, "parameters": sum(p.numel() for p in model.parameters()), "minutes": seconds / 60}


def table(rows: list[dict[str, str]]) -> str:
    """Returns a table in Markdown: AP50 and AP of best.pt in percent, next to the published AP50."""
    names = ("valid AP50", "test AP50", "valid AP", "test AP", "published: YOLOv5s", "YOLOv7", "YOLOv8s", "CPU minutes")
    lines = [f"| data | seed | {' | '.join(names)} |"]
    lines.append("|---|" + "--:|" * 9)
    for row in rows:
        cells = [f"{100 * float(row[f'best_{part}_{metric}']):.1f}" for metric in ("AP50", "AP") for part in PARTS[1:]]
        data = PUBLISHED[row["data"]]
        cells += [f"{value:.1f}" for value in (data.yolov5s, data.yolov7, data.yolov8s)]
        lines.append(f"| {row['data']} | {row['seed']} | {' | '.join(cells)} | {float(row['cpu_minutes']):.0f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    run_script(lambda: main(override(Config(), sys.argv[1:])), stopped="stopped", memory_advice="lower image_size=")
