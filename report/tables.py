"""The contents of the tables and of the chart of the evaluation report: classes, precision-recall curves, confusion matrix."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from metrics.coco import Curve
from metrics.intervals import Interval
from report import page
from utils.text import four_decimals, in_points

COLUMNS = ("boxes", "AP", "AP50", "threshold", "precision", "recall", "f1", "correct", "false", "missed")
LIVE = COLUMNS[3:]  # the slider changes them
FEW = 13  # rows of a confusion matrix with large cells
NAMED = 10  # curves with a button; of more classes the best and the worst
WIDTH, HEIGHT = 720, 380  # of the chart
LEFT, BOTTOM, EDGE = 56, 42, 10  # its margins; EDGE: at the top and at the right
AXES = {"left": LEFT, "top": EDGE, "across": WIDTH - LEFT - EDGE, "down": HEIGHT - BOTTOM - EDGE}


def class_rows(per_class: dict[str, dict], intervals: dict[str, Interval], count: int) -> list[dict[str, Any]]:
    """Returns the metrics of the first `count` classes; the last columns change with the threshold."""
    rows = []
    for label, (name, metrics) in enumerate(list(per_class.items())[:count]):
        cells = {
            "boxes": f"{metrics['boxes']:,}",
            "AP": in_points(metrics["AP"]),
            "AP50": in_points(metrics["AP50"]),
        }
        for column in LIVE:
            cells[column] = four_decimals(metrics.get(column, -1))
        interval = intervals[name]
        between = ""
        if metrics["boxes"]:
            between = "few images" if interval is None else f"{100 * interval[0]:.1f}–{100 * interval[1]:.1f}"
        row = {"label": label, "name": name, "metrics": cells, "between": between, "few": interval is None}
        rows.append(row)
    return rows


def curve_chart(curves: dict[str, Curve]) -> dict[str, Any]:
    """Returns precision over recall of each class with boxes as paths of an SVG, and the classes that have a button."""
    labels = {name: label for label, name in enumerate(curves)}
    curves = {name: curve for name, curve in curves.items() if curve.boxes}
    areas = {name: curve.average_precision() for name, curve in curves.items()}
    ranking = sorted(areas, key=lambda name: -areas[name])
    many = len(ranking) > NAMED
    named = [*ranking[: NAMED // 2], *ranking[-NAMED // 2 :]] if many else ranking
    recalls = np.linspace(0, 1, 101)
    heights = {n: np.append(c.envelope(), 0)[np.searchsorted(c.recall, recalls)] for n, c in curves.items()}
    ticks = []
    for step in range(6):
        x, y = _place(step / 5, step / 5)
        ticks.append({"x": x, "y": y, "value": f"{step / 5:g}"})
    return {
        "width": WIDTH,
        "height": HEIGHT,
        "left": LEFT,
        "right": WIDTH - EDGE,
        "top": EDGE,
        "bottom": HEIGHT - BOTTOM,
        "ticks": ticks,
        "many": many,
        "curves": [{"label": labels[name], "name": name, "path": _path(height)} for name, height in heights.items()],
        "mean": _path(np.mean(list(heights.values()), 0)) if heights else "",
        "named": [{"label": labels[name], "name": name, "area": f"{100 * areas[name]:.1f}"} for name in named],
    }


def _place(recall: float, precision: float) -> tuple[float, float]:
    x, y = LEFT + recall * AXES["across"], EDGE + (1 - precision) * AXES["down"]
    return round(x, 1), round(y, 1)


def _path(heights: np.ndarray) -> str:
    """Returns a curve over 101 recalls as the path of an SVG."""
    points = (_place(place / 100, height) for place, height in enumerate(heights.tolist()))
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in points)


def confusion_rows(matrix: np.ndarray, labels: Sequence[int], names: Sequence[str]) -> dict[str, Any]:
    """Returns the confusion matrix of some classes; the last one is the background. A cell with a count is a button."""
    fraction = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    names = [page.printable(name) for name in names]
    rows = []
    for r in labels:
        cells = []
        for c in labels:
            percent = 100 * fraction[r, c]
            cell = {
                "cell": f"{r},{c}",
                "count": int(matrix[r, c]),
                "kind": "same" if r == c else "other",
                "part": f"{100 * fraction[r, c] ** 0.5:.0f}",  # root: rare errors show
                "words": f"true {names[r]}, predicted {names[c]}: {matrix[r, c]}, {percent:.1f} % of the row",
            }
            cells.append(cell)
        rows.append({"name": names[r], "columns": cells})
    shown = [names[label] for label in labels]
    return {"names": shown, "rows": rows, "few": len(labels) <= FEW, "left_out": len(names) - len(labels)}
