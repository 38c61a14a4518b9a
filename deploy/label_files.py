"""Label files of detections, which users correct by hand instead of drawing boxes, in the formats of labeling tools."""

import json
import os
import re
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np

from datasets.formats.annotation_file import annotation_line
from datasets.formats.class_names import class_text, read_classes
from utils.boxes import xyxy_to_cxcywh, xyxy_to_xywh
from utils.config import ConfigError
from utils.outputs import OwnFiles
from utils.text import amount, brief

PER_IMAGE = {"yolo": ".txt", "yolo_scores": ".txt", "voc": ".xml"}  # kind -> suffix of a file per image
ONE_FILE = {"txt": "annotations.txt", "coco": "coco.json", "cvat": "cvat.xml", "labelstudio": "labelstudio.json"}
KINDS = (*PER_IMAGE, *ONE_FILE)
NUMBERED = ("yolo", "yolo_scores", "txt")  # kinds with the number of the class, not its name
DATA_FILE = """\
train: ../images
val: ../images  # other trainers need an entry: name images that are not among the training images, or give val=.2 here
"""
MARKS = ("no", "missing", "wrong", "loose", "doubled", "proposal")  # values of the attribute `suspect` of CVAT
NOT_IN_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


class Labeled(NamedTuple):
    """An image with its detections."""

    name: str  # in the results
    path: str
    size: tuple[int, int]  # width, height
    boxes: np.ndarray  # float64 [n, 4] xyxy, inside the image
    labels: np.ndarray  # int64 [n]
    scores: np.ndarray  # float [n]
    marks: Sequence[str] = ()  # a word per box for the attribute `suspect` of CVAT: one of MARKS; (): no attribute

    def rows(self, classes: Sequence[str]) -> Iterator[tuple[list[float], str, float]]:
        """Yields x1, y1, x2, y2, the class name and the score of each box, rounded to 1e-4 pixels."""
        names = [classes[label] for label in self.labels]
        return zip(self.boxes.round(4).tolist(), names, self.scores.astype(float).round(4).tolist(), strict=True)


class LabelFiles:
    """Writes one label file per image (`kind` in PER_IMAGE), or one for all images (in ONE_FILE), and classes.txt.

    YOLO labels whose images are in the folder `images` next to theirs also get data.yaml, to train with. Files that were
    corrected since an earlier call wrote them are kept, unless `overwrite` is true.

    `images`: name in the results -> path. `model`: its name in files that have a place for it. Raises ValueError (DataError)
    if two images would share a label file, such as a.jpg and a.png, or if a name cannot be written.
    """

    def __init__(
        self, kind: str, classes: Sequence[str], images: Mapping[str, str], model: str = "", overwrite: bool = False
    ):
        self.kind, self.classes, self.model, self.overwrite = kind, classes, model, overwrite
        self.images: list[Labeled] = []  # for a single file
        self.files: OwnFiles | None = None  # once the folder is known
        self.can_train = kind == "yolo"  # as they are: trainers look for `labels` next to `images`
        stems = Counter(["classes", *(str(Path(name).with_suffix("")) for name in images)])
        shared = [stem for stem, count in stems.items() if count > 1]
        if kind in PER_IMAGE and shared:
            raise ValueError(f"two images, or one and the list of classes, would share {shared[0]}.*: rename one")
        if kind == "txt":
            for path in images.values():
                _txt_line(path, np.zeros((0, 4)), np.zeros(0, int))
        if kind in ("voc", "cvat"):
            for name in (*images, *classes):
                if NOT_IN_XML.search(name):
                    raise ValueError(f"XML cannot hold the name {name!r}: rename it, or choose another kind of labels=")

    def require_replaceable(self, folder: Path) -> None:
        """Raises ConfigError if the labels in a folder can neither be kept next to the new ones nor be replaced."""
        fix = "name another output=, or write overwrite=true to replace it"
        name = ONE_FILE.get(self.kind)
        if name and OwnFiles(folder).is_changed(name):
            raise ConfigError(f"{folder / name} was changed since predict.py wrote it, or is of another program: {fix}")
        classes = folder / "classes.txt"
        if self.kind in NUMBERED and classes.exists():
            there = read_classes(str(classes))
            if there[: len(self.classes)] != tuple(self.classes):  # classes that a person added stay behind
                names = brief(", ".join(there))
                raise ConfigError(f"{classes}: the labels there have other classes than the model ({names}): {fix}")

    def add(
        self, folder: Path, name: str, path: str, boxes: np.ndarray, labels: np.ndarray, scores: np.ndarray, pixels
    ) -> None:
        """Writes the boxes [n, 4] xyxy inside of an image, whose `pixels` are [H, W, 3], to `folder`, or keeps them."""
        size = pixels.shape[1], pixels.shape[0]
        image = Labeled(name.replace(os.sep, "/"), path, size, boxes, labels, scores)
        if self.kind in ONE_FILE:
            self.images.append(image)
            return
        self.can_train &= is_next_to(folder, name, path)
        if self.kind == "voc":
            text = voc_text(image, self.classes)
        elif self.kind == "yolo_scores":
            text = yolo_text(boxes, labels, *size, scores)
        else:
            text = yolo_text(boxes, labels, *size)
        # Without a label file, an image is one without objects: a person may have deleted wrong boxes in this way.
        self._write(folder, Path(name).with_suffix(PER_IMAGE[self.kind]).as_posix(), text, may_be_deleted=True)

    def _write(self, folder: Path, name: str, text: str, may_be_deleted: bool = False) -> None:
        if self.files is None:
            self.files = OwnFiles(folder, self.overwrite)
        self.files.write(name, text, may_be_deleted)

    def takes(self, boxes: np.ndarray) -> bool:
        """Whether an image with these detections gets labels: every image does."""
        return True

    def finish(self, folder: Path) -> None:
        """Writes classes.txt, and the data file or the file with all images."""
        texts = {"classes.txt": class_text(self.classes)}
        if self.can_train:
            texts["data.yaml"] = yaml_text(self.classes)
        elif self.kind == "txt":
            lines = [_txt_line(image.path, image.boxes, image.labels) for image in self.images]
            texts[ONE_FILE["txt"]] = "".join(f"{line}\n" for line in lines)
        elif self.kind == "coco":
            texts[ONE_FILE["coco"]] = _json(coco_contents(self.images, self.classes))
        elif self.kind == "cvat":
            texts[ONE_FILE["cvat"]] = cvat_text(self.images, self.classes)
        elif self.kind == "labelstudio":
            tasks = [label_studio_task(image, self.classes, self.model) for image in self.images]
            texts[ONE_FILE["labelstudio"]] = _json(tasks)
            texts["labelstudio.xml"] = label_studio_config(self.classes)
        for name, text in texts.items():
            self._write(folder, name, text)

    def kept_text(self) -> str:
        """Returns which files were kept, for the console; "" if none was."""
        kept = self.files.kept if self.files else []
        if not kept:
            return ""
        files = f"{amount(len(kept), 'file')} ({brief(', '.join(sorted(kept)))})"
        return f"kept, because they were changed or deleted: {files}; overwrite=true replaces them"


