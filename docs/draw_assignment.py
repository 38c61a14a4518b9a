"""Draws the anchor points that SimOTA assigns to the labeled boxes of an image, for docs/how_it_works.md.

Each box has a color, and so have the anchor points that learn it. The checkpoint is a YOLOX model.
"""

from pathlib import Path

import cv2
import numpy as np
import torch

from datasets.formats.read import read
from deploy.detector import Detector
from docs.jpeg import write_jpeg
from nets.assigners import simota
from nets.coder import decode_yolox, grid
from utils.draw import color_of
from utils.images import boxes_to_input, letterbox

ZOOM = 3  # pixels of the drawing per pixel of the network's input


def circle(
    image: np.ndarray, point: torch.Tensor, radius: torch.Tensor | float, color: tuple[int, int, int], thickness: int
) -> None:
    """Draws a circle around a point in pixels of the network's input."""
    x, y = (point * ZOOM).round().int().tolist()
    cv2.circle(image, (x, y), round(float(radius)), color, thickness, cv2.LINE_AA)


@torch.inference_mode()
def main(checkpoint: Path, bccd: Path, name: str, output: Path) -> None:
    """Writes the drawing."""
    detector, annotations = Detector(checkpoint, device="cpu"), read(str(bccd / "ImageSets/Main/test.txt"), "test")
    number = next(i for i in range(len(annotations)) if Path(annotations.path(i)).name == name)
    image = annotations.image(number)
    boxes, labels, _ = annotations.boxes_of(number)
    fitted, transform = letterbox(image, detector.image_size, detector.model.letterbox)
    targets = torch.from_numpy(boxes_to_input(boxes, transform))
    raw = detector.network(detector.prepare([image])[0])
    cells, strides = grid(detector.image_size, detector.model.strides, raw.boxes)
    centers = (cells + 0.5) * strides[:, None]
    decoded = decode_yolox(raw.boxes, cells, strides)
    match = simota(
        decoded, raw.objectness, raw.classes, centers, strides, targets[None], torch.from_numpy(labels)[None]
    )

    drawn = cv2.resize(fitted, None, fx=ZOOM, fy=ZOOM, interpolation=cv2.INTER_CUBIC)
    for one, box in enumerate((targets * ZOOM).round().int().tolist()):
        cv2.rectangle(drawn, box[:2], box[2:], color_of(one), 2, cv2.LINE_AA)
    for center, stride, positive, index in zip(centers, strides, match.positive[0], match.index[0], strict=True):
        if positive:
            circle(drawn, center, 3 + stride / 4, color_of(int(index)), -1)
            circle(drawn, center, 3 + stride / 4, (255, 255, 255), 1)
        else:
            circle(drawn, center, 1, (150, 150, 150), -1)
    height, width = (round(ZOOM * side * transform.scale_x) for side in image.shape[:2])  # without the padding
    write_jpeg(output, drawn[:height, :width])
