"""A training of seconds, and what two of them have in common."""

import csv

import torch

import train
from utils import checkpoint

SMALL = {
    "weights": None,
    "image_size": (64, 64),
    "epochs": 4,
    "freeze_epochs": 1,
    "batch_size": 4,
    "freeze_batch_size": 6,
    "plain_epochs": 1,
    "workers": 0,
    "device": "cpu",
    "learning_rate": 0.01,
    "name": "small",
}


def config(pictures, output, **changes):
    source = {"train": str(pictures / "train.txt"), "val": str(pictures / "val.txt"), "output": str(output)}
    return train.Config(**{**SMALL, **source, **changes})


def only_run(output):
    (folder,) = output.iterdir()
    return folder


def same(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def log_of(folder):
    with open(folder / "log.csv", encoding="utf-8") as file:
        return [untimed(row) for row in csv.DictReader(file)]


def untimed(contents):
    """Without what the clock decides."""
    if isinstance(contents, dict):
        return {k: untimed(v) for k, v in contents.items() if k not in ("seconds", "images_per_second")}
    return list(map(untimed, contents)) if isinstance(contents, list | tuple) else contents


def assert_same_run(one, other):
    """Two run folders hold the same last.pt, best.pt and log, to the bit."""
    for name in ("last.pt", "best.pt"):
        ours, theirs = (leaves(untimed(checkpoint.load(folder / name))) for folder in (one, other))
        differ = [part for part in ours.keys() | theirs.keys() if not same(ours.get(part), theirs.get(part))]
        differ = [part for part in differ if not part.startswith("/config/")]
        assert not differ, f"{name}: {differ[:9]}"
    assert log_of(one) == log_of(other)


def leaves(value, path=""):
    """Nested containers -> path: what is not a container."""
    if not isinstance(value, dict | list | tuple):
        return {path: value}
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return {name: leaf for key, inner in items for name, leaf in leaves(inner, f"{path}/{key}").items()}