def is_next_to(folder: Path, name: str, path: str) -> bool:
    """Whether the path of an image is in the folder `images` next to the folder of label files."""
    return os.path.abspath(path) == os.path.abspath(folder.parent / "images" / name)


class BackgroundFiles(LabelFiles):
    """Label files without boxes, for the images in which something was detected: false alarms, to train on as backgrounds."""

    count = 0  # of the images with a detection

    def add(
        self, folder: Path, name: str, path: str, boxes: np.ndarray, labels: np.ndarray, scores: np.ndarray, pixels
    ) -> None:
        """Adds an image with detections as one without boxes; leaves out images without detections."""
        if self.takes(boxes):
            self.count += 1
            super().add(folder, name, path, boxes[:0], labels[:0], scores[:0], pixels)
        else:  # in the folder of the images, it would be a background image without a label file
            self.can_train &= not is_next_to(folder, name, path)

    def takes(self, boxes: np.ndarray) -> bool:
        """Whether an image with these detections gets labels."""
        return len(boxes) > 0

    def text(self, folder: Path, images: int) -> str:
        """Returns how many of `images` became background images in `folder`, for the console."""
        if self.count:
            return f"background images in {folder}: {self.count} of {images}"
        return f"no background images in {folder}: nothing was detected; a lower confidence= may find some"


def _json(contents: Any) -> str:
    return json.dumps(contents, ensure_ascii=False)


def _xml(root: ET.Element) -> str:
    ET.indent(root)
    return ET.tostring(root, encoding="unicode") + "\n"


def _children(parent: ET.Element, **texts: Any) -> None:
    for tag, text in texts.items():
        ET.SubElement(parent, tag).text = str(text)


def _txt_line(path: str, boxes: np.ndarray, labels: np.ndarray) -> str:
    return annotation_line(os.path.abspath(path), boxes, labels, np.zeros(len(boxes), int))


def yolo_text(
    boxes: np.ndarray, labels: Sequence[int], width: int, height: int, scores: np.ndarray | None = None
) -> str:
    """Formats boxes [n, 4] xyxy inside the image as YOLO lines `label cx cy w h`, in fractions of width and height.

    With `scores`, they are the sixth column. Label Studio's converter and supervision accept it, CVAT refuses the file."""
    columns = xyxy_to_cxcywh(boxes) / [width, height, width, height]
    if scores is not None:
        columns = np.column_stack([columns, scores])
    rows = zip(labels, columns.tolist(), strict=True)
    return "".join(f"{int(label)} {' '.join(f'{value:.6f}' for value in row)}\n" for label, row in rows)


def yaml_text(classes: Sequence[str]) -> str:
    """Returns a YOLO data file for the folder `images` next to the folder of the file."""
    names = "".join(f"  {number}: {_json(name)}\n" for number, name in enumerate(classes))
    return f"{DATA_FILE}names:\n{names}"


