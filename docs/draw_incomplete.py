"""Draws what is unknown in a mosaic, and where the score of a class has a gradient, for docs/incomplete_labels.md."""

from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Polygon, Rectangle
from torch.nn.functional import one_hot

from datasets import demo
from datasets.mosaic import Augment, mosaic
from datasets.store import Sample
from nets.coder import encode_dfl, grid
from nets.losses import YOLOv9Criterion
from nets.yolov9 import Predictions
from utils.ignore_regions import IgnoreRegions, of_boxes, of_image

SIDE = 320  # pixels of the sample
STRIDES = (16, 32)  # the anchor points of stride 8 would hide the image
IMAGES = (26, 28, 132, 154)  # of the demo: top left, top right, bottom left, bottom right
BINS = 16  # of the distances in YOLOv9's boxes
SHOWN = ("circle", "star")  # not looked for in the first, and in the fourth image
AUGMENT = Augment(mosaic=1.0, mixup=0.0, flip=0.0, rotation=8, scale=(0.55, 0.55), translate=0.0, shear=0.0)
PUSHED = {"pushed up: an object": "#00c8ff", "pushed down: background": "#d73027", "no gradient": "#ffffff"}
COLORS = {"circle": "#e7298a", "star": "#e6ab02", "open": "#7570b3"}


def samples() -> list[Sample]:
    """Four images of the demo. The objects that were not looked for are there, but have no boxes."""
    found = []
    for position, number in enumerate(IMAGES):
        image, boxes, labels = demo.draw_image(number)
        sample = Sample(image, boxes.astype(np.float32), labels)
        if position in (0, 3):
            missing = np.array([name == SHOWN[position == 3] for name in demo.CLASSES])
            kept = ~missing[labels]
            sample = Sample(image, sample.boxes[kept], labels[kept], of_image(missing))
        if position == 2:
            region = np.array([[0.0, 0.35, 0.45, 0.9]]) * (image.shape[1::-1] * 2)
            centers = (boxes[:, :2] + boxes[:, 2:]) / 2
            inside = ((region[:, :2] < centers) & (centers < region[:, 2:])).all(1)
            unknown = of_boxes(region, np.ones((1, len(demo.CLASSES)), bool))
            sample = Sample(image, sample.boxes[~inside], labels[~inside], unknown)
        found.append(sample)
    return found


def gradients(sample: Sample) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the anchor points [A, 2], their strides [A], and the gradients of their scores [A, C], by the loss of YOLOv9.

    Each anchor point predicts the box whose center is nearest, as after a training."""
    cells, strides = grid((SIDE, SIDE), STRIDES, torch.zeros(1))
    points, targets = (cells + 0.5) * strides[:, None], torch.from_numpy(sample.boxes)
    nearest = torch.cdist(points, (targets[:, :2] + targets[:, 2:]) / 2).argmin(1)
    distances = encode_dfl(targets[nearest], cells, strides).clamp(0, BINS - 1).round().long()
    boxes = 9.0 * one_hot(distances, BINS).flatten(1)[None]
    scores = torch.full((1, len(cells), len(demo.CLASSES)), -2.0, requires_grad=True)
    unknown = IgnoreRegions(*(torch.from_numpy(part)[None] for part in sample.ignore))
    labeled = targets[None], torch.from_numpy(sample.labels)[None]
    YOLOv9Criterion(STRIDES)(Predictions(boxes, scores), *labeled, (SIDE, SIDE), unknown)["total"].backward()
    return points.numpy(), strides.numpy(), scores.grad[0].numpy()


def corners(place: np.ndarray) -> np.ndarray:
    """Returns the corners [4, 2] of a place [2, 3]."""
    square = np.array([[0, 0], [1, 0], [1, 1], [0, 1]])
    return (square - place[:, 2]) @ np.linalg.inv(place[:, :2]).T


def main(output: Path) -> None:
    """Writes the drawing."""
    sample = mosaic(samples(), (SIDE, SIDE), np.random.default_rng(16), "corner", AUGMENT)
    points, strides, found = gradients(sample)
    figure = Figure((12, 4.9), layout="constrained")
    first, *others = figure.subplots(1, 3)
    for axes in (first, *others):
        axes.imshow(sample.image[:, :, ::-1])
        axes.set(xlim=(0, SIDE), ylim=(SIDE, 0), xticks=[], yticks=[])
    for x1, y1, x2, y2 in sample.boxes:
        first.add_patch(Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, edgecolor="white", linewidth=2))
    for place, classes in zip(*sample.ignore, strict=True):
        name = "open" if classes.all() else demo.CLASSES[classes.argmax()]
        first.add_patch(Polygon(corners(place), facecolor=COLORS[name], alpha=0.45, edgecolor="none"))
        text = "open region" if name == "open" else f"no one looked\nfor a {name}"
        inside = ((points @ place[:, :2].T + place[:, 2]) // 1 == 0).all(1)
        x, y = points[inside].mean(0)
        first.text(x, y, text, ha="center", va="center", fontsize=13, color="black", backgroundcolor=(1, 1, 1, 0.7))
    first.set_title("a mosaic: boxes and what is unknown", fontsize=15)
    for axes, name in zip(others, SHOWN, strict=True):
        slope = found[:, demo.CLASSES.index(name)]
        pushed = np.where(slope < 0, 0, np.where(slope > 0, 1, 2))
        sizes = np.where(pushed == 0, 3.5, 1.6) * strides
        axes.scatter(*points.T, s=sizes, c=np.array(list(PUSHED.values()))[pushed], edgecolors="black")
        axes.set_title(f"the score of {name}", fontsize=15)
    dots = {"marker": "o", "markersize": 9, "markeredgecolor": "black", "linestyle": ""}
    handles = [Line2D([], [], color=color, label=label, **dots) for label, color in PUSHED.items()]
    figure.legend(handles=handles, loc="outside lower right", ncols=3, fontsize=14)
    figure.savefig(output, dpi=110, pil_kwargs={"quality": 70})
