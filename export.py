"""A checkpoint as an ONNX file that runs elsewhere: python export.py checkpoint=runs/RUN/best.pt

The file is compared with PyTorch on real pictures before it gets its name. What is in it: docs/deploy.md.
"""

import copy
import os
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from datasets import demo, formats
from datasets.annotations import DataError
from datasets.images import ImageError, pictures_under, read_image
from datasets.transforms import FILL, letterbox
from nets.graph import TRANSLATIONS, DetectionGraph, RawGraph
from nets.postprocess import MAX_CANDIDATES
from nets.pretrained import PretrainedError
from utils import detector, distributed, run, script
from utils.agreement import Agreement, Tolerance, around, compare
from utils.config import ConfigError, check, override, require, table
from utils.onnx import OnnxModel, metadata


@dataclass(frozen=True)
class Config:
    # what everyone gives
    checkpoint: str | None = None  # a checkpoint or official weights; coco: fetch; none: the newest runs/*/best.pt
    output: str | None = None  # the file; none: beside the checkpoint, of official weights here
    # of official weights, which do not say it themselves
    model: str | None = None  # yolox_nano, yolox_tiny, yolox_s, yolox_m, yolox_l, yolox_x
    classes: str | None = None  # a file with one name a line; none: COCO's 80
    # what goes in
    image_size: tuple[int, int] | None = None  # height, width; none: that of the training
    dynamic_size: bool = False  # any height and width that are multiples of 32
    batch_size: int = 1  # pictures at a time; 0: any number
    pictures_in: bool = True  # uint8 [B, H, W, 3] as OpenCV reads; false: float32 [B, 3, H, W], BGR, 0-255
    # what comes out
    outputs: str = "detections"  # detections: after NMS; raw: tensors of each level, before decoding
    confidence: float | None = None  # a default of the file, may be given to it; none: of the best F1, or 0.3
    nms_iou: float = 0.5  # also a default; boxes of a class that overlap more are one object
    max_detections: int = 300  # a picture
    half: bool = False  # float16 inside: half the size
    # the comparison with PyTorch
    pictures: str | None = None  # a folder; none: val of the training, and if that is not here, drawn ones
    check_pictures: int = 16


OPSET = 18  # of ONNX: what torch.onnx writes, without conversions afterwards
ABOVE = 0.05  # the confidence from which on detections are compared
EXACT = Tolerance(boxes=0.5, scores=1e-3, nms_iou=1e-3, unpaired=0.0)
HALF = Tolerance(boxes=4.0, scores=0.02, nms_iou=0.02, unpaired=0.02)  # YOLOX-nano: docs/deploy.md
LEAST = {"batch_size": 0, "confidence": 0, "nms_iou": 0, "max_detections": 1, "check_pictures": 1}
MOST = {"confidence": 1, "nms_iou": 1, "max_detections": MAX_CANDIDATES}
PACKAGES = ("onnx", "onnxscript", "onnxruntime")


class ExportError(RuntimeError):
    """No file was written; the message says why."""


def main(cfg: Config) -> Path:
    """Exports as `cfg` says -> the file."""
    cfg = check(cfg)
    require(cfg, LEAST, MOST, {"outputs": ("detections", "raw")})
    if cfg.outputs == "raw" and (cfg.dynamic_size or cfg.batch_size == 0):
        raise ConfigError("outputs=raw is for converters, which want fixed shapes: no dynamic_size, and a batch_size")
    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        raise ExportError(f"export needs more than training: pip install {' '.join(missing)}")
    wanted = formats.read_classes(cfg.classes) if cfg.classes else None
    loaded = detector.load(cfg.checkpoint, cfg.model, wanted, cfg.image_size)
    if isinstance(loaded.model, OnnxModel):
        raise ConfigError(f"checkpoint={cfg.checkpoint} is an exported file; export the checkpoint it was made from")
    distributed.share_cores(torch.device("cpu"), 0)
    about = description(cfg, loaded)
    output = output_path(cfg.output, loaded.path, None if loaded.config else cfg.model)
    pictures, where = find_pictures(cfg.pictures, loaded, cfg.check_pictures)
    derived = {"weights": loaded.path, "input": loaded.image_size, "default confidence": about["confidence"]}
    derived |= {"file": output, "opset": OPSET, "compared on": f"{len(pictures)} {where}"}
    print(table(cfg, Config(), derived))
    temporary = output.with_name(f".{output.stem}-{os.getpid()}.onnx")
    try:
        write(temporary, copy.deepcopy(loaded.model).fuse(), about, cfg.batch_size, cfg.pictures_in)
        verify(temporary, loaded.model, pictures, about)
        os.replace(temporary, output)
    finally:
        temporary.unlink(missing_ok=True)
    print(f"{output}  {output.stat().st_size / 2**20:.1f} MiB")
    return output


