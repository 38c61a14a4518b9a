"""The kept run: a training of this version that was stopped in the middle of an epoch. Later versions must resume it.

The folder tests/golden/kept has its data, its last.pt, and in expected.json what last.pt detects. `python -m tests.golden kept`
makes all of it again: only if a change is meant to end support of older checkpoints.
"""

import contextlib
import io
import json
import os
import shutil
import signal
from dataclasses import fields
from pathlib import Path

import cv2
import numpy as np
import tiny  # noqa: F401  registers model="tiny_n"

import evaluate
import train
from datasets import demo
from deploy.detector import Detector
from utils import checkpoint

FOLDER = Path(__file__).parent / "kept"
LAST, EXPECTED = FOLDER / "last.pt", FOLDER / "expected.json"
IMAGES = {"train": range(6), "val": range(9, 13)}
SIDE = 64  # pixels of the longer side of an image, and of the input: no image is resized
STOPPED_IN = 2  # the epoch whose first batch was the last one before the stop
CONSTANTS = {
    **{
        "train": "kept/train.txt",
        "val": "kept/val.txt",
        "weights": "../data/tiny.pt",
        "model": "tiny_n",
        "name": "kept",
    },
    **{"image_size": (SIDE, SIDE), "epochs": 3, "freeze_epochs": 1, "batch_size": 2, "freeze_batch_size": 3},
    **{"no_aug_epochs": 1, "workers": 0, "device": "cpu", "output": "kept/runs"},
}


# The kept last.pt has the digest of this source, so not even the docstring may change.
def unchanged(image, boxes, labels, rng):
    """The extra augmentation: a run is only resumed with the same one, so it must not be that of train.py."""
    return image, boxes, labels


def draw() -> None:
    """Generates small images of the demo data set, and writes their annotation files."""
    for split, numbers in IMAGES.items():
        lines = []
        for number in numbers:
            image, boxes, labels = demo.draw_image(number)
            scale = SIDE / max(image.shape[:2])
            size = round(image.shape[1] * scale), round(image.shape[0] * scale)
            assert cv2.imwrite(str(FOLDER / f"{number}.png"), cv2.resize(image, size, interpolation=cv2.INTER_AREA))
            small = np.round(np.array(boxes) * scale, 1).tolist()
            rows = [",".join(map(str, [*box, label])) for box, label in zip(small, labels, strict=True)]
            lines.append(" ".join([f"{number}.png", *rows]))
        (FOLDER / f"{split}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (FOLDER / "classes.txt").write_text("\n".join(demo.CLASSES) + "\n", encoding="utf-8")


def make() -> None:
    """Generates the images, trains, stops after the first batch of epoch 2, and keeps what is needed to resume."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    os.chdir(FOLDER.parent)  # the checkpoint then has relative paths only
    draw()

    def stop(row, run):
        if row["epoch"] == STOPPED_IN - 1:
            signal.raise_signal(signal.SIGTERM)

    train.main(train.Config(**CONSTANTS), unchanged, stop)
    (folder,) = Path(CONSTANTS["output"]).iterdir()
    shutil.copy(folder / "last.pt", LAST)
    shutil.rmtree(CONSTANTS["output"])
    EXPECTED.write_text(json.dumps(found(FOLDER / "evaluation"), indent=1) + "\n", encoding="utf-8")
    shutil.rmtree(FOLDER / "evaluation")


def found(output: Path) -> dict:
    """Returns what last.pt finds in evaluation and prediction: mAP50-95, and the best detection in each validation image."""
    with contextlib.redirect_stdout(io.StringIO()):
        data, device = str(FOLDER / "val.txt"), "cpu"
        metrics = evaluate.main(evaluate.Config(checkpoint=str(LAST), data=data, device=device, output=str(output)))
    results = Detector(str(LAST), device="cpu", confidence=0.01)([str(FOLDER / f"{n}.png") for n in IMAGES["val"]])
    best = [[*result.boxes[0].tolist(), float(result.scores[0]), int(result.labels[0])] for result in results]
    return {"AP": metrics["AP"], "best": best}


def config(output: Path) -> train.Config:
    """The constants of the kept run for a resumed one in the folder `output`. Constants that no longer exist are left out."""
    written = checkpoint.load(LAST)["resume"]["origin"]["user_config"]  # None where "config" has the chosen value
    places = {"train": str(FOLDER / "train.txt"), "val": str(FOLDER / "val.txt"), "output": str(output), "resume": True}
    known = {field.name for field in fields(train.Config)}
    return train.Config(**{name: v for name, v in (written | places).items() if name in known})
