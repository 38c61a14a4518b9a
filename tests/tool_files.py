"""The truth of the small data set in tests/data/tools, which the libraries of labeling tools wrote."""

from pathlib import Path

import cv2
import numpy as np

CLASSES = ("cat", "small dog", "鸟")
IMAGES = {  # name -> height and width, boxes x1, y1, x2, y2 and label
    "a 1.png": ((60, 80), [(10, 20, 30, 50, 0), (0, 0, 80, 9, 2)]),
    "b.png": ((48, 64), [(7, 5, 18, 40, 1)]),
    "empty.png": ((32, 32), []),
}


def truth(index: int) -> tuple[np.ndarray, np.ndarray]:
    """Boxes [n, 4] xyxy and labels [n] of an image."""
    rows = np.array([*IMAGES.values()][index][1], float).reshape(-1, 5)
    return rows[:, :4], rows[:, 4].astype(int)


def write_images(folder: Path) -> list[str]:
    """Draws the images and returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    for level, (name, ((height, width), _)) in enumerate(IMAGES.items()):
        image = np.full((height, width, 3), 50 * level, np.uint8)
        (folder / name).write_bytes(cv2.imencode(".png", image)[1].tobytes())
    return [str(folder / name) for name in IMAGES]