def description(cfg: Config, loaded: detector.Loaded) -> dict[str, Any]:
    """What the file will say about itself (docs/deploy.md)."""
    return {
        "model": loaded.config.get("model", cfg.model),
        "classes": loaded.classes,
        "image_size": loaded.image_size,
        "dynamic_size": cfg.dynamic_size,
        "nms_free": loaded.model.selector is not None,
        "letterbox": loaded.model.letterbox,
        "padding": FILL,
        "outputs": cfg.outputs,
        "confidence": loaded.confidence if cfg.confidence is None else cfg.confidence,
        "nms_iou": cfg.nms_iou,
        "max_detections": cfg.max_detections,
        "half": cfg.half,
        "code": run.code(Path(__file__).parent),
        "torch": torch.__version__,
    }


def output_path(output: str | None, checkpoint: Path, official: str | None) -> Path:
    """Where the file goes. `official`: the model, where the weights are not of a run of ours."""
    if output is None:
        return Path(f"{official}.onnx") if official else checkpoint.with_suffix(".onnx")
    if Path(output).suffix != ".onnx":
        raise ConfigError(f"output={output}: its name must end with .onnx")
    Path(output).parent.mkdir(parents=True, exist_ok=True)
    return Path(output)


def find_pictures(folder: str | None, loaded: detector.Loaded, most: int) -> tuple[list[np.ndarray], str]:
    """Up to `most` images uint8 [H, W, 3] BGR, evenly from all there are, and in words where they are from."""
    if folder is not None:
        paths = [os.path.join(folder, name) for name in pictures_under(folder)]
        if not paths:
            raise ConfigError(f"pictures={folder}: there are no pictures in this folder")
        return evenly(paths, most), f"pictures of {folder}"
    config = loaded.config
    if config.get("val"):
        try:
            bad_boxes = config.get("bad_boxes", "error")
            data = formats.read(config["val"], "val", loaded.classes, config.get("image_root"), bad_boxes)
            return evenly([data.path(i) for i in range(len(data))], most), f"pictures of {config['val']}"
        except (DataError, ImageError, OSError) as error:
            print(f"note: the validation pictures of the training are not here ({error})")
    return [demo.picture(number)[0] for number in range(most)], "drawn pictures; better give pictures=FOLDER"


