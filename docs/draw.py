"""Draws the images of all pages again.

    python -m docs.draw                      from committed results and generated images
    python -m docs.draw bccd=BCCD raccoon=RACCOON video=VIDEO weights=yolox_nano.pth     also photographs, pages, the terminal

The second line trains for about ten minutes on one CPU core, and needs Chromium and the package trackers. NOTICE has the
addresses of the two data sets and of the video. The weights are the file of benchmarks/results/official.md.
"""

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.table import RESULTS, read_rows
from docs import (
    draw_assignment,
    draw_augmentation,
    draw_models,
    draw_page,
    draw_photos,
    draw_results,
    draw_terminal,
    draw_timeline,
)
from docs.jpeg import write_dark
from report.plots import draw_curves
from utils.config import override

ROOT = Path(__file__).parents[1]
IMAGES, LOG = ROOT / "docs/images", RESULTS / "bccd_run.csv"
TRAININGS = {  # name -> constants
    "bccd": ("epochs=20", "image_size=256,256"),
    "raccoon": ("epochs=12", "image_size=256,256"),
    "added": ("epochs=4", "image_size=416,416", "add_classes=true"),
}
NO_AUG = {"no augmentation": 17}  # a line in the curves of the training bccd, and its epoch
CELLS, RACCOON, YARD = "BloodImage_00226.jpg", "raccoon-186.jpg", "raccoon-127.jpg"  # in the test splits
SAME_YARD = "raccoon-114.jpg"  # not trained on: it shows the same place
FRAMES = range(56, 460, 8)  # of the video: two people, one after the other
DARKENED = ("models.png", "results.png")
Drawers = dict[str, Callable[[Path], None]]  # file in docs/images -> function that writes it


@dataclass(frozen=True)
class Config:
    bccd: str = ""  # folder BCCD of the data set
    raccoon: str = ""  # folder of the data set
    video: str = ""  # one-by-one-person-detection.mp4
    weights: str = ""  # yolox_nano.pth; none: only what needs no data
    runs: str = "runs/images"  # the folder of the runs; a run that is there is not repeated
    only: tuple[str, ...] = ()  # files such as models.png; none: all


def curves(output: Path) -> None:
    """Draws the curves of the training bccd."""
    rows = [{name: value for name, value in row.items() if value} for row in read_rows(LOG)]
    draw_curves(rows, output, NO_AUG)


def from_rows() -> Drawers:
    """What is drawn from committed rows and generated images."""
    augmentations = {f"{name}.jpg": partial(draw_augmentation.main, name) for name in draw_augmentation.SHEETS}
    return augmentations | {
        "curves.png": curves,
        "models.png": draw_models.main,
        "results.png": draw_results.main,
        "timeline.png": draw_timeline.main,
    }


def from_data(cfg: Config) -> Drawers:
    """What is drawn from photographs, after the trainings on them."""
    bccd, weights, photos = Path(cfg.bccd), cfg.weights, Path(cfg.raccoon, "images")
    runs = {name: trained(cfg, name) for name in TRAININGS}
    best = {name: run / "best.pt" for name, run in runs.items()}
    return {
        "added_classes.jpg": partial(draw_photos.added_classes, photos / YARD, weights, best["added"]),
        "assignment.jpg": partial(draw_assignment.main, best["bccd"], bccd, CELLS),
        "check_page.jpg": partial(draw_page.check, bccd),
        "hero.jpg": partial(draw_photos.before_after, photos / RACCOON, weights, best["raccoon"]),
        "predictions.jpg": partial(draw_photos.predictions, runs["bccd"]),
        "report.jpg": partial(draw_page.report, runs["bccd"]),
        "tracking.gif": partial(draw_photos.tracking, cfg.video, weights, FRAMES),
        "train.svg": partial(draw_terminal.main, weights),
    }


def trained(cfg: Config, name: str) -> Path:
    """Returns the run folder of a training; trains if there is none. The rows of the training bccd go to benchmarks/results."""
    runs = Path(cfg.runs).resolve()
    if not list(runs.glob(f"{name}-*/best.pt")):
        words = [f"train={cfg.bccd}"] if name == "bccd" else raccoons(Path(cfg.raccoon), runs)
        words += [f"name={name}", f"output={runs}", f"weights={cfg.weights}", "workers=0", "device=cpu"]
        words += TRAININGS[name]
        subprocess.run([sys.executable, ROOT / "train.py", *words], check=True)
        if name == "bccd":
            shutil.copy(max(runs.glob("bccd-*")) / "log.csv", LOG)
    return max(runs.glob(f"{name}-*"))


def raccoons(folder: Path, runs: Path) -> list[str]:
    """Returns the constants of the data set raccoon, without the image `SAME_YARD`."""
    lines = (folder / "data/train_labels.csv").read_text(encoding="utf-8").splitlines(keepends=True)
    labels = runs / "raccoon.csv"
    runs.mkdir(parents=True, exist_ok=True)
    labels.write_text("".join(line for line in lines if not line.startswith(SAME_YARD)), encoding="utf-8")
    return [f"train={labels}", f"val={folder / 'data/test_labels.csv'}", f"image_root={folder / 'images'}"]


def main(cfg: Config) -> None:
    """Draws, and prints the size of each file."""
    drawers = from_rows()
    others = set(cfg.only) - drawers.keys()
    if cfg.weights and (others or not cfg.only):
        drawers |= from_data(cfg)
    elif others:
        raise SystemExit(
            f"only={','.join(sorted(others))}: write weights= and the data sets, or a file of {', '.join(drawers)}"
        )
    for name in cfg.only or drawers:
        drawers[name](IMAGES / name)
        if name in DARKENED:
            write_dark(IMAGES / name)
        print(f"{name}: {(IMAGES / name).stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main(override(Config(), sys.argv[1:]))
