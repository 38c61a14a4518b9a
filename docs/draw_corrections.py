"""Draws how label errors are found, corrected and trained again, for docs/data.md.

python -m docs.draw_corrections docs/images/corrections.png

The image is one of the demo. Its two label errors are made up.
"""

import sys

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

from datasets import demo

NUMBER = 25  # of the demo image: a heart, a square and a star
INK, FAINT, MARK = "#33383d", "#656d76", "#2f6fab"
LABEL, PROPOSAL, OTHER = "#ff8c00", "#0078ff", "#c83cbe"  # as on the page of tools.suspects
WIDTH, HEIGHT = 12.0, 4.1  # inches
SIDE, STEP, TOP = 2.4, 3.2, 3.65  # inches: width of an image, from one to the next, upper edge
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
        "In Label Studio, in CVAT,\nor in suspects.txt.",
        [("heart", "heart", LABEL), ("square", "square", LABEL), ("star", "star", LABEL)],
    ),
]
STEPS = ("tools.\nsuspects", "you\ncorrect", "train.py")  # on the arrows


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
            axes.text(x1 + 1, y1 - 3, text, fontsize=8, color="white", weight="bold", va="bottom", bbox=plate)


def main(output: str) -> None:
    """Writes the drawing."""
    figure = Figure((WIDTH, HEIGHT))
    page = figure.add_axes((0, 0, 1, 1))  # in inches
    page.set(xlim=(0, WIDTH), ylim=(0, HEIGHT))
    page.axis("off")
    height, width, _ = demo.draw_image(NUMBER)[0].shape
    high = SIDE * height / width
    arrow = {"arrowstyle": "-|>", "color": MARK, "lw": 1.8}
    for number, (title, text, boxes) in enumerate(PANELS):
        left = 0.1 + STEP * number
        draw_image(figure.add_axes((left / WIDTH, (TOP - high) / HEIGHT, SIDE / WIDTH, high / HEIGHT)), boxes)
        page.text(left, TOP + 0.12, title, fontsize=11, color=INK, weight="bold")
        page.text(left, TOP - high - 0.12, text, fontsize=9.5, color=FAINT, va="top")
        start, middle = left + SIDE + 0.06, TOP - high / 2
        page.annotate("", (start + STEP - SIDE - 0.12, middle), (start, middle), arrowprops=arrow)
        page.text(start + (STEP - SIDE) / 2 - 0.06, middle + 0.1, STEPS[number], fontsize=9, color=MARK, ha="center")
    left, right = 0.1 + STEP * len(PANELS), WIDTH - 0.1
    page.text(left, TOP + 0.12, "4. trained again", fontsize=11, color=INK, weight="bold")
    page.add_patch(FancyBboxPatch((left, TOP - high), right - left, high, "round,pad=0", fc="#f6f8fa", ec=FAINT))
    page.text(
        (left + right) / 2,
        TOP - high / 2,
        "best.pt\nlearned from the\ncorrected labels",
        fontsize=10,
        color=INK,
        ha="center",
        va="center",
    )
    below, center = 0.45, (left + right) / 2
    corrected = 0.1 + STEP * 2 - (STEP - SIDE) / 2
    page.plot([center, center, corrected], [TOP - high - 0.08, below, below], color=MARK, lw=1.8)
    page.annotate("", (corrected, TOP - high / 2 - 0.08), (corrected, below), arrowprops=arrow | {"shrinkA": 0})
    text = "predict.py labels=labelstudio (or cvat) labels new images, which you correct in the same way"
    page.text((corrected + center) / 2, below - 0.1, text, fontsize=9, color=MARK, ha="center", va="top")
    figure.savefig(output, dpi=100)


if __name__ == "__main__":
    main(*sys.argv[1:])
