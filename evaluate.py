"""Evaluates a checkpoint on a data set: python evaluate.py runs/RUN/best.pt [data=data/val.txt]

Official weights: python evaluate.py model=yolox_s data=instances_val2017.json
"""

from utils import start  # noqa: F401  before PyTorch is imported

# isort: split
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from datasets.check_images import check_images
from datasets.dataset import DetectionDataset
from datasets.errors import WARNING, DataError, logged
from datasets.formats import read
from datasets.formats.class_names import read_classes
from datasets.formats.options import options_of
from datasets.loader import ValSampler, build_loader
from datasets.sources import may_have_splits
from datasets.store import Annotations
from deploy import load
from deploy.tiled_model import tiled
from engine import runs
from engine.evaluation import evaluate
from metrics.coco import COCO_METRICS, EVALUATOR
from nets.postprocess import MAX_CANDIDATES
from report.analysis import limit_notes, unlabeled_classes, unlabeled_note, write_report, write_results
from utils import outputs, processes, remote, threads
from utils.config import ConfigError, Constants, check, constants_text, override, require, require_writable, show
from utils.files import real_path
from utils.remote_cache import shown
from utils.script import run_script
from utils.text import aligned, amount, in_points, metric


@dataclass(frozen=True)
class Config(Constants):
    # what everyone sets
    checkpoint: str | None = None  # .pt, exported file or name of a run; none: weights of model=, or the newest run
    data: str | None = None  # annotation file, COCO JSON, YOLO yaml, or a folder; none: val of the run
    output: str | None = None  # a folder; none: a new one next to the checkpoint (others: in runs)
    # for official weights, which do not contain it
    model: str | None = None  # yolox_nano, tiny, s, m, l, x; yolov9_t, s, m, c; ppyoloe_s, m, l, x; picodet_s, m, l
    classes: str | None = None  # a file with one name per line; none: COCO's 80
    # detections
    image_size: tuple[int, int] | None = None  # height, width, or one number for both; none: as in training
    confidence: float = 0.001  # low, because AP needs the whole curve; published metrics use 0.001
    nms_iou: float = 0.65  # the published metrics of YOLOX use it
    max_detections: int = 300  # per image; the published metrics of YOLOX have no limit: 3000
    tile: int | None = None  # for small objects in large images: the side in pixels of tiles to detect in, too
    overlap: float | None = None  # of neighboring tiles, a fraction of their side; none: 0.2
    batch_size: int = 16  # images per step of one process
    # data; none: as in the run
    split: str = "val"  # of data with several splits: train, val, test, all
    image_root: str | None = None  # the folder of the images, if they are not next to the annotations
    bad_boxes: str | None = None  # boxes without area: "error" stops and names them, "drop" leaves them out
    bad_images: str | None = None  # images that cannot be read: "error", "skip" or "repair" (JPEGs that are cut off)
    # error analysis
    report: bool = True  # report.html: metrics with intervals, curves, confusions and mistakes, to open in a browser
    show_confidence: float = 0.3  # its confusions and mistakes leave out detections with lower scores
    # hardware
    device: str = "auto"  # auto: CUDA, MPS, CPU; or cpu, cuda, cuda:1, mps
    workers: int | None = None  # processes that read images, per process; none: by device and cores


MIN: dict[str, float] = dict.fromkeys(("confidence", "nms_iou", "show_confidence", "workers"), 0)
MIN |= dict.fromkeys(("batch_size", "max_detections"), 1)
MAX: dict[str, float] = {
    "max_detections": MAX_CANDIDATES,
    **dict.fromkeys(("confidence", "nms_iou", "show_confidence"), 1),
}
LOW = 0.01  # confidence; lower ones hardly change the mAP
LIMITS = ("confidence", "nms_iou", "max_detections", "tile", "overlap")  # as the results record them
CLASS_COLUMNS = ("AP", "AP50", "VOC_AP50", "precision", "recall", "f1", "threshold")


