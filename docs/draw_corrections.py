"""Draws how label errors are found and corrected, for docs/labels.md.

The image is one of the demo. Its two label errors are made up.
"""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from datasets import demo

NUMBER = 25  # of the demo image: a heart, a square and a star
INK, FAINT, MARK = "#33383d", "#656d76", "#2f6fab"
LABEL, PROPOSAL, OTHER = "#ff8c00", "#0078ff", "#c83cbe"  # as on the page of tools.suspects
WIDTH, HEIGHT = 9.2, 3.1  # inches
SIDE, STEP, TOP = 2.5, 3.3, 2.75  # inches: width of an image, from one to the next, upper edge
PANELS = [  # title, text below, boxes: class of the object, text, color
    (
        "1. your labels",
        "The heart has no label, the square\nhas the class circle.",
        [("square", "circle", LABEL), ("star", "star", LABEL)],
    ),
    (
        "2. suspects.html",
        "The most probable errors come first.",
        [("heart", "add heart", PROPOSAL), ("square", "circle -> square", PROPOSAL), ("star", "", OTHER)],
    ),
    (
        "3. corrected labels",
        "In Label Studio, in CVAT, or in\nsuspects.txt. Then train again.",
        [("heart", "heart", LABEL), ("square", "square", LABEL), ("star", "star", LABEL)],
    ),
]
STEPS = ("tools.\nsuspects", "you\ncorrect")  # on the arrows


def draw_image(axes: Axes, boxes: list[tuple[str, str, str]]) -> None:
    """Draws the demo image with boxes."""
    image, places, labels = demo.draw_image(NUMBER)
    box_of = {demo.CLASSES[label]: box.tolist() for label, box in zip(labels, places, strict=True)}
    axes.imshow(image[..., ::-1])
    axes.axis("off")
    for name, text, color in boxes:
        x1, y1, x2, y2 = box_of[name]
        axes.add_patch(Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, ec=color, lw=2))
        plate = {"fc": color, "ec": color, "pad": 1.5}
        if text:
            axes.text(x1 + 1, y1 - 3, text, fontsize=9, color="white", weight="bold", va="bottom", bbox=plate)


def main(output: Path) -> None:
    """Writes the drawing."""
    figure = Figure((WIDTH, HEIGHT))
    page = figure.add_axes((0, 0, 1, 1))  # in inches
    page.set(xlim=(0, WIDTH), ylim=(0, HEIGHT))
    page.axis("off")
    height, width, _ = demo.draw_image(NUMBER)[0].shape
    high = SIDE * height / width
    arrow = {"arrowstyle": "-|>", "color": MARK, "lw": 1.8}
    for number, (title, text, boxes) in enumerate(PANELS):
        left = 0.05 + STEP * number
        draw_image(figure.add_axes((left / WIDTH, (TOP - high) / HEIGHT, SIDE / WIDTH, high / HEIGHT)), boxes)
        page.text(left, TOP + 0.12, title, fontsize=11, color=INK, weight="bold")
        page.text(left, TOP - high - 0.12, text, fontsize=9.5, color=FAINT, va="top")
    for number, text in enumerate(STEPS):
        start, middle = 0.11 + STEP * number + SIDE, TOP - high / 2
        page.annotate("", (start + STEP - SIDE - 0.12, middle), (start, middle), arrowprops=arrow)
        page.text(start + (STEP - SIDE) / 2 - 0.06, middle + 0.1, text, fontsize=9, color=MARK, ha="center")
    figure.savefig(output, dpi=110)
