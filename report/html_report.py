"""Writes the report of an evaluation: a single HTML file without external resources.

The metrics come from metrics.json; the mistakes and the confusion matrix come from `metrics.comparison.analyze_errors`.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from datasets.store import Annotations
from metrics import mistakes
from metrics.coco import Curve
from metrics.comparison import Analysis, ImageComparison
from metrics.intervals import COVERAGE, MIN_IMAGES, RESAMPLES, Interval, bootstrap
from metrics.matches import MATCH_IOU
from report import page
from report.tables import AXES, COLUMNS, LIVE, class_rows, confusion_rows, curve_chart
from utils.images import ImageError, prefetch, read_reduced
from utils.outputs import write_all
from utils.text import amount, brief, in_points
from utils.value_range import ValueRange

SIDES, QUALITY = (640, 480, 360, 240, 160), 78  # longer side in pixels, tried until the JPEG fits; JPEG quality
LIMIT = 12 * 2**20  # bytes of all images; base64 adds a third
MAX_ROWS, MAX_MATRIX = 300, 100  # max classes in the table and in the matrix
TEMPLATE, STYLE, SCRIPT = (Path(__file__).with_name(f"evaluation.{kind}") for kind in ("html", "css", "js"))
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


def write(
    path: Path, data: Annotations, metrics: dict[str, Any], analysis: Analysis, notes: Sequence[str] = ()
) -> None:
    """Writes the report of an evaluation to `path`. `metrics`: the contents of its metrics.json; `notes`: see `limit_notes`."""
    intervals, of_classes = bootstrap(analysis.matches, len(data))
    kinds = mistakes.by_kind(analysis.comparisons)
    labels = _shown_classes(analysis.matrix)
    examples, images = mistakes.choose(kinds)
    places = {image: place for place, image in enumerate(images)}
    threshold = metrics["confidence"] if metrics["confidence"] >= 0 else analysis.confidence
    names = list(metrics["per_class"])
    contents = {
        "classes": [page.printable(name) for name in (*names, "background")],
        "chart": AXES,
        "counts": _all_counts(analysis.curves, metrics["per_class"], threshold),
        "images": _images(data, analysis.comparisons, images),
        "kinds": {
            kind: {
                "count": len(kinds[kind]),
                "examples": [[places[one.image], one.box, one.detection] for one in chosen],
            }
            for kind, chosen in examples.items()
        },
    }
    at = f"at {analysis.confidence:.2f}"
    html = page.render(
        TEMPLATE,
        "Evaluation report",
        ["Metrics", "Threshold", f"Confusion matrix {at}", f"Mistakes {at}", "How it is measured"],
        data=json.dumps(contents, separators=(",", ":")).replace("<", "\\u003c"),
        counts=_counts(data, metrics),
        facts=_facts(metrics, notes),
        metrics=_metrics(metrics, intervals),
        chart=curve_chart(analysis.curves),
        classes=class_rows(metrics["per_class"], of_classes, MAX_ROWS),
        other_classes=len(names) - MAX_ROWS,
        matrix=confusion_rows(analysis.matrix, labels, [*names, "background"]),
        kinds=[{"name": kind, "count": len(kinds[kind]), "words": words} for kind, words in KINDS.items()],
        **_thresholds(threshold, analysis.confidence),
        **_fixed(),
    )
    write_all({path: html.encode("utf-8", "replace")})


def _fixed() -> dict[str, Any]:
    """Returns what is the same on the page of each evaluation."""
    return {
        "style": STYLE.read_text(encoding="utf-8"),
        "script": SCRIPT.read_text(encoding="utf-8"),
        "coverage": COVERAGE,
        "resamples": RESAMPLES,
        "min_images": MIN_IMAGES,
        "match_iou": f"{MATCH_IOU:g}",
        "columns": COLUMNS,
        "live": LIVE,
        "per_kind": mistakes.PER_KIND,
    }


def _shown_classes(matrix: np.ndarray) -> list[int]:
    """Returns the classes that the page's matrix shows: those with the most mistakes, and the background."""
    mistaken = matrix - np.diag(matrix.diagonal())
    totals = (mistaken.sum(0) + mistaken.sum(1))[:-1]
    busy = np.flatnonzero((matrix.sum(0) + matrix.sum(1))[:-1])
    return [*sorted(busy[np.argsort(-totals[busy], kind="stable")[:MAX_MATRIX]].tolist()), len(matrix) - 1]


def _counts(data: Annotations, metrics: dict[str, Any]) -> str:
    boxes = sum(row["boxes"] for row in metrics["per_class"].values())
    return ", ".join((amount(len(data), "image"), amount(boxes, "box"), amount(len(data.classes), "class")))


def _facts(metrics: dict[str, Any], notes: Sequence[str]) -> dict[str, str]:
    """Returns what was evaluated, and how; `notes`: what the metrics cannot count."""
    settings = metrics["settings"]
    height, width = settings["image_size"]
    limits = ["confidence", "nms_iou", "max_detections"]
    limits += [name for name in ("tile", "overlap") if settings.get(name) is not None]
    facts = {
        "checkpoint": settings["checkpoint"],
        **_checkpoint(settings),
        "data": settings["data"],
        "input": f"{height}x{width} pixels",
        "limits": ", ".join(f"{name}={settings[name]}" for name in limits),
        "evaluator": metrics["evaluator"],
    }
    if settings.get("unlabeled"):
        facts["not counted as mistakes"] = (
            f"detections of classes without boxes: {brief(', '.join(settings['unlabeled']))}"
        )
    if notes:
        facts["limits of the metrics"] = ". ".join(notes)
    return facts