def main(cfg: Config) -> dict:
    """Evaluates a checkpoint, writes the results to a folder and returns the metrics."""
    written = check(cfg)
    require(cfg, MIN, MAX, {"split": tuple(read.SPLITS)})
    if cfg.device == "cuda:all":
        raise ConfigError("device=cuda:all is for training: use torchrun, or device=cuda for one GPU")
    ranks = processes.start(load.device_for(cfg.checkpoint, cfg.device))
    names = read_classes(cfg.classes) if cfg.classes else None
    loaded = load.load(cfg.checkpoint, cfg.model, names, cfg.image_size)
    if loaded.note:
        ranks.log(loaded.note)
    is_here = loaded.config and not remote.is_address(cfg.checkpoint or "")
    usual_folder = loaded.path.parent if is_here else Path("runs")  # official weights and exported files are of no run
    source = cfg.data or validation_data(loaded)
    if ranks.is_main:
        require_writable(f"output={show(cfg.output)}", cfg.output or usual_folder, "give output=FOLDER")
        outputs.require_evaluation(cfg.output, source)
    if not cfg.data:
        require_split(cfg.split, loaded.config)
    try:
        data, notes = open_data(source, cfg.split, loaded.classes, data_options(cfg, loaded.config))
    except (DataError, OSError) as error:
        if cfg.data or not source:
            raise
        text = "the validation data of this checkpoint are not on this computer, or not as they were: write data=FOLDER"
        why = "\n".join(str(error).split("\n")[:2])  # one place is enough
        raise DataError(f"{shown(str(loaded.path))}: {text}\n{why}") from error
    notes += training_images(loaded, cfg.data, data)
    data, outside = data.with_range(loaded.value_range)
    if cfg.confidence > LOW:
        notes.append(
            f"confidence={cfg.confidence:g} leaves out the end of each curve: mAP and recall are lower than with 0.001"
        )
    derived = {"weights": shown(str(loaded.path)), "source": data.source, "images": len(data)}
    ranks.log(constants_text(cfg, written, derived | {"input size": loaded.image_size}))
    limit = min(cfg.max_detections, loaded.max_detections)
    for note in notes + outside + limit_notes(data, limit):
        ranks.log(logged(note))
    metrics = measure(cfg, loaded, data, ranks)
    if ranks.is_main:
        folder = runs.create(usual_folder, "evaluation") if cfg.output is None else Path(cfg.output)
        outputs.open_evaluation(folder)
        settings = {"checkpoint": shown(str(loaded.path)), "data": data.source, "images": len(data), **loaded.about}
        settings |= {"image_size": loaded.image_size, **{name: getattr(cfg, name) for name in LIMITS}}
        settings["max_detections"] = limit
        save_and_print(folder, cfg, data, metrics, settings, unlabeled_classes(data, loaded.model.added_counts))
    ranks.stop()
    return metrics


def validation_data(loaded: load.Loaded) -> str | None:
    """Returns the validation data of a checkpoint. A list that its run wrote lies next to it, also if the run was moved."""
    written = loaded.config.get("val")
    if written is None or remote.is_address(written):
        return written
    moved = loaded.path.parent / Path(written).name
    return str(moved) if moved.is_file() else written


def training_images(loaded: load.Loaded, source: str | None, data: Annotations) -> list[str]:
    """Returns a warning if some of the images that the user names as `source` are training images of the checkpoint.

    They are known from the list that a run with val=.2 has written, or if it was trained on the same source. An image whose
    listed path is gone was moved: then the last two parts of the path count."""
    lists = [path for name in ("train.txt", "train.json") if (path := loaded.path.with_name(name)).is_file()]
    train = str(loaded.config.get("train"))
    if source is None or not (lists or Path(train).resolve() == Path(source).resolve()):
        return []
    with suppress(DataError, OSError):
        known = read.read(lists[0] if lists else train, "train", options_of(loaded.config, loaded.classes))
        paths = [known.path(index) for index in range(len(known))]
        there = {real_path(path) for path in paths}
        moved = {Path(path).parts[-2:] for path in paths if not os.path.exists(path)}
        own = [data.path(index) for index in range(len(data))]
        if count := sum(real_path(path) in there or Path(path).parts[-2:] in moved for path in own):
            text = f"{count} of {amount(len(own), 'image')} are training images of this checkpoint, so the metrics are too high"
            return [f"{WARNING}{source}: {text}"]
    return []


def measure(cfg: Config, loaded: load.Loaded, data: Annotations, ranks: processes.Ranks) -> dict:
    """Detects the objects of all images, each process in its shard, and returns the metrics."""
    size, node, workers = loaded.image_size, len(ranks.node_ranks), cfg.workers
    if workers is None:
        workers = threads.choose_workers(ranks.device, node, node * cfg.batch_size, size)
    threads.set_threads(ranks.device, workers, node)
    model: Any = loaded.model
    sampler = ValSampler(len(data), cfg.batch_size, size, ranks.rank, ranks.world_size)
    loader = build_loader(DetectionDataset(data, model.letterbox), sampler, workers, ranks.device.type == "cuda")
    model = model.to(ranks.device, memory_format=torch.channels_last)
    if cfg.tile is not None or cfg.overlap is not None:
        model, loader = tiled(model, loader, cfg.tile, cfg.overlap)
    return evaluate(
        model, loader, ranks, confidence=cfg.confidence, nms_iou=cfg.nms_iou, max_detections=cfg.max_detections
    )


