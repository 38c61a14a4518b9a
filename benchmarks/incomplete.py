"""Measures ways to train on images that were labeled for half of the classes only.

    OMP_NUM_THREADS=1 python -m benchmarks.incomplete data=FOLDER weights=yolox_nano.pth [seeds=0] [only=bccd] [kinds=naive]

`data` is explained in benchmarks.small_data. Each run takes minutes and adds a row to incomplete.csv in `results`; a run
that has a row there is not repeated. After `minutes` no run begins; run the same command again to continue.

In the kinds of `EARLIER`, a class that is not annotated in an image had no loss there. Their code is at commit f20b8554.
"""

import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import evaluate
import train
from benchmarks.add_classes import read
from benchmarks.own_process import in_own_process
from benchmarks.table import RESULTS, append_row, read_rows, spread, where
from datasets.split import json_of
from datasets.store import Annotations
from metrics.coco import Curve, best_confidence, curves
from metrics.matches import CORRECT, IGNORED, ClassMatches, match_classes
from tools import suspects
from utils.boxes import area, pairwise_iou
from utils.checkpoint import load
from utils.config import ConfigError, override
from utils.script import run_script

KINDS = {
    "naive": "half of the classes in each image, the others background",
    "masks": "half of the classes in each image, the others not annotated",
    "filled": "half of the classes in each image, the others labeled by teachers, twice the steps",
    "unsure": "the same, but not annotated where the teachers are unsure, twice the steps",
    "naive_long": "half of the classes in each image, the others background, twice the steps",
    "long": "half of the classes in each image, the others not annotated, twice the steps",
    "half": "half of the images, with all labels",
    "full": "all labels",
}
EARLIER = ("masks", "unsure", "long")  # they have rows, but cannot be run any more
RUNS = tuple(kind for kind in KINDS if kind not in EARLIER)
SETS = {"bccd": (12, 128), "cards": (10, 128), "dental_xray": (6, 160), "chess": (20, 160)}  # epochs, pixels
PRECISIONS = (0.7, 0.8, 0.9)  # at which the recall is compared
SAME_OBJECT = 0.7  # IoU with a label, from which a teacher's detection is dropped
KEY = ("data", "kind", "seed", "epochs", "side", "fill", "unsure")


@dataclass(frozen=True)
class Config:
    """The constants."""

    data: str = "."  # the folder of the data sets of benchmarks.small_data
    weights: str = "coco"  # coco: official weights; or a file
    seeds: tuple[int, ...] = (0, 1, 2)
    only: tuple[str, ...] = tuple(SETS)  # data sets
    kinds: tuple[str, ...] = RUNS
    fill: float = 0.0  # min confidence of a teacher's label; 0: the best F1 of its class in the validation
    minutes: float = 0.0  # no run begins after this time; 0: no limit
    output: str = "runs/incomplete"  # folder of the data and of the trained models
    results: str = str(RESULTS)  # folder of the CSV file


def main(cfg: Config) -> None:
    """Measures the runs that have no row yet, and prints a table of all rows."""
    for option, names, known in (("only", cfg.only, SETS), ("kinds", cfg.kinds, RUNS)):
        if unknown := [name for name in names if name not in known]:
            raise ConfigError(f"{option}={','.join(unknown)}: choose from {', '.join(known)}")
    begin, file = time.monotonic(), Path(cfg.results) / "incomplete.csv"
    for key in plan(cfg):
        if tuple(map(str, key.values())) in {tuple(row[name] for name in KEY) for row in read_rows(file)}:
            continue
        if cfg.minutes and time.monotonic() - begin > 60 * cfg.minutes:
            print(f"minutes={cfg.minutes:g} have passed: run the same command to continue")
            break
        teachers = {"teacher_minutes": taught(key, cfg) if key["fill"] else 0.0}
        append_row(file, key | in_own_process(measure, key, cfg) | teachers | where())
    rows = read_rows(file)
    print(summary(rows), table(rows), sep="\n\n")


