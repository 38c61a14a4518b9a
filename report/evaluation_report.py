"""Writes the report of an evaluation: a single HTML file without external resources. Imported only to write it.

The metrics are those of metrics.json; the mistakes and the confusion matrix are those of `report.plots.analyze_errors`.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from datasets.store import Annotations
from report import mistakes, page
from report.comparison import ImageComparison
from report.evaluation_tables import CHART, class_table, confusion_table, curve_chart
from report.intervals import COVERAGE, LEAST_IMAGES, RESAMPLES, Interval, bootstrap
from report.mistakes import Cell, Example
from report.plots import Analysis
from utils.files import atomic_write
from utils.images import ImageError, prefetch, read_reduced
from utils.matches import MATCH_IOU, match_classes
from utils.metrics import Curve
from utils.value_range import ValueRange

SIDES, QUALITY = (640, 480, 360, 240, 160), 78  # longer side in pixels, tried until the JPEG fits; JPEG quality
LIMIT = 12 * 2**20  # bytes of all images; base64 adds a third
MOST_BOXES = 200  # most boxes, and most detections, stored per image, besides those of the examples
MAX_ROWS, MAX_MATRIX, CONFUSIONS = 300, 100, 12  # most classes in the table and in the matrix, most confusions
STYLE, SCRIPT = (Path(__file__).with_name(f"report.{kind}") for kind in ("css", "js"))
NAMES = {
    "AP": "mean over IoU .50 to .95",
    "AP50": "IoU .50",
    "AP75": "IoU .75",
    "AP_small": "below 32² pixels",
    "AP_medium": "32² to 96² pixels",
    "AP_large": "above 96² pixels",
    "AR1": "recall, 1 detection per image",
    "AR10": "recall, 10 detections",
    "AR100": "recall, 100 detections",
    "AR_small": "recall, below 32² pixels",
    "AR_medium": "recall, 32² to 96² pixels",
    "AR_large": "recall, above 96² pixels",
}
KINDS = {
    "missed": "Objects without a detection, the largest first.",
    "background": "Detections where no labeled object is, the highest score first. Some may be objects that lack a label.",
    "wrong class": "Detections on an object of another class, the highest score first.",
    "loose": f"Detections that fit their object badly (IoU {mistakes.LOOSE_IOU:g} to {MATCH_IOU:g}), the highest score first.",
    "double": "Detections of an object that has a better one, the highest score first.",
}


def write(path: Path, data: Annotations, detections: list[dict], metrics: dict[str, Any], analysis: Analysis) -> None:
    """Writes the report of an evaluation to `path`; `metrics` are those of its metrics.json."""
    intervals, of_classes = bootstrap(match_classes(data.coco(), detections), len(data))
    kinds = mistakes.by_kind(analysis.comparisons)
    cells = mistakes.by_cell(analysis.comparisons, len(data.classes))
    labels, confusions = _shown_cells(cells, analysis.matrix)
    shown = {cell: cells[cell] for cell in cells if cell in confusions or set(cell) <= set(labels)}
    examples, images = mistakes.choose(kinds.values(), shown.values())
    threshold = metrics["confidence"] if metrics["confidence"] >= 0 else analysis.confidence
    names = list(metrics["per_class"])
    at = f"at {analysis.confidence:.2f}"
    sections = {
        "Metrics": _metrics(metrics, intervals),
        "Threshold": _threshold(threshold, analysis)
        + curve_chart(analysis.curves)
        + class_table(metrics["per_class"], of_classes, MAX_ROWS),
        f"Confusion matrix {at}": _confusion(analysis, labels, confusions, names),
        f"Mistakes {at}": _mistakes(kinds, analysis.confidence),
        "How it is measured": _explanation(analysis.confidence),
    }
    contents = {
        "classes": [page.printable(name) for name in (*names, "background")],
        "chart": CHART,
        "counts": _all_counts(analysis.curves, metrics["per_class"], threshold),
        "images": dict(zip(images, _images(data, analysis.comparisons, images, examples), strict=True)),
        "names": {one.image: _name(data, one.image) for few in examples for one in few},
        "kinds": {kind: _examples(kinds[kind], few) for kind, few in zip(kinds, examples, strict=False)},
        "cells": {
            f"{r},{c}": _examples(shown[r, c], few) for (r, c), few in zip(shown, examples[len(kinds) :], strict=True)
        },
    }
    text = json.dumps(contents, separators=(",", ":")).replace("<", "\\u003c")
    style, script = (file.read_text(encoding="utf-8") for file in (STYLE, SCRIPT))
    with atomic_write(path) as file:
        html = page.document("Evaluation report", _head(data, metrics), sections, style, script, text)
        file.write(html.encode("utf-8", errors="replace"))


def _shown_cells(cells: dict[Cell, list[Example]], matrix: np.ndarray) -> tuple[list[int], list[Cell]]:
    """Returns the classes that the page's matrix shows, those with the most mistakes, and the most frequent confusions."""
    mistaken = matrix - np.diag(matrix.diagonal())
    totals = (mistaken.sum(0) + mistaken.sum(1))[:-1]
    busy = np.flatnonzero((matrix.sum(0) + matrix.sum(1))[:-1])
    labels = sorted(busy[np.argsort(-totals[busy], kind="stable")[:MAX_MATRIX]].tolist())
    background = len(matrix) - 1
    between = [cell for cell in cells if cell[0] != cell[1] and background not in cell]
    return [*labels, background], sorted(between, key=lambda cell: -len(cells[cell]))[:CONFUSIONS]