def voc_text(image: Labeled, classes: Sequence[str]) -> str:
    """Formats the boxes of an image as VOC XML. Coordinates are continuous: 0 is the left edge of the image."""
    root = ET.Element("annotation")
    _children(root, filename=image.name.rpartition("/")[2])
    _children(ET.SubElement(root, "size"), width=image.size[0], height=image.size[1], depth=3)
    for box, name, _ in image.rows(classes):
        one = ET.SubElement(root, "object")
        _children(one, name=name, difficult=0)
        xmin, ymin, xmax, ymax = (f"{value:.2f}" for value in box)
        _children(ET.SubElement(one, "bndbox"), xmin=xmin, ymin=ymin, xmax=xmax, ymax=ymax)
    return _xml(root)


def coco_contents(images: list[Labeled], classes: Sequence[str]) -> dict[str, list]:
    """Returns a COCO ground truth whose annotations also have their `score`. Category ids are 1, 2, ..."""
    annotations = []
    for image_id, image in enumerate(images, 1):
        boxes = xyxy_to_xywh(image.boxes).round(4).tolist()
        for box, label, (_, _, score) in zip(boxes, image.labels.tolist(), image.rows(classes), strict=True):
            ids = {"id": len(annotations) + 1, "image_id": image_id, "category_id": label + 1}
            annotations.append(ids | {"bbox": box, "area": box[2] * box[3], "iscrowd": 0, "score": score})
    rows = [(image.name, *image.size) for image in images]
    return {
        "images": [{"id": i, "file_name": n, "width": w, "height": h} for i, (n, w, h) in enumerate(rows, 1)],
        "annotations": annotations,
        "categories": [{"id": i, "name": name} for i, name in enumerate(classes, 1)],
    }


def cvat_text(images: list[Labeled], classes: Sequence[str]) -> str:
    """Formats all images as "CVAT for images 1.1" XML, which has no place for scores."""
    root = ET.Element("annotations")
    _children(root, version="1.1")
    task = ET.SubElement(ET.SubElement(root, "meta"), "task")
    _children(task, size=len(images), mode="annotation")
    labels = ET.SubElement(task, "labels")
    for name in classes:
        label = ET.SubElement(labels, "label")
        _children(label, name=name)
        attributes = ET.SubElement(label, "attributes")
        if any(image.marks for image in images):
            kind = {"name": "suspect", "mutable": "False", "input_type": "select"}
            _children(ET.SubElement(attributes, "attribute"), **kind, default_value=MARKS[0], values="\n".join(MARKS))
    for number, image in enumerate(images):
        width, height = map(str, image.size)
        node = ET.SubElement(root, "image", id=str(number), name=image.name, width=width, height=height)
        marks = image.marks or [""] * len(image.boxes)
        for (box, name, _), mark in zip(image.rows(classes), marks, strict=True):
            corners = {key: f"{value:.2f}" for key, value in zip(("xtl", "ytl", "xbr", "ybr"), box, strict=True)}
            one = ET.SubElement(node, "box", label=name, source="auto", occluded="0", **corners, z_order="0")
            if mark:
                ET.SubElement(one, "attribute", name="suspect").text = mark
    return '<?xml version="1.0" encoding="utf-8"?>\n' + _xml(root)


def label_studio_task(image: Labeled, classes: Sequence[str], model: str) -> dict[str, Any]:
    """Returns a task of Label Studio with the detections as a prediction; boxes in per cent of the image.

    The image is named as in a local storage whose document root is /. The score of the image is the mean of its scores."""
    result = label_studio_boxes(image, classes)
    place = os.path.abspath(image.path).replace(os.sep, "/").lstrip("/")
    mean = 0.0
    if result:
        mean = round(float(image.scores.mean()), 4)
    prediction = {"model_version": model, "score": mean, "result": result}
    return {
        "data": {"image": f"/data/local-files/?d={quote(place, errors='surrogateescape')}"},
        "predictions": [prediction],
    }


def label_studio_boxes(image: Labeled, classes: Sequence[str]) -> list[dict[str, Any]]:
    """Returns the boxes of an image as Label Studio holds them in a prediction or an annotation."""
    width, height = image.size
    fixed = {"type": "rectanglelabels", "from_name": "label", "to_name": "image", "image_rotation": 0}
    fixed |= {"original_width": width, "original_height": height}
    boxes = (xyxy_to_xywh(image.boxes) * 100 / [width, height, width, height]).round(6).tolist()
    result = []
    for number, (box, (_, name, score)) in enumerate(zip(boxes, image.rows(classes), strict=True), 1):
        value = dict(zip(("x", "y", "width", "height"), box, strict=True)) | {"rotation": 0, "rectanglelabels": [name]}
        result.append({"id": f"box{number}", **fixed, "value": value, "score": score})
    return result


def label_studio_config(classes: Sequence[str]) -> str:
    """Returns the labeling interface of Label Studio for the tasks: rectangles with the class names."""
    view = ET.Element("View")
    ET.SubElement(view, "Image", name="image", value="$image")
    labels = ET.SubElement(view, "RectangleLabels", name="label", toName="image")
    for name in classes:
        ET.SubElement(labels, "Label", value=name)
    return _xml(view)
