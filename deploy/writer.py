"""Detections as files: one JSON for all images, crops, and the tracks of videos."""

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

import numpy as np

from deploy.inputs import is_web_address
from utils.boxes import area, clip, xyxy_to_xywh
from utils.draw import write_image
from utils.text import amount, first_of

SHOWN = 10  # classes and unreadable images that the summary names
WRITABLE = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff"}  # images of other formats are written as PNG


class DetectionsFile:
    """A JSON array of detections, one per line, that grows on the disk and is complete JSON after every `add`.

    So a camera can run for days in constant memory, and a killed process leaves all detections of the images before.
    """

    END = b"\n]"

    def __init__(self, path: Path):
        self._file: BinaryIO = open(path, "wb", buffering=0)
        self._file.write(b"[" + self.END)
        self._size = 1  # bytes before END

    def add(self, entries: Sequence[dict]) -> None:
        """Appends detections in front of the end of the array."""
        lines = [json.dumps(entry, ensure_ascii=False).encode("utf-8", "surrogateescape") for entry in entries]
        if not lines:
            return
        text = (b",\n" if self._size > 1 else b"\n") + b",\n".join(lines)
        self._write(text + self.END)
        self._size += len(text)

    def close(self) -> None:
        """Closes the file. If the last `add` failed because the disk was full, its part is removed."""
        with self._file:
            self._write(self.END)

    def _write(self, text: bytes) -> None:
        """Replaces everything behind the complete detections."""
        self._file.seek(self._size)
        left = memoryview(text)
        while left:  # without a buffer, a write may be partial
            left = left[self._file.write(left) :]
        self._file.truncate()


