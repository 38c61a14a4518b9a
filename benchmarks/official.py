"""Evaluates official weights on a COCO file: python -m benchmarks.official weights=yolox_nano.pth data=instances.json"""

import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.multi_label import MultiLabel
from benchmarks.table import add_row
from datasets.dataset import DetectionDataset
from datasets.loader import ValSampler, build_loader
from deploy.load import load
from engine.evaluation import evaluate
from evaluate import open_data
from utils.config import override
from utils.processes import Ranks

BATCH_SIZE = 16
HEAD = """# AP of official weights

`python -m benchmarks.official weights=FILE model=NAME data=COCO.json` measures as `evaluate.py` and adds a row. The official
implementation has AP 28.80 and AP50 44.80 on the same 326 images of val2017 (YOLOX-nano, 416 pixels), with confidence 0.001,
NMS IoU 0.65, no limit of boxes and one label per anchor point."""


@dataclass(frozen=True)
class Config:
    weights: str = "coco"  # a file; coco: download the official one
    model: str = "yolox_nano"
    data: str = "instances_val2017.json"
    confidence: float = 0.001
    nms_iou: float = 0.65
    max_detections: int = 300  # per image
    multi_label: bool = False  # several classes per anchor point


def main(cfg: Config) -> None:
    """Evaluates the weights and adds a row to benchmarks/results/official.md."""
    loaded = load(cfg.weights, cfg.model)
    data, _ = open_data(cfg.data, "val", loaded.classes, {})
    sampler = ValSampler(len(data), BATCH_SIZE, loaded.image_size)
    loader = build_loader(DetectionDataset(data, loaded.model.letterbox), sampler, workers=0)
    model = MultiLabel(loaded.model) if cfg.multi_label else loaded.model
    limits = {name: getattr(cfg, name) for name in ("confidence", "nms_iou", "max_detections")}
    metrics = evaluate(model, loader, Ranks(), **limits)
    cells = {name: f"{100 * metrics[name]:.2f}" for name in ("AP", "AP50", "AP75", "AR100")}
    row = {"model": cfg.model, "data": Path(cfg.data).name, "confidence": f"{cfg.confidence:g}"}
    row |= {"NMS IoU": f"{cfg.nms_iou:g}", "boxes per image": str(cfg.max_detections)}
    row["labels per anchor point"] = "several" if cfg.multi_label else "one"
    add_row("official", HEAD, {**row, **cells})


if __name__ == "__main__":
    main(override(Config(), sys.argv[1:]))
