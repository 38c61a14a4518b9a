"""Draws AP over milliseconds of all models, from the tables of benchmarks/results/milliseconds.md, for docs/models.md."""

import re
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

PAGE = Path(__file__).parents[1] / "benchmarks/results/milliseconds.md"
INK, FAINT = "#33383d", "#656d76"
RIVAL = "Ultralytics yolo11n 640"
FAMILIES = {  # beginning of the names -> name, color, marker, line
    "picodet": ("PicoDet, input 320 to 640", "#2f9e5a", "o", "-"),
    "yolox": ("YOLOX", "#2f6fab", "o", "-"),
    "ppyoloe": ("PP-YOLOE+", "#d9730d", "o", "-"),
    "yolov9": ("YOLOv9", "#8b4fbf", "o", "-"),
    "Ultralytics": ("Ultralytics", INK, "D", "none"),
}
LEFT, BELOW, RIGHT = (-5, 5, "right"), (5, -12, "left"), (8, -3, "left")
PLACES = {  # of a label: points to the right and up from its model, and its end that lies there
    "picodet_m 320": LEFT,
    "picodet_m 416": LEFT,
    "Ultralytics yolo26n 640": LEFT,
    "yolov9_s 640": LEFT,
    "yolov9_m 640": LEFT,
    "yolov9_c 640": LEFT,
    "ppyoloe_s 640": LEFT,
    "ppyoloe_m 640": LEFT,
    "picodet_s 320": LEFT,
    "picodet_s 416": LEFT,
    "picodet_l 416": RIGHT,
    "picodet_l 640": RIGHT,
    RIVAL: (1, 9, "left"),
}
Measured = dict[str, tuple[float, float, float]]  # model and input -> milliseconds, times yolo11n, AP


def rows(text: str) -> Measured:
    """Returns the rows of a table that have an AP."""
    found = {}
    for line in re.findall(r"^\|.* \d+ \| \d.*\|$", text, re.MULTILINE):
        model, side, ap, _, _, time, ratio, _ = (cell.strip("`* ") for cell in line.strip("|").split(" | "))
        found[f"{model} {side}"] = float(time.split()[0]), float(ratio), float(ap)
    return found


def measured() -> dict[str, tuple[float, float]]:
    """Returns milliseconds and AP of each model, the fastest first.

    Models that only the second run timed get their ratio to yolo11n there, times its milliseconds in the first run.
    """
    first, second = map(rows, PAGE.read_text(encoding="utf-8").split("\n## "))
    found = {name: (ratio * first[RIVAL][0], ap) for name, (_, ratio, ap) in second.items()}
    found |= {name: (time, ap) for name, (time, _, ap) in first.items()}
    return dict(sorted(found.items(), key=lambda one: one[1]))


def draw_family(axes: Axes, start: str, points: dict[str, tuple[float, float]]) -> None:
    """Draws the models of a family, each with its name."""
    name, color, marker, line = FAMILIES[start]
    coordinates = zip(*points.values(), strict=True)
    axes.plot(*coordinates, color=color, marker=marker, linestyle=line, markersize=5.5, label=name, zorder=3)
    for model, point in points.items():
        x, y, side = PLACES.get(model, BELOW)
        text = model.removeprefix("Ultralytics ").removesuffix(" 640")
        text = text if start == "picodet" else text.removesuffix(" 416")
        style = {"fontsize": 8.5, "color": color, "bbox": {"fc": "white", "ec": "none", "pad": 0.3}}
        axes.annotate(text, point, (x, y), textcoords="offset points", ha=side, **style)


def description(found: dict[str, tuple[float, float]]) -> str:
    """Returns the drawn numbers."""
    return ", ".join(f"{model}: {ap:g} at {time:.0f} ms" for model, (time, ap) in found.items())


def main(output: Path) -> None:
    """Writes the drawing. The description inside of the file lists its numbers, so that a test can find an old one."""
    found = measured()
    figure = Figure((8.2, 5.2), layout="constrained")
    axes = figure.subplots()
    for start in FAMILIES:
        draw_family(axes, start, {name: point for name, point in found.items() if name.startswith(start)})
    ticks = (10, 20, 50, 100, 200, 500, 1000, 2000)
    axes.set(xscale="log", xlim=(7, 4000), ylim=(24, 57), xlabel="milliseconds per image, one CPU thread")
    axes.set_xticks(ticks, map(str, ticks))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_title("COCO AP (mAP50-95), as published by the authors", fontsize=10, color=INK, loc="left")
    axes.grid(color="#e4e7ea")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, loc="lower right")
    figure.savefig(output, dpi=180, metadata={"Description": description(found)})