def plan(cfg: Config) -> Iterator[dict[str, Any]]:
    """Yields the runs: all kinds of a data set with one seed, before the next data set, before the next seed."""
    for seed in cfg.seeds:
        for data in cfg.only:
            for kind in cfg.kinds:
                fill = f"{cfg.fill:g}" if kind == "filled" else ""
                yield dict(zip(KEY, (data, kind, seed, *SETS[data], fill, ""), strict=True))


def measure(key: dict[str, Any], cfg: Config) -> dict[str, Any]:
    """Trains a run, and returns the metrics of its last epoch on validation images with all labels."""
    train_data, val_data = read(cfg.data, key["data"])
    doubled = key["kind"] in ("half", "naive_long")  # half of the images in as many steps; or twice as many steps
    epochs = key["epochs"] * (2 if doubled else 1)
    folder = Path(cfg.output) / "_".join(map(str, key.values()))
    begin = time.perf_counter()
    run = trained(folder, labeled(train_data, key, cfg), val_data, epochs, key, cfg)
    minutes = (time.perf_counter() - begin) / 60
    evaluated = folder / "evaluation"
    options: dict[str, Any] = {"report": False, "device": "cpu", "workers": 0, "output": str(evaluated)}
    evaluate.main(evaluate.Config(checkpoint=str(run / "last.pt"), data=str(folder / "val.json"), **options))
    _, annotated = groups(val_data, key["seed"])
    return {**metrics_of(evaluated, annotated), "minutes": minutes}


def trained(folder: Path, train_data: Annotations, val_data: Annotations, epochs: int, key: dict, cfg: Config) -> Path:
    """Trains with the defaults of train.py, and returns the run folder. Only the last epoch is evaluated."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in {"train": train_data, "val": val_data}.items():
        (folder / f"{name}.json").write_text(json_of(data, lambda path: str(Path(path).resolve())), encoding="utf-8")
    constants: dict[str, Any] = {"train": str(folder / "train.json"), "val": str(folder / "val.json")}
    constants |= {"model": "yolox_nano", "weights": cfg.weights, "seed": key["seed"], "epochs": epochs}
    constants |= {"image_size": (key["side"], key["side"]), "evaluate_every": epochs, "bad_boxes": "drop"}
    constants |= {"device": "cpu", "workers": 0, "output": str(folder), "report": False}
    folder_of_run = train.main(train.Config(**constants)).folder
    assert folder_of_run
    return Path(folder_of_run)


# ---- labels


def groups(data: Annotations, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the group of each image, 0 or 1, int [N], and which classes are annotated in each image, bool [N, C].

    The seed chooses the groups. A group of classes is every second one by the number of boxes."""
    group = np.random.default_rng((seed, 43)).integers(0, 2, len(data))
    ranks = np.argsort(np.argsort(-data.boxes_per_class(), kind="stable"))
    return group, ranks % 2 == group[:, None]


