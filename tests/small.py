"""A training run of about a second, and comparisons of two runs."""

import contextlib
import csv
import io
from pathlib import Path
from unittest import mock

import torch

import train
from utils import checkpoint

# A checkpoint with which a few steps have an mAP of .2 with any version of PyTorch, and its weights without class names: a
# run that starts from a checkpoint evaluates it first (epoch 0), one that starts from weights without names does not.
TINY_WEIGHTS, UNNAMED_WEIGHTS = (Path(__file__).parent / "data" / name for name in ("tiny.pt", "tiny_unnamed.pt"))
TIMES = ("seconds", "images_per_second", "budget", "date")
SMALL = {
    "model": "tiny_n",
    "weights": str(UNNAMED_WEIGHTS),
    "image_size": (64, 64),
    "epochs": 4,
    "freeze_epochs": 1,
    "batch_size": 4,
    "freeze_batch_size": 6,
    "no_aug_epochs": 1,
    "workers": 0,
    "device": "cpu",
    "learning_rate": 0.0075,
    "min_learning_rate": 5e-5,
    "warmup_epochs": 1.0,
    "weight_decay": 0.05,
    "seed": 2,
    "name": "small",
    "report": False,  # a second
}


def config(images: Path, output: Path, **changes) -> train.Config:
    """The constants of a small run on the generated images of the fixture `demo_images`: 2 frozen steps, then 3 per epoch."""
    source = {"train": str(images / "train.txt"), "val": str(images / "val.txt"), "output": str(output)}
    if changes.get("model", "tiny_n") != "tiny_n":
        source["weights"] = None
    return train.Config(**{**SMALL, **source, **changes})


def train_quietly(cfg: train.Config, draw: bool = False, **options) -> tuple[Path, float, str]:
    """Trains, and returns the only run folder in `output`, the best mAP and the printed text.

    Without `draw`, curves.png is an empty file: drawing it takes two fifths of the time of such a run.
    """
    text = io.StringIO()
    undrawn = mock.patch("report.plots.draw_curves", lambda rows, path, marks: path.touch())
    with contextlib.redirect_stdout(text), contextlib.nullcontext() if draw else undrawn:
        best = train.main(cfg, **options).best
    return only_run(Path(cfg.output)), best, text.getvalue()


def only_run(output: Path) -> Path:
    """The only folder in `output`."""
    (folder,) = output.iterdir()
    return folder


def same(a, b) -> bool:
    """Whether two nested containers hold the same values, tensors to the bit."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def log_of(folder: Path) -> list[dict[str, str]]:
    """The rows of log.csv, without times."""
    with open(folder / "log.csv", encoding="utf-8") as file:
        return [untimed(row) for row in csv.DictReader(file)]


def untimed(contents):
    """Nested containers without the values that depend on the clock."""
    if isinstance(contents, dict):
        return {k: untimed(v) for k, v in contents.items() if k not in TIMES}
    return list(map(untimed, contents)) if isinstance(contents, list | tuple) else contents


def assert_same_run(one: Path, other: Path) -> None:
    """Asserts that two run folders hold the same last.pt, best.pt and log, to the bit. Constants may differ."""
    for name in ("last.pt", "best.pt"):
        ours, theirs = (leaves(untimed(checkpoint.load(folder / name))) for folder in (one, other))
        differ = [part for part in ours.keys() | theirs.keys() if not same(ours.get(part), theirs.get(part))]
        differ = [part for part in differ if not part.startswith(("/config/", "/resume/origin/user_config/"))]
        assert not differ, f"{name}: {differ[:9]}"
    assert log_of(one) == log_of(other)


def leaves(value, path: str = "") -> dict:
    """Flattens nested containers: path -> value."""
    if not isinstance(value, dict | list | tuple):
        return {path: value}
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return {name: leaf for key, inner in items for name, leaf in leaves(inner, f"{path}/{key}").items()}
