"""Fuzzers of annotations: the same two images in every format, intact and damaged."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np

from datasets.formats.read import ReadOptions, read
from datasets.store import Annotations
from utils.text import class_name_problem

from . import damage
from .harness import Case, Failure, Fuzzer, check_text

SIZES = {"a.png": (40, 30), "鸟 1.png": (64, 48)}  # name of the image -> width, height
BOXES = {"a.png": [(1, 2, 20, 28, "cat"), (5, 5, 30, 25, "鸟")], "鸟 1.png": [(8, 8, 60, 40, "cat")]}
CLASSES = ("cat", "鸟")
IMAGES = {
    name: cv2.imencode(".png", np.full((height, width, 3), width, np.uint8))[1].tobytes()
    for name, (width, height) in SIZES.items()
}
ROWS = [(name, *box) for name, boxes in BOXES.items() for box in boxes]  # image, corners, class


def damaged(rng: random.Random, name: str, value: object) -> bytes:
    """The contents of a file, mostly with damage."""
    is_xml = name.endswith(".xml")
    if name.endswith((".json", ".jsonl")) and not isinstance(value, str):
        return damage.spoil_json(rng, value)
    return damage.spoil_xml(rng, str(value)) if is_xml else damage.spoil(rng, damage.data_of(str(value)))


def coco() -> dict[str, object]:
    images = [{"id": i, "file_name": n, "width": SIZES[n][0], "height": SIZES[n][1]} for i, n in enumerate(SIZES)]
    boxes = [
        {"id": i, "image_id": list(SIZES).index(name), "category_id": CLASSES.index(label) + 1, "iscrowd": 0}
        | {
            "bbox": [x1, y1, x2 - x1, y2 - y1],
            "area": (x2 - x1) * (y2 - y1),
            "segmentation": [[x1, y1, x2, y1, x2, y2]],
        }
        for i, (name, x1, y1, x2, y2, label) in enumerate(ROWS)
    ]
    categories = [{"id": i, "name": name} for i, name in enumerate(CLASSES, 1)]
    return {"coco.json": {"images": images, "annotations": boxes, "categories": categories}}


def yolo() -> dict[str, object]:
    files: dict[str, object] = {"data.yaml": f"path: .\ntrain: images\nnames: {list(CLASSES)}\n"}
    for name, (width, height) in SIZES.items():
        lines = (
            f"{CLASSES.index(label)} {(x1 + x2) / 2 / width} {(y1 + y2) / 2 / height} "
            f"{(x2 - x1) / width} {(y2 - y1) / height}\n"
            for x1, y1, x2, y2, label in BOXES[name]
        )
        files[f"labels/{name[:-4]}.txt"] = "".join(lines)
    return files


def voc() -> dict[str, object]:
    files: dict[str, object] = {}
    for name, (width, height) in SIZES.items():
        objects = "".join(
            f"<object><name>{label}</name><difficult>0</difficult><bndbox><xmin>{x1}</xmin><ymin>{y1}</ymin>"
            f"<xmax>{x2}</xmax><ymax>{y2}</ymax></bndbox></object>"
            for x1, y1, x2, y2, label in BOXES[name]
        )
        size = f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>"
        files[f"{name[:-4]}.xml"] = f"<annotation><filename>{name}</filename>{size}{objects}</annotation>"
    return files


def cvat() -> dict[str, object]:
    images = ""
    for i, (name, (width, height)) in enumerate(SIZES.items()):
        boxes = "".join(
            f'<box label="{label}" xtl="{x1}" ytl="{y1}" xbr="{x2}" ybr="{y2}" occluded="0"/>'
            for x1, y1, x2, y2, label in BOXES[name]
        )
        images += f'<image id="{i}" name="{name}" width="{width}" height="{height}">{boxes}</image>'
    return {"annotations.xml": f"<annotations><version>1.1</version>{images}</annotations>"}


def labelme() -> dict[str, object]:
    files: dict[str, object] = {}
    for name, (width, height) in SIZES.items():
        shapes = [
            {"label": label, "points": [[x1, y1], [x2, y2]], "shape_type": "rectangle", "flags": {}}
            for x1, y1, x2, y2, label in BOXES[name]
        ]
        head = {"version": "5", "imagePath": name, "imageHeight": height, "imageWidth": width}
        files[f"{name[:-4]}.json"] = head | {"shapes": shapes}
    return files


def labelstudio() -> dict[str, object]:
    tasks = []
    for name, (width, height) in SIZES.items():
        results = [
            {"type": "rectanglelabels", "original_width": width, "original_height": height}
            | {"value": {"x": 100 * x1 / width, "y": 100 * y1 / height, "rotation": 0, "rectanglelabels": [label]}
               | {"width": 100 * (x2 - x1) / width, "height": 100 * (y2 - y1) / height}}
            for x1, y1, x2, y2, label in BOXES[name]
        ]  # fmt: skip
        tasks.append({"data": {"image": name}, "annotations": [{"result": results, "was_cancelled": False}]})
    return {"tasks.json": tasks}


def csv() -> dict[str, object]:
    lines = (
        f"{name},{SIZES[name][0]},{SIZES[name][1]},{label},{x1},{y1},{x2},{y2}\n"
        for name, x1, y1, x2, y2, label in ROWS
    )
    return {"boxes.csv": "filename,width,height,class,xmin,ymin,xmax,ymax\n" + "".join(lines)}


def annotation_file() -> dict[str, object]:
    lines = (
        " ".join([name, *(f"{x1},{y1},{x2},{y2},{CLASSES.index(label)}" for x1, y1, x2, y2, label in boxes)])
        for name, boxes in BOXES.items()
    )
    return {"train.txt": "\n".join(lines) + "\n", "classes.txt": "\n".join(CLASSES) + "\n"}


def huggingface() -> dict[str, object]:
    records = (
        {"file_name": name, "objects": {"bbox": [[x1, y1, x2 - x1, y2 - y1] for x1, y1, x2, y2, _ in boxes],
                                        "category": [label for *_, label in boxes]}}
        for name, boxes in BOXES.items()
    )  # fmt: skip
    return {"metadata.jsonl": "".join(json.dumps(record) + "\n" for record in records)}


FORMATS: dict[str, tuple[Callable[[], dict[str, object]], str]] = {  # name -> its files, and what train= names
    "coco": (coco, "coco.json"),
    "yolo": (yolo, "."),
    "voc": (voc, "."),
    "cvat": (cvat, "annotations.xml"),
    "labelme": (labelme, "."),
    "labelstudio": (labelstudio, "tasks.json"),
    "csv": (csv, "boxes.csv"),
    "annotation_file": (annotation_file, "train.txt"),
    "huggingface": (huggingface, "metadata.jsonl"),
}
OTHER_SOURCES = {"datumaro": "default.json", "via": "via.json", "ultralytics": "pets.ndjson", "supervisely": "."}


def make(rng: random.Random, name: str) -> Case:
    """The data set in a format, with damage in one or two of its files."""
    files = FORMATS[name][0]()
    wrong = rng.sample(list(files), min(rng.choice((1, 1, 2)), len(files)))
    return intact(name) | {path: damaged(rng, path, files[path]) for path in wrong}


def intact(name: str) -> Case:
    """The data set in a format."""
    folder = "images/" if name == "yolo" else ""
    files = {path: text if isinstance(text, str) else json.dumps(text) for path, text in FORMATS[name][0]().items()}
    return {path: damage.data_of(text) for path, text in files.items()} | {
        folder + path: data for path, data in IMAGES.items()
    }


def run(folder: Path, source: str) -> Annotations:
    found = read(str(folder / source), "all", ReadOptions(bad_boxes="drop"))
    check_annotations(found)
    return found


def boxes_of(found: Annotations) -> list[tuple]:
    """(x1, y1, x2, y2, class) of all boxes, in the order of the images."""
    names = [found.classes[label] for label in found.labels]
    return [(*np.round(box, 3).tolist(), name) for box, name in zip(found.boxes, names, strict=True)]


def check_annotations(found: Annotations) -> None:
    """Raises Failure for annotations that no reader may return."""
    problems = list(filter(None, map(class_name_problem, found.classes)))
    if problems or len(set(found.classes)) < len(found.classes):
        raise Failure(f"accepted the classes {found.classes[:20]}: {problems[:1]}")
    for note in found.notes:
        check_text(note)
    if not (np.isfinite(found.boxes).all() and np.isfinite(found.areas).all()) or (found.areas < 0).any():
        raise Failure(f"accepted boxes or areas: {found.boxes.tolist()[:5]} {found.areas.tolist()[:5]}")
    if (found.boxes[:, 2:] <= found.boxes[:, :2]).any():
        raise Failure("accepted a box without area")
    if len(found.labels) and not 0 <= found.labels.min() <= found.labels.max() < len(found.classes):
        raise Failure(f"labels {found.labels.tolist()[:5]} of {len(found.classes)} classes")
    if len(found.starts) != len(found) + 1 or (np.diff(found.starts) < 0).any() or found.starts[-1] != len(found.boxes):
        raise Failure("the boxes are not divided among the images")
    if (found.sizes < 0).any():
        raise Failure(f"accepted sizes {found.sizes.tolist()[:5]}")
    json.dumps(found.coco(), allow_nan=False)
    found.digest()


def fuzzer_of(name: str, source: str) -> Fuzzer:
    return Fuzzer(name, lambda rng: make(rng, name), lambda folder: run(folder, source))


FUZZERS = {name: fuzzer_of(name, source) for name, (_, source) in FORMATS.items()}
ALL = FUZZERS | {name: fuzzer_of(name, source) for name, source in OTHER_SOURCES.items()}  # those of the corpus
