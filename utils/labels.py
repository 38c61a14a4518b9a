"""Detections as label files, so that people correct boxes instead of drawing them."""

import xml.etree.ElementTree as ET
from collections.abc import Sequence

import numpy as np

from utils.boxes import area, clip, xyxy_to_cxcywh


def inside(boxes: np.ndarray, width: int, height: int) -> tuple[np.ndarray, np.ndarray]:
    """Boxes [n, 4] xyxy -> those with area inside the picture [m, 4], clipped, and which they are, bool [n]."""
    clipped = clip(boxes.astype(np.float64), width, height)
    keep = area(clipped) > 0
    return clipped[keep], keep


def yolo_text(boxes: np.ndarray, labels: Sequence[int], width: int, height: int) -> str:
    """Boxes [n, 4] xyxy inside the picture -> lines `label cx cy w h`, in shares of width and height."""
    shares = xyxy_to_cxcywh(boxes) / [width, height, width, height]
    rows = zip(labels, shares.tolist(), strict=True)
    return "".join(f"{label} {' '.join(f'{value:.6f}' for value in row)}\n" for label, row in rows)


def voc_text(name: str, boxes: np.ndarray, names: Sequence[str], width: int, height: int) -> str:
    """Boxes [n, 4] xyxy inside the picture `name` -> a VOC XML."""
    root = ET.Element("annotation")
    ET.SubElement(root, "filename").text = name
    size = ET.SubElement(root, "size")
    for tag, value in (("width", width), ("height", height), ("depth", 3)):
        ET.SubElement(size, tag).text = str(value)
    for box, of in zip(boxes.tolist(), names, strict=True):
        one = ET.SubElement(root, "object")
        for tag, value in (("name", of), ("difficult", "0")):
            ET.SubElement(one, tag).text = value
        corners = ET.SubElement(one, "bndbox")
        for tag, value in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True):
            ET.SubElement(corners, tag).text = f"{value:.2f}"
    ET.indent(root)
    return ET.tostring(root, encoding="unicode") + "\n"
