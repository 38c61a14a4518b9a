"""Label files of detections, which users correct by hand instead of drawing boxes, in the formats of labeling tools."""

import json
import os
import shlex
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote
from xml.sax.saxutils import escape, quoteattr

import numpy as np

from datasets.formats.annotation_file import annotation_line
from datasets.formats.class_names import class_text, read_classes
from utils.boxes import xyxy_to_cxcywh, xyxy_to_xywh
from utils.config import ConfigError
from utils.files import naming
from utils.text import amount, brief

ONE_FILE = {"labelstudio": "labelstudio.json", "coco": "coco.json", "txt": "annotations.txt"}
PER_IMAGE = {"yolo": ".txt", "voc": ".xml"}  # kind -> suffix of a file per image
VOC_SIDES = ("xmin", "ymin", "xmax", "ymax")
KINDS = (*ONE_FILE, *PER_IMAGE)


class Labeled(NamedTuple):
    """An image with its detections."""

    name: str  # in the results
    path: str
    size: tuple[int, int]  # width, height
    boxes: np.ndarray  # float64 [n, 4] xyxy, inside the image
    labels: np.ndarray  # int64 [n]
    scores: np.ndarray  # float [n]

    def rows(self, classes: Sequence[str]) -> Iterator[tuple[list[float], str, float]]:
        """Yields x1, y1, x2, y2, the class name and the score of each box, rounded to 1e-4 pixels."""
        names = [classes[label] for label in self.labels]
        return zip(self.boxes.round(4).tolist(), names, self.scores.astype(float).round(4).tolist(), strict=True)


class LabelFiles:
    """Writes one label file per image (`kind` in PER_IMAGE), or one for all images (in ONE_FILE), and classes.txt.

    A file that exists is left alone, unless `overwrite` is true, and counted in `kept`. `negatives`: the images with detections
    become background images, those without detections get no labels.

    `images`: their names in the results. `model`: its name in files that have a place for it. `constants`: of a training that
    begins with this model. Raises ValueError if two images would share a label file, such as a.jpg and a.png, or the file of
    all images cannot hold a name.
    """

    def __init__(
        self,
        kind: str,
        classes: Sequence[str],
        images: Collection[str],
        model: str = "",
        overwrite: bool = False,
        negatives: bool = False,
        constants: Sequence[str] = (),
    ):
        self.kind, self.classes, self.model, self.constants = kind, classes, model, constants
        self.overwrite, self.negatives = overwrite, negatives
        self.images: list[Labeled] = []  # for a single file
        self.count = 0  # of the images with labels
        self.kept = 0  # files that existed
        self.roots: set[str] = set()  # folders of the images
        stems = Counter(["classes", *(str(Path(name).with_suffix("")) for name in images)])
        shared = [stem for stem, count in stems.items() if count > 1]
        for name in images if kind == "txt" else ():  # before the detections are made, which would be lost
            annotation_line(os.path.abspath(name), np.empty((0, 4)), np.empty(0), np.empty(0))
        if kind in PER_IMAGE and shared:
            raise ValueError(f"two images, or one and the list of classes, would share {shared[0]}.*: rename one")

    def require_replaceable(self, folder: Path) -> None:
        """Raises ConfigError if a folder has the file of all images, or label files of other classes."""
        fix = "name another output=, or write overwrite=true to replace it"
        if self.kind in ONE_FILE and (folder / ONE_FILE[self.kind]).exists():
            raise ConfigError(f"{folder / ONE_FILE[self.kind]} exists: {fix}")
        classes = folder / "classes.txt"
        if classes.exists():
            present = read_classes(str(classes))
            if present[: len(self.classes)] != tuple(self.classes):  # classes that a person added stay behind
                names = brief(", ".join(present))
                raise ConfigError(f"{classes}: the labels there have other classes than the model ({names}): {fix}")

    def takes(self, boxes: np.ndarray) -> bool:
        """Whether an image with these detections gets labels."""
        return len(boxes) > 0 or not self.negatives

    def keeps(self, folder: Path, name: str) -> bool:
        """Whether the image with this name has a label file in `folder` already, which is left alone."""
        return self.kind in PER_IMAGE and not self.overwrite and self._file_of(folder, name).exists()

    def _file_of(self, folder: Path, name: str) -> Path:
        return folder / Path(name).with_suffix(PER_IMAGE[self.kind])

    def add(self, folder: Path, image: Labeled) -> None:
        """Writes the label file of an image to `folder`, or keeps the image for the file of all images."""
        if not self.takes(image.boxes):
            return
        self.count += 1
        self.roots.add(image.path.replace(os.sep, "/").removesuffix(image.name))
        if self.negatives:
            image = image._replace(boxes=image.boxes[:0], labels=image.labels[:0], scores=image.scores[:0])
        if self.kind in ONE_FILE:
            self.images.append(image)
        else:
            voc = self.kind == "voc"
            text = voc_text(image, self.classes) if voc else yolo_text(image.boxes, image.labels, *image.size)
            self._write(self._file_of(folder, image.name), text)

    def finish(self, folder: Path) -> None:
        """Writes classes.txt, and the data file or the file with all images."""
        self._write(folder / "classes.txt", class_text(self.classes))
        if self.kind == "txt":
            self._write(folder / ONE_FILE["txt"], txt_text(self.images))
        elif self.kind == "coco":
            self._write(folder / ONE_FILE["coco"], _json(coco_contents(self.images, self.classes)))
        elif self.kind == "labelstudio":
            tasks = [label_studio_task(image, self.classes, self.model) for image in self.images]
            self._write(folder / ONE_FILE["labelstudio"], _json(tasks))
            self._write(folder / "labelstudio.xml", label_studio_config(self.classes))

    def _write(self, path: Path, text: str) -> None:
        """Writes a file and creates its folder, or leaves a file alone that exists."""
        if path.exists() and not self.overwrite:
            self.kept += 1
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with naming(path):
            path.write_bytes(text.encode("utf-8", "surrogateescape"))

    def summary(self, folder: Path, images: int) -> list[str]:
        """Returns lines for the console: how many files were left alone, and how many of `images` became backgrounds."""
        lines = []
        if self.kept:
            lines.append(
                f"left alone in {folder}: {amount(self.kept, 'file')} that existed; overwrite=true replaces them"
            )
        if self.negatives:
            lines.append(f"background images in {folder}: {self.count} of {images}")
        elif self.roots:
            lines.append(f"to train with them, corrected: {self._training(folder)}")
        return lines

    def _training(self, folder: Path) -> str:
        """Returns the command of a training on the label files in `folder`, which begins with the model that made them."""
        train = folder / "EXPORT.json" if self.kind == "labelstudio" else folder
        words = [f"train={train}", "val=.2", *self.constants]
        roots = sorted(root.rstrip("/") or "." for root in self.roots)
        if self.kind != "txt":  # whose lines hold the whole paths of the images
            if len(roots) > 1:
                places = " and ".join(roots[:2])
                return f"their images are in several folders ({places}): predict each by itself, or write labels=txt"
            words.append(f"image_root={roots[0]}")
        return f"python train.py {shlex.join(words)}"


