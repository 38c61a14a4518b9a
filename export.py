"""Exports a checkpoint to ONNX: python export.py runs/RUN/best.pt

The exported file is compared with PyTorch on real images before it gets its name. docs/exported_file.md describes its contents.
detector.py, which is written next to it, runs it in a program of your own.
"""

from utils import start  # noqa: F401  before PyTorch is imported

# isort: split
import copy
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from datasets import demo
from datasets.errors import DataError
from datasets.formats.class_names import read_classes
from datasets.formats.options import options_of
from datasets.formats.read import read
from datasets.store import evenly_spaced
from deploy import load
from deploy.agreement import verify
from deploy.int8 import quantize, read_data
from deploy.onnx_graph import OPSET, write
from deploy.onnx_model import OnnxModel
from engine import environment
from nets.postprocess import MAX_CANDIDATES
from utils import threads
from utils.config import ConfigError, Constants, check, constants_text, override, require, require_writable, show
from utils.file_checks import CheckpointError
from utils.files import atomic_write
from utils.images import FILL, ImageError, images_under, read_image
from utils.script import run_script


@dataclass(frozen=True)
class Config(Constants):
    # what most users set
    checkpoint: str | None = None  # a .pt file; none: official weights of model=, or the newest runs/*/best.pt
    output: str | None = None  # the file to write; none: next to the checkpoint (official weights: the current folder)
    # for official weights, which do not store these
    model: str | None = None  # yolox_nano, tiny, s, m, l, x; yolov9_t, s, m, c; ppyoloe_s, m, l, x; picodet_s, m, l
    classes: str | None = None  # a file with one name per line; none: COCO's 80
    # input of the file
    image_size: tuple[int, int] | None = None  # height, width, or one number for both; none: as in training
    dynamic_size: bool = False  # any height and width that are multiples of 32
    batch_size: int = 1  # images per call; 0: any number
    uint8_input: bool = True  # uint8 [B, H, W, 3] as OpenCV reads; false: float32 [B, 3, H, W], BGR, 0-255
    # output of the file
    outputs: str = "detections"  # detections: after NMS; raw: the predictions of each stride, before decoding
    confidence: float | None = None  # default threshold, can be changed at each call; none: of the best F1, or 0.3
    nms_iou: float = 0.5  # default threshold too; boxes of a class that overlap more are one object
    max_detections: int = 300  # per image
    half: bool = False  # float16 weights: half the size
    int8: bool = False  # 8-bit weights and activations: a third of the size, for CPUs
    int8_loss: float = 0.01  # an 8-bit file that loses more of the mAP is not written; 1: any is
    train: str | None = None  # int8: data whose images give the ranges; none: those of the run
    val: str | None = None  # int8: data on which the mAP is measured; none: those of the run
    # comparison with PyTorch
    images: str | None = None  # a folder; none: validation images of the training run, or generated ones without them
    check_images: int = 16  # number of images to compare on


MIN = {"batch_size": 0, "confidence": 0, "nms_iou": 0, "max_detections": 1, "check_images": 1, "int8_loss": 0}
MAX = {"confidence": 1, "nms_iou": 1, "max_detections": MAX_CANDIDATES}
DETECTOR = Path(__file__).parent / "deploy/standalone/detector.py"


def main(cfg: Config) -> Path:
    """Exports a checkpoint and returns the path of the ONNX file."""
    cfg = check(cfg)
    require(cfg, MIN, MAX, {"outputs": ("detections", "raw")})
    if cfg.outputs == "raw" and (cfg.dynamic_size or cfg.batch_size == 0):
        raise ConfigError("outputs=raw is for converters, which need fixed shapes: no dynamic_size, and a batch_size")
    if cfg.int8 and cfg.half:
        raise ConfigError("int8=true and half=true exclude each other: leave one of them out")

    # ---- the model, and what its file tells about it
    classes = read_classes(cfg.classes) if cfg.classes else None
    loaded = load.load(cfg.checkpoint, cfg.model, classes, cfg.image_size)
    if loaded.note:
        print(loaded.note)
    if loaded.path.suffix == ".onnx":
        raise ConfigError(f"checkpoint={cfg.checkpoint} is an exported file; export the checkpoint it was made from")
    threads.set_threads(torch.device("cpu"), 0)
    about = description(cfg, loaded)
    output = output_path(cfg.output, loaded)
    require_same_kind(output, about | {"int8": cfg.int8})

    # ---- the images to compare on, and the data for 8 bits
    images, source = find_images(cfg.images, loaded, cfg.check_images)
    int8_data = read_data(cfg.train, cfg.val, loaded) if cfg.int8 else None
    derived = {"weights": loaded.path, "input": loaded.image_size, "default confidence": about["confidence"]}
    derived |= {"file": output, "opset": OPSET, "compared on": f"{len(images)} {source}"}
    print(constants_text(cfg, cfg, derived))

    # ---- the file, which gets its name only if it detects what PyTorch detects
    with atomic_write(output) as file:
        write(file, copy.deepcopy(loaded.model).fuse(), about, cfg.batch_size, cfg.uint8_input)
        file.flush()
        verify(Path(file.name), loaded.model, images)
        if int8_data:
            quantize(Path(file.name), *int8_data, cfg.int8_loss)
    print(f"{output}  {output.stat().st_size / 2**20:.1f} MiB")
    print(copy_detector(output.parent))
    return output