def _head(data: Annotations, metrics: dict[str, Any]) -> str:
    settings = metrics["settings"]
    height, width = settings["image_size"]
    facts = {"checkpoint": settings["checkpoint"], "data": settings["data"], "input": f"{height}x{width} pixels"}
    limits = ("confidence", "nms_iou", "max_detections", "multi_label")
    limits += tuple(name for name in ("tile", "overlap") if settings.get(name) is not None)
    facts["limits"] = ", ".join(f"{name}={settings[name]}" for name in limits)
    facts["evaluator"] = metrics["evaluator"]
    rows = "".join(f"<div><dt>{name}</dt><dd>{page.text(value)}</dd></div>" for name, value in facts.items())
    boxes = sum(row["boxes"] for row in metrics["per_class"].values())
    counts = f"{len(data):,} images, {boxes:,} boxes, {len(data.classes):,} classes"
    return f'<header><h1>Evaluation report</h1><p class="faint">{counts}</p></header><dl class="facts">{rows}</dl>'


def _metrics(metrics: dict[str, Any], intervals: dict[str, Interval]) -> str:
    cards = ""
    for name, words in NAMES.items():
        value, interval = metrics[name], intervals[name]
        shown = f"{value:.4f}" if value >= 0 else "–"
        if value < 0:
            between = "no such boxes"
        elif interval is None:
            between = f"fewer than {LEAST_IMAGES} images"
        else:
            low, high = interval
            between = f"{low:.3f} – {high:.3f}"
            place = f"left:{100 * low:.1f}%;width:{100 * (high - low):.1f}%"
            between += f'<i class="track"><i style="{place}"></i><b style="left:{100 * value:.1f}%"></b></i>'
        kind = "" if value >= 0 else "zero"
        cards += f'<div class="{kind}" data-metric="{name}"><dt>{name}</dt><dd>{shown}</dd>'
        cards += f'<dd class="between">{between}</dd><dd class="words">{words}</dd></div>'
    note = f"Below each metric: its {COVERAGE} % interval from {RESAMPLES} bootstrap resamples of the images."
    return f'<dl class="metrics">{cards}</dl><p class="faint">{note}</p>'


