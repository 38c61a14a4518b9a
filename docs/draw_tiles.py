"""Draws the detections in a large image without tiles and with them, for docs/tiles.md."""

from pathlib import Path

import cv2
import numpy as np

from benchmarks.tiles import mosaics_of
from datasets.check_images import check_images
from datasets.formats.options import ReadOptions
from datasets.formats.read import read
from deploy.detector import Detector
from deploy.result import Result
from docs.jpeg import side_by_side, write_jpeg
from utils.draw import color_of, draw_labeled, put_text, text_width

WIDTH, TEXT, LINE, INK = 640, 20, 30, (60, 56, 51)  # pixels of each image, of a text and of its line; color of a text
TILE, GRID = 640, 3  # pixels of a tile; the large image has GRID x GRID images
NAMES = {"RBC": "red cells", "WBC": "white cells", "Platelets": "platelets"}


def legend(found: list[int], labeled: list[int], classes: tuple[str, ...]) -> np.ndarray:
    """Returns a line with the color of each class, and the number of its boxes, and of its labels."""
    band, x = np.full((LINE, WIDTH, 3), 255, np.uint8), 0
    for label, name in enumerate(classes):
        text = f"{NAMES[name]} {found[label]} ({labeled[label]})"
        cv2.rectangle(band, (x, 6), (x + 16, 22), color_of(label), -1)
        put_text(band, text, x + 23, 22, TEXT, INK)
        x += text_width(text, TEXT) + 44
    return band


def draw(title: str, result: Result, labeled: list[int], classes: tuple[str, ...]) -> np.ndarray:
    """Draws the boxes below the title and the legend."""
    image, labels = result.image, result.labels.tolist()
    scale = WIDTH / image.shape[1]
    small = cv2.resize(image, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    drawn = draw_labeled(small, result.boxes * scale, [""] * len(labels), [color_of(label) for label in labels], 2)
    band = np.full((LINE, WIDTH, 3), 255, np.uint8)
    put_text(band, f"{title}: boxes (labels)", 0, 22, TEXT, INK)
    found = [labels.count(label) for label in range(len(classes))]
    return np.concatenate([band, legend(found, labeled, classes), drawn])


def main(checkpoint: str | Path, bccd: Path, output: Path) -> None:
    """Writes the drawing: a grid of validation images of BCCD as one large image."""
    plain, tiled = Detector(checkpoint), Detector(checkpoint, tile=TILE, class_agnostic=True)
    options = ReadOptions(classes=plain.classes, bad_boxes="drop")
    data, _ = check_images(read(str(bccd / "ImageSets/Main/val.txt"), "val", options))
    (image,), truth = mosaics_of(data, 1, GRID)
    labeled = np.bincount(truth.labels, minlength=len(plain.classes)).tolist()
    parts = []
    for title, detector in (("without tiles", plain), (f"tile={TILE}", tiled)):
        (result,) = detector([image])
        parts.append(draw(title, result, labeled, plain.classes))
    write_jpeg(output, side_by_side(parts))
