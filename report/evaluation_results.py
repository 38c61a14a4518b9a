"""The files of an evaluation: metrics, detections and boxes as JSON, plots, the images with the most errors, and report.html."""

import json
from pathlib import Path

from datasets.store import Annotations
from report.comparison import analyze_errors
from report.drawn_images import draw_worst
from report.evaluation_report import write
from utils.files import atomic_write


def display_width(text: str) -> int:
    """The number of terminal columns of a text: two for each Chinese character."""
    return sum(1 + (ord(character) >= 0x1100) for character in text)


def four_decimals(value: float) -> str:
    """A metric with four decimals; - for -1, which means that there is nothing to measure."""
    return f"{value:.4f}" if value >= 0 else "-"


def write_results(folder: Path, data: Annotations, detections: list[dict], metrics: dict) -> None:
    """Writes metrics.json, and detections.json and ground_truth.json, from which pycocotools computes the same metrics."""
    truth = {"info": {"description": f"boxes of {data.source}"}, **data.coco()}
    for name, contents in (("metrics", metrics), ("detections", detections), ("ground_truth", truth)):
        indent = 2 if name == "metrics" else None
        text = json.dumps(contents, ensure_ascii=False, indent=indent)
        with atomic_write(folder / f"{name}.json") as file:
            file.write(text.encode("utf-8", errors="surrogateescape"))


def analyze(
    folder: Path, data: Annotations, detections: list[dict], results: dict, confidence: float, worst: int, report: bool
) -> list[str]:
    """Draws curves, confusion matrix and the `worst` images at a confidence; with `report` also writes report.html.

    Returns a line about each of the worst images.
    """
    from report import plots  # loads matplotlib

    analysis = analyze_errors(data.coco(), detections, confidence)
    plots.draw_precision_recall(analysis.curves, folder / "precision_recall.png")
    plots.draw_confusion(analysis.matrix, data.classes, folder / "confusion_matrix.png")
    lines = draw_worst(folder, data, analysis.comparisons, worst)
    if report:
        write(folder / "report.html", data, results, analysis)
    return lines