class Results:
    """Writes the detections of images or frames as they come: detections.json, crops and other files.

    `open_folder` creates the folder of the results and returns it. It is called for the first image, so that a source without
    images leaves no folder. `category_ids`: of the labels in the JSON. `writers`: folder -> what writes into it, such as a
    `deploy.label_files.LabelFiles`. `keep`: writes frames and images of web addresses to the folder images, so that label files
    have an image file.
    """

    def __init__(
        self,
        open_folder: Callable[[], Path],
        classes: Sequence[str],
        category_ids: Sequence[int],
        crops: bool = False,
        writers=(),
        keep: bool = False,
    ):
        self.open_folder, self.classes, self.category_ids = open_folder, classes, category_ids
        self.crops, self.writers, self.keep = crops, dict(writers), keep
        self.crop_folders = crop_folders(classes)
        self.unread: list[str] = []  # messages about images that cannot be read
        self.counts: Counter = Counter()  # detections per class
        self.images_with: Counter = Counter()  # images per class with a detection of it
        self.track_classes: dict[tuple[str, int], str] = {}  # video and number of a track -> its first class
        self.tracked: set[str] = set()  # videos whose file of tracks was begun
        self.images, self.begin = 0, time.perf_counter()

    @cached_property
    def folder(self) -> Path:
        """The folder of the results."""
        return self.open_folder()

    @cached_property
    def _detections(self) -> DetectionsFile:
        return DetectionsFile(self.folder / "detections.json")

    def add(self, image: np.ndarray, result, name: str, path: str, frame: int | None = None) -> None:
        """Adds the Result of an image. `name`: in the results; `path`: of its file; `frame`: its number in a video."""
        self.images += 1
        self.counts.update(result.names)
        self.images_with.update(set(result.names))
        origin, crop_name, image_name = {"file_name": name.replace(os.sep, "/")}, name, name
        if frame is not None:
            origin["frame"] = frame
            crop_name = f"{name}_{frame:06}"
            image_name = f"{crop_name}.jpg"
        boxes = result.boxes.astype(np.float64)
        rows = zip(xyxy_to_xywh(boxes).tolist(), result.scores.tolist(), result.labels, result.names, strict=True)
        entries = []
        for box, score, label, word in rows:
            category = int(self.category_ids[label])
            entry = {"image_id": self.images, "category_id": category, "bbox": box, "score": score, "class": word}
            entries.append(entry | origin)
        if result.tracks is not None:
            entries = [e | {"track_id": track} for e, track in zip(entries, result.tracks.tolist(), strict=True)]
            self._add_tracks(name, frame or 0, entries)
        self._detections.add(entries)
        height, width = image.shape[:2]
        boxes = clip(boxes, width, height)
        inside = area(boxes) > 0
        boxes, labels, scores = boxes[inside], result.labels[inside], result.scores[inside]
        if self.crops:
            self._write_crops(Path(crop_name), image, boxes, labels)
        is_kept = self.keep and self.writers["labels"].takes(boxes)
        if is_kept and (frame is not None or is_web_address(path)):
            image_name = writable_name(image_name)
            path = str(self.folder / "images" / image_name)
            write_image(path, image)
        for inner, writer in self.writers.items():
            writer.add(self.folder / inner, image_name, path, boxes, labels, scores, image)

    def _add_tracks(self, name: str, frame: int, entries: Sequence[dict]) -> None:
        """Appends the tracked objects of a frame to the file of the video, in the text format of the MOT challenge."""
        path = self.folder / "tracks" / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        mode = "a" if name in self.tracked else "w"
        self.tracked.add(name)
        with open(path, mode, encoding="utf-8") as file:
            for entry in entries:
                if entry["track_id"] >= 0:
                    self.track_classes.setdefault((name, entry["track_id"]), entry["class"])
                    left, top, width, height = entry["bbox"]
                    place = f"{left:.2f},{top:.2f},{width:.2f},{height:.2f}"
                    file.write(f"{frame + 1},{entry['track_id']},{place},{entry['score']:.4f},-1,-1,-1\n")

    def _write_crops(self, name: Path, image: np.ndarray, boxes: np.ndarray, labels: np.ndarray) -> None:
        for number, (box, label) in enumerate(zip(boxes, labels, strict=True), 1):
            (x1, y1), (x2, y2) = np.floor(box[:2]).astype(int), np.ceil(box[2:]).astype(int)
            folder = self.crop_folders[label]
            write_image(self.folder / "crops" / folder / name.parent / f"{name.name}_{number}.png", image[y1:y2, x1:x2])

    def finish(self) -> str:
        """Completes the files -> a summary to print; "" if there was no image."""
        if not self.images:
            return ""
        self._detections.close()
        for inner, writer in self.writers.items():
            writer.finish(self.folder / inner)
        seconds = (time.perf_counter() - self.begin) / self.images
        speed = f"{amount(self.images, 'image')}, {1000 * seconds:.1f} ms per image ({1 / seconds:.1f} per second)"
        lines = [speed, f"detected: {self._counts()}", *self._track_counts(), str(self.folder)]
        if self.unread:
            failed = f"{amount(len(self.unread), 'image')} could not be read or written:"
            lines = [failed, *first_of(self.unread, SHOWN), *lines]
        return "\n".join(lines)

    def _counts(self) -> str:
        """Returns the number of detections of the most frequent classes, and of the images with them."""
        counts = []
        for name, count in self.counts.most_common(SHOWN):
            counts.append(f"{count:,} {name} in {amount(self.images_with[name], 'image')}")
        if len(self.counts) > SHOWN:
            counts.append("...")
        return ", ".join(counts) or "nothing"

    def _track_counts(self) -> list[str]:
        """Returns a line with the number of tracks of the most frequent classes, nothing if nothing was tracked.

        A track counts for the class of its first detection with a number."""
        if not self.tracked:
            return []
        counts = Counter(self.track_classes.values())
        named = [f"{count:,} {name}" for name, count in counts.most_common(SHOWN)] + ["..."] * (len(counts) > SHOWN)
        shown = f" ({', '.join(named)})" if named else ""
        return [f"tracked: {amount(len(self.track_classes), 'object')}{shown}"]


def writable_name(name: str) -> str:
    """Returns the name under which an image is written: with .png behind it if its format is not written."""
    return name if Path(name).suffix.lower() in WRITABLE else f"{name}.png"


def crop_folders(classes: Sequence[str]) -> list[str]:
    """Returns the name of the folder for the crops of each class; names that become equal end with the class number."""
    names = []
    for name in classes:
        name = "".join("_" if character in '/\\:*?"<>|' else character for character in name)
        names.append(name.strip(" .") or "_")  # ".." would lead out of the output folder
    counts = Counter(map(str.lower, names))  # some file systems ignore the case
    return [f"{name}_{label}" if counts[name.lower()] > 1 else name for label, name in enumerate(names)]
