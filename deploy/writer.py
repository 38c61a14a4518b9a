"""Detections as files: one JSON for all images, crops, and label files."""

import json
import os
import re
import shlex
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from deploy.inputs import is_web_address
from deploy.label_files import Labeled, LabelFiles
from deploy.result import Result
from nets.postprocess import MAX_CANDIDATES
from utils.boxes import area, clip, xyxy_to_xywh
from utils.draw import write_image
from utils.files import CROPS, DETECTIONS, DRAWN, naming
from utils.text import amount, first_of

MAX_FOLDER = 200  # bytes of the name of a folder; file systems have 255
SHOWN = 10  # classes and unreadable images that the summary names
WRITABLE = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff")  # images of other formats are written as PNG
VIDEOS = (".mp4",)


class DetectionsFile:
    """A JSON array of detections, one per line, that grows on the disk and is complete JSON after every `add`.

    So a camera can run for days in constant memory, and a killed process leaves all detections of the images before.
    """

    END = b"\n]"

    def __init__(self, path: Path):
        self._path, self._file = path, open(path, "wb", buffering=0)
        self._size = 0  # bytes before END
        self._append(b"[")

    def add(self, entries: Sequence[dict]) -> None:
        """Appends detections in front of the end of the array."""
        lines = [b"\n" + json.dumps(entry, ensure_ascii=False).encode("utf-8", "surrogateescape") for entry in entries]
        if lines:
            self._append((b"," if self._size > 1 else b"") + b",".join(lines))

    def close(self) -> None:
        """Closes the file. If the last `add` failed because the disk was full, its part is removed."""
        with self._file:
            self._append(b"")

    def _append(self, text: bytes) -> None:
        """Writes text and the end of the array behind the complete detections."""
        with naming(self._path):
            self._file.seek(self._size)
            left = memoryview(text + self.END)
            while left:  # without a buffer, a write may be partial
                left = left[self._file.write(left) :]
            self._file.truncate()
        self._size += len(text)


