"""Small files for tests: images, text and JSON, annotations with one box for each image, and the boxes that are read."""

import json
import shutil
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from datasets.formats import annotation_file
from datasets.formats.labels import resolve_labels
from datasets.formats.options import ReadOptions
from datasets.store import Annotations, Classes


def paint(path: Path, width: int = 40, height: int = 20) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(cv2.imencode(path.suffix, np.full((height, width, 3), 90, np.uint8))[1].tobytes())
    return path


def text(path: Path, words: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(words if isinstance(words, str) else json.dumps(words, ensure_ascii=False), encoding="utf-8")
    return path


def copy(source: Path, target: Path) -> None:
    """Copies a folder, which may be read-only, into a new one that can be changed."""
    shutil.copytree(source, target, copy_function=shutil.copyfile)
    for folder in (target, *(path for path in target.rglob("*") if path.is_dir())):
        folder.chmod(0o755)


def noise(seed: int = 0, height: int = 48, width: int = 64) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def write_noise(path: Path, seed: int = 0, height: int = 48, width: int = 64) -> np.ndarray:
    """Writes `noise` as PNG, which is read as PNG under any name."""
    image = noise(seed, height, width)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(cv2.imencode(".png", image)[1].tobytes())
    return image


def names_in(folder: Path | str) -> list[str]:
    """The files in a folder and the folders in it, without hidden ones."""
    found = [path for path in Path(folder).rglob("[!.]*") if path.is_file()]
    return sorted(path.relative_to(folder).as_posix() for path in found)


def coco(*images: str) -> dict[str, Any]:
    """Images of 40 x 20 pixels, each with a box of the class cat with the corners 1, 2, 9, 8; as in `cvat` and `voc`."""
    rows = [{"id": i, "file_name": name, "height": 20, "width": 40} for i, name in enumerate(images)]
    shapes = [{"id": i, "image_id": i, "category_id": 1, "bbox": [1, 2, 8, 6]} for i in range(len(images))]
    return {"images": rows, "annotations": shapes, "categories": [{"id": 1, "name": "cat"}]}


def cvat(*images: str) -> str:
    rows = (f'<image name="{name}"><box label="cat" xtl="1" ytl="2" xbr="9" ybr="8"/></image>' for name in images)
    return f"<annotations>{''.join(rows)}</annotations>"


def voc(*classes: str, image: str = "") -> str:
    """The file of one image, with a box of each class."""
    box = "<bndbox><xmin>1</xmin><ymin>2</ymin><xmax>9</xmax><ymax>8</ymax></bndbox>"
    head = f"<filename>{image}</filename>" if image else ""
    return f"<annotation>{head}{''.join(f'<object><name>{name}</name>{box}</object>' for name in classes)}</annotation>"


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
    return resolve_labels(annotation_file.read_annotation_file(path, names), ReadOptions(bad_boxes=bad_boxes), classes)