def _threshold(threshold: float, analysis: Analysis) -> str:
    """Returns the HTML of the slider, and of the counts over all classes that it changes."""
    percent = min(max(round(100 * threshold), 1), 99)
    marks = {round(100 * threshold): "best mean F1", round(100 * analysis.confidence): "confusion matrix and mistakes"}
    jumps = "".join(
        f'<button type="button" class="jump" data-percent="{at}">{at / 100:.2f} {words}</button>'
        for at, words in marks.items()
        if 1 <= at <= 99
    )
    cards = "".join(
        f'<div><dd id="all-{name}"></dd><dt>{words}</dt></div>'
        for name, words in (
            ("precision", "precision<span>: how many detections are correct</span>"),
            ("recall", "recall<span>: how many objects are found</span>"),
            ("f1", "F1<span>: the harmonic mean of both</span>"),
            ("correct", "correct<span> detections</span>"),
            ("false", "false<span> detections</span>"),
            ("missed", "missed<span> objects</span>"),
        )
    )
    return (
        f'<div class="control"><label for="slider">Confidence threshold</label>'
        f'<input id="slider" type="range" min="1" max="99" step="1" value="{percent}">'
        f'<output id="chosen" for="slider"></output></div><p class="chips">'
        f'<button type="button" id="own" aria-pressed="true">each class its own, at its best F1</button>{jumps}</p>'
        f'<dl class="counts" aria-live="polite">{cards}</dl>'
    )


def _confusion(analysis: Analysis, labels: list[int], confusions: list[Cell], names: list[str]) -> str:
    chips = ""
    for r, c in confusions:
        words = f"<b>{analysis.matrix[r, c]:,}</b>{page.text(names[r])} → {page.text(names[c])}"
        chips += f'<button type="button" data-cell="{r},{c}">{words}</button>'
    html = (
        f'<p class="faint">At confidence {analysis.confidence:g} and IoU {MATCH_IOU:g}. Rows are true classes, columns are '
        "predictions; the color is the fraction of the row. Open a cell to see its images. The arrow keys move between cells.</p>"
    )
    html += f'<h3>Most frequent confusions</h3><p class="chips">{chips}</p>' if chips else ""
    html += confusion_table(analysis.matrix, labels, [*names, "background"])
    more = len(names) - len(labels) + 1
    html += (
        f'<p class="faint">{more:,} classes with fewer mistakes, or without boxes and detections, are left out</p>'
        if more
        else ""
    )
    return f'{html}<div id="behind" tabindex="-1" hidden></div>'


def _mistakes(kinds: dict[str, list[Example]], confidence: float) -> str:
    choices = "".join(
        f'<label><input type="radio" name="kind" value="{kind}"{" checked" * (kind == "missed")}>'
        f"<span>{kind} <b>{len(kinds[kind]):,}</b></span></label>"
        for kind in KINDS
    )
    words = "".join(f'<p class="faint" data-kind="{kind}" hidden>{text}</p>' for kind, text in KINDS.items())
    legend = (
        '<p class="legend"><i class="right"></i>correct <i class="missed"></i>missed <i class="false"></i>false</p>'
    )
    return (
        f'<fieldset class="kinds"><legend class="faint">Kinds of mistakes at confidence {confidence:g}</legend>'
        f'{choices}</fieldset>{words}{legend}<div id="mistakes"></div>'
        '<dialog id="viewer" aria-label="Image"><form method="dialog"><h3 id="viewed"></h3>'
        '<button type="button" id="previous">Previous</button><button type="button" id="next">Next</button>'
        '<button id="close">Close</button></form><div id="large"></div></dialog>'
    )


def _explanation(confidence: float) -> str:
    notes = (
        f"Intervals: {RESAMPLES} bootstrap resamples draw whole images with replacement, with a fixed seed, and every metric is "
        f"computed for each resample as COCO does. An interval holds {COVERAGE} % of the resamples, shifted so that their mean "
        "equals the metric. It shows how much the choice of images changes a metric, not how much another training would. With "
        f"fewer than {LEAST_IMAGES} images that have boxes for the metric there is no interval, because resamples of so few "
        "images mean little. Precision, recall and F1 have none, because their thresholds were chosen on the same images.",
        f"Precision and recall: at IoU {MATCH_IOU:g}, by COCO's matching within each class; detections on crowd regions do not "
        "count. Thresholds that were chosen here look better than they are on new images.",
        f"Confusion matrix and mistakes: at confidence {confidence:g} (show_confidence=), boxes and detections of all classes "
        "are matched one to one, pairs of the same class first. So their counts differ slightly from those of the slider.",
        f"A missed object that has a loose detection is listed under loose only. This file holds {mistakes.PER_KIND} mistakes "
        f"of a kind, {mistakes.PER_CELL} images of a cell, and {mistakes.MAX_IMAGES} images at most.",
    )
    return "".join(f"<p>{note}</p>" for note in notes)


