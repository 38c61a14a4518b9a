"""A small checkpoint without training, for tests of what uses one."""

from pathlib import Path

import torch
from torch.nn.functional import interpolate

import nets
from utils import checkpoint


def tiny_checkpoint(path: Path, classes=("red", "blue"), image_size=(64, 96), **config) -> Path:
    """Random weights that find boxes of all classes in any picture, the same for the same classes and size."""
    generator = torch.Generator().manual_seed(0)
    model = nets.build("yolox_nano", len(classes))
    for _, parameter in sorted(model.named_parameters()):
        if parameter.ndim > 1:
            parameter.data = torch.randn(parameter.shape, generator=generator) * parameter[0].numel() ** -0.5
    norms = [module for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = 1.0  # one batch of rectangles and noise gives it its statistics
    images = torch.randint(0, 256, (8, 3, *image_size), generator=generator, dtype=torch.uint8)
    images[2:] = interpolate(images[2:, :, :4, :4].float(), image_size).byte()
    with torch.no_grad():
        model.train()(images)
        for norm in norms:
            norm.running_var.clamp_(min=norm.running_var.mean())  # no channel is so quiet that rounding counts
        found = model.eval()(images)
        wanted = {"class": (found.classes, 1.5), "objectness": (found.objectness, 1.5), "box": (found.boxes, 0.5)}
        for name, (values, spread) in wanted.items():
            for predictor in getattr(model.head, f"{name}_predictors"):
                predictor.weight *= spread / values.std()
                predictor.bias.zero_()
    contents = {
        "config": {"model": "yolox_nano", "image_size": image_size, "val": None, **config},
        "classes": list(classes),
        "epoch": 1,
        "step": 1,
        "metrics": {},
        "model": model.state_dict(),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.save(path, contents)
    return path
