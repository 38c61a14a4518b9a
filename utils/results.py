"""Detections as files: one JSON, crops, and label files that people correct instead of drawing boxes."""

import json
import os
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from utils.boxes import area, clip, xyxy_to_cxcywh, xyxy_to_xywh
from utils.draw import write_image

KINDS = ("yolo", "voc", "txt")  # labels/NAME.txt, labels/NAME.xml, or one labels/annotations.txt


class Results:
    """Collects what was found in pictures or frames; writes crops and label files as they come, the rest in `finish`.

    `category_ids`: what the JSON calls the labels. `kind`: one of KINDS or None. `annotation_line(path, boxes, labels,
    crowd)` gives a line of annotations.txt.
    """

    def __init__(
        self,
        folder: Path,
        classes: Sequence[str],
        category_ids: Sequence[int],
        crops: bool,
        kind: str | None,
        annotation_line: Callable[..., str],
    ):
        self.folder, self.classes, self.category_ids, self.crops, self.kind = folder, classes, category_ids, crops, kind
        self.annotation_line = annotation_line
        self.entries: list[dict] = []
        self.lines: list[str] = []
        self.unread: list[str] = []  # messages about pictures that cannot be read
        self.counts: Counter = Counter()
        self.images, self.begin = 0, time.perf_counter()

    def add(self, name: str, path: str, image: np.ndarray, found, frame: int | None = None) -> None:
        """What was found in a picture (`name` in the results, `path` of its file) or in a frame of a video."""
        self.images += 1
        self.counts.update(found.names)
        place = {"file_name": name.replace(os.sep, "/")} | ({} if frame is None else {"frame": frame})
        boxes = xyxy_to_xywh(found.boxes.astype(np.float64)).tolist()
        for box, score, label, word in zip(boxes, found.scores.tolist(), found.labels, found.names, strict=True):
            category = int(self.category_ids[label])
            entry = {"image_id": self.images, "category_id": category, "bbox": box, "score": score, "class": word}
            self.entries.append(entry | place)
        height, width = image.shape[:2]
        inside = clip(found.boxes.astype(np.float64), width, height)
        keep = area(inside) > 0
        if self.crops:
            self._write_crops(Path(name), image, inside[keep], found.labels[keep], frame)
        if self.kind and frame is None:
            self._write_labels(name, path, inside[keep], found.labels[keep], (width, height))

    def _write_crops(self, name: Path, image: np.ndarray, boxes: np.ndarray, labels, frame: int | None) -> None:
        mark = "" if frame is None else f"_{frame:06}"
        for number, (box, label) in enumerate(zip(boxes, labels, strict=True), 1):
            (x1, y1), (x2, y2) = np.floor(box[:2]).astype(int), np.ceil(box[2:]).astype(int)
            folder = "".join("_" if letter in '/\\:*?"<>|' else letter for letter in self.classes[label])
            path = self.folder / "crops" / folder / name.parent / f"{name.name}{mark}_{number}.png"
            write_image(path, image[y1:y2, x1:x2])

    def _write_labels(self, name: str, path: str, boxes: np.ndarray, labels, size: tuple[int, int]) -> None:
        if self.kind == "txt":
            crowd = np.zeros(len(boxes), int)
            self.lines.append(self.annotation_line(os.path.abspath(path), boxes, labels, crowd) + "\n")
            return
        target = self.folder / "labels" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if self.kind == "yolo":
            target.with_suffix(".txt").write_text(yolo_text(boxes, labels, *size), encoding="utf-8")
        else:
            names = [self.classes[label] for label in labels]
            target.with_suffix(".xml").write_text(voc_text(target.name, boxes, names, *size), encoding="utf-8")

    def finish(self) -> str:
        """Writes detections.json (COCO results with names), and for label files the classes -> a summary in words."""
        text = json.dumps(self.entries, ensure_ascii=False)
        (self.folder / "detections.json").write_text(text, encoding="utf-8", errors="surrogateescape")
        texts = {"classes": "".join(f"{name}\n" for name in self.classes)} if self.kind else {}
        texts |= {"annotations": "".join(self.lines)} if self.kind == "txt" else {}
        for name, text in texts.items():
            (self.folder / "labels").mkdir(exist_ok=True)
            (self.folder / "labels" / f"{name}.txt").write_text(text, encoding="utf-8", errors="surrogateescape")
        rate = self.images / (time.perf_counter() - self.begin)
        found = ", ".join(f"{count} {name}" for name, count in self.counts.most_common(10)) or "nothing"
        found += ", ..." if len(self.counts) > 10 else ""
        lines = [f"{self.images} images, {rate:.1f} a second, found: {found}", str(self.folder)]
        if self.unread:
            more = [f"... and {len(self.unread) - 10} more"] if len(self.unread) > 10 else []
            lines = [f"{len(self.unread)} pictures could not be read:", *self.unread[:10], *more, *lines]
        return "\n".join(lines)


def yolo_text(boxes: np.ndarray, labels: Sequence[int], width: int, height: int) -> str:
    """Boxes [n, 4] xyxy inside the picture -> lines `label cx cy w h`, in shares of width and height."""
    shares = xyxy_to_cxcywh(boxes) / [width, height, width, height]
    rows = zip(labels, shares.tolist(), strict=True)
    return "".join(f"{int(label)} {' '.join(f'{value:.6f}' for value in row)}\n" for label, row in rows)


def voc_text(name: str, boxes: np.ndarray, names: Sequence[str], width: int, height: int) -> str:
    """Boxes [n, 4] xyxy inside the picture `name` -> a VOC XML."""
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