def _json(contents: Any) -> str:
    return json.dumps(contents, ensure_ascii=False)


def txt_text(images: Sequence[Labeled]) -> str:
    """Returns an annotation file. Raises DataError for a path that it cannot hold."""
    lines = []
    for image in images:
        is_crowd = np.zeros(len(image.boxes), int)
        lines.append(annotation_line(os.path.abspath(image.path), image.boxes, image.labels, is_crowd) + "\n")
    return "".join(lines)


def yolo_text(boxes: np.ndarray, labels: Sequence[int] | np.ndarray, width: int, height: int) -> str:
    """Formats boxes [n, 4] xyxy inside the image as YOLO lines `label cx cy w h`, in fractions of width and height."""
    fractions = xyxy_to_cxcywh(boxes) / [width, height, width, height]
    rows = zip(labels, fractions.tolist(), strict=True)
    return "".join(f"{int(label)} {' '.join(f'{value:.6f}' for value in row)}\n" for label, row in rows)


def voc_text(image: Labeled, classes: Sequence[str]) -> str:
    """Formats the boxes of an image as VOC XML. Coordinates are continuous: 0 is the left edge of the image."""
    width, height = image.size
    lines = ["<annotation>", f"  <filename>{escape(image.name.rpartition('/')[2])}</filename>"]
    lines.append(f"  <size><width>{width}</width><height>{height}</height><depth>3</depth></size>")
    for box, name, _ in image.rows(classes):
        corners = "".join(f"<{side}>{value:.2f}</{side}>" for side, value in zip(VOC_SIDES, box, strict=True))
        lines.append(
            f"  <object><name>{escape(name)}</name><difficult>0</difficult><bndbox>{corners}</bndbox></object>"
        )
    return "\n".join([*lines, "</annotation>\n"])


def coco_contents(images: list[Labeled], classes: Sequence[str]) -> dict[str, list]:
    """Returns a COCO ground truth whose annotations also have their `score`. Category ids are 1, 2, ..."""
    rows: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for image_id, image in enumerate(images, 1):
        width, height = image.size
        rows.append({"id": image_id, "file_name": image.name, "width": width, "height": height})
        boxes = xyxy_to_xywh(image.boxes).round(4).tolist()
        for box, label, (_, _, score) in zip(boxes, image.labels.tolist(), image.rows(classes), strict=True):
            ids = {"id": len(annotations) + 1, "image_id": image_id, "category_id": label + 1}
            annotations.append(ids | {"bbox": box, "area": box[2] * box[3], "iscrowd": 0, "score": score})
    categories = [{"id": number, "name": name} for number, name in enumerate(classes, 1)]
    return {"images": rows, "annotations": annotations, "categories": categories}


def label_studio_task(image: Labeled, classes: Sequence[str], model: str) -> dict[str, Any]:
    """Returns a task of Label Studio with the detections as a prediction; boxes in per cent of the image.

    The image is named as in a local storage whose document root is /. The score of the image is the mean of its scores."""
    width, height = image.size
    fixed = {"type": "rectanglelabels", "from_name": "label", "to_name": "image", "image_rotation": 0}
    fixed |= {"original_width": width, "original_height": height}
    boxes = (xyxy_to_xywh(image.boxes) * 100 / [width, height, width, height]).round(6).tolist()
    result = []
    for number, (box, (_, name, score)) in enumerate(zip(boxes, image.rows(classes), strict=True), 1):
        value = dict(zip(("x", "y", "width", "height"), box, strict=True)) | {"rotation": 0, "rectanglelabels": [name]}
        result.append({"id": f"box{number}", **fixed, "value": value, "score": score})
    place = quote(os.path.abspath(image.path).replace(os.sep, "/").lstrip("/"), errors="surrogateescape")
    mean = round(float(image.scores.mean()), 4) if result else 0.0
    prediction = {"model_version": model, "score": mean, "result": result}
    return {"data": {"image": f"/data/local-files/?d={place}"}, "predictions": [prediction]}


def label_studio_config(classes: Sequence[str]) -> str:
    """Returns the labeling interface of Label Studio for the tasks: rectangles with the class names."""
    lines = ["<View>", '  <Image name="image" value="$image"/>', '  <RectangleLabels name="label" toName="image">']
    lines += [f"    <Label value={quoteattr(name)}/>" for name in classes]
    return "\n".join([*lines, "  </RectangleLabels>", "</View>\n"])
