"""Random models that find something, of any family, and a small family for tests of what every family can do."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

import nets
from nets.blocks import Conv, rows
from nets.coder import grid
from nets.model import DetectionModel
from utils import checkpoint


class ToyPredictions(NamedTuple):
    sides: Tensor  # [B, A, 4, 2] two shares of each side's distance
    classes: Tensor  # [B, A, C] logits


class ToyHead(nn.Module):
    def __init__(self, num_classes: int):
        super().__init__()
        self.out = nn.Conv2d(8, 8 + num_classes, 1)

    def levels(self, features) -> list[ToyPredictions]:
        return [ToyPredictions(out[:, :8], out[:, 8:]) for out in map(self.out, features)]

    def joined(self, levels: list[ToyPredictions]) -> ToyPredictions:
        raw = rows(levels)
        return ToyPredictions(raw[..., :8].unflatten(2, (4, 2)), raw[..., 8:])


class Toy(DetectionModel):
    """All a family may do otherwise: RGB, 0-1, a centred letterbox, three-dimensional predictions, no objectness."""

    letterbox, strides = "centre", (8, 16, 32)

    def __init__(self, num_classes: int):
        super().__init__()
        self.num_classes = num_classes
        self.backbone = nn.Sequential(Conv(3, 8, 3, 2), Conv(8, 8, 3, 2))
        self.neck = nn.ModuleList(Conv(8, 8, 3, 2) for _ in self.strides)
        self.head = ToyHead(num_classes)

    def prepare(self, images: Tensor) -> Tensor:
        return images.to(self.head.out.weight.dtype).flip(1) / 255

    def features(self, images: Tensor) -> list[Tensor]:
        levels = [self.backbone(self.prepare(images))]
        for down in self.neck:
            levels.append(down(levels[-1]))
        return levels[1:]

    def decode(self, predictions: ToyPredictions, image_size: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
        sides = predictions.sides.float().softmax(-1)[..., 0] * 4
        cells, strides = grid(image_size, self.strides, sides)
        corners = torch.cat([cells + 0.5 - sides[..., :2], cells + 0.5 + sides[..., 2:]], -1) * strides[:, None]
        scores, labels = predictions.classes.float().sigmoid().max(-1)
        return corners, scores, labels


@torch.no_grad()
def lively(model: DetectionModel, image_size: tuple[int, int]) -> DetectionModel:
    """Gives batch norms the statistics of noise and the last convolutions outputs of spread 1, so that boxes of all classes
    come out for any picture."""
    generator = torch.Generator().manual_seed(0)
    for _, parameter in sorted(model.named_parameters()):
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
        norm.running_var.clamp_(min=norm.running_var.mean())  # no channel is so quiet that rounding counts

    def settle(module, _, out):
        scale = 1 / out.std()
        module.weight *= scale
        module.bias.zero_()
        return (out - out.mean()) * scale

    last = [m for m in model.modules() if isinstance(m, nn.Conv2d) and m.bias is not None]
    hooks = [module.register_forward_hook(settle) for module in last]
    model.eval()(images)
    for hook in hooks:
        hook.remove()
    for predictor in model.selector.predictors if model.selector else ():
        predictor.weight *= 10  # more than what random points say of themselves
    return model


def lively_checkpoint(
    path, name: str, classes=("red", "blue", "green"), image_size=(64, 96), metrics=None, nms_free=False, **config
):
    """A checkpoint of such a model."""
    model = lively(nets.build(name, len(classes), nms_free=nms_free), image_size)
    contents = {"config": {"model": name, "image_size": image_size, "val": None, **config}, "classes": list(classes)}
    path.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.save(path, contents | {"epoch": 1, "step": 1, "metrics": metrics or {}, "model": model.state_dict()})
    return path
