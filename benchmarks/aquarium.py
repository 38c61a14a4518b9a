"""Trains on subsets of a data set whose results with Ultralytics are published: how many labels does an mAP take?

    python -m benchmarks.aquarium data=FOLDER weights=yolox_nano.pth
    python -m benchmarks.aquarium data=FOLDER labels=448,224 jobs=6 workers=2     six trainings at a time

FOLDER is a YOLO data set with the folders train and valid, and data.yaml. A subset is the first images of all training images,
sorted by name and shuffled with random.Random(seed), as in the published protocol; or the images that the file
`lists`/LABELS_SEED.txt names. The constants are the defaults of train.py except image_size=640, epochs=100 and evaluate_every.
Each run adds a row to the file `results`. The same command resumes: a run that has a row is not repeated, and one that was
stopped continues from its folder in `output`.
"""

import json
import random
import statistics
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

import evaluate
import train
from benchmarks.own_process import in_own_process
from benchmarks.table import append_row, read_rows, where
from deploy.load import load
from engine.runs import runs
from utils.config import ConfigError, override, require
from utils.script import run_script

# YOLOv8n of Ultralytics 8.4, 3.0 million parameters, from COCO weights: mean and standard deviation of the AP of last.pt over
# seeds 0-2, and minutes on an RTX 3060. https://github.com/bluewthanh/DL2026-11-6, reports/03_setup3_data_efficiency.
PUBLISHED = {45: (19.2, 2.7, 1.7), 112: (31.6, 2.2, 2.3), 224: (38.0, 0.7, 3.4), 448: (44.7, 0.7, 5.6)}


@dataclass(frozen=True)
class Config:
    data: str = "aquarium"  # a folder with data.yaml, train and valid
    lists: str | None = None  # a folder with lists of names of images, LABELS_SEED.txt; none: the published rule
    model: str = "yolox_nano"
    weights: str = "coco"  # coco: official weights; or a file
    labels: tuple[int, ...] = tuple(PUBLISHED)  # numbers of labeled training images
    seeds: tuple[int, ...] = (0, 1, 2)  # of the subset and of the training
    image_size: int = 640
    epochs: int = 100
    evaluate_every: int = 5  # epochs, for best.pt; last.pt does not depend on it
    jobs: int = 1  # runs at the same time
    workers: int | None = None  # of each run
    output: str = "aquarium_runs"  # folder of the run folders
    results: str = "aquarium.csv"


def main(cfg: Config) -> None:
    """Trains the runs that have no row yet, and prints the table."""
    require(cfg, {"jobs": 1, "epochs": 1}, {}, {})
    file = Path(cfg.results)
    done = {(int(row["labels"]), int(row["seed"])) for row in read_rows(file)}
    planned = [(labels, seed) for labels in cfg.labels for seed in cfg.seeds if (labels, seed) not in done]
    images = {run: subset(cfg, *run) for run in planned}  # errors come before the first training
    lock = threading.Lock()

    def measure(run: tuple[int, int]) -> None:
        cells = in_own_process(train_once, cfg, *run, images[run])
        with lock:
            append_row(file, {"labels": run[0], "seed": run[1], **cells, **where()})

    with ThreadPoolExecutor(cfg.jobs) as pool:
        results = {run: pool.submit(measure, run) for run in planned}
    print(table(read_rows(file)))
    if failed := [f"{run}: {result.exception()}" for run, result in results.items() if result.exception()]:
        raise SystemExit("runs (labels, seed) that failed:\n" + "\n".join(failed))


def subset(cfg: Config, labels: int, seed: int) -> list[str]:
    """Returns the paths of the training images of a subset."""
    folder = Path(cfg.data).absolute() / "train" / "images"
    names = sorted(path.name for path in folder.iterdir())
    if cfg.lists:
        chosen = (Path(cfg.lists) / f"{labels}_{seed}.txt").read_text(encoding="utf-8").split()
    else:
        random.Random(seed).shuffle(names)
        chosen = sorted(names[:labels])
    if len(chosen) != labels or not set(chosen) <= set(names):
        raise ConfigError(f"data={cfg.data}: {folder} does not have the {labels} images of seed {seed}")
    return [str(folder / name) for name in chosen]


