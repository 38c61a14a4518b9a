"""Plots of a training and an evaluation: training curves, precision-recall curves and confusion matrix.

Import this module where a plot is drawn: matplotlib takes a second to import.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import font_manager, rc_context
from matplotlib.figure import Figure

from metrics.coco import Curve
from utils.draw import drawable
from utils.files import atomic_write
from utils.text import amount

INK, FAINT = "#33383d", "#d9dde1"
FONTS = ("Noto Sans CJK SC", "Noto Sans CJK JP", "Microsoft YaHei", "SimHei", "PingFang SC", "Arial Unicode MS")
AVERAGE_PRECISION = "Average precision, %"  # a title
MAX_COLORS = 10  # classes with a separate color in the precision-recall plot
MAX_COUNTS = 30  # classes up to which the confusion matrix shows its counts
MAX_CELLS = 1000  # rows of the drawn confusion matrix; of more classes several are one cell
MAX_NAMES = 150  # classes up to which the confusion matrix shows their names


def draw_curves(rows: Sequence[Mapping[str, Any]], path: str | Path, marks: Mapping[str, int] | None = None) -> None:
    """Draws the rows of log.csv: training losses, validation loss, AP and learning rate over the epochs.

    `marks` adds vertical lines: name -> first epoch of a phase.
    """
    names = list(dict.fromkeys(key for row in rows for key in row))
    panels = {
        "Training losses": [n for n in names if n.startswith("loss")],
        "Training and validation loss": [n for n in ("loss", "val_loss") if n in names],
        AVERAGE_PRECISION: [n for n in ("AP", "AP50", "AP75") if n in names],
        "Learning rate": [n for n in names if n.startswith("learning_rate")],
    }
    first, last = (choose(int(row["epoch"]) for row in rows) for choose in (min, max))
    reached = {name: epoch for name, epoch in (marks or {}).items() if epoch <= last}
    with _figure(path, 9.5, 6.2) as figure:
        for axes, (title, columns) in zip(figure.subplots(2, 2).flat, panels.items(), strict=True):
            for column in columns:
                scale = 100 if title == AVERAGE_PRECISION else 1
                points = [(int(row["epoch"]), scale * float(row[column])) for row in rows if column in row]
                epochs, values = zip(*points, strict=True)
                axes.plot(epochs, values, label=column, marker="o", markersize=_marker_size(points))
            _decorate(axes, title, "epoch", "")
            if reached:
                axes.set_title(title, loc="left", pad=18)  # above the names of the phases
            axes.xaxis.get_major_locator().set_params(integer=True)
            axes.set_xlim(min(first, 1) - 0.5, last + 0.5)
            axes.set_ylim(bottom=0)
            if title == AVERAGE_PRECISION:
                axes.set_ylim(top=100)
            for name, epoch in reached.items():
                axes.axvline(epoch - 0.5, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
                place = axes.get_xaxis_transform()
                axes.text(epoch - 0.5, 1.01, name, transform=place, fontsize=8, horizontalalignment="center")
            if columns:
                axes.legend()


def draw_precision_recall(curves: dict[str, Curve], path: str | Path) -> None:
    """Draws precision over recall at IoU 0.5 for each class and their mean; the legend shows the area under each curve.

    With more than `MAX_COLORS` classes only the best and the worst have colors and names, the others are gray.
    """
    curves = {name: curve for name, curve in curves.items() if curve.boxes}
    areas = {name: curve.average_precision() for name, curve in curves.items()}
    ranking = sorted(areas, key=areas.get, reverse=True)
    named = ranking
    if len(ranking) > MAX_COLORS:
        named = ranking[: MAX_COLORS // 2] + ranking[-MAX_COLORS // 2 :]
    recalls, heights = np.linspace(0, 1, 1001), []
    with _figure(path, 9.5, 6) as figure:
        axes = figure.subplots()
        for name in ranking:
            height = np.append(curves[name].envelope(), 0)[np.searchsorted(curves[name].recall, recalls)]
            heights.append(height)
            if name not in named:
                axes.plot(recalls, height, color=FAINT, linewidth=0.8, zorder=1)
        for number, name in enumerate(named):
            height, label = heights[ranking.index(name)], f"{100 * areas[name]:.1f}  {drawable(name)}"
            axes.plot(recalls, height, color=f"C{number}", linewidth=1.5, label=label)
        label = f"{100 * np.mean([*areas.values()] or 0):.1f}  mean of {amount(len(curves), 'class')}"
        axes.plot(recalls, np.mean(heights or [0 * recalls], axis=0), color=INK, linewidth=3, label=label)
        _decorate(axes, "Precision and recall at IoU 0.5", "recall", "precision")
        axes.set(xlim=(0, 1), ylim=(-0.01, 1.01))
        title = "area under the curve, %"
        if named != ranking:
            title += ", best and worst"
        axes.legend(title=title, loc="upper left", bbox_to_anchor=(1.01, 1), alignment="left")


def draw_confusion(matrix: np.ndarray, classes: Sequence[str], path: str | Path) -> None:
    """Draws a confusion matrix of counts `[C + 1, C + 1]`, of which the last row and column are the background.

    The color is the fraction of the row, that is of the true class.
    """
    names = [*map(drawable, classes), "background"]
    fraction = matrix.astype(np.float32) / np.maximum(matrix.sum(1, keepdims=True), 1).astype(np.float32)
    side = float(np.clip(0.22 * len(names) + 2.5, 5, 18))
    with _figure(path, side, side) as figure:
        axes = figure.subplots()
        end = len(names) - 0.5
        cells = _pooled(fraction) ** 0.5  # root: rare errors show
        axes.imshow(cells, cmap="Blues", vmin=0, vmax=1.1, interpolation="nearest", extent=(-0.5, end, end, -0.5))
        if len(names) <= MAX_NAMES:
            axes.set_xticks(range(len(names)), names, rotation=90)
            axes.set_yticks(range(len(names)), names)
            axes.tick_params(length=0, labelsize=min(9, 900 / len(names)))
        if len(names) <= MAX_COUNTS:
            for row, column in np.argwhere(matrix):
                color = "white" if fraction[row, column] > 0.3 else INK
                size = 8 if len(names) < 15 else 7
                text = {"ha": "center", "va": "center", "fontsize": size, "color": color}
                axes.text(column, row, f"{matrix[row, column]}", **text)
        for line in (axes.axhline, axes.axvline):
            line(len(classes) - 0.5, color=INK, linewidth=0.8)
        axes.set(xlabel="predicted class", ylabel="true class")
        axes.set_title("Confusion matrix", loc="left")


def _marker_size(points: Sequence) -> int:
    """Returns the size of the dots on a line; 0, without dots, for many points."""
    return 3 if len(points) < 40 else 0


def _pooled(matrix: np.ndarray) -> np.ndarray:
    """Returns the largest values of square blocks of a matrix, so that at most `MAX_CELLS` rows are left."""
    starts = np.arange(0, len(matrix), -(-len(matrix) // MAX_CELLS))
    return np.maximum.reduceat(np.maximum.reduceat(matrix, starts, 0), starts, 1)


@lru_cache(1)
def _fonts() -> list[str]:
    """The installed fonts with Chinese characters after matplotlib's own, which has the other scripts."""
    installed = set(font_manager.get_font_names())
    return ["DejaVu Sans", *(name for name in FONTS if name in installed)]


@contextmanager
def _figure(path: str | Path, width: float, height: float) -> Iterator[Figure]:
    """A matplotlib figure of `width` x `height` inches, without a window, that is written to `path` at the end."""
    colors = {f"{part}.color": INK for part in ("xtick", "ytick")} | {"axes.labelcolor": INK, "text.color": INK}
    lines = {"lines.linewidth": 1.8, "grid.color": FAINT, "grid.linewidth": 0.6, "axes.edgecolor": INK}
    text = {"font.family": _fonts(), "font.size": 9, "axes.titlesize": 11, "text.parse_math": False}
    with rc_context({**colors, **lines, **text, "legend.framealpha": 0.9, "legend.edgecolor": "none"}):
        figure = Figure(figsize=(width, height), dpi=110, layout="constrained")
        figure.get_layout_engine().set(w_pad=0.12, h_pad=0.12)
        yield figure
        with atomic_write(path) as file, warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing")  # a script that no installed font has
            figure.savefig(file, format="png")


def _decorate(axes: Any, title: str, x: str, y: str) -> None:
    """Adds the title and the names of the axes, and a grid instead of a frame."""
    axes.set_title(title, loc="left")
    axes.set(xlabel=x, ylabel=y)
    axes.grid()
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
