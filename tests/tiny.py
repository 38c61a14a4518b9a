"""A third model family, as a user would add one: a stem, two more strides and a head, small enough to train in seconds.

Importing this module registers it as model="tiny_n"; `python tests/tiny.py name=value ...` is train.py with it.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from torch import Tensor, nn

import nets
from nets.blocks import Conv, flatten_levels
from nets.coder import decode_yolox, grid
from nets.losses import YOLOXCriterion
from nets.model import DetectionModel
from nets.yolox import Predictions


class Backbone(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.stem = nn.Sequential(Conv(3, width, 3, 2), Conv(width, width, 3, 2), Conv(width, width, 3, 2))
        self.downs = nn.ModuleList(Conv(width, width, 3, 2) for _ in range(2))

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        levels = [self.stem(images)]
        for down in self.downs:
            levels.append(down(levels[-1]))
        return tuple(levels)


class Neck(nn.ModuleList):
    def forward(self, *levels: Tensor) -> tuple[Tensor, ...]:
        return tuple(conv(x) for conv, x in zip(self, levels, strict=True))


class Head(nn.Module):
    def __init__(self, width: int, num_classes: int):
        super().__init__()
        self.class_predictors, self.box_predictors, self.objectness_predictors = (
            nn.ModuleList(nn.Conv2d(width, out, 1) for _ in range(3)) for out in (num_classes, 4, 1)
        )
        for predictor in (*self.class_predictors, *self.objectness_predictors):
            nn.init.constant_(predictor.bias, -4.0)

    def levels(self, features: tuple[Tensor, ...]) -> list[Predictions]:
        parts = zip(self.box_predictors, self.objectness_predictors, self.class_predictors, features, strict=True)
        return [Predictions(box(x), objectness(x), classes(x)) for box, objectness, classes, x in parts]

    def flatten(self, levels: list[Predictions]) -> Predictions:
        raw = flatten_levels(levels)
        return Predictions(raw[..., :4], raw[..., 4], raw[..., 5:])


class Tiny(DetectionModel):
    letterbox = "center"
    strides = (8, 16, 32)

    def __init__(self, width: int, num_classes: int):
        super().__init__()
        self.num_classes = num_classes
        self.backbone, self.head = Backbone(width), Head(width, num_classes)
        self.neck = Neck(Conv(width, width, 3) for _ in self.strides)

    def prepare(self, images: Tensor) -> Tensor:
        return images.flip(1).to(self.head.box_predictors[0].weight.dtype) / 255

    def decode(self, predictions: Predictions, image_size: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
        raw = predictions.boxes.float()
        best, labels = predictions.classes.float().max(-1)
        scores = predictions.objectness.float().sigmoid() * best.sigmoid()
        return decode_yolox(raw, *grid(image_size, self.strides, raw)), scores, labels


nets.MODELS["tiny"] = nets.Family(Tiny, {"n": 8}, YOLOXCriterion, {}, lambda name: name)

if __name__ == "__main__":
    import train

    torch.set_num_threads(1)
    train.run_script(lambda: train.main(train.from_command_line(sys.argv[1:])), stopped="stopped", memory_advice="")
