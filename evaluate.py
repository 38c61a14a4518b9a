"""How good a checkpoint is on a data set: python evaluate.py checkpoint=runs/RUN/best.pt data=data/val.txt

Official weights: python evaluate.py checkpoint=yolox_s.pth model=yolox_s data=instances_val2017.json
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from datasets import formats, images
from datasets.annotations import Annotations, DataError
from datasets.dataset import DetectionDataset
from datasets.loader import ValSampler, build_loader
from nets.pretrained import PretrainedError
from utils import detector, distributed, draw, metrics, mistakes, plots, run, script
from utils.config import check, override, require, table
from utils.evaluate import evaluate


@dataclass(frozen=True)
class Config:
    # what everyone gives
    checkpoint: str | None = None  # a checkpoint, .onnx or official weights; coco: fetch; none: newest runs/*/best.pt
    data: str | None = None  # annotation file, COCO JSON, YOLO yaml, VOC or LabelMe folder; none: val of the training
    output: str | None = (
        None  # a folder; none: a new one beside the checkpoint, or in runs for .onnx and official weights
    )
    # of official weights, which do not say it themselves
    model: str | None = None  # yolox_nano, yolox_tiny, yolox_s, _m, _l, _x; yolov9_t, _s, _m, _c
    classes: str | None = None  # a file with one name a line; none: COCO's 80
    # detections
    image_size: tuple[int, int] | None = None  # height, width; none: that of the training
    confidence: float = 0.001  # low: AP asks for the whole curve, and 0.001 is what published figures use
    nms_iou: float = 0.65  # the published figures of YOLOX use it
    batch_size: int = 16  # images a step of one process
    # data; none: as in the training
    part: str = "val"  # of data that have several: train, val, test, all
    image_root: str | None = None  # where the pictures of a COCO JSON lie, if not beside it
    bad_boxes: str | None = None  # boxes without area: "error" names them, "drop" leaves them out and counts
    skip_bad_images: bool | None = None  # pictures that cannot be read: an error, or left out
    # pictures of the result
    show_confidence: float = 0.3  # detections below it count for no mistake
    worst: int = 16  # pictures with the most mistakes that are drawn
    # machine
    device: str = "auto"  # auto: CUDA, MPS, CPU; or cpu, cuda, cuda:1, mps
    workers: int = 2  # processes that read pictures; on a CPU they take cores from the network


RIGHT, MISSED, FALSE = (80, 175, 76), (0, 152, 255), (60, 20, 220)  # BGR green, orange, red
PARTS_OF_TABLE = ("AP", "AP50", "VOC_AP50", "precision", "recall", "f1", "threshold")


def main(cfg: Config) -> dict:
    """Evaluates as `cfg` says, writes the results -> the figures."""
    cfg = check(cfg)
    require(cfg, {"batch_size": 1, "confidence": 0, "nms_iou": 0, "workers": 0}, {"confidence": 1, "nms_iou": 1}, {})
    ranks = distributed.start(detector.device_for(cfg.checkpoint, cfg.device))
    distributed.share_cores(ranks.device, cfg.workers)
    say = print if ranks.is_main else lambda *_: None
    wanted = formats.read_classes(cfg.classes) if cfg.classes else None
    model, classes, size, trained, path, _ = detector.load(cfg.checkpoint, cfg.model, wanted, cfg.image_size)
    policy = {
        name: pick(getattr(cfg, name), trained.get(name)) for name in ("image_root", "bad_boxes", "skip_bad_images")
    }
    data, notes = open_data(pick(cfg.data, trained.get("val")), cfg.part, classes, **policy)
    say(table(cfg, Config(), {"weights": path, "data of": data.source, "pictures": len(data), "input": size}))
    for note in notes:
        say(f"note: {note}")
    sampler = ValSampler(len(data), cfg.batch_size, size, ranks.rank, ranks.world)
    loader = build_loader(DetectionDataset(data, model.letterbox), sampler, cfg.workers, ranks.device.type == "cuda")
    model = model.to(ranks.device, memory_format=torch.channels_last)
    with tqdm(total=len(loader), desc="evaluation", disable=not ranks.is_main, leave=False, dynamic_ncols=True) as bar:
        limits = {"confidence": cfg.confidence, "nms_iou": cfg.nms_iou}
        figures = evaluate(model, loader, ranks, **limits, progress=lambda _: bar.update())
    if ranks.is_main:
        detections = figures.pop("detections")
        print(figures_text(figures))
        folder = open_output(cfg.output, path, bool(trained))
        how = {"checkpoint": str(path), "data": data.source, "pictures": len(data), "image_size": size, **limits}
        write_results(folder, data, detections, figures | {"evaluator": metrics.BACKEND.name, "settings": how})
        show_mistakes(folder, data, detections, cfg.show_confidence, cfg.worst)
        print(f"{folder}  mAP50-95 {figures['AP']:.4f}  mAP50 {figures['AP50']:.4f}  by {metrics.BACKEND.name}")
    ranks.stop()
    return figures


def pick(given, trained):
    """What is given, and if nothing is, what the training used."""
    return trained if given is None else given


def open_data(
    source: str | None, part: str, classes: tuple[str, ...], image_root: str | None, bad_boxes: str | None,
    skip_bad_images: bool | None,
) -> tuple[Annotations, list[str]]:  # fmt: skip
    """Reads and checks the data with the classes of the model -> (annotations, lines of report)."""
    if source is None:
        raise DataError("data= is missing: an annotation file, COCO JSON, YOLO yaml, VOC or LabelMe folder")
    data = formats.read(source, part, classes, image_root, bad_boxes or "error")
    if len(data) == 0:
        raise DataError(f"{source}: no pictures in its part {part!r}; part= may be train, val, test or all")
    data, notes = images.prepare(data, bool(skip_bad_images), bad_boxes or "error")
    if not data.boxes_per_class().sum():
        notes.append(f"{source} has no boxes: there is nothing to measure, and the figures are -1")
    return data, notes


def figures_text(figures: dict) -> str:
    """The twelve figures, and a row for each class."""
    lines = ["", "  ".join(f"{name:>9}" for name in metrics.FIGURES)]
    lines += ["  ".join(f"{shown(figures[name]):>9}" for name in metrics.FIGURES), ""]
    wide = max(5, *(columns(name) for name in figures["per_class"]))
    lines.append(f"{'class':{wide}}  {'boxes':>7}" + "".join(f"  {name:>9}" for name in PARTS_OF_TABLE))
    for name, row in figures["per_class"].items():
        blanks = " " * (wide - columns(name))
        lines.append(f"{name}{blanks}  {row['boxes']:7}" + "".join(f"  {shown(row[n]):>9}" for n in PARTS_OF_TABLE))
    rows = [row for row in figures["per_class"].values() if row["boxes"]]
    means = [shown(float(np.mean([row[n] for row in rows]))) if rows else "-" for n in PARTS_OF_TABLE[:-1]]
    total = sum(row["boxes"] for row in rows)
    lines.append(f"{'mean':{wide}}  {total:7}" + "".join(f"  {mean:>9}" for mean in means))
    lines.append("precision, recall and f1 at IoU .5, at the threshold where f1 is best; - : nothing to measure\n")
    return "\n".join(lines)


def columns(text: str) -> int:
    """Columns that a text takes in a terminal: two for a Chinese letter."""
    return sum(1 + (ord(letter) >= 0x1100) for letter in text)


def shown(value: float) -> str:
    """Four decimals, - for nothing to measure."""
    return f"{value:.4f}" if value >= 0 else "-"


def open_output(output: str | None, checkpoint: Path, of_a_run: bool) -> Path:
    """The folder for the results: a new numbered one, or that of the user, where older results make room."""
    if output is None:
        return run.create(checkpoint.parent if of_a_run else "runs", "evaluation")
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    names = ("metrics.json", "detections.json", "ground_truth.json", "precision_recall.png", "confusion_matrix.png")
    older = [path for path in folder.iterdir() if path.name in names or path.match("worst_[0-9][0-9].jpg")]
    if older:
        print(f"replacing {len(older)} files of an earlier evaluation in {folder}")
        for path in older:
            path.unlink()
    return folder


def write_results(folder: Path, data: Annotations, detections: list[dict], figures: dict) -> None:
    """The figures, and the two files from which pycocotools gives the same figures."""
    truth = {"info": {"description": f"boxes of {data.source}"}, **data.coco()}
    for name, contents in (("metrics", figures), ("detections", detections), ("ground_truth", truth)):
        text = json.dumps(contents, ensure_ascii=False, indent=2 if name == "metrics" else None)
        (folder / f"{name}.json").write_text(text, encoding="utf-8", errors="surrogateescape")


def show_mistakes(folder: Path, data: Annotations, detections: list[dict], confidence: float, worst: int) -> None:
    """Draws the curves, the confusion matrix, and the pictures with the most mistakes."""
    truth = data.coco()
    draw.write_image(folder / "precision_recall.png", plots.precision_recall(metrics.curves(truth, detections)))
    compared = mistakes.compare(truth, detections, confidence)
    matrix = mistakes.confusion_matrix(compared, len(data.classes))
    draw.write_image(folder / "confusion_matrix.png", plots.confusion(matrix, data.classes))
    ranking = sorted(range(len(compared)), key=lambda i: compared[i].mistakes, reverse=True)
    ranking = [i for i in ranking[:worst] if compared[i].mistakes]
    if ranking:
        print(f"most mistakes at confidence {confidence:g} (green: right, orange: missed, red: false):")
    for number, index in enumerate(ranking, 1):
        one, picture = compared[index], images.read_image(data.path(index))
        draw.write_image(folder / f"worst_{number:02}.jpg", draw_mistakes(picture, one, data.classes))
        missed, false = int((~one.right).sum()), int(one.false.sum())
        print(f"  worst_{number:02}.jpg  {missed:3} missed  {false:3} false  {data.path(index)}")


def draw_mistakes(picture: np.ndarray, one: mistakes.Compared, classes: Sequence[str]) -> np.ndarray:
    """The boxes of a picture: found in green, missed in orange with their class, and false detections in red."""
    missed, false = ~one.right, one.false
    texts = [classes[label] if lost else "" for label, lost in zip(one.labels, missed, strict=True)]
    texts += [f"{classes[n]} {score:.2f}" for n, score in zip(one.found_labels[false], one.scores[false], strict=True)]
    colours = [MISSED if lost else RIGHT for lost in missed] + [FALSE] * int(false.sum())
    return draw.draw_labelled(picture, np.concatenate([one.boxes, one.found[false]]), texts, colours)


if __name__ == "__main__":
    script.run(
        lambda: main(override(Config(), sys.argv[1:])),
        mistakes=(PretrainedError,),
        stopped="stopped",
        lower="lower batch_size=",
    )
