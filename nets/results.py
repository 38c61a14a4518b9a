"""Detections as files: one JSON for all images, and crops."""

import json
import os
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from utils.boxes import area, clip, xyxy_to_xywh
from utils.draw import write_image

SHOWN = 10  # classes and unreadable images that the summary names


class Results:
    """Collects the detections of images or frames; writes crops and other files at once, the JSON in `finish`.

    `category_ids`: of the labels in the JSON. `writers`: folder -> what writes into it, such as a `datasets.labels.LabelFiles`.
    """

    def __init__(
        self, folder: Path, classes: Sequence[str], category_ids: Sequence[int], crops: bool = False, writers=()
    ):
        self.folder, self.classes, self.category_ids = folder, classes, category_ids
        self.crops, self.writers = crops, dict(writers)
        self.entries: list[dict] = []  # of detections.json
        self.unread: list[str] = []  # messages about images that cannot be read
        self.counts: Counter = Counter()  # detections per class
        self.images, self.begin = 0, time.perf_counter()

    def add(self, image: np.ndarray, result, name: str, path: str, frame: int | None = None) -> None:
        """Adds the Result of an image. `name`: in the results; `path`: of its file; `frame`: its number in a video."""
        self.images += 1
        self.counts.update(result.names)
        origin = {"file_name": name.replace(os.sep, "/")} | ({} if frame is None else {"frame": frame})
        boxes = result.boxes.astype(np.float64)
        rows = zip(xyxy_to_xywh(boxes).tolist(), result.scores.tolist(), result.labels, result.names, strict=True)
        for box, score, label, word in rows:
            category = int(self.category_ids[label])
            entry = {"image_id": self.images, "category_id": category, "bbox": box, "score": score, "class": word}
            self.entries.append(entry | origin)
        height, width = image.shape[:2]
        boxes = clip(boxes, width, height)
        inside = area(boxes) > 0
        boxes, labels, scores = boxes[inside], result.labels[inside], result.scores[inside]
        if self.crops:
            self._write_crops(Path(name if frame is None else f"{name}_{frame:06}"), image, boxes, labels)
        for inner, writer in self.writers.items():
            writer.add(self.folder / inner, name, path, boxes, labels, scores, image)

    def _write_crops(self, name: Path, image: np.ndarray, boxes: np.ndarray, labels: np.ndarray) -> None:
        for number, (box, label) in enumerate(zip(boxes, labels, strict=True), 1):
            (x1, y1), (x2, y2) = np.floor(box[:2]).astype(int), np.ceil(box[2:]).astype(int)
            folder = "".join("_" if character in '/\\:*?"<>|' else character for character in self.classes[label])
            folder = folder.strip(" .") or "_"  # ".." would lead out of the output folder
            write_image(self.folder / "crops" / folder / name.parent / f"{name.name}_{number}.png", image[y1:y2, x1:x2])

    def finish(self) -> str:
        """Writes detections.json (COCO results with class names) and completes the other files -> a summary to print."""
        text = json.dumps(self.entries, ensure_ascii=False)
        (self.folder / "detections.json").write_text(text, encoding="utf-8", errors="surrogateescape")
        for inner, writer in self.writers.items():
            writer.finish(self.folder / inner)
        rate = self.images / (time.perf_counter() - self.begin)
        counts = ", ".join(f"{count} {name}" for name, count in self.counts.most_common(SHOWN)) or "nothing"
        counts += ", ..." if len(self.counts) > SHOWN else ""
        lines = [f"{self.images} images, {rate:.1f} per second, detected: {counts}", str(self.folder)]
        if self.unread:
            more = [f"... and {len(self.unread) - SHOWN} more"] if len(self.unread) > SHOWN else []
            lines = [f"{len(self.unread)} images could not be read or written:", *self.unread[:SHOWN], *more, *lines]
        return "\n".join(lines)
