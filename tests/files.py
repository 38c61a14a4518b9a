"""Small files for the tests of formats: images, text and JSON, and the boxes that are read from them."""

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from datasets.formats.annotation_file import Annotations


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
