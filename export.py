"""Exports a checkpoint: python export.py runs/RUN/best.pt [format=onnx,openvino,litert,ncnn,coreml]

An exported file is compared with PyTorch on real images before it gets its name. docs/exported_file.md describes its contents.
detector.py, which is written next to it, runs it in a program of your own.
"""

from utils import start  # noqa: F401  before PyTorch is imported

# isort: split
import copy
import difflib
import os
import shutil
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from datasets import demo
from datasets.errors import DataError
from datasets.formats.class_names import read_classes
from datasets.formats.options import options_of
from datasets.formats.read import read
from datasets.loader import Loader
from datasets.store import evenly_spaced
from deploy import load
from deploy.agreement import verify
from deploy.exported_model import ExportedModel
from deploy.formats import FORMATS, UNCHECKED, ExportError, convert, is_exported, metadata_of
from deploy.int8 import measure, quantize, read_data, readable, val_loader
from deploy.onnx_graph import write
from engine import environment
from nets.postprocess import MAX_CANDIDATES
from utils import threads
from utils.config import ConfigError, Constants, check, constants_text, override, require, require_writable, show
from utils.file_checks import CheckpointError
from utils.files import replaced
from utils.images import FILL, ImageError, images_under, read_image
from utils.script import run_script


@dataclass(frozen=True)
class Config(Constants):
    # what most users set
    checkpoint: str | None = None  # a .pt file; none: official weights of model=, or the newest runs/*/best.pt
    output: str | None = None  # the file to write; none: next to the checkpoint (official weights: the current folder)
    format: tuple[str, ...] = ("onnx",)  # onnx, openvino, litert (.tflite), ncnn, coreml; several with commas
    check: str | None = None  # a file of export.py to compare with the checkpoint; none is written
    # for official weights, which do not store these
    model: str | None = None  # yolox_nano, tiny, s, m, l, x; yolov9_t, s, m, c; ppyoloe_s, m, l, x; picodet_s, m, l
    classes: str | None = None  # a file with one name per line; none: COCO's 80
    half: bool = False  # float16 weights: half the size
    image_size: tuple[int, int] | None = None  # height, width, or one number for both; none: as in training
    # input of the file; for format=onnx only
    dynamic_size: bool = False  # any height and width that are multiples of 32
    batch_size: int = 1  # images per call; 0: any number
    uint8_input: bool = True  # uint8 [B, H, W, 3] as OpenCV reads; false: float32 [B, 3, H, W], BGR, 0-255
    # output of the file
    outputs: str = "detections"  # onnx: detections, after NMS; or raw, as in other formats: before decoding
    confidence: float | None = None  # default threshold, can be changed at each call; none: of the best F1, or 0.3
    nms_iou: float = 0.5  # default threshold too; boxes of a class that overlap more are one object
    max_detections: int = 300  # per image
    # 8 bits
    int8: bool = False  # onnx: 8-bit weights and activations: a third of the size, for CPUs
    int8_loss: float = 0.01  # an 8-bit file that loses more of the mAP is not written; 1: any is
    train: str | None = None  # int8: data whose images give the ranges; none: those of the run
    val: str | None = None  # data on which the mAP of the files is measured; none: with int8 those of the run
    # comparison with PyTorch
    images: str | None = None  # a folder; none: validation images of the training run, or generated ones without them
    check_images: int = 16  # number of images to compare on


MIN = {"batch_size": 0, "confidence": 0, "nms_iou": 0, "max_detections": 1, "check_images": 1, "int8_loss": 0}
MAX = {"confidence": 1, "nms_iou": 1, "max_detections": MAX_CANDIDATES}
ONNX_ONLY = ("dynamic_size", "batch_size", "uint8_input", "outputs", "int8")
DETECTOR = Path(__file__).parent / "deploy/standalone/detector.py"


