"""Whether YOLOv9-t learns more from a second, auxiliary branch in training: BCCD from nothing, 50 epochs at 320.

    python -m benchmarks.auxiliary data=BCCD

The branch is that of the official sizes t and s: from the backbone before its SPP an own SPP, top-down GELANs and head. Its
losses count a quarter; detections never ask it. The other rows of the table are of `python -m benchmarks.finetune`: 72 epochs
take about as long as 50 with the branch.
"""

import sys
import time
from dataclasses import dataclass
from functools import partial

import torch

import nets
import train
from benchmarks.finetune import HEAD_SCRATCH, SCRATCH, figures
from benchmarks.table import add_row
from nets import yolov9
from nets.blocks import GELAN, SPP
from utils.config import override

WEIGHT = 0.25  # of the losses of the auxiliary branch, as in the official code


class Auxiliary(torch.nn.Module):
    """Features of the strides 8, 16, 32 before the SPP -> predictions."""

    def __init__(self, size: yolov9.Size, num_classes: int, class_width: int):
        super().__init__()
        _, in8, in16, in32 = (out for _, _, out in size.stages)
        self.spp = SPP(in32, in32)
        self.stride16 = GELAN(in32 + in16, size.neck[1], size.neck[1], size.depth)
        self.stride8 = GELAN(size.neck[1] + in8, size.neck[0], size.neck[0], size.depth)
        self.head = yolov9.Head((size.neck[0], size.neck[1], in32), num_classes, class_width)

    def forward(self, stride8, stride16, stride32):
        double = partial(torch.nn.functional.interpolate, scale_factor=2.0, mode="nearest")
        last = self.spp(stride32)
        middle = self.stride16(torch.cat([double(last), stride16], 1))
        features = self.stride8(torch.cat([double(middle), stride8], 1)), middle, last
        return self.head.joined(self.head.levels(features))


class WithAuxiliary(yolov9.YOLOv9):
    """YOLOv9 whose training answers are pairs: predictions, and those of the auxiliary branch."""

    def __init__(self, size: yolov9.Size, num_classes: int, class_width: int | None = None):
        super().__init__(size, num_classes, class_width)
        self.auxiliary = Auxiliary(size, num_classes, self.head.class_predictors[0].in_channels)

    def forward(self, images):
        if not self.training:
            return super().forward(images)
        seen = []
        watch = self.backbone.stage5[1].register_forward_hook(lambda *call: seen.append(call[2]))
        features = self.backbone(self.prepare(images))
        watch.remove()
        said = self.head.joined(self.head.levels(self.neck(*features)))
        return said, self.auxiliary(*features[:2], *seen)


class BothBranches:
    """The usual criterion, and a quarter of the auxiliary branch's."""

    def __init__(self, model, *options):
        self.usual = usual_criterion(model, *options)

    def __call__(self, predictions, *scene):
        if hasattr(predictions, "_fields"):
            return self.usual(predictions, *scene)
        main, other = (self.usual(some, *scene) for some in predictions)
        return main | {"total": main["total"] + WEIGHT * other["total"], "auxiliary": WEIGHT * other["total"]}


usual_criterion = nets.criterion


@dataclass(frozen=True)
class Config:
    data: str = "BCCD"  # the folder with Annotations, ImageSets and JPEGImages
    seed: int = 0
    output: str = "runs"  # the run folder is made in it


def main(cfg: Config) -> None:
    """Trains with the branch, and adds a row to benchmarks/results/scratch_bccd.md."""
    nets.MODELS["yolov9_t"] = partial(WithAuxiliary, yolov9.SIZES["t"])
    nets.criterion = BothBranches
    parts = {"train": f"{cfg.data}/ImageSets/Main/train.txt", "val": f"{cfg.data}/ImageSets/Main/test.txt"}
    chosen = {"model": "yolov9_t", "weights": None, "seed": cfg.seed, "output": cfg.output, "name": "auxiliary"}
    begin = time.perf_counter()
    train.main(train.Config(**parts, **SCRATCH, **chosen))
    cells = {"seed": str(cfg.seed), **figures(cfg.output, "auxiliary", begin)}
    add_row("scratch_bccd", HEAD_SCRATCH, {"model": "yolov9_t with auxiliary branch", **cells})


if __name__ == "__main__":
    main(override(Config(), sys.argv[1:]))
