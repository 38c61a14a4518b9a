"""Measures training on images that were labeled for half of the classes only, compared with naive training and with full labels.

    python -m benchmarks.incomplete data=FOLDER weights=yolox_nano.pth [seeds=0,1,2] [only=bccd] [models=yolox_nano] [minutes=60]

`data` is explained in benchmarks.small_data. Each run takes minutes and adds a row to incomplete.csv in `results`; a run that has
a row there is not repeated. After `minutes` no run begins; run the same command again to continue.
"""

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import evaluate
import train
from benchmarks.add_classes import read
from benchmarks.own_process import in_own_process
from benchmarks.small_data import DATA
from benchmarks.table import RESULTS, append_row, read_rows, spread, where
from datasets.split import json_of
from datasets.store import Annotations
from metrics.comparison import compare_images, confusion_matrix
from utils.config import ConfigError, override
from utils.script import run_script

KINDS = {
    "full": "all labels",
    "known": "half of the classes in each image, the others not annotated",
    "naive": "half of the classes in each image, the others background",
    "half": "half of the images, with all labels",
}
SETS = ("bccd", "chess")
CONFIDENCE = 0.5  # mAP hardly depends on how high the scores are, and a user does
KEY = ("data", "model", "kind", "seed", "epochs", "side")


@dataclass(frozen=True)
class Config:
    """The constants."""

    data: str = "."  # the folder of the data sets of benchmarks.small_data
    weights: str = "coco"  # coco: official weights; or a file, for one model
    models: tuple[str, ...] = ("yolox_nano",)
    seeds: tuple[int, ...] = (0, 1, 2)
    only: tuple[str, ...] = SETS  # data sets
    kinds: tuple[str, ...] = tuple(KINDS)
    epochs: int = 0  # 0: as in benchmarks.small_data
    side: int = 0  # of the input, in pixels; 0: as in benchmarks.small_data
    minutes: float = 0.0  # no run begins after this time; 0: no limit
    output: str = "runs/incomplete"  # folder of the data and of the trained models
    results: str = str(RESULTS)  # folder of the CSV file


def main(cfg: Config) -> None:
    """Measures the runs that have no row yet, and prints a table of all rows."""
    for option, names, known in (("only", cfg.only, SETS), ("kinds", cfg.kinds, KINDS)):
        if unknown := [name for name in names if name not in known]:
            raise ConfigError(f"{option}={','.join(unknown)}: choose from {', '.join(known)}")
    begin, file = time.monotonic(), Path(cfg.results) / "incomplete.csv"
    for key in plan(cfg):
        if tuple(map(str, key.values())) in {tuple(row[name] for name in KEY) for row in read_rows(file)}:
            continue
        if cfg.minutes and time.monotonic() - begin > 60 * cfg.minutes:
            print(f"minutes={cfg.minutes:g} have passed: run the same command to continue")
            break
        append_row(file, key | in_own_process(measure, key, cfg) | where())
    print(table(read_rows(file)))


def plan(cfg: Config) -> Iterator[dict[str, Any]]:
    """Yields the runs: all data sets, models and kinds with one seed before the next seed."""
    for seed in cfg.seeds:
        for data in cfg.only:
            for model in cfg.models:
                for kind in cfg.kinds:
                    sizes = cfg.epochs or DATA[data].epochs, cfg.side or DATA[data].side
                    yield dict(zip(KEY, (data, model, kind, seed, *sizes), strict=True))


def measure(key: dict[str, Any], cfg: Config) -> dict[str, Any]:
    """Trains a run, and returns the metrics of its last epoch on validation images with all labels."""
    torch.set_num_threads(1)
    train_data, val_data = read(cfg.data, key["data"])
    folder = Path(cfg.output) / "_".join(map(str, key.values()))
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in {"train": labeled(train_data, key["kind"], key["seed"]), "val": val_data}.items():
        (folder / f"{name}.json").write_text(json_of(data, lambda path: str(Path(path).resolve())), encoding="utf-8")
    constants = {name: key[name] for name in ("model", "seed", "epochs")} | {"image_size": (key["side"], key["side"])}
    constants |= {"train": str(folder / "train.json"), "val": str(folder / "val.json"), "weights": cfg.weights}
    constants |= {"device": "cpu", "workers": 0, "output": str(folder), "report": False}
    constants["evaluate_every"] = key["epochs"]  # only the last epoch is measured
    begin = time.perf_counter()
    run = train.main(train.Config(**constants)).folder
    minutes = (time.perf_counter() - begin) / 60
    return {"images": len(train_data), **metrics_of(run / "last.pt", folder), "minutes": minutes}


def metrics_of(checkpoint: Path, folder: Path) -> dict[str, float]:
    """Returns mAP, and precision and recall of the detections that score at least CONFIDENCE, of all classes together."""
    options = {"report": False, "device": "cpu", "workers": 0, "output": str(folder / "evaluation")}
    options |= {"checkpoint": str(checkpoint), "data": str(folder / "val.json")}
    metrics = evaluate.main(evaluate.Config(**options))
    files = [folder / "evaluation" / name for name in ("ground_truth.json", "detections.json")]
    truth, detections = (json.loads(file.read_text(encoding="utf-8")) for file in files)
    matrix = confusion_matrix(compare_images(truth, detections, CONFIDENCE), len(truth["categories"]))
    right, found, boxes = matrix.diagonal().sum(), matrix[:, :-1].sum(), matrix[:-1].sum()
    return {"AP": metrics["AP"], "AP50": metrics["AP50"], "precision": right / max(found, 1), "recall": right / boxes}


def labeled(data: Annotations, kind: str, seed: int) -> Annotations:
    """Returns the training data of a kind. Each image is labeled for one of two groups of classes, chosen by the seed."""
    rng = np.random.default_rng((seed, 43))
    if kind == "full":
        return data
    if kind == "half":
        return data.select(np.sort(rng.permutation(len(data))[: len(data) // 2]))
    ranks = np.argsort(np.argsort(-data.boxes_per_class(), kind="stable"))
    annotated = ranks % 2 == rng.integers(0, 2, len(data))[:, None]  # [N, C] each group has frequent and rare classes
    kept = data.keep_boxes(annotated[data.image_of_boxes(), data.labels])
    return kept.with_annotated(annotated) if kind == "known" else replace(kept, annotated=None)


def table(rows: list[dict[str, str]]) -> str:
    """Returns the mean and the standard deviation over the seeds of each data set, model and kind, as a Markdown table."""
    head = f"| data | model | epochs | pixels | labels | seeds | mAP50-95 | precision at {CONFIDENCE} | recall at {CONFIDENCE} |"
    lines = [head, "|" + "---|" * 9]
    groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in ("data", "model", "epochs", "side", "kind")), []).append(row)
    for (*names, kind), found in groups.items():
        seeds = ", ".join(row["seed"] for row in found)
        means = [spread([float(row[name]) for row in found]) for name in ("AP", "precision", "recall")]
        lines.append("| " + " | ".join([*names, KINDS[kind], seeds, *means]) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    run_script(lambda: main(override(Config(), sys.argv[1:])), stopped="stopped", memory_advice="lower side=")
