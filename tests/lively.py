"""Untrained models that detect something: random weights whose outputs vary from one anchor point to the next."""

from pathlib import Path

import tiny  # noqa: F401  registers model="tiny_n", also in processes that a test starts
import torch
from torch import nn
from torch.nn.functional import interpolate

import nets
from nets.model import DetectionModel
from utils import checkpoint


@torch.no_grad()
def lively(model: DetectionModel, image_size: tuple[int, int]) -> DetectionModel:
    """Sets batch norms to the statistics of noise and rectangles, and scales the outputs, so that the model detects boxes of
    all classes in any image. The weights depend on the model and the image size only."""
    generator = torch.Generator().manual_seed(0)
    for name, parameter in sorted(model.named_parameters()):
        if name.endswith("bias"):
            parameter.zero_()
        if parameter.ndim > 1:
            parameter.data = torch.randn(parameter.shape, generator=generator) * parameter[0].numel() ** -0.5
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = 1.0
        norm.weight.uniform_(0.8, 1.2, generator=generator)
        norm.bias.uniform_(-0.2, 0.2, generator=generator)
    images = torch.randint(0, 256, (8, 3, *image_size), generator=generator, dtype=torch.uint8)
    images[2:] = interpolate(images[2:, :, :4, :4].float(), image_size).byte()
    model.train()(images)
    for norm in norms:
        norm.running_var.clamp_(min=norm.running_var.mean())  # a nearly constant channel would amplify rounding

    def scale(module, _, out):
        factor = spread[module] / out.std()
        module.weight *= factor
        module.bias.zero_()
        return (out - out.mean()) * factor

    predictors = {n: m for n, m in model.named_modules() if isinstance(m, nn.Conv2d) and m.bias is not None}
    spread = {module: 1.0 if "box" in name else 1.5 for name, module in predictors.items()}
    hooks = [module.register_forward_hook(scale) for module in spread]
    model.eval()(images)
    for hook in hooks:
        hook.remove()
    return model


def lively_checkpoint(
    path, name="tiny_n", classes=("red", "blue", "green"), image_size=(64, 96), metrics=None, thresholds=None, **config
) -> Path:
    """Writes a checkpoint of such a model; `config`: further constants of its training."""
    model = lively(nets.build(name, len(classes)), image_size)
    contents = {"config": {"model": name, "image_size": image_size, "val": None, **config}, "classes": list(classes)}
    contents |= {} if thresholds is None else {"thresholds": thresholds}
    path.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.save(path, contents | {"epoch": 1, "step": 1, "metrics": metrics or {}, "model": model.state_dict()})
    return path


def tiny_checkpoint(path, classes=("red", "blue"), **config) -> Path:
    """The same with two classes."""
    return lively_checkpoint(path, classes=classes, **config)
