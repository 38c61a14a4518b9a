"""Measures `flip` on classes that a mirror turns into each other: synthetic images of arrows to the left and to the right.

    python -m benchmarks.mirrored weights=yolox_nano.pth [seeds=0,1,2]

Draws the data set, trains with flip=.5 and flip=0, and adds a row per run to mirrored.csv in `results`. A run that has a row
there is not repeated. The page mirrored.md is written from all rows. Six runs take about ten minutes.
"""

import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch

import train
from benchmarks.own_process import in_own_process
from benchmarks.table import RESULTS, append_row, read_rows, where
from engine.run_folder import runs
from utils.config import override
from utils.script import run_script

CLASSES = ("left_arrow", "right_arrow")
IMAGES = {"train": 120, "val": 120}
SIDE = 160  # pixels of an image and of the input
ARROW = np.array([(-1, -0.25), (0.2, -0.25), (0.2, -0.7), (1, 0), (0.2, 0.7), (0.2, 0.25), (-1, 0.25)])  # to the right
FLIPS = (0.5, 0.0)
HEAD = """# Mirrored training images and classes with a side

Arrows to the left and to the right are two classes. `flip=.5` mirrors half of the training images, so an arrow to the left
becomes an arrow to the right that is labeled left. mAP50-95 in points, mean and standard deviation over the seeds.

| flip | seeds | mAP50-95 |
|---|---|---:|"""
METHOD = f"""
`python -m benchmarks.mirrored weights=yolox_nano.pth`. {IMAGES["train"]} synthetic training images and {IMAGES["val"]} validation
images, with arrows up to 25 degrees from level; YOLOX-nano from COCO weights, {SIDE} pixels, 15 epochs, all else default."""


@dataclass(frozen=True)
class Config:
    """The constants."""

    weights: str | None = None  # of YOLOX-nano; none: from scratch
    seeds: tuple[int, ...] = (0, 1, 2)
    results: str = str(RESULTS)  # folder of mirrored.csv and mirrored.md


def draw(folder: Path) -> None:
    """Draws the data set: images/, train.txt, val.txt and classes.txt."""
    (folder / "images").mkdir()
    rng = np.random.default_rng(0)
    for split, count in IMAGES.items():
        lines = []
        for number in range(count):
            image, boxes = draw_image(rng)
            name = f"images/{split}{number:03}.png"
            cv2.imwrite(str(folder / name), image)
            lines.append(" ".join([name, *(",".join(map(str, box)) for box in boxes)]))
        (folder / f"{split}.txt").write_text("\n".join(lines) + "\n")
    (folder / "classes.txt").write_text("\n".join(CLASSES) + "\n")


def draw_image(rng: np.random.Generator) -> tuple[np.ndarray, list[tuple[int, ...]]]:
    """Draws one to four arrows on noise -> image uint8 [SIDE, SIDE, 3], boxes (x1, y1, x2, y2, label)."""
    coarse = rng.uniform(40, 215, (5, 5, 3)).astype(np.float32)
    image = cv2.resize(coarse, (SIDE, SIDE), interpolation=cv2.INTER_CUBIC) + rng.normal(0, 12, (SIDE, SIDE, 3))
    boxes = []
    for quarter in rng.permutation(4)[: rng.integers(1, 5)]:  # one arrow per quarter, so that they do not overlap
        label, half = int(rng.integers(2)), rng.uniform(12, 34)
        angle = np.deg2rad(rng.uniform(-25, 25))
        turn = np.array([(np.cos(angle), -np.sin(angle)), (np.sin(angle), np.cos(angle))])
        side = -1 if label == 0 else 1
        center = np.array((quarter % 2, quarter // 2)) * SIDE / 2 + SIDE / 4
        corners = np.rint(ARROW * (side, 1) * half @ turn.T + center).astype(np.int32)
        cv2.fillPoly(image, [corners], rng.uniform(0, 255, 3).tolist())
        x, y, width, height = cv2.boundingRect(corners)
        boxes.append((x, y, x + width, y + height, label))
    return image.clip(0, 255).astype(np.uint8), boxes


def measure(flip: float, seed: int, weights: str | None) -> dict[str, Any]:
    """Draws the data, trains, and returns the mAP50-95 of best.pt."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="mirrored_") as folder:
        draw(Path(folder))
        train.main(
            train.Config(
                train=f"{folder}/train.txt",
                val=f"{folder}/val.txt",
                model="yolox_nano",
                weights=weights,
                image_size=(SIDE, SIDE),
                epochs=15,
                flip=flip,
                seed=seed,
                workers=0,
                device="cpu",
                output=folder,
                name="run",
            )
        )
        rows = read_rows(runs(folder, "run")[-1] / "log.csv")
    return {"AP": max(float(row["AP"]) for row in rows)}


def main(cfg: Config) -> None:
    """Runs what has no row yet, and writes the page."""
    path = Path(cfg.results) / "mirrored.csv"
    for seed in cfg.seeds:
        for flip in FLIPS:
            if any((float(row["flip"]), int(row["seed"])) == (flip, seed) for row in read_rows(path)):
                continue
            result = in_own_process(measure, flip, seed, cfg.weights)
            append_row(path, {"flip": flip, "seed": seed, "AP": result["AP"], **where()})
    path.with_suffix(".md").write_text(text_of(read_rows(path)), encoding="utf-8")


def text_of(rows: list[dict[str, str]]) -> str:
    """Returns the page."""
    lines = [HEAD]
    for flip in FLIPS:
        found = [row for row in rows if float(row["flip"]) == flip]
        if not found:
            continue
        values = [100 * float(row["AP"]) for row in found]
        cell = f"{statistics.fmean(values):.1f}"
        if len(values) > 1:
            cell += f" ± {statistics.stdev(values):.1f}"
        seeds = ", ".join(row["seed"] for row in found)
        lines.append(f"| {flip:g} | {seeds} | {cell} |")
    lines.append(METHOD)
    for text in dict.fromkeys(f"{row['machine']}, {row['date']}" for row in rows):
        lines += ["", f"Measured on {text}."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    run_script(lambda: main(override(Config(), sys.argv[1:])), stopped="stopped", memory_advice="")
