"""Draws the parts of YOLOX-nano and marks the part that can be frozen, for docs/how_it_works.md.

The sizes of the feature maps and the numbers of parameters are taken from the model.
"""

from functools import partial
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

import nets

MODEL, CLASSES = "yolox_nano", 80
FROZEN, TRAINED, INK, FAINT = "#d5e3f0", "#f6e3c5", "#33383d", "#656d76"
WIDE, HIGH = 1.7, 0.66  # of a block
TOP = 7.35  # of the drawing
PANELS = {  # left and right edge, color, text
    "backbone": (0, 2.3, FROZEN, "frozen in the freeze_epochs"),
    "neck": (2.5, 6.7, TRAINED, "always trained"),
    "head": (6.9, 9.2, TRAINED, "always trained"),
}
BLOCKS = {  # module: left edge and row; the rows 3, 2 and 1 have the strides 8, 16 and 32
    "backbone.stem": (0.3, 5),
    "backbone.stage2": (0.3, 4),
    "backbone.stage3": (0.3, 3),
    "backbone.stage4": (0.3, 2),
    "backbone.stage5": (0.3, 1),
    "neck.up_to_stride8": (2.7, 3),
    "neck.up_to_stride16": (2.7, 2),
    "neck.reduce_stride32": (2.7, 1),
    "neck.down_to_stride16": (4.8, 2),
    "neck.down_to_stride32": (4.8, 1),
    "head.stems.0": (7.2, 3),
    "head.stems.1": (7.2, 2),
    "head.stems.2": (7.2, 1),
}
ARROWS = [  # from a module to one to its right, above or below it
    ("backbone.stem", "backbone.stage2"),
    ("backbone.stage2", "backbone.stage3"),
    ("backbone.stage3", "backbone.stage4"),
    ("backbone.stage4", "backbone.stage5"),
    ("backbone.stage3", "neck.up_to_stride8"),
    ("backbone.stage4", "neck.up_to_stride16"),
    ("backbone.stage5", "neck.reduce_stride32"),
    ("neck.reduce_stride32", "neck.up_to_stride16"),
    ("neck.up_to_stride16", "neck.up_to_stride8"),
    ("neck.up_to_stride16", "neck.down_to_stride16"),
    ("neck.reduce_stride32", "neck.down_to_stride32"),
    ("neck.up_to_stride8", "neck.down_to_stride16"),
    ("neck.down_to_stride16", "neck.down_to_stride32"),
    ("neck.up_to_stride8", "head.stems.0"),
    ("neck.down_to_stride16", "head.stems.1"),
    ("neck.down_to_stride32", "head.stems.2"),
]


@torch.inference_mode()
def shapes_of(model: torch.nn.Module, image_size: tuple[int, int]) -> dict[str, torch.Size]:
    """Returns the shape [1, channels, height, width] of the output of each block."""
    shapes = {}

    def keep(name: str, module: torch.nn.Module, inputs: tuple, output: torch.Tensor) -> None:
        shapes[name] = output.shape

    for name in BLOCKS:
        model.get_submodule(name).register_forward_hook(partial(keep, name))
    model.eval()(torch.zeros(1, 3, *image_size))
    return shapes


def draw_block(axes: Axes, x: float, y: float, upper: str, lower: str) -> None:
    """Draws a block with two lines of text."""
    axes.add_patch(FancyBboxPatch((x, y), WIDE, HIGH, "round,pad=0,rounding_size=.08", fc="white", ec=FAINT, lw=1))
    axes.text(x + WIDE / 2, y + HIGH * 0.68, upper, ha="center", va="center", fontsize=9.5, color=INK)
    axes.text(x + WIDE / 2, y + HIGH * 0.28, lower, ha="center", va="center", fontsize=9, color=FAINT)


def draw_arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    """Draws an arrow between two points."""
    axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": INK, "shrinkA": 0, "shrinkB": 1})


def connect(axes: Axes, source: str, target: str) -> None:
    """Draws an arrow from the edge of a block to the edge of another."""
    (x1, y1), (x2, y2) = BLOCKS[source], BLOCKS[target]
    if x1 == x2:
        up = y2 > y1
        draw_arrow(axes, (x1 + WIDE / 2, y1 + HIGH * up), (x2 + WIDE / 2, y2 + HIGH * (not up)))
    elif y1 == y2:
        draw_arrow(axes, (x1 + WIDE, y1 + HIGH / 2), (x2, y2 + HIGH / 2))
    else:
        draw_arrow(axes, (x1 + WIDE, y1 + HIGH / 4), (x2 + WIDE / 2, y2 + HIGH))


def main(output: Path) -> None:
    """Writes the drawing."""
    model, (height, width) = nets.build(MODEL, CLASSES), nets.official_size(MODEL)
    shapes = shapes_of(model, (height, width))
    figure = Figure((12, 5.6))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(-0.1, 11.4), ylim=(0.6, TOP + 0.1))
    axes.axis("off")
    for name, (left, right, color, text) in PANELS.items():
        shape = (left, 0.7), right - left, TOP - 0.7
        axes.add_patch(FancyBboxPatch(*shape, "round,pad=0,rounding_size=.12", fc=color, ec="none"))
        millions = sum(values.numel() for values in model.get_submodule(name).parameters()) / 1e6
        title, middle = f"{name}: {millions:.2f} M parameters", (left + right) / 2
        axes.text(middle, TOP - 0.3, title, ha="center", va="center", fontsize=9.5, color=INK, weight="bold")
        axes.text(middle, TOP - 0.6, text, ha="center", va="center", fontsize=9, color=INK)
    x, y = BLOCKS["backbone.stem"]
    axes.text(x + WIDE / 2, y + 1.24, f"image, {width} x {height}", ha="center", fontsize=9.5, color=INK)
    draw_arrow(axes, (x + WIDE / 2, y + 1.14), (x + WIDE / 2, y + HIGH))
    for name, (x, y) in BLOCKS.items():
        _, channels, rows, columns = shapes[name]
        part, _, module = name.partition(".")
        title = "boxes and scores" if part == "head" else module
        draw_block(axes, x, y, title, f"{columns} x {rows}, {channels} channels")
    for source, target in ARROWS:
        connect(axes, source, target)
    for number, stride in enumerate(model.strides):
        x, y = BLOCKS[f"head.stems.{number}"]
        cells = height // stride * (width // stride)
        draw_arrow(axes, (x + WIDE, y + HIGH / 2), (x + WIDE + 0.6, y + HIGH / 2))
        text = f"stride {stride}:\n{cells:,} anchor points"
        axes.text(x + WIDE + 0.7, y + HIGH / 2, text, va="center", fontsize=9.5, color=INK)
    figure.savefig(output, dpi=100)
