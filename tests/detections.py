"""Detections in two images, for the tests of what is written about them."""

import numpy as np
from files import write_noise

from deploy.detector import Result
from deploy.writer import Results

CLASSES = ("红细胞", "a/b")


def result(boxes, labels):
    boxes = np.array(boxes, np.float32).reshape(-1, 4)
    scores = np.linspace(0.9, 0.5, len(boxes), dtype=np.float32)
    return Result(boxes, scores, np.array(labels, np.int64), tuple(CLASSES[label] for label in labels))


def collect(folder, labels=None, crops=False):
    """Two images with one name in two folders; one box lies outside of its image, another one partly."""
    results = Results(lambda: folder / "out", CLASSES, (7, 90), crops, labels)
    (folder / "out").mkdir()
    for place, boxes, labels in (
        ("x", [[10.25, 20, 30, 50.5], [-5, 0, 200, 9]], [0, 1]),
        ("y", [[90, 90, 99, 99]], [1]),
    ):
        path = folder / "images" / place / "pic.png"
        results.add(write_noise(path, 0, 60, 80), result(boxes, labels), f"{place}/pic.png", str(path))
    return results
