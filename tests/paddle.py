"""The rule that fills PicoDet and PP-YOLOE+ with numbers, for reference outputs of PaddleDetection; see tests/data/README.md."""

import re
import zlib

import numpy as np
import official
import torch
from torch import Tensor

import nets

GAINS = {  # pattern in the official name of a convolution -> factor, which keeps the features of all networks near 1
    r"(blocks|convs)\.\d+\.conv2\.conv[12]\.conv\.weight$": 0.4,  # two branches are added
    r"^backbone\.(stem\.)?conv1\.conv\.weight$": 4.0,
    r"\.fc\.": 0.3,
    r"(pred_cls\.\d|head_cls\d)\.weight$": 0.4,
    r"(pred_reg\.\d|head_reg\d|cls_align\.\d\.\w+)\.weight$": 0.7,
    "": 1.22,
}


def fill(name: str, shape: tuple[int, ...]) -> Tensor:
    """Contents of a parameter or buffer, a function of its official name and shape."""
    name = re.sub(
        r"^head\.head_(cls|reg)_list\.(\d+)\.", r"head.head_\1\2.", name
    )  # PicoDet has two names for a tensor
    rng, kind = np.random.default_rng(zlib.crc32(name.encode())), name.rpartition(".")[2]
    if name.endswith(("proj_conv.weight", "distribution_project.project")):  # constants
        values = np.arange(np.prod(shape), dtype=np.float64).reshape(shape)
    elif kind == "_variance":
        values = rng.uniform(0.5, 1.5, shape)
    elif kind in ("_mean", "bias"):
        values = rng.normal(0, 0.1, shape)
    elif kind == "alpha":
        values = rng.uniform(0.4, 1.2, shape)
    elif len(shape) == 1:  # the weight of a batch norm
        values = rng.uniform(0.5, 1.1, shape)
    else:
        gain = next(factor for pattern, factor in GAINS.items() if re.search(pattern, name))
        values = rng.normal(0, 1, shape) * (2.0 / np.prod(shape[1:])) ** 0.5 * gain
    return torch.tensor(values.astype(np.float32))


def filled_state(model: str) -> dict[str, Tensor]:
    """A state dict with the official names of a model, filled by rule."""
    return official.filled_state(model, fill)


def official_state(model: str) -> dict[str, Tensor]:
    """The official tensors that our model has, by our names, filled by rule."""
    our_name = nets.official_names.of_picodet if model.startswith("picodet") else nets.official_names.of_ppyoloe
    state = {our_name(name): value for name, value in filled_state(model).items()}
    state.pop(None)
    return state


def filled_model(model: str) -> nets.DetectionModel:
    """Our model with these tensors."""
    filled = nets.build(model, 80)
    nets.load_compatible(filled, official_state(model)).require(backbone=1.0, neck=1.0, head=1.0)
    return filled


def image(height: int, width: int, seed: int = 7) -> Tensor:
    """The input of the reference outputs: `[1, 3, height, width]` BGR float32, 0-255."""
    rgb = np.random.default_rng(seed).integers(0, 256, (1, 3, height, width)).astype(np.float32)
    return torch.tensor(rgb).flip(1)
