"""Measures how well tools.suspects finds wrong labels: corrupts 5 % of the labels of a data set, one kind at a time.

    python -m benchmarks.suspects data=BCCD/ImageSets/Main/train.txt name=bccd [kinds=wrong,missing] [weights=FILE]

missing: the label is removed; wrong: its class is replaced by another one; loose: its box is moved to an IoU of .5 to .6 with
the true one; doubled: it is repeated with a shift of up to 4 % of its sides, every second time with another class. Adds a row
per kind to benchmarks/results/suspects.md, unless it is there; detections are kept in `output` and used again.
"""

import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.table import RESULTS, add_row
from datasets.check_images import check_images
from datasets.formats.options import ReadOptions
from datasets.formats.read import read
from datasets.scan import clipped_boxes
from datasets.store import Annotations
from tools import suspects
from tools.disagreement import KINDS, Suspect, rank
from utils.boxes import area, iou, pairwise_iou
from utils.config import ConfigError, override, require, show
from utils.script import run_script

FRACTION = 0.05  # of the labels are corrupted
FIRST = (20, 50)  # suspects in which precision is measured; as many as are corrupted, if these are fewer
LOOSE_IOU = (0.5, 0.6)
FIELDS = ("boxes", "scores", "labels")  # of the detections
NOTHING = np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64)  # detections
JITTER = 0.04  # largest shift of an edge of a doubled box, relative to its sides

HEAD = """# Finding corrupted labels"""


@dataclass(frozen=True)
class Config:
    data: str | None = None  # annotations of the training images
    name: str | None = None  # of the data in the table
    kinds: tuple[str, ...] = KINDS
    images: int = 400  # the first ones; 0: all
    epochs: int = 20  # of each of the two trainings
    image_size: tuple[int, int] = (320, 320)
    model: str = "yolox_nano"
    weights: str | None = "coco"  # coco: official weights; a file; none: from scratch
    seed: int = 0
    output: str = "runs/suspects_benchmark"  # folder of trainings and detections


class Corrupted:
    """Annotations with corrupted labels, and how a suspect is recognized as one of them."""

    def __init__(self, data: Annotations, kind: str, seed: int):
        rng = np.random.default_rng(seed)
        data = data.keep_boxes(~data.crowd)
        boxes, labels, images = clipped_boxes(data), data.labels.copy(), data.image_of_boxes()
        self.kind, self.labels = kind, len(labels)
        chosen = np.sort(rng.choice(len(labels), max(round(FRACTION * len(labels)), 1), replace=False))
        other = (labels[chosen] + rng.integers(1, max(len(data.classes), 2), len(chosen))) % len(data.classes)
        sizes = np.tile(data.sizes[images[chosen], ::-1], 2)  # width, height, width, height
        rows = np.arange(len(labels))
        if kind == "missing":
            rows = np.delete(rows, chosen)
        elif kind == "wrong":
            labels[chosen] = other
        elif kind == "loose":
            boxes[chosen] = [loosened(box, size, rng) for box, size in zip(boxes[chosen], sizes, strict=True)]
        else:
            rows = np.sort(np.concatenate([rows, chosen]), kind="stable")
        self.changed = list(zip(images[chosen].tolist(), boxes[chosen], strict=True))  # image, corrupted or removed box
        if kind == "doubled":
            again = np.append(False, rows[1:] == rows[:-1])
            boxes, labels = boxes[rows], labels[rows]
            sides = np.tile(boxes[again, 2:] - boxes[again, :2], 2)
            boxes[again] = np.clip(boxes[again] + rng.uniform(-JITTER, JITTER, sides.shape) * sides, 0, sizes)
            labels[again] = np.where(rng.random(len(chosen)) < 0.5, other, labels[again])
            images = images[rows]
        else:
            boxes, labels, images = boxes[rows], labels[rows], images[rows]
        starts = np.searchsorted(images, np.arange(len(data) + 1))
        columns = {"boxes": boxes, "labels": labels.astype(np.int32), "crowd": np.zeros(len(boxes), bool)}
        self.data = replace(data, starts=starts, areas=area(boxes), **columns)

    def hits(self, ranking: list[Suspect]) -> np.ndarray:
        """Returns for each suspect whether it is a corrupted label that no earlier suspect was, bool [n].

        A suspect is recognized by its box: a missing label by IoU .5, a doubled one by IoU .8, since either
        of the two labels may be named."""
        min_iou = {"missing": 0.5, "doubled": 0.8}.get(self.kind, 0.999)
        left, found = list(self.changed), np.zeros(len(ranking), bool)
        for number, one in enumerate(ranking):
            box = (one.label or one.proposal).box
            for box_of_image in left:
                if box_of_image[0] == one.image and pairwise_iou(box[None], box_of_image[1][None])[0, 0] >= min_iou:
                    left = [other for other in left if other is not box_of_image]
                    found[number] = True
                    break
        return found