def _checkpoint(settings: dict[str, Any]) -> dict[str, str]:
    """Returns which epoch of its run a checkpoint is, its mAP there, and when it was saved, as far as it knows them."""
    known = [f"epoch {settings['epoch']}"] if "epoch" in settings else []
    if settings.get("AP", -1) >= 0:
        known.append(f"mAP50-95 {in_points(settings['AP'])} in its run")
    known += [f"saved on {settings['date']}"] if "date" in settings else []
    return {"trained": ", ".join(known)} if known else {}


def _metrics(metrics: dict[str, Any], intervals: dict[str, Interval]) -> list[dict[str, Any]]:
    """Returns the cards of COCO's metrics, with their intervals in numbers and as places (%) on a line from 0 to 1."""
    cards = []
    for name, words in NAMES.items():
        value, interval, between, drawn = metrics[name], intervals.get(name), "", None
        if value < 0:
            between = "no such boxes"
        elif interval is None:
            between = f"fewer than {MIN_IMAGES} images" if name in intervals else ""
        else:
            low, high = interval
            between = f"{100 * low:.1f} – {100 * high:.1f}"
            places = {"left": low, "width": high - low, "value": value}
            drawn = {name: f"{100 * place:.1f}" for name, place in places.items()}
        card = {"name": name, "value": in_points(value), "measured": value >= 0, "words": words}
        cards.append(card | {"between": between, "interval": drawn})
    return cards


def _thresholds(threshold: float, confidence: float) -> dict[str, Any]:
    """Returns the confidence of the mistakes, the initial place of the slider, and the thresholds with a button, in percent."""
    jumps = {round(100 * threshold): "best mean F1", round(100 * confidence): "confusion matrix and mistakes"}
    return {
        "confidence": f"{confidence:g}",
        "percent": min(max(round(100 * threshold), 1), 99),
        "jumps": {percent: words for percent, words in jumps.items() if 1 <= percent <= 99},
    }


def _all_counts(curves: dict[str, Curve], per_class: dict[str, dict], threshold: float) -> list[dict[str, Any]]:
    """Returns the counts for the slider: correct and all detections of each class at each percent, then at its own threshold.

    The last row sums the classes beyond MAX_ROWS. A class without a correct detection takes the threshold of all classes.
    """
    rows = []
    for name, curve in curves.items():
        at = np.searchsorted(-curve.scores, -np.arange(101) / 100, side="right")
        best = per_class[name]["threshold"] if per_class[name]["threshold"] >= 0 else threshold
        at = np.append(at, np.searchsorted(-curve.scores, -best, side="right"))
        hits = np.rint(curve.precision * curve.found).astype(int)
        rows.append((curve.boxes, np.append(0, hits)[at], np.append(0, curve.found)[at]))
    contents = [
        {"boxes": int(boxes), "correct": correct.tolist(), "found": found.tolist()}
        for boxes, correct, found in rows[:MAX_ROWS]
    ]
    if rest := rows[MAX_ROWS:]:
        boxes, correct, found = (np.sum(column, axis=0) for column in zip(*rest, strict=True))
        contents.append({"boxes": int(boxes), "correct": correct.tolist(), "found": found.tolist()})
    return contents


def _images(data: Annotations, comparisons: list[ImageComparison], images: list[int]) -> list[dict[str, Any]]:
    """Returns the images with their boxes and detections, for the script."""
    max_bytes = LIMIT // max(len(images), 1)

    def one_image(index: int) -> dict[str, Any]:
        comparison = comparisons[index]
        height, width = data.sizes[index].tolist()
        jpeg, problem = _jpeg(data.path(index), data.value_range, max(height, width), max_bytes)
        found = _rows(comparison.detected, comparison.detected_labels, comparison.true_labels)
        return {
            "name": page.printable(data.names[index]),
            "size": [width, height],
            "boxes": _rows(comparison.boxes, comparison.labels, comparison.predicted),
            "found": [[*row, round(score, 4)] for row, score in zip(found, comparison.scores.tolist(), strict=True)],
            "matched": comparison.matched.tolist(),
            "uri": page.data_uri(jpeg) if jpeg else "",
            "problem": problem,
        }

    return list(prefetch(one_image, images, limit=4, threads=2))


def _rows(boxes: np.ndarray, labels: np.ndarray, others: np.ndarray) -> list[list[float]]:
    """Returns boxes in pixels, each with its class and the class that it is matched with."""
    rows = zip(boxes.round(1).tolist(), labels.tolist(), others.tolist(), strict=True)
    return [[*box, label, other] for box, label, other in rows]


def _jpeg(path: str, value_range: ValueRange | None, side: int, max_bytes: int) -> tuple[bytes, str]:
    """Returns the image as a JPEG of at most `max_bytes` bytes (or of the smallest size), or why it cannot be read."""
    reduction = next((r for r in (8, 4, 2) if side >= r * SIDES[0]), 1)
    try:
        image = read_reduced(path, reduction, value_range)
    except ImageError as error:
        return b"", page.printable(error)
    for longest in SIDES:
        jpeg = page.small_jpeg(image, longest, QUALITY)
        if len(jpeg) <= max_bytes:
            break
    return jpeg, ""
