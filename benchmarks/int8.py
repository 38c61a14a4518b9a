"""8-bit exports: AP on real images, and speed relative to float32 for networks of several sizes.

    python -m benchmarks.int8 weights=yolox_nano.pth train=instances_train.json val=instances_val.json images=val2017

The AP is measured with trained weights. The speeds of `others` are measured with random weights: they do not depend on the
values. The two files of a model take turns, so that other programs slow both.
"""

import shutil
import sys
import tempfile
import time
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import cv2
import numpy as np
import onnx
import onnxruntime
import torch

import export
import nets
from benchmarks.table import RESULTS, machine
from deploy import calibration, int8
from deploy.onnx_model import OnnxModel
from utils.config import override
from utils.images import images_under, letterbox, read_image


@dataclass(frozen=True)
class Config:
    weights: str = "coco"  # a file; coco: download the official one
    model: str = "yolox_nano"
    train: str = "instances_train2017.json"
    val: str = "instances_val2017.json"
    images: str = "val2017"  # the folder of images for the comparison with PyTorch and for the speed
    others: tuple[str, ...] = ("yolox_s", "yolov9_t", "yolov9_s")
    rounds: int = 5  # of the speed


def main(cfg: Config) -> None:
    """Writes benchmarks/results/int8.md."""
    size = nets.official_size(cfg.model)
    paths = [f"{cfg.images}/{name}" for name in images_under(cfg.images)[: int8.RUNS]]
    images = [letterbox(read_image(path), size, "corner")[0] for path in paths]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        words = (cfg.weights, f"{folder}/float32.onnx", cfg.model)
        before = export.main(export.Config(*words, images=cfg.images, check_images=4))
        after = Path(shutil.copy(before, f"{folder}/int8.onnx"))
        kind = ({}, OnnxModel(before).about["classes"], size, OnnxModel(before).letterbox)
        with redirect_stdout(StringIO()) as printed:
            int8.quantize(after, *calibration.read(cfg.train, cfg.val, *kind), most=export.Config.int8_loss)
        lines = [line for line in printed.getvalue().splitlines() if line.startswith(("float32 ", "int8 "))]
        rows.append((cfg.model, speeds(before, after, images, cfg.rounds)))
        for name in cfg.others:
            rows.append((name, speeds(*untrained(name, size, folder, images), images, cfg.rounds)))
    text = page(cfg, lines, rows, size)
    (RESULTS / "int8.md").write_text(text, encoding="utf-8")
    print(text)


def untrained(name: str, size: tuple[int, int], folder: str, images: list[np.ndarray]) -> tuple[Path, Path]:
    """Exports a model with random weights as a float32 file and as an 8-bit file."""
    before, after = Path(folder) / f"{name}.onnx", Path(folder) / f"{name}_int8.onnx"
    torch.manual_seed(0)
    about = {"model": name, "classes": [f"class {i}" for i in range(80)], "image_size": size, "dynamic_size": False}
    model = nets.build(name, 80).eval()
    about |= {"letterbox": model.letterbox, "outputs": "detections", "confidence": 0.3, "nms_iou": 0.5}
    export.write(before, model.fuse(), about | {"max_detections": 300, "half": False}, 1, True)
    int8.quantized(onnx.load(before), after, images[:4])
    return before, after


def speeds(before: Path, after: Path, images: list[np.ndarray], rounds: int) -> list[list[float]]:
    """Returns the milliseconds per image of both files, several times."""
    return [int8.speed([before, after], images) for _ in range(rounds)]


def page(cfg: Config, lines: list[str], rows: list[tuple[str, list[list[float]]]], size: tuple[int, int]) -> str:
    """Returns the page with the results."""
    cells = []
    for name, times in rows:
        ratios = sorted(before / after for before, after in times)
        best = [min(own) for own in zip(*times, strict=True)]
        spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
        cells.append(f"| {name} | {best[0]:.1f} | {best[1]:.1f} | {np.median(ratios):.2f} | {spread} |")
    words = f"weights={Path(cfg.weights).name} model={cfg.model} train={Path(cfg.train).name} val={Path(cfg.val).name}"
    printed = "\n".join(lines)
    table = "\n".join(cells)
    return f"""# 8-bit exports

What `export.py int8=true` prints for {cfg.model}, calibrated on {Path(cfg.train).name} and evaluated on {Path(cfg.val).name}:

```
{printed}
```

The speed of both files:

| network | float32, ms | int8, ms | times as fast, median | rounds |
|---|---:|---:|---:|---|
{table}

Speed at {size[0]} x {size[1]}, one image per call, {cfg.rounds} rounds of {int8.RUNS} runs in which the files take turns.
Networks other than {cfg.model} have random weights. Milliseconds are the fastest median of a round; the machine was shared,
so compare the ratios.

`python -m benchmarks.int8 {words} images={Path(cfg.images).name}`,
{time.strftime("%Y-%m-%d")}, {machine()}, onnxruntime {onnxruntime.__version__}, onnx {onnx.__version__}.
"""


if __name__ == "__main__":
    cv2.setNumThreads(0)
    main(override(Config(), sys.argv[1:]))