def _examples(everything: list[Example], few: list[Example]) -> dict[str, Any]:
    return {"count": len(everything), "examples": [[one.image, one.box, one.detection] for one in few]}


def _name(data: Annotations, index: int) -> str:
    return page.printable(data.names[index])


def _all_counts(curves: dict[str, Curve], per_class: dict[str, dict], threshold: float) -> list[dict[str, Any]]:
    """Returns the counts for the slider: correct and all detections of each class at each percent, then at its own threshold.

    The last row sums the classes beyond MAX_ROWS. A class without a correct detection takes the threshold of all classes.
    """
    rows = []
    for name, curve in curves.items():
        at = np.searchsorted(-curve.scores, -np.arange(101) / 100, side="right")
        best = per_class[name]["threshold"] if per_class[name]["f1"] > 0 else threshold
        at = np.append(at, np.searchsorted(-curve.scores, -best, side="right"))
        hits = np.rint(curve.precision * curve.found).astype(int)
        rows.append((curve.boxes, np.append(0, hits)[at], np.append(0, curve.found)[at]))
    rest = rows[MAX_ROWS:]
    rows = rows[:MAX_ROWS] + ([tuple(map(sum, zip(*rest, strict=True)))] if rest else [])
    return [
        {"boxes": int(boxes), "correct": correct.tolist(), "found": found.tolist()} for boxes, correct, found in rows
    ]


def _images(
    data: Annotations, comparisons: list[ImageComparison], images: list[int], examples: list[list[Example]]
) -> list[dict[str, Any]]:
    """Returns the images with their boxes and detections, for the script; all JPEGs together have about LIMIT bytes at most."""
    most = LIMIT // max(len(images), 1)
    boxes = {(one.image, one.box) for few in examples for one in few}
    found = {(one.image, one.detection) for few in examples for one in few}

    def one_image(index: int) -> dict[str, Any]:
        one = comparisons[index]
        height, width = data.sizes[index].tolist()
        of_boxes, of_found = (
            (one.boxes, one.labels, one.predicted),
            (one.detected, one.detected_labels, one.true_labels),
        )
        jpeg, problem = _jpeg(data.path(index), data.value_range, max(height, width), most)
        return {
            "size": [width, height],
            "boxes": {i: _row(i, *of_boxes) for i in range(len(one.boxes)) if i < MOST_BOXES or (index, i) in boxes},
            "found": {
                i: [*_row(i, *of_found), round(float(one.scores[i]), 4)]
                for i in range(len(one.detected))
                if i < MOST_BOXES or (index, i) in found
            },
            "uri": page.data_uri(jpeg) if jpeg else "",
            "problem": problem,
        }

    return list(prefetch(one_image, images, limit=4, threads=2))


def _row(place: int, boxes: np.ndarray, labels: np.ndarray, others: np.ndarray) -> list[float]:
    """Returns a box in pixels, its class, and the class that it is matched with."""
    return [*boxes[place].round(1).tolist(), int(labels[place]), int(others[place])]


def _jpeg(path: str, value_range: ValueRange | None, side: int, most: int) -> tuple[bytes, str]:
    """Returns the image as a JPEG of at most `most` bytes (or of the smallest size), and why it cannot be read, if it cannot."""
    reduction = next((r for r in (8, 4, 2) if side >= r * SIDES[0]), 1)
    try:
        image = read_reduced(path, reduction, value_range)
    except ImageError as error:
        return b"", page.printable(error)
    for longest in SIDES:
        jpeg = page.small_jpeg(image, longest, QUALITY)
        if len(jpeg) <= most:
            break
    return jpeg, ""
