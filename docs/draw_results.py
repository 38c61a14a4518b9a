"""Draws the bar chart of the README from the tables in benchmarks/results."""

import json
import statistics
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.table import read_rows

RESULTS = Path(__file__).parents[1] / "benchmarks/results"
OURS, THEIRS, INK = "#2f6fab", "#c3cad1", "#33383d"
DATA = {  # data set in small_data.csv -> label of its bars; coco163, on which every training lowered the mAP, is left out
    "bccd_test": "blood cells",
    "raccoon": "raccoons",
    "hemocytometer": "cell counting",
    "dental_xray": "dental X-rays",
}
Bar = tuple[str, list[float]]  # label, values of the seeds


def fine_tuned(recipe: str) -> list[Bar]:
    """mAP50-95 of a recipe on each data set of the report, by seed."""
    rows = [row for row in read_rows(RESULTS / "small_data.csv") if row["stage"] == "report" and row["AP"]]
    rows = sorted((row for row in rows if row["recipe"] == recipe), key=lambda row: int(row["seed"]))
    return [(label, [100 * float(row["AP"]) for row in rows if row["data"] == data]) for data, label in DATA.items()]


def from_scratch(recipe: str) -> list[float]:
    """mAP50-95 of the runs from scratch on BCCD."""
    return [100 * float(row["AP"]) for row in read_rows(RESULTS / "small_data.csv") if row["recipe"] == recipe]


def images_per_second(trainer: str) -> float:
    """Images per second of whole trainings of YOLOv9-s, with the loader and its defaults, on the GPU of gpu.json."""
    rows = json.loads((RESULTS / "gpu.json").read_text(encoding="utf-8"))["runs"]["rows"]
    found = [r for r in rows if r["trainer"].startswith(trainer) and r["model"] in ("yolov9_s", "yolov9s")]
    return found[0]["images/s"]


def draw_bars(axes: Axes, bars: list[Bar], shift: float, color: str, name: str) -> None:
    """Bars of the means with their values above, and lines of one standard deviation if there are several seeds."""
    positions = [number + shift for number in range(len(bars))]
    means = [statistics.fmean(values) for _, values in bars]
    spread = [statistics.stdev(values) if len(values) > 1 else 0 for _, values in bars]
    axes.bar(positions, means, 0.38, color=color, label=name)
    axes.errorbar(positions, means, spread, fmt="none", ecolor=INK, elinewidth=1)
    for position, mean, deviation in zip(positions, means, spread, strict=True):
        text = f"{mean:.1f}" if mean < 100 else f"{mean:.0f}"
        axes.annotate(text, (position, mean + deviation), (0, 2), textcoords="offset points", ha="center", fontsize=9)
    axes.set_xticks(range(len(bars)), [label for label, _ in bars], fontsize=9)


def draw_panel(axes: Axes, title: str, ours: list[Bar], theirs: list[Bar], name: str) -> None:
    draw_bars(axes, ours, -0.2, OURS, "Thaw")
    draw_bars(axes, theirs, 0.2, THEIRS, name)
    axes.set_title(title, fontsize=10, color=INK, loc="left")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_yticks([])
    axes.margins(x=0.04, y=0.4)
    axes.legend(frameon=False, fontsize=9, loc="upper right")


def chart() -> Figure:
    """Returns the chart: fine-tuning, training from scratch, speed."""
    figure = Figure((8.2, 3.3), layout="constrained")
    figure.get_layout_engine().set(wspace=0.06)
    tuned, scratch, speed = figure.subplots(1, 3, width_ratios=(3.6, 1.6, 1.6))
    title = "mAP of YOLOX-nano, fine-tuned on 160 to\n400 images for 15 or 20 epochs, 3 seeds"
    draw_panel(
        tuned,
        title,
        fine_tuned("new"),
        fine_tuned("libreyolo_batch_8"),
        "LibreYOLO 1.6, 8 images per step\n(schedule made for 300 epochs)",
    )
    ours, theirs = (from_scratch(name) for name in ("scratch_new_yolox_nano", "ultralytics_yolo11n_scratch"))
    label = "YOLOX-nano     yolo11n\nblood cells"
    draw_panel(
        scratch, "mAP from scratch, 75\nand 60 epochs, 3 seeds", [(label, ours)], [(label, theirs)], "Ultralytics 8.4"
    )
    ours, theirs = ([images_per_second(name)] for name in ("this one", "ultralytics"))
    label = "cached        uncached\none H100, second epoch"
    draw_panel(speed, "Training YOLOv9-s,\nimages/s, one run", [(label, ours)], [(label, theirs)], "Ultralytics 8.4")
    return figure


def numbers(figure: Figure) -> list[str]:
    """Returns the numbers above the bars."""
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def main(output: Path) -> None:
    """Writes the chart. The description inside of the file lists its numbers, so that a test can find an old one."""
    figure = chart()
    figure.savefig(output, dpi=180, metadata={"Description": " ".join(numbers(figure))})
