"""Small files for the tests of formats: images, text and JSON, and the boxes that are read from them."""

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from datasets.formats import annotation_file
from datasets.formats.read import ReadOptions, finish
from datasets.store import Annotations, Classes


def paint(path: Path, width: int = 40, height: int = 20) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(cv2.imencode(path.suffix, np.full((height, width, 3), 90, np.uint8))[1].tobytes())
    return path


def text(path: Path, words: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(words if isinstance(words, str) else json.dumps(words, ensure_ascii=False), encoding="utf-8")
    return path


def boxes(found: Annotations) -> list[tuple]:
    """(path, boxes, class names, crowd) of each image."""
    rows = []
    for i in range(len(found)):
        corners, labels, crowd = found.boxes_of(i)
        rows.append((found.path(i), corners.tolist(), [found.classes[n] for n in labels], crowd.tolist()))
    return rows


def read_annotation_file(
    path: str, classes: Classes = None, bad_boxes: str = "error", names: Classes = None
) -> Annotations:
    """The annotations in a file, without lists of classes next to it."""
    return finish(annotation_file.read(path, names), ReadOptions(bad_boxes=bad_boxes), classes)