def labeled(data: Annotations, key: dict[str, Any], cfg: Config) -> Annotations:
    """Returns the training data of a kind."""
    kind, seed = key["kind"], key["seed"]
    if kind == "full":
        return data
    if kind == "half":
        return data.select(np.sort(np.random.default_rng((seed, 43)).permutation(len(data))[: len(data) // 2]))
    _, annotated = groups(data, seed)
    kept = data.keep_boxes(annotated[data.image_of_boxes(), data.labels])
    return kept if kind in ("naive", "naive_long") else filled(kept, annotated, key, cfg)


def filled(data: Annotations, annotated: np.ndarray, key: dict[str, Any], cfg: Config) -> Annotations:
    """Adds the teachers' detections of classes that are not annotated, as labels."""
    with np.load(teacher_folder(key, cfg) / "detections.npz") as saved:
        image, boxes, scores, labels = (saved[name] for name in ("image", "boxes", "scores", "labels"))
        fill = np.full(len(data.classes), float(key["fill"])) if float(key["fill"]) else saved["thresholds"]
    for row in np.flatnonzero(scores >= fill[labels]):
        overlaps = pairwise_iou(boxes[row : row + 1], data.boxes_of(image[row])[0])
        scores[row] *= (overlaps < SAME_OBJECT).all()  # 0 on a label
    chosen = ~annotated[image, labels] & (scores >= fill[labels])
    image, boxes, labels = image[chosen], boxes[chosen], labels[chosen]
    of_image = np.concatenate([data.image_of_boxes(), image])
    order = np.argsort(of_image, kind="stable")
    all_boxes = np.concatenate([data.boxes, boxes])[order]
    return replace(
        data,
        starts=np.searchsorted(of_image[order], np.arange(len(data) + 1)),
        boxes=all_boxes,
        labels=np.concatenate([data.labels, labels])[order].astype(np.int32),
        crowd=np.zeros(len(order), bool),
        areas=area(all_boxes),
        box_lines=np.zeros(len(order), np.int32),
    )


# ---- teachers


def teacher_folder(key: dict[str, Any], cfg: Config) -> Path:
    """Returns the folder of both teachers."""
    return Path(cfg.output) / "_".join(str(key[name]) for name in ("data", "seed", "epochs", "side")) / "teachers"


def taught(key: dict[str, Any], cfg: Config) -> float:
    """Trains both teachers, unless their folder has their detections. Returns the CPU minutes that they took."""
    file = teacher_folder(key, cfg) / "minutes.json"
    if not file.exists():
        minutes = in_own_process(teach, key, cfg)["cpu_minutes"]
        file.write_text(json.dumps(minutes), encoding="utf-8")
    return json.loads(file.read_text(encoding="utf-8"))


def teach(key: dict[str, Any], cfg: Config) -> dict[str, Any]:
    """Trains a model on each group of images with the labels of its classes; saves what it detects in the other group.

    Each has the epochs of a run and half of the images, so both together have its steps. `thresholds` [C]: of the best
    F1 in the validation."""
    train_data, val_data = read(cfg.data, key["data"])
    group, annotated = groups(train_data, key["seed"])
    folder, columns = teacher_folder(key, cfg), []
    thresholds = np.ones(len(train_data.classes))  # a class without a correct detection gets no labels
    for number in range(2):
        mine, others = np.flatnonzero(group == number), np.flatnonzero(group != number)
        classes = annotated[mine[0]]
        data = train_data.select(mine)
        val = val_data.with_annotated(np.tile(classes, (len(val_data), 1)))
        val = val.keep_boxes(classes[val.labels])
        run = trained(folder / str(number), data.keep_boxes(classes[data.labels]), val, key["epochs"], key, cfg)
        for name, threshold in load(run / "best.pt")["thresholds"].items():
            if classes[train_data.classes.index(name)]:
                thresholds[train_data.classes.index(name)] = threshold
        for index, found in zip(others, suspects.detect(run / "best.pt", train_data.select(others)), strict=True):
            columns.append((np.full(len(found[1]), index), *found))
    image, boxes, scores, labels = (np.concatenate(parts) for parts in zip(*columns, strict=True))
    np.savez(folder / "detections.npz", image=image, boxes=boxes, scores=scores, labels=labels, thresholds=thresholds)
    return {}


# ---- metrics


def metrics_of(folder: Path, annotated: np.ndarray) -> dict[str, float]:
    """Returns the metrics of an evaluation with all labels.

    "F1": mean over classes at the threshold that the validation chooses. "F1_known" and "F1_naive": the same, if the
    validation images were labeled for half of the classes, `annotated` [N, C], and the others do not count, or are
    background."""
    truth, detections = (json.loads((folder / f"{name}.json").read_text()) for name in ("ground_truth", "detections"))
    metrics = json.loads((folder / "metrics.json").read_text())
    matches = match_classes(truth, detections)
    of_classes = [curve for curve in curves(matches).values() if curve.boxes]
    images, categories = ([entry["id"] for entry in truth[name]] for name in ("images", "categories"))
    known = {(images[image], categories[label]) for image, label in zip(*np.nonzero(annotated), strict=True)}
    labels = [entry for entry in truth["annotations"] if (entry["image_id"], entry["category_id"]) in known]
    counted = [entry for entry in detections if (entry["image_id"], entry["category_id"]) in known]
    part = truth | {"annotations": labels}
    thresholds = {"F1": metrics["confidence"]}
    for name, found in {"F1_known": counted, "F1_naive": detections}.items():
        thresholds[name] = best_confidence(
            [curve for curve in curves(match_classes(part, found)).values() if curve.boxes]
        )
    return {
        **{name: metrics[name] for name in ("AP", "AP50", "confidence")},
        **{name: mean_f1(of_classes, threshold) for name, threshold in thresholds.items()},
        **{f"recall_at_{100 * least:.0f}": recall_at(list(matches.values()), least) for least in PRECISIONS},
    }


def mean_f1(of_classes: Sequence[Curve], threshold: float) -> float:
    """Returns the mean F1 over classes of the detections that score at least `threshold`."""
    above = [np.searchsorted(-curve.scores, -threshold, side="right") for curve in of_classes]
    return statistics.fmean(np.append(0.0, curve.f1())[count] for curve, count in zip(of_classes, above, strict=True))


def recall_at(matches: Sequence[ClassMatches], precision: float) -> float:
    """Returns the highest recall at IoU .5 with at least this precision, of all classes together with one threshold."""
    scores = np.concatenate([of_class.scores for of_class in matches])
    states = np.concatenate([of_class.states[0] for of_class in matches])[np.argsort(-scores, kind="stable")]
    correct = np.cumsum(states[states != IGNORED] == CORRECT)
    reached = correct[correct >= precision * np.arange(1, len(correct) + 1)]
    return float(reached.max(initial=0)) / sum(len(of_class.box_images) for of_class in matches)


def cell(rows: list[dict[str, str]], data: str, kind: str, name: str = "AP") -> str:
    """Returns mean and standard deviation over the seeds of a metric, in points; "" without a value, as in older rows."""
    values = [float(row[name]) for row in rows if (row["data"], row["kind"]) == (data, kind) and row[name]]
    return spread(values) if values else ""


def summary(rows: list[dict[str, str]]) -> str:
    """Returns the mAP of each kind and data set, as a Markdown table."""
    lines = [f"| labels | {' | '.join(SETS)} |", "|---|" + "---|" * len(SETS)]
    return "\n".join(
        [
            *lines,
            *(f"| {text} | {' | '.join(cell(rows, data, kind) for data in SETS)} |" for kind, text in KINDS.items()),
        ]
    )


def table(rows: list[dict[str, str]]) -> str:
    """Returns the other metrics of each data set and kind, and the number of their rows, as a Markdown table."""
    columns = {"AP50": "mAP50", "F1": "best F1", "F1_known": "F1, validation knows", "F1_naive": "F1, it does not"}
    columns |= {f"recall_at_{100 * least:.0f}": f"recall at precision {least}" for least in PRECISIONS}
    lines = [f"| data | kind | seeds | {' | '.join(columns.values())} |", "|" + "---|" * (3 + len(columns))]
    for data in SETS:
        for kind in KINDS:
            if found := [row["seed"] for row in rows if (row["data"], row["kind"]) == (data, kind)]:
                cells = [cell(rows, data, kind, name) for name in columns]
                lines.append(f"| {data} | {kind} | {', '.join(found)} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    run_script(lambda: main(override(Config(), sys.argv[1:])), "stopped", "lower the sides in SETS")
