"""The files of an evaluation: metrics, detections and boxes as JSON, and report.html."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from datasets.store import Annotations
from metrics.comparison import analyze_errors
from metrics.matches import COCO_LIMIT
from report.html_report import write
from utils.files import atomic_write
from utils.text import amount, brief


def write_results(folder: Path, data: Annotations, detections: list[dict], metrics: dict) -> None:
    """Writes metrics.json, and detections.json and ground_truth.json, from which pycocotools computes the same metrics."""
    truth = {"info": {"description": f"boxes of {data.source}"}, **data.coco()}
    for name, contents in (("metrics", metrics), ("detections", detections), ("ground_truth", truth)):
        indent = 2 if name == "metrics" else None
        text = json.dumps(contents, ensure_ascii=False, indent=indent)
        with atomic_write(folder / f"{name}.json") as file:
            file.write(text.encode("utf-8", errors="surrogateescape"))


def limit_notes(data: Annotations, max_detections: int) -> list[str]:
    """Returns notes about images with more boxes than the COCO metrics, or an evaluation with `max_detections`, can count."""
    count, images, labels = len(data), data.image_of_boxes()[~data.crowd], data.labels[~data.crowd].astype(np.int64)
    notes = []
    groups, boxes = np.unique(labels * count + images, return_counts=True)
    full = boxes > COCO_LIMIT
    if full.any():
        of_classes, of_images = np.divmod(groups[full], count)
        beyond = int((boxes[full] - COCO_LIMIT).sum())
        names = ", ".join(data.classes[label] for label in np.unique(of_classes))
        notes.append(
            f"{len(np.unique(of_images))} of {amount(count, 'image')} have more than {COCO_LIMIT} boxes of {brief(names)}: the "
            f"COCO metrics count {COCO_LIMIT} detections of a class in an image, so their mAP and recall miss {beyond:,} of "
            f"{amount(len(labels), 'box')}; precision, recall, F1, thresholds and confusions count all detections"
        )
    boxes = np.bincount(images, minlength=1)
    full = boxes > max_detections
    if full.any():
        beyond = int((boxes[full] - max_detections).sum())
        notes.append(
            f"{full.sum()} of {amount(count, 'image')} have more than {max_detections} boxes, up to {boxes.max():,}: "
            f"max_detections={max_detections} leaves out at least {beyond:,} of {amount(len(labels), 'box')}; evaluate.py and "
            f"predict.py find them with a larger max_detections="
        )
    return notes


def unlabeled_classes(data: Annotations, added_counts: Sequence[int]) -> list[str]:
    """Returns the classes without boxes in the data of a model with added classes, unless no class has boxes.

    Such a model was trained on data sets that have labels of some of its classes only, so a detection of a class without
    boxes need not be false. Without added classes (`added_counts`), the data have labels of all classes.
    """
    counts = data.boxes_per_class().tolist()
    if not added_counts or not any(counts):
        return []
    return [name for name, count in zip(data.classes, counts, strict=True) if not count]


def unlabeled_note(names: Sequence[str]) -> str:
    """Returns in words that the mistakes are without `unlabeled_classes`."""
    return (
        f"detections of {amount(len(names), 'class')} without boxes do not count as mistakes: {brief(', '.join(names))}"
    )


def write_report(folder: Path, data: Annotations, detections: list[dict], results: dict, confidence: float) -> None:
    """Writes report.html, with the mistakes at a confidence.

    Detections of the classes that the settings of `results` name as `unlabeled` do not count as mistakes.
    """
    unlabeled = {data.category_ids[data.classes.index(name)] for name in results["settings"].get("unlabeled", ())}
    counted = [entry for entry in detections if entry["category_id"] not in unlabeled]
    notes = limit_notes(data, results["settings"]["max_detections"])
    write(folder / "report.html", data, results, analyze_errors(data.coco(), counted, confidence), notes)
