"""At which stride the best point for an object is, by the object's size: where nets/coder.py has BORDERS from.

    python -m benchmarks.strides weights=yolox_nano.pth data=coco_val326/instances.json

The best point is the one with the highest score among those that say the right class and a box with an IoU above .5.
"""

import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.table import RESULTS, machine
from datasets import formats
from datasets.dataset import DetectionDataset
from datasets.loader import ValSampler, build_loader
from nets.coder import BORDERS, grid
from utils import detector
from utils.boxes import pairwise_iou
from utils.config import override


@dataclass(frozen=True)
class Config:
    weights: str = "coco"  # coco: fetch the official file; a file
    model: str = "yolox_nano"
    data: str = "instances_val2017.json"


@torch.no_grad()
def main(cfg: Config) -> None:
    """Writes benchmarks/results/strides.md."""
    loaded = detector.load(cfg.weights, cfg.model)
    model, counts = loaded.model, Counter()
    data = formats.read(cfg.data, "val", loaded.classes)
    loader = build_loader(DetectionDataset(data, model.letterbox), ValSampler(len(data), 16, loaded.image_size), 0)
    for batch in loader:
        boxes, scores, labels = model.decode(model(batch.images), batch.size)
        _, strides = grid(batch.size, model.strides, boxes)
        right = (pairwise_iou(batch.boxes, boxes) > 0.5) & (labels[:, None] == batch.labels[..., None])
        best = scores[:, None].where(right, 0).max(-1)
        octaves = (batch.boxes[..., 2:] - batch.boxes[..., :2]).clamp(min=1).log2().mean(-1)
        for picture, box in (best.values > 0.05).nonzero().tolist():
            half_octave = round(2 * octaves[picture, box].item()) / 2
            counts[half_octave, int(strides[best.indices[picture, box]])] += 1
    lines = [
        f"| {2**size:.0f} | " + " | ".join(str(counts[size, stride]) for stride in model.strides) + " |"
        for size in sorted({size for size, _ in counts})
    ]
    text = f"""# Strides of objects

`python -m benchmarks.strides weights={Path(cfg.weights).name} model={cfg.model} data={Path(cfg.data).name}`,
{time.strftime("%Y-%m-%d")}, {machine()}.
Objects by their size (root of the area, pixels of the input, half an octave a row) and the stride of their best point. The
borders that are used: {BORDERS[0]:.0f} and {BORDERS[1]:.0f} pixels.

| size | {" | ".join(f"stride {stride}" for stride in model.strides)} |
|---:|{"---:|" * len(model.strides)}
"""
    (RESULTS / "strides.md").write_text(text + "\n".join(lines) + "\n", encoding="utf-8")
    print(text + "\n".join(lines))


if __name__ == "__main__":
    main(override(Config(), sys.argv[1:]))
