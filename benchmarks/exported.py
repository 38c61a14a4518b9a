"""Exports of each family in each format, next to PyTorch and onnxruntime.

    python -m benchmarks.exported images=FOLDER weights=yolox_nano.pth annotations=instances.json

Per family and format: seconds and size of the export, the largest differences from PyTorch over all anchor points of real images,
flips (boxes that only one of both has at a threshold), mAP, and milliseconds of the CPU per call of detector.py on one thread.
Only `yolox_nano` has trained weights; the others have random ones, whose batch norms are adapted to the images, and no mAP.
The milliseconds of all files are taken in turns. A format whose packages are missing is left out.
"""

import copy
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import export
import nets
from benchmarks.milliseconds import adapt_batch_norms, threshold
from benchmarks.table import add_row
from datasets.demo import draw_image
from deploy import load
from deploy.exported_model import ExportedModel, OwnProcess
from deploy.formats import FORMATS, ExportError, convert
from deploy.int8 import measure, val_loader
from utils.config import Constants, override
from utils.images import images_under, letterbox, read_image

STANDALONE = Path(__file__).parents[1] / "deploy/standalone"
HEAD = """# Exported files

Written by `python -m benchmarks.exported`; its first lines say what the columns are."""
# Prints the milliseconds of the CPU per call, of `calls` calls.
TIMER = """
import sys, time
sys.path.insert(0, sys.argv[1])
import numpy as np
from detector import Detector
detector = Detector(sys.argv[2], threads=1)
image = np.random.default_rng(0).integers(0, 256, (*detector.image_size, 3), np.uint8)
detector(image)
begin = time.process_time()
for _ in range(int(sys.argv[3])):
    detector(image)
print(1000 * (time.process_time() - begin) / int(sys.argv[3]))
"""


@dataclass(frozen=True)
class Config(Constants):
    images: str = ""  # a folder of real images
    models: tuple[str, ...] = ("yolox_nano:416", "picodet_s:320", "yolov9_t:320", "ppyoloe_s:320")  # model:side
    formats: tuple[str, ...] = ("onnx", "openvino", "litert", "ncnn")
    weights: str = ""  # COCO weights of the first model
    annotations: str = ""  # of `images`, for its mAP
    count: int = 16  # images for the differences
    rounds: int = 5
    calls: int = 30  # per round


def varied(name: str, side: int, images: torch.Tensor) -> load.Loaded:
    """Returns a model with random weights whose outputs vary."""
    torch.manual_seed(0)
    model = nets.build(name, 80)
    for weights in model.parameters():
        if weights.ndim > 1:
            torch.nn.init.normal_(weights, std=weights[0].numel() ** -0.5)
    adapt_batch_norms(model, images)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):  # a nearly constant channel would amplify rounding
            module.running_var.clamp_(min=module.running_var.mean())
    return load.Loaded(model, tuple(f"class {i}" for i in range(80)), (side, side), {}, Path(name), 0.3, name)


def write(kind: str, file: Path, loaded: load.Loaded) -> float:
    """Writes a file with raw outputs and returns the seconds that it took."""
    begin, about = time.perf_counter(), export.description(export.Config(outputs="raw"), loaded)
    if kind == "onnx":
        export.write_unchecked(kind, file, export.Config(outputs="raw"), loaded, about)
    else:
        convert(kind, copy.deepcopy(loaded.model).fuse(), about, file)
    return time.perf_counter() - begin


@torch.no_grad()
def differences(file: Path, loaded: load.Loaded, images: list[np.ndarray], at: float) -> dict[str, str]:
    """Compares all anchor points of a file with PyTorch -> largest difference of boxes (score .05 and more) and scores, flips."""
    process, boxes, scores, flips = OwnProcess(file, 1), 0.0, 0.0, 0
    for image in images:
        ours, best, _ = loaded.model.decode(
            loaded.model(torch.from_numpy(image).permute(2, 0, 1)[None]), loaded.image_size
        )
        ((theirs, of_file, _),) = process.predict([image], 0.0, 1.0)
        ours, best = ours[0].numpy(), best[0].numpy()
        boxes = max(boxes, float(np.abs(ours - theirs)[best >= min(at, 0.05)].max(initial=0)))
        scores = max(scores, float(np.abs(best - of_file).max()))
        flips += int(((best >= at) != (of_file >= at)).sum())
    return {"box px": f"{boxes:.2g}", "score": f"{scores:.1g}", "flips": str(flips)}


def milliseconds(files: list[Path], rounds: int, calls: int) -> dict[Path, float]:
    """Returns the median over rounds of the milliseconds of each file; the files take turns."""
    times: dict[Path, list[float]] = {file: [] for file in files}
    for _ in range(rounds):
        for file in files:
            command = [sys.executable, "-c", TIMER, str(STANDALONE), str(file), str(calls)]
            times[file].append(float(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    return {file: statistics.median(of_file) for file, of_file in times.items()}


def main(cfg: Config) -> None:
    """Adds a row per model and format to results/exported.md."""
    torch.set_num_threads(1)
    paths = [Path(cfg.images, name) for name in images_under(cfg.images)][: cfg.count]
    pixels = [read_image(path) for path in paths]
    for number, word in enumerate(cfg.models):
        name, _, side = word.partition(":")
        size = (int(side), int(side))
        trained = number == 0 and cfg.weights
        generated = torch.stack([torch.from_numpy(letterbox(draw_image(i)[0], size, "stretch")[0]) for i in range(4)])
        if trained:
            loaded = load.load(cfg.weights, name, None, size)
        else:
            loaded = varied(name, size[0], generated.permute(0, 3, 1, 2).float())
        images = [letterbox(image, size, loaded.model.letterbox)[0] for image in pixels]
        batch = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)
        with torch.no_grad():
            at = 0.3 if trained else threshold(loaded.model.decode(loaded.model(batch), size)[1], 50)
        loaded = loaded._replace(confidence=at)
        loader = val_loader(cfg.annotations, loaded) if trained and cfg.annotations else None
        if loader:
            measure("PyTorch", loaded.model, loader)
        with tempfile.TemporaryDirectory() as folder:
            rows, seconds = {}, {}
            for kind in cfg.formats:
                file = Path(folder, f"{name}{FORMATS[kind].suffix}")
                try:
                    seconds[file] = write(kind, file, loaded)
                except ExportError as error:
                    print(error)
                    continue
                rows[file] = {"model": word, "format": kind, "export s": f"{seconds[file]:.0f}"}
                rows[file] |= {"MiB": f"{export.size_of(file) / 2**20:.1f}", **differences(file, loaded, images, at)}
                ap = measure(kind, ExportedModel(file), loader) if loader else None
                rows[file]["mAP"] = f"{ap:.4f}" if ap is not None else "-"
            times = milliseconds(list(rows), cfg.rounds, cfg.calls)
            for file, row in rows.items():
                ratio = times[file] / times[next(iter(rows))]
                add_row("exported", HEAD, row | {"CPU ms": f"{times[file]:.1f}", "to onnx": f"{ratio:.2f}"})


if __name__ == "__main__":
    main(override(Config(), sys.argv[1:]))