def train_once(cfg: Config, labels: int, seed: int, images: list[str]) -> dict[str, Any]:
    """Trains on the images, evaluates last.pt and best.pt, and returns the cells of the row."""
    data, folder = Path(cfg.data).absolute(), Path(cfg.output).absolute() / f"{labels}_{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.txt").write_text("\n".join(images) + "\n", encoding="utf-8")
    names = yaml.safe_load((data / "data.yaml").read_text(encoding="utf-8"))["names"]
    source = {"train": str(folder / "train.txt"), "val": str(data / "valid" / "images"), "names": names}
    (folder / "data.yaml").write_text(yaml.safe_dump(source), encoding="utf-8")
    constants = {"model": cfg.model, "weights": cfg.weights, "seed": seed, "workers": cfg.workers}
    constants |= {"image_size": (cfg.image_size, cfg.image_size), "epochs": cfg.epochs, "report": False}
    constants |= {"evaluate_every": cfg.evaluate_every, "output": str(folder), "name": "run", "resume": True}
    train.main(train.Config(train=str(folder / "data.yaml"), **constants))
    made = runs(folder, "run")[-1]
    rows = [row for row in read_rows(made / "log.csv") if row["epoch"] != "0"]  # 0: before training
    if len(rows) < cfg.epochs:
        raise RuntimeError(f"stopped after epoch {len(rows)}")
    last, best = (pycocotools_metrics(made / f"{which}.pt", folder / which) for which in ("last", "best"))
    model = load(str(made / "last.pt")).model
    seconds = sum(float(row["seconds"]) for row in rows)
    return {
        **{"model": cfg.model, "image_size": cfg.image_size, "epochs": cfg.epochs},
        **{"AP": last[0], "AP50": last[1], "best_AP": best[0], "best_AP50": best[1]},
        **{"parameters": sum(p.numel() for p in model.parameters()), "minutes": seconds / 60, "jobs": cfg.jobs},
    }


def pycocotools_metrics(checkpoint: Path, folder: Path, data: str | None = None) -> tuple[float, float]:
    """Returns AP and AP50 of a checkpoint on `data`, or its validation images, by pycocotools from the files of evaluate.py."""
    evaluate.main(evaluate.Config(checkpoint=str(checkpoint), data=data, output=str(folder), report=False))
    truth = COCO(str(folder / "ground_truth.json"))
    judge = COCOeval(truth, truth.loadRes(json.loads((folder / "detections.json").read_text())), "bbox")
    judge.evaluate()
    judge.accumulate()
    judge.summarize()
    return float(judge.stats[0]), float(judge.stats[1])


def table(rows: list[dict[str, str]]) -> str:
    """Returns a table in Markdown: AP in points, mean and standard deviation over the seeds, next to the published ones."""
    lines = [
        "| labels | published, YOLOv8n, last.pt | this one, last.pt | best.pt | seeds | million parameters | minutes |"
    ]
    lines += ["|--:|--:|--:|--:|--:|--:|--:|"]
    for labels in sorted({int(row["labels"]) for row in rows}):
        of_it = [row for row in rows if int(row["labels"]) == labels]
        cells = [spread([100 * float(row[name]) for row in of_it]) for name in ("AP", "best_AP")]
        published = "{:.1f} ± {:.1f}".format(*PUBLISHED[labels]) if labels in PUBLISHED else ""
        minutes = statistics.fmean(float(row["minutes"]) for row in of_it)
        size = f"{int(of_it[0]['parameters']) / 1e6:.2f}"
        lines.append(f"| {labels} | {published} | {cells[0]} | {cells[1]} | {len(of_it)} | {size} | {minutes:.1f} |")
    return "\n".join(lines)


def spread(values: list[float]) -> str:
    """Returns mean and standard deviation as text."""
    return f"{statistics.fmean(values):.1f}" + (f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else "")


if __name__ == "__main__":
    run_script(lambda: main(override(Config(), sys.argv[1:])), stopped="stopped", memory_advice="lower jobs=")