def main(cfg: Config) -> Path:
    """Exports a checkpoint and returns the path of the last file. Raises ExportError, after the others, for those that fail."""
    cfg = check(cfg)
    require(cfg, MIN, MAX, {"outputs": ("detections", "raw")})
    require_possible(cfg)

    # ---- the model, and what its file tells about it
    classes = read_classes(cfg.classes) if cfg.classes else None
    loaded = load.load(cfg.checkpoint, cfg.model, classes, cfg.image_size)
    if loaded.note:
        print(loaded.note)
    if is_exported(loaded.path):
        raise ConfigError(f"checkpoint={cfg.checkpoint} is an exported file; export the checkpoint it was made from")
    threads.set_threads(torch.device("cpu"), 0)
    about = description(cfg, loaded)
    files = {kind: output_path(cfg, kind, loaded) for kind in cfg.format if not cfg.check}
    for file in files.values():
        require_same_kind(file, about | {"int8": cfg.int8})

    # ---- the images to compare on, and the data of the mAP
    data = find_data(cfg, loaded)
    derived = {"weights": loaded.path, "input": loaded.image_size, "default confidence": about["confidence"]}
    derived |= {"file": show([*files.values()] or cfg.check), "compared on": f"{len(data.images)} {data.source}"}
    print(constants_text(cfg, cfg, derived))
    if cfg.check:
        return check_file(Path(cfg.check), loaded, data)

    # ---- the files, each of which gets its name only if it detects what PyTorch detects
    failed = []
    for kind, file in files.items():
        try:
            write_file(kind, file, cfg, loaded, about, data)
        except (ExportError, CheckpointError) as error:
            failed.append(f"format={kind}: no file was written: {error}")
    if len(failed) < len(files):
        print(copy_detector(file.parent))
    if failed:
        raise ExportError("\n".join(failed))
    return file


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


def require_possible(cfg: Config) -> None:
    """Raises ConfigError for formats that do not exist, or that do not have what other constants ask for."""
    known = ", ".join(f"{name} ({row.use})" for name, row in FORMATS.items())
    if not cfg.format:
        raise ConfigError(f"format=(): choose of {known}")
    for kind in cfg.format:
        if kind not in FORMATS:
            near = difflib.get_close_matches(kind, FORMATS, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]}? " if near else ""
            raise ConfigError(f"format={kind}: {hint}Choose of {known}")
        missing = [name for name in ONNX_ONLY if kind != "onnx" and getattr(cfg, name) != getattr(Config, name)]
        if cfg.half and not FORMATS[kind].half:
            missing.append("half")
        for name in missing:
            given = f"{name}={show(getattr(cfg, name))}"
            raise ConfigError(f"{given} does not exist for format={kind}: leave one of them out")
    if cfg.outputs == "raw" and (cfg.dynamic_size or cfg.batch_size == 0):
        raise ConfigError("outputs=raw is for converters, which need fixed shapes: no dynamic_size, and a batch_size")
    if cfg.int8 and cfg.half:
        raise ConfigError("int8=true and half=true exclude each other: leave one of them out")


class CheckData(NamedTuple):
    """What the files are checked with."""

    images: list[np.ndarray]  # uint8 [H, W, 3] BGR
    source: str  # of the images
    loader: Loader | None  # validation data, for the mAP
    calibration: list[np.ndarray] | None  # for 8 bits: training images, letterboxed


def find_data(cfg: Config, loaded: load.Loaded) -> CheckData:
    """Reads what the files are checked with."""
    images, source = find_images(cfg.images, loaded, cfg.check_images)
    if cfg.int8:
        calibration, loader = read_data(cfg.train, cfg.val, loaded)
        return CheckData(images, source, loader, calibration)
    return CheckData(images, source, val_loader(cfg.val, loaded) if cfg.val else None, None)


def write_file(kind: str, file: Path, cfg: Config, loaded: load.Loaded, about: dict[str, Any], data: CheckData) -> None:
    """Writes the model in a format. Raises ExportError, and leaves no file, if it does not detect what the model detects."""
    with replaced(file) as path:
        try:
            write_unchecked(kind, path, cfg, loaded, about)
            if UNCHECKED not in file.name:
                compare(path, loaded, data)
            if data.calibration and data.loader:
                quantize(path, data.calibration, data.loader, cfg.int8_loss)
        except (ExportError, CheckpointError) as error:
            raise ExportError(str(error).replace(str(path), str(file))) from error
    print(f"{file}  {size_of(file) / 2**20:.1f} MiB")


def write_unchecked(kind: str, path: Path, cfg: Config, loaded: load.Loaded, about: dict[str, Any]) -> None:
    """Writes the model in a format."""
    model = copy.deepcopy(loaded.model).fuse()
    if kind == "onnx":
        write(path, model, about, cfg.batch_size, cfg.uint8_input)
    else:
        convert(kind, model, about, path)