def copy_detector(folder: Path) -> str:
    """Copies the program that runs exported files into a folder, but not over another file. Returns what to print."""
    target = folder / DETECTOR.name
    if not target.exists():
        shutil.copyfile(DETECTOR, target)
    elif target.read_bytes() != DETECTOR.read_bytes():
        return f"note: {target} is kept: it was changed, or is of another version; delete it and export again for a new one"
    return f"{target}  runs it in a program of your own, without this project: docs/deploy.md"


def description(cfg: Config, loaded: load.Loaded) -> dict[str, Any]:
    """The metadata of the file: what a program needs to use it (docs/exported_file.md)."""
    return {
        "model": loaded.name,
        "classes": loaded.classes,
        "added": loaded.model.added_counts,
        "image_size": loaded.image_size,
        "dynamic_size": cfg.dynamic_size,
        "letterbox": loaded.model.letterbox,
        "padding": FILL,
        "clip": loaded.model.clips,
        "value_range": loaded.value_range,
        "outputs": cfg.outputs,
        "confidence": loaded.confidence if cfg.confidence is None else cfg.confidence,
        "thresholds": dict(loaded.thresholds),
        "nms_iou": cfg.nms_iou,
        "max_detections": cfg.max_detections,
        "half": cfg.half,
        "code": environment.code_digest(Path(__file__).parent),
        "torch": torch.__version__,
    }


def output_path(output: str | None, loaded: load.Loaded) -> Path:
    """Returns the file to write: `output`, or one next to the checkpoint, or for official weights in the current folder."""
    usual = loaded.path.with_suffix(".onnx") if loaded.config else Path(f"{loaded.name}.onnx")
    path = usual if output is None else Path(output)
    if path.suffix != ".onnx":
        raise ConfigError(f"output={output}: its name must end with .onnx")
    require_writable(f"output={show(output)}", path.parent, "give output=FILE.onnx in another folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def require_same_kind(path: Path, about: dict[str, Any]) -> None:
    """Raises ConfigError if the file exists, but an export with these options did not write it: a program may use it."""
    if not path.exists():
        return
    fix = "name another file with output=, or delete it"
    try:
        present = OnnxModel(path).about
    except CheckpointError as error:
        raise ConfigError(f"{path} would be replaced, but cannot be read as a file of export.py: {fix}") from error
    for name in ("outputs", "dynamic_size", "half", "int8"):
        if (old := present.get(name, False)) != about[name]:
            raise ConfigError(f"{path} would be replaced, but was exported with {name}={show(old)}: {fix}")


def find_images(folder: str | None, loaded: load.Loaded, count: int) -> tuple[list[np.ndarray], str]:
    """Reads up to `count` images to compare on, uint8 [H, W, 3] BGR, evenly spaced over all; also returns their source."""
    if folder is not None:
        paths = [os.path.join(folder, name) for name in images_under(folder)]
        if not paths:
            raise ConfigError(f"images={folder}: there are no images in this folder")
        return read_some(paths, count, loaded), f"images of {folder}"
    if val := loaded.config.get("val"):
        try:
            data = read(val, "val", options_of(loaded.config, loaded.classes))
            if len(data) == 0:
                raise DataError(f"{val}: no images")
            return read_some([data.path(i) for i in range(len(data))], count, loaded), f"images of {val}"
        except (DataError, ImageError, OSError) as error:
            print(f"note: the validation images of the training run are missing ({error})")
    generated = [demo.draw_image(number)[0] for number in range(count)]
    return generated, "generated images; real ones are better: images=FOLDER"


def read_some(paths: list[str], count: int, loaded: load.Loaded) -> list[np.ndarray]:
    """Reads up to `count` images, evenly spaced over all paths, as in training."""
    return [read_image(paths[i], value_range=loaded.value_range) for i in evenly_spaced(len(paths), count)]


if __name__ == "__main__":
    stopped, positional = "stopped; no file was written", {"checkpoint": load.is_checkpoint}
    run_script(lambda: main(override(Config(), sys.argv[1:], positional)), stopped, memory_advice="lower batch_size=")
