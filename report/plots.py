"""Plots the curves of a run. Import this module where a plot is drawn: matplotlib takes a second to import."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from utils.files import atomic_write

INK, FAINT = "#33383d", "#d9dde1"
AVERAGE_PRECISION = "Average precision, %"  # a title


def draw_curves(rows: Sequence[Mapping[str, Any]], path: str | Path, marks: Mapping[str, int] | None = None) -> None:
    """Draws the rows of log.csv: training losses, validation loss, AP and learning rate over the epochs.

    `marks` adds vertical lines: name -> first epoch of a phase.
    """
    names = list(dict.fromkeys(key for row in rows for key in row))
    panels: dict[str, list[str]] = {
        "Training losses": [name for name in names if name.startswith("loss")],
        "Training and validation loss": [name for name in ("loss", "val_loss") if name in names],
        AVERAGE_PRECISION: [name for name in ("AP", "AP50", "AP75") if name in names],
        "Learning rate": [name for name in names if name.startswith("learning_rate")],
    }
    epochs = [int(row["epoch"]) for row in rows]
    reached = {name: epoch for name, epoch in (marks or {}).items() if epoch <= max(epochs)}
    style = {"axes.titlesize": 11, "axes.edgecolor": INK, "text.color": INK, "grid.color": FAINT, "font.size": 9}
    with rc_context(style):  # type: ignore[arg-type]  # matplotlib lists all keys as literals
        figure = Figure(figsize=(9.5, 6.2), dpi=110, layout="constrained")
        for number, (title, columns) in enumerate(panels.items(), 1):
            axes = figure.add_subplot(2, 2, number)
            for column in columns:
                _draw_column(axes, rows, column, 100 if title == AVERAGE_PRECISION else 1)
            axes.set_title(title, loc="left", pad=18)  # above the names of the phases
            axes.set_xlabel("epoch")
            axes.grid()
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.set_xlim(min(*epochs, 1) - 0.5, max(epochs) + 0.5)
            axes.set_ylim(bottom=0)
            if title == AVERAGE_PRECISION:
                axes.set_ylim(top=100)
            for name, epoch in reached.items():
                axes.axvline(epoch - 0.5, color=INK, linewidth=0.9, linestyle="--")
                place = axes.get_xaxis_transform()
                axes.text(epoch - 0.5, 1.01, name, transform=place, fontsize=8, horizontalalignment="center")
            if columns:
                axes.legend()
        with atomic_write(path) as file:
            figure.savefig(file, format="png")


def _draw_column(axes: Axes, rows: Sequence[Mapping[str, Any]], column: str, scale: float) -> None:
    """Draws a column of log.csv over the epochs that have a value; dots show single epochs of a short run."""
    measured = [row for row in rows if column in row]
    epochs = [int(row["epoch"]) for row in measured]
    values = [scale * float(row[column]) for row in measured]
    axes.plot(epochs, values, label=column, marker="o", markersize=3 if len(epochs) < 40 else 0)
