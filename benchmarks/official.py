"""The figures of official weights on a COCO file: python -m benchmarks.official weights=yolox_nano.pth data=instances.json"""

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import evaluate
from benchmarks.table import add_row
from utils.config import override

HEAD = """# Official weights, confidence .001, NMS IoU .65

`python -m benchmarks.official weights=FILE model=NAME data=COCO.json`, which runs `evaluate.py`. The official
implementation on the 326 pictures of val2017 that are measured here: AP .2880, AP50 .4480 (YOLOX-nano, 416 pixels)."""


@dataclass(frozen=True)
class Config:
    weights: str = "coco"  # coco: fetch the official file; a file
    model: str = "yolox_nano"
    data: str = "instances_val2017.json"


def main(cfg: Config) -> None:
    """Evaluates, and adds a row to benchmarks/results/official.md."""
    with tempfile.TemporaryDirectory() as folder:
        words = {"checkpoint": cfg.weights, "model": cfg.model, "data": cfg.data, "output": folder}
        figures = evaluate.main(evaluate.Config(**words))
    cells = {name: f"{figures[name]:.4f}" for name in ("AP", "AP50", "AP75", "AR100")}
    add_row("official", HEAD, {"model": cfg.model, "data": Path(cfg.data).name, **cells})


if __name__ == "__main__":
    main(override(Config(), sys.argv[1:]))
