"""Evaluates official weights on a COCO file: python -m benchmarks.official weights=yolox_nano.pth data=instances.json"""

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import evaluate
from benchmarks.table import add_row
from utils.config import override

HEAD = """# AP of official weights, confidence 0.001, NMS IoU 0.65

`python -m benchmarks.official weights=FILE model=NAME data=COCO.json` runs `evaluate.py` and adds a row. The official
implementation has AP 0.2880 and AP50 0.4480 on the same 326 images of val2017 (YOLOX-nano, 416 pixels)."""


@dataclass(frozen=True)
class Config:
    weights: str = "coco"  # a file; coco: download the official one
    model: str = "yolox_nano"
    data: str = "instances_val2017.json"


def main(cfg: Config) -> None:
    """Evaluates the weights and adds a row to benchmarks/results/official.md."""
    with tempfile.TemporaryDirectory() as folder:
        constants = {"checkpoint": cfg.weights, "model": cfg.model, "data": cfg.data, "output": folder}
        metrics = evaluate.main(evaluate.Config(**constants))
    cells = {name: f"{metrics[name]:.4f}" for name in ("AP", "AP50", "AP75", "AR100")}
    add_row("official", HEAD, {"model": cfg.model, "data": Path(cfg.data).name, **cells})


if __name__ == "__main__":
    main(override(Config(), sys.argv[1:]))
