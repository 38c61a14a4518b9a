"""Trains for a few steps and prints digests: two versions of the program that print the same table compute the same bits.

    python -m benchmarks.same_bits weights=yolox_nano.pth output=before.csv

Each run trains on 16 images of the demo data set for 10 epochs of two steps, five epochs with the backbone frozen and five
thawed, then evaluates. Its row holds the losses of the 20 steps, the metrics and a digest of all weights of last.pt.
One run per model, each with one process and with two. results/same_bits.md has the digests of past changes, and their reasons.
"""

import csv
import hashlib
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, fields
from pathlib import Path

import torch

import train
from datasets import demo
from utils import checkpoint
from utils.config import override

COLUMNS = ("learning_rate", "loss", "val_loss", "AP", "AP50")


@dataclass(frozen=True)
class Config:
    weights: str | None = None  # official weights of yolox_nano; none: from scratch
    output: str = "same_bits.csv"


def run(model: str, weights: str | None, processes: int, folder: Path) -> str:
    """Trains in a process of its own, as a user does. Returns losses and metrics as text, and the digest of the weights."""
    no_aug = next(field.name for field in fields(train.Config) if field.name in ("no_aug_epochs", "plain_epochs"))
    constants = {
        **{"train": folder / "train.txt", "val": folder / "val.txt", "output": folder, "name": f"{model}-{processes}"},
        **{"model": model, "weights": weights or "none", "image_size": "160,160", "epochs": 10, "freeze_epochs": 5},
        **{"batch_size": 8, "freeze_batch_size": 8, no_aug: 2, "evaluate_every": 5, "workers": 0, "device": "cpu"},
    }
    script = str(Path(train.__file__).resolve())
    words = [script, *(f"{name}={value}" for name, value in constants.items())]
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"] if processes > 1 else []
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, *launcher, *words], env=environment, stdout=subprocess.DEVNULL, check=True)
    (made,) = folder.glob(f"{model}-{processes}-*")
    with open(made / "log.csv", encoding="utf-8") as file:
        trained = [row for row in csv.DictReader(file) if row["loss"]]  # not epoch 0
    rows = [[row[name] for name in COLUMNS] for row in trained]
    contents, digest = checkpoint.load(made / "last.pt"), hashlib.blake2b(digest_size=8)
    for state in (contents["model"], contents["resume"]["model"]):
        for tensor in state.values():
            digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    numbers = hashlib.blake2b(repr(rows).encode(), digest_size=8).hexdigest()
    return f"{model},{processes},{rows[0][1]},{rows[-1][1]},{rows[-1][3]},{numbers},{digest.hexdigest()}"


def main(cfg: Config) -> None:
    """Writes one row per run to `output` and prints them."""
    lines = ["model,processes,first loss,last loss,AP,digest of the log,digest of the weights"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        demo.draw(folder / "demo")
        for part, count in (("train", 16), ("val", 8)):
            listed = (folder / "demo" / f"{part}.txt").read_text(encoding="utf-8").splitlines()[:count]
            text = "".join(f"demo/{line}\n" for line in listed)
            (folder / f"{part}.txt").write_text(text, encoding="utf-8")
        (folder / "classes.txt").write_text((folder / "demo" / "classes.txt").read_text(encoding="utf-8"))
        for model, weights in (("yolox_nano", cfg.weights), ("yolov9_t", None)):
            for processes in (1, 2):
                lines.append(run(model, weights, processes, folder))
                print(lines[-1], flush=True)
    Path(cfg.output).write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(override(Config(), sys.argv[1:]))