def compare(path: Path, loaded: load.Loaded, data: CheckData) -> None:
    """Compares a file with the model on images, and, if there are data and no 8 bits, their mAP. Raises ExportError."""
    verify(path, loaded.model, data.images, loaded.classes)
    if data.loader and not data.calibration:
        measure("PyTorch", loaded.model, data.loader)
        measure(path.name, ExportedModel(path), data.loader)


def check_file(path: Path, loaded: load.Loaded, data: CheckData) -> Path:
    """Compares a file that exists with the model, and returns its name. If that says that it is unchecked, it is renamed."""
    compare(path, loaded, data)
    checked = path.with_name(path.name.replace(UNCHECKED, ""))
    if checked != path:
        if checked.exists():
            raise ConfigError(
                f"{path} agrees with PyTorch, but keeps its name, since {checked} exists: delete that one"
            )
        path = path.rename(checked)
    print(f"{path} agrees with PyTorch")
    return path


def output_path(cfg: Config, kind: str, loaded: load.Loaded) -> Path:
    """Returns the file to write: `output`, or one next to the checkpoint, or for official weights in the current folder.

    Of several formats, `output` is one file, and the others are next to it. A file that cannot be compared on this computer has
    UNCHECKED in its name.
    """
    base = str(loaded.path.with_suffix("")) if loaded.config else loaded.name
    if cfg.output is not None:
        suffixes = [FORMATS[one].suffix for one in cfg.format]
        suffix = next((suffix for suffix in suffixes if cfg.output.endswith(suffix)), None)
        if suffix is None:
            raise ConfigError(f"output={cfg.output}: its name must end with {' or '.join(suffixes)}")
        base = cfg.output.removesuffix(suffix)
    if FORMATS[kind].needs_mac and sys.platform != "darwin":
        base = base.removesuffix(UNCHECKED) + UNCHECKED
    path = Path(base + FORMATS[kind].suffix)
    require_writable(f"output={show(cfg.output)}", path.parent, "give output=FILE in another folder")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def require_same_kind(path: Path, about: dict[str, Any]) -> None:
    """Raises ConfigError if the file exists, but an export with these options did not write it: a program may use it."""
    if not path.exists():
        return
    fix = "name another file with output=, or delete it"
    try:
        present = ExportedModel(path).about if path.suffix == ".onnx" else metadata_of(path)
    except (OSError, ValueError, LookupError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{path} would be replaced, but cannot be read as a file of export.py: {fix}") from error
    for name in ("outputs", "dynamic_size", "half", "int8"):
        if path.suffix == ".onnx" or name == "half":
            if (old := present.get(name, False)) != about[name]:
                raise ConfigError(f"{path} would be replaced, but was exported with {name}={show(old)}: {fix}")


def size_of(path: Path) -> int:
    """Returns the bytes of a file, or of all files in a folder."""
    return sum(part.stat().st_size for part in (path, *path.rglob("*")) if part.is_file())


def find_images(folder: str | None, loaded: load.Loaded, count: int) -> tuple[list[np.ndarray], str]:
    """Reads up to `count` images to compare on, uint8 [H, W, 3] BGR, evenly spaced over all; also returns their source."""
    if folder is not None:
        paths = [os.path.join(folder, name) for name in images_under(folder)]
        if not paths:
            raise ConfigError(f"images={folder}: there are no images in this folder")
        chosen = [paths[index] for index in evenly_spaced(len(paths), count)]
        return [read_image(path, value_range=loaded.value_range) for path in chosen], f"images of {folder}"
    if val := loaded.config.get("val"):
        try:
            data = read(val, "val", options_of(loaded.config, loaded.classes))
            if len(data) == 0:
                raise DataError(f"{val}: no images")
            data = readable(data, count, loaded)
            return [data.image(index) for index in range(len(data))], f"images of {val}"
        except (DataError, ImageError, OSError) as error:
            print(f"note: the validation images of the training run cannot be used ({error})")
    generated = [demo.draw_image(number)[0] for number in range(count)]
    return generated, "generated images; real ones are better: images=FOLDER"


if __name__ == "__main__":
    stopped, positional = "stopped; no file was written", {"checkpoint": load.is_checkpoint}
    run_script(lambda: main(override(Config(), sys.argv[1:], positional)), stopped, memory_advice="lower batch_size=")
