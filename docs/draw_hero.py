"""Draws the image at the top of the README: detections of trained checkpoints on real images, one row per checkpoint.

python -m docs.draw_hero docs/images/hero.jpg runs/bccd-.../best.pt=a.jpg,b.jpg runs/raccoon-.../best.pt=c.jpg,d.jpg

The README shows the images raccoon-14, -41 and -186 (test part) of the raccoon data set and BloodImage_00093, _00226 and _00167
(test part) of BCCD. The checkpoints are YOLOX-nano after 30 epochs on the training parts, at 320 and 416 pixels.
"""

import sys
from pathlib import Path

import cv2
import numpy as np

from deploy.detector import Detector
from utils.draw import PAPER, draw_boxes
from utils.images import read_image

WIDTH = 1280  # pixels of the whole image
GAP = 8  # pixels between two images
JPEG_QUALITY = 88


def row_of(checkpoint: str, paths: list[str]) -> np.ndarray:
    """Detections of a checkpoint on some images, at equal height next to each other: uint8 [H, WIDTH, 3] BGR."""
    detector = Detector(checkpoint)
    images = [read_image(path) for path in paths]
    aspects = [image.shape[1] / image.shape[0] for image in images]
    height = round((WIDTH - GAP * (len(images) + 1)) / sum(aspects))
    row = np.full((height, WIDTH, 3), PAPER, np.uint8)
    left = GAP
    for image, result, aspect in zip(images, detector(images), aspects, strict=True):
        width = min(round(height * aspect), WIDTH - GAP - left)
        scale = 2 * height / image.shape[0]  # drawn at twice the size, so that text and lines are smooth and readable
        image = cv2.resize(image, (2 * width, 2 * height), interpolation=cv2.INTER_AREA)
        drawn = draw_boxes(image, result.boxes * scale, result.labels, detector.classes, result.scores)
        drawn = cv2.resize(drawn, (width, height), interpolation=cv2.INTER_AREA)
        row[:, left : left + width] = drawn
        left += width + GAP
    return row


def main(output: str, *rows: str) -> None:
    """Writes the grid. Each of `rows` is CHECKPOINT=IMAGE,IMAGE,..."""
    gap = np.full((GAP, WIDTH, 3), PAPER, np.uint8)
    parts = [gap]
    for row in rows:
        checkpoint, _, paths = row.partition("=")
        parts += [row_of(checkpoint, paths.split(",")), gap]
    quality = [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY]
    Path(output).write_bytes(cv2.imencode(".jpg", np.concatenate(parts), quality)[1].tobytes())


if __name__ == "__main__":
    main(*sys.argv[1:])