class Results:
    """Writes the detections of images or frames as they come: detections.json, crops and label files.

    `open_folder` creates the folder of the results and returns it. It is called for the first image, so that a source without
    images leaves no folder. `category_ids`: of the labels in the JSON. With `labels`, frames and images of web addresses are
    written to the folder images, so that label files have an image file. `limit`: the most detections of an image.
    """

    def __init__(
        self,
        open_folder: Callable[[], Path],
        classes: Sequence[str],
        category_ids: Sequence[int],
        crops: bool = False,
        labels: LabelFiles | None = None,
        limit: int = MAX_CANDIDATES,
    ):
        self.open_folder, self.classes, self.category_ids = open_folder, classes, category_ids
        self.crops, self.labels, self.limit, self.full = crops, labels, limit, 0
        self.folders = folder_names(classes)  # of the crops
        self.unread: list[str] = []  # messages about images that cannot be read
        self.counts: Counter[str] = Counter()  # detections per class
        self.images_with: Counter[str] = Counter()  # images per class with a detection of it
        self.tracks: set[tuple[str, int]] = set()  # videos and the numbers of the tracks in them
        self.videos: list[Path] = []  # that were drawn
        self.images, self.begin = 0, time.perf_counter()

    @cached_property
    def folder(self) -> Path:
        """The folder of the results."""
        return self.open_folder()

    @property
    def drawn(self) -> Path:
        """The folder of the drawn images and videos. With label files the folder of the results is a data set without them."""
        return self.folder / DRAWN if self.labels else self.folder

    def video(self, name: str) -> Path:
        """Returns the file for a drawn video."""
        self.videos.append(self.drawn / name)
        return self.videos[-1]

    @cached_property
    def _detections(self) -> DetectionsFile:
        return DetectionsFile(self.folder / DETECTIONS)

    def add(self, image: np.ndarray, result: Result, name: str, path: str, frame: int | None = None) -> None:
        """Adds the Result of an image. `name`: in the results; `path`: of its file; `frame`: its number in a video."""
        self.images += 1
        self.full += len(result.boxes) >= self.limit
        self.counts.update(result.names)
        self.images_with.update(set(result.names))
        entries = self._entries(result, name, frame)
        if result.tracks is not None:
            self.tracks.update((name, track) for track in result.tracks.tolist() if track >= 0)
        self._detections.add(entries)
        height, width = image.shape[:2]
        boxes = clip(result.boxes.astype(np.float64), width, height)
        inside = area(boxes) > 0
        boxes, labels, scores = boxes[inside], result.labels[inside], result.scores[inside]
        if frame is not None:
            name = f"{name}_{frame:06}"
        if self.crops:
            self._write_crops(Path(name), image, boxes, labels)
        if self.labels is None:
            return
        if frame is not None:
            name += ".jpg"
        if self.labels.takes(boxes) and (frame is not None or is_web_address(path)):
            name = output_name(name)
            path = str(self.folder / "images" / name)
            if not (self.labels.keeps(self.folder / "labels", name) and os.path.exists(path)):
                write_image(path, image)  # else the labels would be those of another image
        labeled = Labeled(name.replace(os.sep, "/"), path, (width, height), boxes, labels, scores)
        self.labels.add(self.folder / "labels", labeled)

    def _entries(self, result: Result, name: str, frame: int | None) -> list[dict]:
        """Returns the detections of an image as rows of the JSON."""
        of_image: dict[str, str | int] = {"file_name": name.replace(os.sep, "/")}
        if frame is not None:
            of_image["frame"] = frame
        boxes, scores = xyxy_to_xywh(result.boxes.astype(np.float64)).tolist(), result.scores.tolist()
        entries = []
        for number, (box, score, label) in enumerate(zip(boxes, scores, result.labels, strict=True)):
            entry = {"image_id": self.images, "category_id": int(self.category_ids[label]), "bbox": box, "score": score}
            entry |= {"class": result.names[number], **of_image}
            if result.tracks is not None:
                entry["track_id"] = int(result.tracks[number])
            entries.append(entry)
        return entries

    def _write_crops(self, name: Path, image: np.ndarray, boxes: np.ndarray, labels: np.ndarray) -> None:
        for number, (box, label) in enumerate(zip(boxes, labels, strict=True), 1):
            (x1, y1), (x2, y2) = np.floor(box[:2]).astype(int), np.ceil(box[2:]).astype(int)
            folder = self.folders[label]
            write_image(self.folder / CROPS / folder / name.parent / f"{name.name}_{number}.png", image[y1:y2, x1:x2])

    def finish(self) -> str:
        """Completes the files -> a summary to print; "" if there was no image."""
        if not self.images:
            return ""
        self._detections.close()
        if self.labels:
            self.labels.finish(self.folder / "labels")
        seconds = (time.perf_counter() - self.begin) / self.images
        speed = f"{amount(self.images, 'image')}, {1000 * seconds:.1f} ms per image ({1 / seconds:.1f} per second)"
        lines = [speed, f"detected: {self._counts()}"]
        if self.full:
            lines.append(
                f"{amount(self.full, 'image')} with as many detections as max_detections={self.limit} allows, so that others "
                f"may be missing: write a larger one, also in export.py"
            )
        if self.tracks:
            lines.append(f"tracked: {amount(len(self.tracks), 'object')}")
        if self.labels:
            lines += self.labels.summary(self.folder / "labels", self.images)
        for path in self.videos[:1]:
            command = shlex.join(["ffmpeg", "-i", str(path), "-c:v", "libx264", str(path.with_suffix(".h264.mp4"))])
            lines.append(f"browsers do not play MPEG-4 Part 2, the format of the video; they do after {command}")
        lines.append(str(self.folder))
        if self.unread:
            failed = f"{amount(len(self.unread), 'image')} could not be read or drawn:"
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


def output_name(name: str, others: Collection[str] = (), written: Sequence[str] = WRITABLE) -> str:
    """Returns the name under which an image, or a video with `written` VIDEOS, is written in a format that can be written.

    `others`: names that must not be replaced, such as g.gif.png next to g.gif."""
    if Path(name).suffix.lower() in written:
        return name
    output = name + written[0]
    while output in others:
        output += written[0]
    return output


def folder_names(classes: Sequence[str]) -> list[str]:
    """Returns the names of the folders for the crops of the classes: short enough, different, also where case is ignored."""
    names: list[str] = []
    for class_name in classes:
        name = re.sub(r'[/\\:*?"<>|]', "_", class_name).encode()[:MAX_FOLDER].decode(errors="ignore")
        name = name.strip(" .") or "_"  # ".." would lead out of the output folder
        while name.casefold() in map(str.casefold, names):
            name += "_"
        names.append(name)
    return names
