"""Measures background images that predict.py found: images without objects in which a first training sees some.

    python -m benchmarks.negatives data=FOLDER weights=yolox_nano.pth [seeds=0,1,2]

Raccoons, and images of COCO without any. A first model is trained on the raccoons. `predict.py negatives=true` finds the images,
in one half of the COCO images, in which this model detects raccoons. A second model is trained with them as background images,
and a third one with as many COCO images chosen at random. The other half of the COCO images shows how many false alarms are
left. `data` and `weights` are explained in benchmarks.small_data. A row per training is added to negatives.csv in `results`; a
training that has its row there is not repeated. The page negatives.md is written from all rows.
"""

import shutil
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import evaluate
import predict
import train
from benchmarks.add_classes import lines_of, read
from benchmarks.known_classes import spread
from benchmarks.own_process import in_own_process
from benchmarks.table import RESULTS, append_row, read_rows, where
from deploy.detector import Detector
from engine.run_folder import runs
from utils.config import override
from utils.script import run_script

METHODS = {
    "none": "none",
    "found": "those in which the first model sees raccoons (`negatives=true`)",
    "random": "as many, chosen at random",
}
EPOCHS, SIDE = 20, 224

HEAD = """# Background images that predict.py found

"False alarms" are the images without raccoons that have at least one detection at the default threshold of the model. The last
column is mAP50-95 over the raccoons and these images together: false alarms with a high score lower it. mAP50-95 in points, mean
and standard deviation over the seeds.

| background images in the training | number | seeds | mAP50-95, raccoons | false alarms | mAP50-95, with these images |
|---|---:|---|---:|---:|---:|"""
METHOD = f"""
`python -m benchmarks.negatives data=FOLDER weights=yolox_nano.pth`. 160 images of raccoons for training and 40 for validation;
337 images of COCO without raccoons, of which one half was searched for false alarms and the other half counts them. YOLOX-nano
from COCO weights, {EPOCHS} epochs, {SIDE} pixels, all else default."""


@dataclass(frozen=True)
class Config:
    """The constants."""

    data: str = "."  # the folder of the data sets of benchmarks.small_data
    weights: str = "coco"  # coco: official weights of yolox_nano; or a file
    seeds: tuple[int, ...] = (0, 1, 2)
    output: str = "runs/negatives"  # folder of the trained models
    results: str = str(RESULTS)  # folder of the CSV file and the page


def main(cfg: Config) -> None:
    """Measures the seeds that have no rows yet, and writes the page."""
    file = Path(cfg.results) / "negatives.csv"
    for seed in cfg.seeds:
        done = {row["method"] for row in read_rows(file) if row["seed"] == str(seed)}
        folder = Path(cfg.output) / str(seed)
        if not done:
            shutil.rmtree(folder, ignore_errors=True)
        for method in METHODS:
            if method not in done:
                row = in_own_process(measure, method, seed, folder, cfg)
                append_row(file, {"method": method, "seed": seed} | row | where())
    page = Path(cfg.results) / "negatives.md"
    page.write_text(text_of(read_rows(file)), encoding="utf-8")
    print(page)


def measure(method: str, seed: int, folder: Path, cfg: Config) -> dict[str, Any]:
    """Trains with the background images of one method and returns the cells of its row. "none" must be the first."""
    torch.set_num_threads(1)
    raccoons, val = read(cfg.data, "raccoon")
    coco = [str(Path(part.path(i)).resolve()) for part in read(cfg.data, "coco337")[:1] for i in range(len(part))]
    searched, judged = coco[0::2], coco[1::2]
    folder.mkdir(parents=True, exist_ok=True)
    backgrounds = {
        "none": list,
        "found": lambda: found(folder, searched),
        "random": lambda: chosen(folder, searched, seed),
    }
    lines = backgrounds[method]()
    names = list(raccoons.classes)
    (folder / "classes.txt").write_text("\n".join(names) + "\n")
    of_val = list(lines_of(val, names, set(names)))
    write(folder / f"{method}.txt", [*lines_of(raccoons, names, set(names)), *lines])
    write(folder / "val.txt", of_val)
    write(folder / "val_and_judged.txt", [*of_val, *judged])
    train.main(
        train.Config(
            train=str(folder / f"{method}.txt"),
            val=str(folder / "val.txt"),
            weights=cfg.weights,
            image_size=(SIDE, SIDE),
            epochs=EPOCHS,
            seed=seed,
            workers=0,
            device="cpu",
            report=False,
            output=str(folder),
            name=method,
        )
    )
    checkpoint = str(runs(folder, method)[-1] / "best.pt")
    counts = [len(result) for result in Detector(checkpoint, device="cpu").stream(judged)]
    return {
        "backgrounds": len(lines),
        "AP": average(checkpoint, folder / "val.txt"),
        "AP_all": average(checkpoint, folder / "val_and_judged.txt"),
        "false_images": sum(count > 0 for count in counts),
        "false_boxes": sum(counts),
        "judged": len(judged),
    }


def found(folder: Path, searched: list[str]) -> list[str]:
    """Lets predict.py search images for false alarms of the first model, and returns the lines that it writes."""
    images = folder / "searched"
    images.mkdir(exist_ok=True)
    for path in searched:
        shutil.copy(path, images)
    cfg = predict.Config(
        checkpoint=str(runs(folder, "none")[-1] / "best.pt"),
        source=str(images),
        output=str(folder / "predicted"),
        labels="txt",
        negatives=True,
        save=False,
        device="cpu",
    )
    predict.main(cfg)
    return (folder / "predicted" / "labels" / "annotations.txt").read_text().splitlines()


def chosen(folder: Path, searched: list[str], seed: int) -> list[str]:
    """Returns as many of the searched images as `found` has written, chosen at random."""
    count = len((folder / "predicted" / "labels" / "annotations.txt").read_text().splitlines())
    return np.random.default_rng(seed).choice(searched, count, replace=False).tolist()


def write(path: Path, lines: list[str]) -> None:
    """Writes lines to a file."""
    path.write_text("\n".join(lines) + "\n")


def average(checkpoint: str, data: Path) -> float:
    """Returns the mAP50-95 of a checkpoint on an annotation file."""
    cfg = evaluate.Config(
        checkpoint=checkpoint,
        data=str(data),
        output=str(data.parent / "evaluation"),
        report=False,
        worst=0,
        device="cpu",
    )
    return evaluate.main(cfg)["AP"]


def text_of(rows: list[dict[str, str]]) -> str:
    """Returns the page."""
    lines = [HEAD]
    for method, text in METHODS.items():
        of_method = [row for row in rows if row["method"] == method]
        if not of_method:
            continue
        number, false = ([float(row[name]) for row in of_method] for name in ("backgrounds", "false_images"))
        cells = [f"{statistics.fmean(number):.0f}", ", ".join(row["seed"] for row in of_method)]
        cells.append(spread([float(row["AP"]) for row in of_method]))
        cells.append(f"{statistics.fmean(false):.0f} of {of_method[0]['judged']}")
        cells.append(spread([float(row["AP_all"]) for row in of_method]))
        lines.append(f"| {text} | {' | '.join(cells)} |")
    lines.append(METHOD)
    for text in dict.fromkeys(f"{row['machine']}, {row['date']}" for row in rows):
        lines += ["", f"Measured on {text}."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    run_script(lambda: main(override(Config(), sys.argv[1:])), stopped="stopped", memory_advice="lower image_size=")
