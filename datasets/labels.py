"""Label files of detections, which users correct by hand instead of drawing boxes: YOLO, VOC or an annotation file."""

import os
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from datasets.annotations import annotation_line
from utils.boxes import xyxy_to_cxcywh

KINDS = ("yolo", "voc", "txt")  # NAME.txt, NAME.xml, or one annotations.txt


class LabelFiles:
    """Writes one label file per image, or one for all images (`kind` "txt"), and classes.txt.

    `images`: their names. Raises ValueError if two images would share a label file, such as a.jpg and a.png.
    """

    def __init__(self, kind: str, classes: Sequence[str], images: Iterable[str]):
        self.kind, self.classes = kind, classes
        self.lines: list[str] = []  # of annotations.txt
        stems = Counter(["classes", *(str(Path(name).with_suffix("")) for name in images)])
        shared = [stem for stem, count in stems.items() if count > 1]
        if kind != "txt" and shared:
            raise ValueError(f"two images, or one and the list of classes, would share {shared[0]}.*: rename one")

    def add(self, folder: Path, name: str, path: str, boxes: np.ndarray, labels: np.ndarray, size: tuple) -> None:
        """Writes the boxes [n, 4] xyxy inside of an image of `size` = (width, height) to `folder`."""
        if self.kind == "txt":
            crowd = np.zeros(len(boxes), int)
            self.lines.append(annotation_line(os.path.abspath(path), boxes, labels, crowd) + "\n")
            return
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if self.kind == "yolo":
            target.with_suffix(".txt").write_text(yolo_text(boxes, labels, *size), encoding="utf-8")
        else:
            names = [self.classes[label] for label in labels]
            target.with_suffix(".xml").write_text(voc_text(target.name, boxes, names, *size), encoding="utf-8")

    def finish(self, folder: Path) -> None:
        """Writes classes.txt, and annotations.txt if `kind` is "txt"."""
        folder.mkdir(exist_ok=True)
        (folder / "classes.txt").write_text("".join(f"{name}\n" for name in self.classes), encoding="utf-8")
        if self.kind == "txt":
            (folder / "annotations.txt").write_text("".join(self.lines), encoding="utf-8", errors="surrogateescape")


def yolo_text(boxes: np.ndarray, labels: Sequence[int], width: int, height: int) -> str:
    """Formats boxes [n, 4] xyxy inside the image as YOLO lines `label cx cy w h`, in fractions of width and height."""
    fractions = xyxy_to_cxcywh(boxes) / [width, height, width, height]
    rows = zip(labels, fractions.tolist(), strict=True)
    return "".join(f"{int(label)} {' '.join(f'{value:.6f}' for value in row)}\n" for label, row in rows)


def voc_text(name: str, boxes: np.ndarray, names: Sequence[str], width: int, height: int) -> str:
    """Formats boxes [n, 4] xyxy inside the image `name` as VOC XML."""
    root = ET.Element("annotation")
    ET.SubElement(root, "filename").text = name
    size = ET.SubElement(root, "size")
    for tag, value in (("width", width), ("height", height), ("depth", 3)):
        ET.SubElement(size, tag).text = str(value)
    for box, word in zip(boxes.tolist(), names, strict=True):
        one = ET.SubElement(root, "object")
        for tag, text in (("name", word), ("difficult", "0")):
            ET.SubElement(one, tag).text = text
        corners = ET.SubElement(one, "bndbox")
        for tag, value in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True):
            ET.SubElement(corners, tag).text = f"{value:.2f}"
    ET.indent(root)
    return ET.tostring(root, encoding="unicode") + "\n"
