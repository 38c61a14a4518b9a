"""A small checkpoint without training, for tests of what uses one."""

from pathlib import Path

import torch

import nets
from utils import checkpoint


def tiny_checkpoint(path: Path, classes=("red", "blue"), image_size=(64, 96), **config) -> Path:
    """Random weights that find many boxes of all classes, the same for the same classes."""
    generator = torch.Generator().manual_seed(0)
    model = nets.build("yolox_nano", len(classes))
    for name, parameter in sorted(model.named_parameters()):
        if parameter.ndim > 1:
            scale = 0.1 if "predictors" in name else parameter[0].numel() ** -0.5
            parameter.data = torch.randn(parameter.shape, generator=generator) * scale
        elif "predictors" in name:
            parameter.data.zero_()
        if "box_predictors" in name and parameter.ndim > 1:
            parameter.data[2:] = 0  # all boxes of a level are of one size
        elif "box_predictors" in name:
            parameter.data[2:] = 0.9
    norms = [module for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = 1.0  # one batch of rectangles and noise gives it its statistics
    images = torch.randint(0, 256, (8, 3, *image_size), generator=generator, dtype=torch.uint8)
    images[2:] = torch.nn.functional.interpolate(images[2:, :, :4, :4].float(), image_size).byte()
    with torch.no_grad():
        model.train()(images)
        for norm in norms:
            norm.running_var.clamp_(min=norm.running_var.mean())  # no channel is so quiet that rounding counts
    path.parent.mkdir(parents=True, exist_ok=True)
    contents = {
        "config": {"model": "yolox_nano", "image_size": image_size, "val": None, **config},
        "classes": list(classes),
        "epoch": 1,
        "step": 1,
        "metrics": {},
        "model": model.state_dict(),
    }
    checkpoint.save(path, contents)
    return path