def loosened(box: np.ndarray, size: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Moves the edges of a box at random to an IoU of .5 to .6 with itself, inside of its image."""
    sides = np.tile(box[2:] - box[:2], 2)
    while True:
        moved = np.clip(box + rng.uniform(-0.5, 0.5, 4) * sides, 0, size)
        if LOOSE_IOU[0] <= iou(box, moved) <= LOOSE_IOU[1]:
            return moved


def detections(cfg: Config, data: Annotations, folder: Path) -> tuple[list[tuple], float]:
    """Returns boxes, scores and labels of each image, by models that did not see it, and the minutes that this took.

    `folder` keeps them for the next call."""
    file, begin = folder / "detections.npz", time.perf_counter()
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        chosen = {name: getattr(cfg, name) for name in ("model", "weights", "epochs", "image_size", "seed")}
        results = suspects.judge_halves(suspects.Config(data=cfg.data, **chosen), data, folder)
        fields = {f"{i}_{name}": part for i, one in enumerate(results) for name, part in zip(FIELDS, one, strict=True)}
        np.savez(file, minutes=(time.perf_counter() - begin) / 60, **fields)
    with np.load(file) as saved:
        return [tuple(saved[f"{i}_{name}"] for name in FIELDS) for i in range(len(data))], float(saved["minutes"])


def measure(cfg: Config, data: Annotations, kind: str) -> dict[str, str]:
    """Corrupts, ranks -> cells of the table."""
    corrupted = Corrupted(data, kind, cfg.seed)
    folder = f"{cfg.name}_{kind}_{len(data)}_{cfg.epochs}_{cfg.image_size[0]}_{cfg.seed}"
    found, minutes = [NOTHING] * len(data), 0.0
    if kind != "doubled":  # the labels alone decide the order of these
        found, minutes = detections(cfg, corrupted.data, Path(cfg.output) / folder)
    truth = [corrupted.data.boxes_of(i) for i in range(len(data))]
    hits = corrupted.hits([one for one in rank(truth, found, len(data.classes)) if one.kind == kind])
    counts = [min(count, len(corrupted.changed)) for count in FIRST]
    fraction = round(FRACTION * corrupted.labels)
    return {
        "labels": str(corrupted.labels),
        "corrupted": str(len(corrupted.changed)),
        "precision": ", ".join(f"{hits[:count].mean():.2f} of {count}" for count in counts),
        "recall": f"{hits[:fraction].sum() / len(corrupted.changed):.2f}",
        "minutes": f"{minutes:.1f}",
    }


def main(cfg: Config) -> None:
    """Adds the missing rows to benchmarks/results/suspects.md."""
    if not cfg.data or not cfg.name or set(cfg.kinds) - set(KINDS):
        raise ConfigError(f"give data=, name= and kinds= of {','.join(KINDS)}")
    require(cfg, {"epochs": 1, "images": 0, "seed": 0}, {}, {})
    data, _ = check_images(read(cfg.data, "train", ReadOptions(bad_boxes="drop")), ReadOptions(bad_boxes="drop"))
    data = data.select(np.arange(min(cfg.images or len(data), len(data))))
    file = RESULTS / "suspects.md"
    for kind in cfg.kinds:
        setting = f"{cfg.epochs} epochs, {show(cfg.image_size)} pixels, seed {cfg.seed}"
        row = {"data": cfg.name, "kind": kind, "images": str(len(data)), "setting": setting}
        if file.exists() and f"| {' | '.join(row.values())} |" in file.read_text(encoding="utf-8"):
            print(f"{cfg.name} {kind}: already in {file.name}")
            continue
        add_row("suspects", HEAD, row | measure(cfg, data, kind))


if __name__ == "__main__":
    run_script(lambda: main(override(Config(), sys.argv[1:])), stopped="stopped", memory_advice="lower image_size=")
