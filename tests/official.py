"""Reference outputs of the official implementations, and the rule that fills networks with numbers; see tests/data/README.md."""

import ast
import gzip
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

DATA = Path(__file__).parent / "data"


def reference(name: str) -> dict[str, np.ndarray]:
    """The arrays of a file in tests/data."""
    return dict(np.load(DATA / f"{name}.npz"))


def official_keys(model: str) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all tensors in the official weights of a model, such as yolox_s."""
    rows = (line.split(" ", 2) for line in gzip.decompress((DATA / "keys.txt.gz").read_bytes()).decode().splitlines())
    return {key: ast.literal_eval(shape) for name, key, shape in rows if name == model}


def fill(name: str, shape: tuple[int, ...]) -> Tensor:
    """Contents of a parameter or buffer, a function of its official name and shape."""
    rng, kind = np.random.default_rng(zlib.crc32(name.encode())), name.rpartition(".")[2]
    if kind == "num_batches_tracked":
        return torch.zeros(shape, dtype=torch.int64)
    if name.endswith("anc2vec.weight"):  # the constant 0, 1, ... 15 of YOLOv9
        values = np.arange(16.0).reshape(shape)
    elif kind == "running_var":
        values = rng.uniform(0.5, 1.5, shape)
    elif kind in ("running_mean", "bias"):
        values = rng.normal(0, 0.1, shape)
    elif len(shape) == 1:  # the weight of a batch norm
        values = rng.uniform(0.5, 1.1, shape)
    else:  # the weight of a convolution (He et al. 2015); the stem of YOLOX sees 0-255
        values = rng.normal(0, 1, shape) * (2.0 / np.prod(shape[1:])) ** 0.5
        values = values / 128 if name.endswith("backbone.stem.conv.conv.weight") else values
    return torch.tensor(values.astype(np.float32))


def filled_state(model: str, fill: Callable[..., Tensor] = fill) -> dict[str, Tensor]:
    """A state dict with the official names of a model, filled by rule."""
    return {name: fill(name, shape) for name, shape in official_keys(model).items()}


def empty_state(model: str) -> dict[str, Tensor]:
    """A state dict with the official names and shapes of a model. All elements of a tensor share one number."""
    keys = official_keys(model).items()
    return {k: torch.ones((), dtype=torch.int64 if "batches" in k else None).expand(shape) for k, shape in keys}


def image(height: int, width: int) -> Tensor:
    """The input of the reference outputs: `[1, 3, height, width]` float32, 0-255."""
    return torch.tensor(np.random.default_rng(7).integers(0, 256, (1, 3, height, width)).astype(np.float32))
