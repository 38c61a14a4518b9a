"""Fuzzers of annotations: two images with one box each in every format, intact and damaged."""

import json
import random
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from files import coco, cvat, voc

from datasets.formats.options import ReadOptions
from datasets.formats.read import read
from datasets.store import Annotations
from utils.text import class_name_problem

from . import damage
from .harness import Case, Failure, Fuzzer, check_text

NAMES = ("a.png", "鸟 1.png")
BOX = (1.0, 2.0, 9.0, 8.0, "cat")
IMAGE = cv2.imencode(".png", np.full((20, 40, 3), 90, np.uint8))[1].tobytes()

XYWH, RECTANGLE = [1, 2, 8, 6], {"label": "cat", "points": [[1, 2], [9, 8]], "shape_type": "rectangle"}
STUDIO = {"type": "rectanglelabels", "original_width": 40, "original_height": 20}
STUDIO |= {"value": {"x": 2.5, "y": 10, "width": 20, "height": 30, "rotation": 0, "rectanglelabels": ["cat"]}}
RECORDS = [{"file_name": name, "objects": {"bbox": [XYWH], "category": ["cat"]}} for name in NAMES]
FORMATS: dict[str, tuple[str, dict[str, Any]]] = {  # name -> what train= names, and the files
    "coco": ("coco.json", {"coco.json": coco(*NAMES)}),
    "yolo": (
        ".",
        {"data.yaml": "path: .\ntrain: images\nnames: [cat]\n"}
        | {f"labels/{name[:-4]}.txt": "0 .125 .25 .2 .3\n" for name in NAMES},
    ),
    "voc": (".", {f"{name[:-4]}.xml": voc("cat", image=name) for name in NAMES}),
    "cvat": ("annotations.xml", {"annotations.xml": cvat(*NAMES)}),
    "labelme": (".", {f"{name[:-4]}.json": {"imagePath": name, "shapes": [RECTANGLE]} for name in NAMES}),
    "labelstudio": (
        "tasks.json",
        {"tasks.json": [{"data": {"image": name}, "annotations": [{"result": [STUDIO]}]} for name in NAMES]},
    ),
    "csv": (
        "boxes.csv",
        {
            "boxes.csv": "filename,width,height,class,xmin,ymin,xmax,ymax\n"
            + "".join(f"{n},40,20,cat,1,2,9,8\n" for n in NAMES)
        },
    ),
    "annotation_file": (
        "train.txt",
        {"train.txt": "".join(f"{name} 1,2,9,8,0\n" for name in NAMES), "classes.txt": "cat\n"},
    ),
    "huggingface": ("metadata.jsonl", {"metadata.jsonl": "".join(json.dumps(record) + "\n" for record in RECORDS)}),
}
OTHER_SOURCES = {"datumaro": "default.json", "via": "via.json", "ultralytics": "pets.ndjson", "supervisely": "."}


def intact(name: str) -> Case:
    """The data set in a format."""
    files = {path: text if isinstance(text, str) else json.dumps(text) for path, text in FORMATS[name][1].items()}
    images = {f"images/{image}" if name == "yolo" else image: IMAGE for image in NAMES}
    return {path: damage.data_of(text) for path, text in files.items()} | images


def make(rng: random.Random, name: str) -> Case:
    """The data set in a format, with damage in one or two of its files."""
    files = FORMATS[name][1]
    wrong = rng.sample(list(files), min(rng.choice((1, 1, 2)), len(files)))
    return intact(name) | {path: damaged(rng, path, files[path]) for path in wrong}


def damaged(rng: random.Random, path: str, contents: Any) -> bytes:
    if rng.random() < 0.2:  # another class name, of which some are refused
        word, text = rng.choice(damage.WORDS), contents if isinstance(contents, str) else json.dumps(contents)
        is_json = path.endswith((".json", ".jsonl"))
        return damage.data_of(text.replace("cat", json.dumps(word)[1:-1] if is_json else word))
    if not isinstance(contents, str):
        return damage.spoil_json(rng, contents)
    return damage.spoil_xml(rng, contents) if path.endswith(".xml") else damage.spoil(rng, damage.data_of(contents))


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
    for text in (*found.classes, *found.notes):
        check_text(text)
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


FUZZERS = {name: fuzzer_of(name, source) for name, (source, _) in FORMATS.items()}
ALL = FUZZERS | {name: fuzzer_of(name, source) for name, source in OTHER_SOURCES.items()}  # those of the corpus
