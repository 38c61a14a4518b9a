"""What it costs on BCCD to do without NMS: the same weights with the selector, and without it and with NMS.

    python -m benchmarks.nms_free data=BCCD weights=yolox_nano.pth

BCCD (MIT): blood cells, VOC XML; trained on its part train, measured on its part test. `weights=coco` fetches the official
file. Two ways: the selector is trained with all else, and alone on top of a finished training.
"""

import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

import train
from benchmarks.finetune import RECIPE, words
from benchmarks.table import add_row
from datasets import formats
from datasets.dataset import DetectionDataset
from datasets.loader import ValSampler, build_loader
from utils import detector
from utils.config import override
from utils.distributed import Ranks
from utils.evaluate import evaluate
from utils.run import newest

ALONE = {"nms_free": "head", "epochs": 10, "plain_epochs": 3, "bad_boxes": "drop", "workers": 0}
DATA = "train=BCCD/ImageSets/Main/train.txt val=BCCD/ImageSets/Main/test.txt"
HEAD = f"""# Without NMS on BCCD (train 205, test 72), YOLOX-nano, 416 pixels

`python -m benchmarks.nms_free data=BCCD weights=yolox_nano.pth` runs

- together: `python train.py {DATA} weights=yolox_nano.pth nms_free=true
  {words(RECIPE)}`
- alone: the same without `nms_free`, and then `python train.py {DATA} weights=FIRST/last.pt
  {words(ALONE)}`

and evaluates the last epoch of each, once with the selector and without NMS, once without the selector and with NMS. What was
trained together has learned each box at one stride only, also where it is evaluated with NMS; `alone` with NMS is an ordinary
training."""


@dataclass(frozen=True)
class Config:
    data: str = "BCCD"  # the folder with Annotations, ImageSets and JPEGImages
    weights: str = "coco"  # coco: official weights; or a file
    seed: int = 0
    output: str = "runs"  # the run folders are made in it


@torch.no_grad()
def both_ways(checkpoint: Path, data: str) -> dict[str, str]:
    """mAP without and with NMS, in hundredths."""
    loaded = detector.load(checkpoint)
    pictures = formats.read(data, "val", loaded.classes, bad_boxes="drop")
    loader = build_loader(
        DetectionDataset(pictures, loaded.model.letterbox), ValSampler(len(pictures), 16, loaded.image_size), 0
    )
    model = loaded.model.to(memory_format=torch.channels_last)
    free = evaluate(model, loader, Ranks())
    model.selector = None
    nms = evaluate(model, loader, Ranks())
    cells = {"without NMS": free, "with NMS": nms}
    row = {f"mAP50-95 {name}": f"{100 * found['AP']:.2f}" for name, found in cells.items()}
    row["difference"] = f"{100 * (free['AP'] - nms['AP']):+.2f}"
    return row | {f"mAP50 {name}": f"{100 * found['AP50']:.2f}" for name, found in cells.items()}


def main(cfg: Config) -> None:
    """Trains three times, and adds two rows to benchmarks/results/nms_free.md."""
    val = f"{cfg.data}/ImageSets/Main/test.txt"
    parts = {"train": f"{cfg.data}/ImageSets/Main/train.txt", "val": val, "model": "yolox_nano", "seed": cfg.seed}
    start = partial(train.Config, **parts, output=cfg.output)

    def row(name: str, begin: float) -> dict[str, str]:
        minutes = f"{(time.perf_counter() - begin) / 60:.1f}"
        found = both_ways(newest(cfg.output, name) / "last.pt", val)
        return {"way": name, "seed": str(cfg.seed), **found, "minutes": minutes}

    begin = time.perf_counter()
    train.main(start(**RECIPE, weights=cfg.weights, nms_free=True, name="together"))
    add_row("nms_free", HEAD, row("together", begin))
    train.main(start(**RECIPE, weights=cfg.weights, name="plain"))
    begin, plain = time.perf_counter(), newest(cfg.output, "plain") / "last.pt"
    train.main(start(**ALONE, weights=str(plain), name="alone"))
    add_row("nms_free", HEAD, row("alone", begin))


if __name__ == "__main__":
    main(override(Config(), sys.argv[1:]))