def save_and_print(
    folder: Path, cfg: Config, data: Annotations, metrics: dict, settings: dict[str, Any], unlabeled: list[str]
) -> None:
    """Writes the files of the evaluation and prints the metrics. `unlabeled`: classes that do not count as mistakes."""
    detections = metrics.pop("detections")
    print(metrics_text(metrics))
    if unlabeled:
        settings["unlabeled"] = unlabeled
        print(unlabeled_note(unlabeled))
    results = metrics | {"evaluator": EVALUATOR, "settings": settings}
    write_results(folder, data, detections, results)
    ap, ap50 = in_points(metrics["AP"]), in_points(metrics["AP50"])
    print(f"{folder}  mAP50-95 {ap}  mAP50 {ap50}  by {EVALUATOR}")
    if cfg.report:
        write_report(folder, data, detections, results, cfg.show_confidence)
        print(f"report: {folder / 'report.html'}")


def data_options(cfg: Config, trained: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the constants of the training, `trained`, changed by the options about the data."""
    about_data = {name: getattr(cfg, name) for name in ("image_root", "bad_boxes", "bad_images")}
    options = {**trained, **{name: value for name, value in about_data.items() if value is not None}}
    if cfg.data not in (None, trained.get("train"), trained.get("val")):  # other images than in training
        options["image_root"] = cfg.image_root
    return options


def require_split(split: str, config: Mapping[str, Any]) -> None:
    """Raises ConfigError for a split that the validation data of the run, in its constants `config`, do not have."""
    val, train = config.get("val"), config.get("train")
    if val and split != "val" and not may_have_splits(val):
        has_splits = train and may_have_splits(train)
        fix = f"write data={train} split={split}" if has_splits else "name the file of these images in data="
        raise ConfigError(f"split={split}: {val} of the training has validation images only: {fix}")


def open_data(
    source: str | None, split: str, classes: tuple[str, ...], config: dict[str, Any]
) -> tuple[Annotations, list[str]]:
    """Reads and checks the data with the classes of the model, and the constants of its training where they are about data.

    Returns (annotations, notes to print)."""
    if source is None:
        raise DataError(
            "data= is missing: an annotation file, COCO JSON, YOLO yaml, or a folder; an address must be named"
        )
    options = options_of(config, classes)
    data = read.read(source, split, options)
    if len(data) == 0:
        raise DataError(f"{source}: no images in its split {split!r}; split= may be train, val, test or all")
    data, notes = check_images(data, options)
    if not data.boxes_per_class().sum():
        notes.append(f"{source} has no boxes: there is nothing to measure, and the metrics are -1")
    return data, notes


def metrics_text(metrics: dict) -> str:
    """The twelve COCO metrics and a table with one row per class, for the console."""
    summary = [list(COCO_METRICS), [in_points(metrics[name]) for name in COCO_METRICS]]
    rows = [row for row in metrics["per_class"].values() if row["boxes"]]
    mean = dict.fromkeys(CLASS_COLUMNS, -1.0)
    if rows:
        mean = {name: float(np.mean([row[name] for row in rows])) for name in CLASS_COLUMNS}
    mean |= {"boxes": sum(row["boxes"] for row in rows), "threshold": -1.0}
    classes = [("class", "boxes", *CLASS_COLUMNS)]
    for name, row in [*metrics["per_class"].items(), ("mean", mean)]:
        classes.append((name, row["boxes"], *(metric(column, row[column]) for column in CLASS_COLUMNS)))
    note = "precision, recall and f1 at IoU 0.5 and the threshold with the highest f1; -: nothing to measure\n"
    return "\n".join(["", *aligned(summary, ()), "", *aligned(classes, ("class",)), note])


def command(words: list[str]) -> None:
    """Evaluates with the arguments `words`; exits with status 1 if the data set has no boxes, so that scripts notice it."""
    metrics = main(override(Config(), words, {"checkpoint": load.is_checkpoint, "data": remote.exists}))
    if metrics["AP"] < 0:
        raise SystemExit("nothing was measured: the data set has no boxes of the classes of the model")


if __name__ == "__main__":
    run_script(lambda: command(sys.argv[1:]), "stopped", "lower batch_size=")