def evenly(paths: list[str], most: int) -> list[np.ndarray]:
    """The pictures of up to `most` of the paths, read."""
    return [read_image(path) for path in paths[:: -(-len(paths) // most)]]


def write(path: Path, model: torch.nn.Module, about: dict[str, Any], batch_size: int, pictures_in: bool) -> None:
    """Writes the file. `model` has its batch norms folded, and is changed to float16 where `about` says half."""
    import onnx

    model = model.half() if about["half"] else model
    limits = {name: about[name] for name in ("confidence", "nms_iou")} if about["outputs"] == "detections" else {}
    if limits:
        graph = DetectionGraph(model, pictures_in, about["max_detections"])
    else:
        graph = RawGraph(model, pictures_in, about["image_size"])
        about = about | {"shapes": graph.shapes}
    size = [max(side, 64) for side in about["image_size"]] if about["dynamic_size"] else about["image_size"]
    shape = (*size, 3) if pictures_in else (3, *size)  # torch.export takes one row of cells for a constant
    images = torch.zeros(batch_size or 2, *shape, dtype=torch.uint8 if pictures_in else torch.float32)
    moving = {} if batch_size else {0: torch.export.Dim("batch", min=1, max=2**15)}
    if about["dynamic_size"]:
        sides = [32 * torch.export.Dim(name, min=1, max=2**10) for name in ("rows", "columns")]
        moving |= dict(zip((1, 2) if pictures_in else (2, 3), sides, strict=True))
    program = torch.onnx.export(
        graph.eval(),
        (images, *(torch.tensor([value]) for value in limits.values())),
        input_names=["images", *limits],
        output_names=list(graph.outputs),
        dynamic_shapes=(moving or None, *(None for _ in limits)),
        opset_version=OPSET,
        custom_translation_table=TRANSLATIONS,
        dynamo=True,
        optimize=True,
        verbose=False,
    )
    onnx.save(finished(program.model_proto, limits, about), path)


def finished(proto, limits: dict[str, float], about: dict[str, Any]):
    """The file's contents with metadata, and with values for the limits: it runs without them, and they may be given."""
    import onnx

    for part in (proto, proto.graph, *proto.graph.node):  # where the code lay on this machine is nobody's business
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    for name, value in limits.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([value], np.float32), name))
    for name, text in metadata(about).items():
        proto.metadata_props.add(key=name, value=text)
    onnx.checker.check_model(proto)
    return proto


def verify(path: Path, model: torch.nn.Module, pictures: list[np.ndarray], about: dict[str, Any]) -> None:
    """Runs the file in onnxruntime and compares it with the model. Raises ExportError where they differ."""
    exported, tolerance = OnnxModel(path, lambda *_, **__: model), HALF if about["half"] else EXACT
    height, width = about["image_size"]
    for size in [(height, width)] + [(height + 64, width + 32)] * about["dynamic_size"]:
        images = torch.from_numpy(np.stack([letterbox(image, size, model.letterbox)[0] for image in pictures]))
        limits = about["nms_iou"], about["max_detections"]
        found = agreement(model, exported, images.permute(0, 3, 1, 2), *limits, tolerance)
        print(f"onnxruntime and PyTorch at {size[0]} x {size[1]}, confidence {ABOVE} and more: {found.text()}")
        if not found.detections:
            raise ExportError("the model finds nothing in these pictures: give others to compare with, pictures=FOLDER")
        if not found.within(tolerance):
            few = "\n".join(found.unpaired[:10])
            raise ExportError(f"onnxruntime and PyTorch differ by more than {tolerance}; no file is kept\n{few}")


@torch.no_grad()
def agreement(
    model: torch.nn.Module, exported: OnnxModel, images: Tensor, nms_iou: float, most: int, tolerance: Tolerance
) -> Agreement:
    """Both on images uint8 [B, 3, H, W], one alone and then four at a time; boxes in pixels of the input."""
    size, least = tuple(images.shape[-2:]), ABOVE - 2 * tolerance.scores
    limits = around(nms_iou, tolerance)
    ours, theirs = [[] for _ in limits], []
    for some in images[:1].split(1) + images[1:].split(4) * (len(images) > 1):
        frames = torch.tensor([[size[1], size[0], 1.0, 0.0, 0.0]] * len(some))
        predictions = model(some)
        for limit, found in zip(limits, ours, strict=True):
            found += model.detections(predictions, size, frames, least, limit, most)
        theirs += exported.detections(exported(some), size, frames, least, nms_iou, most)
    return compare(ours, theirs, ABOVE, most, tolerance)


if __name__ == "__main__":
    script.run(
        lambda: main(override(Config(), sys.argv[1:])),
        mistakes=(PretrainedError, ExportError),
        stopped="stopped; no file was written",
        lower="lower batch_size=",
    )
