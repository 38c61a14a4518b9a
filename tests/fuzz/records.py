"""Fuzzers of JSON with one record per image: Hugging Face, Ultralytics, CrowdHuman, BDD100K, Datumaro and Supervisely."""

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from datasets.formats.options import ReadOptions
from datasets.formats.read import read

from . import mutate
from .documents import listed, loads
from .harness import Case, Failure, Fuzzer
from .samples import CLASSES, SIZES, Box, boxes_of, check_annotations, compare, image_files, lines_of


def _extent(box: Box) -> list[float]:
    return [box.x1, box.y1, box.x2 - box.x1, box.y2 - box.y1]


def _spoiled(rng: random.Random, records: list[Any], likely: Iterable[str]) -> list[bytes]:
    """Returns records as JSON, of which one is damaged, and others at times."""
    wrong = rng.randrange(len(records))
    every = []
    for index, record in enumerate(records):
        spoiled = index == wrong or rng.random() < 0.1
        every.append(mutate.spoil_json(rng, record, tuple(likely)) if spoiled else json.dumps(record).encode())
    return every


def _lines(rng: random.Random, name: str, records: list[Any], likely: Iterable[str]) -> Case:
    lines = [line.replace(b"\n", b" ") for line in _spoiled(rng, records, likely)]
    data = rng.choice((b"\n", b"\n", b"\r\n", b"\n\n")).join(lines) + b"\n" * rng.randrange(2)
    return {name: mutate.spoil(rng, data) if rng.random() < 0.1 else data, **image_files()}


def _read(source: Path) -> tuple[Any, list[Any]]:
    """Returns what the project reads, and the lines of the file."""
    found = read(str(source), "all", ReadOptions(bad_boxes="drop"))
    check_annotations(found)
    return found, [loads(line.encode()) for line in lines_of(source) if line.strip()]


def _of_extent(extent: Iterable[Any], name: str, crowd: bool = False) -> Box:
    x, y, w, h = map(float, extent)
    return Box(x, y, x + w, y + h, name, crowd)


# ---- JSON Lines


def make_huggingface(rng: random.Random) -> Case:
    records, key = [], rng.choice(("category", "categories", "label", "labels"))
    numbers = rng.random() < 0.3
    for name, (width, height) in SIZES.items():
        boxes = boxes_of(rng, name)
        names = [CLASSES.index(box.name) if numbers else box.name for box in boxes]
        objects = {"bbox": [_extent(box) for box in boxes], key: names, "id": list(range(len(boxes)))}
        records.append({"file_name": name, "width": width, "height": height, "objects": objects})
    return _lines(rng, "metadata.jsonl", records, ("objects", "bbox", key, "file_name"))


def run_huggingface(folder: Path) -> None:
    found, lines = _read(folder / "metadata.jsonl")
    images = []
    for line in lines:
        given = (line["objects"].get(key) for key in ("category", "categories", "label", "labels"))
        names = next((names for names in given if names is not None and names != "null"), [])
        names = [str(int(name) if isinstance(name, float) else name) for name in names]  # 1.0 is the class "1"
        images.append([_of_extent(bbox, name) for bbox, name in zip(line["objects"]["bbox"], names, strict=True)])
    compare(folder / "metadata.jsonl", found, images)


def make_ultralytics(rng: random.Random) -> Case:
    head = {"type": "dataset", "task": "detect", "name": "pets", "class_names": dict(enumerate(CLASSES))}
    records: list[Any] = [head]
    for name, (width, height) in SIZES.items():
        rows, key = [], rng.choice(("boxes", "boxes", "segments", "obb"))
        for box in boxes_of(rng, name):
            center = [(box.x1 + box.x2) / 2 / width, (box.y1 + box.y2) / 2 / height]
            rows.append([CLASSES.index(box.name), *center, (box.x2 - box.x1) / width, (box.y2 - box.y1) / height])
            if key != "boxes":
                corners = [box.x1, box.y1, box.x2, box.y1, box.x2, box.y2, box.x1, box.y2]
                rows[-1][1:] = [value / side for value, side in zip(corners, (width, height) * 4, strict=True)]
        split = rng.choice(("train", "val"))
        record = {"type": "image", "file": name, "url": "x", "width": width, "height": height, "split": split}
        records.append(record | ({"annotations": {key: rows}} if rows or rng.random() < 0.5 else {}))
    likely = ("class_names", "boxes", "annotations", "file", "width", "height", "split")
    return _lines(rng, "pets.ndjson", records, likely)


def run_ultralytics(folder: Path) -> None:
    found, (head, *lines) = _read(folder / "pets.ndjson")
    names, images = head["class_names"], []
    for line in lines:
        annotations, boxes = line.get("annotations", {}), []
        width, height = float(line["width"]), float(line["height"])
        if set(annotations) - {"boxes", "segments", "obb"} and not any("left out" in note for note in found.notes):
            raise Failure("wrong", f"annotations of other kinds are ignored: {list(annotations)}")
        for label, *points in (*annotations.get("segments", ()), *annotations.get("obb", ())):
            xs, ys = ([float(value) * side for value in points[i::2]] for i, side in ((0, width), (1, height)))
            boxes.append(Box(min(xs), min(ys), max(xs), max(ys), names[str(int(float(label)))]))
        for label, x, y, w, h in annotations.get("boxes", ()):
            x, w, y, h = float(x) * width, float(w) * width, float(y) * height, float(h) * height
            boxes.append(Box(x - w / 2, y - h / 2, x + w / 2, y + h / 2, names[str(int(float(label)))]))
        images.append(boxes)
    compare(folder / "pets.ndjson", found, images, 1e-4)


def make_crowdhuman(rng: random.Random) -> Case:
    records = []
    for name in SIZES:
        boxes = []
        for box in boxes_of(rng, name):
            extra = rng.choice(({}, {"ignore": 0}, {"ignore": 1}, {"box_id": 0, "occ": 1}))
            tag = rng.choice(("person", "person", "mask"))
            boxes.append({"tag": tag, "fbox": _extent(box), "hbox": [0, 0, 1, 1], "head_attr": {}, "extra": extra})
        records.append({"ID": name[:-4], "gtboxes": boxes})
    return _lines(rng, "annotation_val.odgt", records, ("ID", "gtboxes", "tag", "fbox", "extra", "ignore"))


def run_crowdhuman(folder: Path) -> None:
    found, lines = _read(folder / "annotation_val.odgt")
    images = []
    for line in lines:
        boxes = []
        for human in line["gtboxes"]:
            ignored = float(human.get("extra", {}).get("ignore", 0)) == 1
            crowd, name = human["tag"] == "mask" or ignored, human["tag"]
            boxes.append(_of_extent(human["fbox"], "person" if name == "mask" else name, crowd))
        images.append(boxes)
    compare(folder / "annotation_val.odgt", found, images)


# ---- one file


def make_bdd(rng: random.Random) -> Case:
    frames = []
    for name in SIZES:
        labels: list[Any] = []
        for box in boxes_of(rng, name):
            corners = dict(zip(("x1", "y1", "x2", "y2"), box[:4], strict=True))
            labels.append({"id": str(len(labels)), "category": box.name, "box2d": corners, "attributes": {}})
        if rng.random() < 0.3:
            labels.append({"category": "lane", "poly2d": [{"vertices": [[0, 0], [5, 5]], "closed": False}]})
        frames.append({"name": name, "labels": labels or rng.choice(([], None)), "timestamp": 1000})
    data = frames if rng.random() < 0.6 else {"frames": frames, "config": {}}
    return {"bdd.json": mutate.spoil_json(rng, data, ("name", "labels", "category", "box2d", "x1")), **image_files()}


def run_bdd(folder: Path) -> None:
    found = read(str(folder / "bdd.json"), "all", ReadOptions(bad_boxes="drop"))
    check_annotations(found)
    data = loads((folder / "bdd.json").read_bytes())
    if isinstance(data, list) and not any('"box2d"' in json.dumps(frame) for frame in data):
        return  # read as tasks of Label Studio
    images = []
    for frame in data["frames"] if isinstance(data, dict) else data:
        labels = [label for label in listed(frame.get("labels")) if label.get("box2d") not in (None, "null")]
        corners = ([float(label["box2d"][side]) for side in ("x1", "y1", "x2", "y2")] for label in labels)
        images.append([Box(*four, label["category"]) for four, label in zip(corners, labels, strict=True)])
    compare(folder / "bdd.json", found, images)


def make_datumaro(rng: random.Random) -> Case:
    items = []
    for name, (width, height) in SIZES.items():
        annotations: list[Any] = []
        for box in boxes_of(rng, name):
            row: dict = {"id": len(annotations), "type": "bbox", "label_id": CLASSES.index(box.name), "attributes": {}}
            x1, y1, x2, y2 = box[:4]
            if rng.random() < 0.3:
                row |= {"type": "polygon", "points": [x1, y1, x2, y1, x2, y2]}
            else:
                row["bbox"] = _extent(box)
            annotations.append(row)
        if rng.random() < 0.2:
            annotations.append({"id": 9, "type": "points", "label_id": 0, "points": [1, 1], "visibility": [2]})
        image = {"path": name, "size": [height, width]}
        items.append({"id": name[:-4], "annotations": annotations, "image": image, "attr": {"frame": 0}})
    labels = [{"name": name, "parent": "", "attributes": []} for name in CLASSES]
    data = {"info": {}, "categories": {"label": {"labels": labels, "attributes": []}}, "items": items}
    likely = ("labels", "label_id", "bbox", "points", "type", "path", "annotations", "name")
    return {"default.json": mutate.spoil_json(rng, data, likely), **image_files()}


def run_datumaro(folder: Path) -> None:
    found = read(str(folder / "default.json"), "all", ReadOptions(bad_boxes="drop"))
    check_annotations(found)
    data = loads((folder / "default.json").read_bytes())
    names = [label["name"] for label in data["categories"].get("label", {}).get("labels", ())]
    images = []
    for item in data["items"]:
        boxes = []
        for row in item["annotations"]:
            if row.get("bbox") not in (None, "null"):
                boxes.append(_of_extent(row["bbox"], names[int(float(row["label_id"]))]))
            elif row["type"] == "polygon" and row.get("points"):
                points = [float(value) for value in row["points"]]
                xs, ys = points[::2], points[1::2]
                boxes.append(Box(min(xs), min(ys), max(xs), max(ys), names[int(float(row["label_id"]))]))
            elif not any("left out" in note for note in found.notes):
                raise Failure("wrong", f"{row} is ignored")
        images.append(boxes)
    compare(folder / "default.json", found, images)


def make_supervisely(rng: random.Random) -> Case:
    case: Case = image_files("ds/img/") | {"meta.json": b'{"classes": [], "tags": []}'}
    records = []
    for name, (width, height) in SIZES.items():
        objects = []
        for x1, y1, x2, y2, label, _ in boxes_of(rng, name):
            points, kind = [[x1, y1], [x2, y2]], "rectangle"
            if rng.random() < 0.3:
                points, kind = [[x1, y1], [x2, y1], [x2, y2]], rng.choice(("polygon", "polygon", "line"))
            exterior = {"exterior": points, "interior": []}
            objects.append({"id": 1, "classTitle": label, "geometryType": kind, "points": exterior, "tags": []})
        records.append({"size": {"height": height, "width": width}, "objects": objects, "tags": []})
    likely = ("objects", "classTitle", "geometryType", "points", "exterior")
    files = zip(SIZES, _spoiled(rng, records, likely), strict=True)
    return case | {f"ds/ann/{name}.json": data for name, data in files}


def run_supervisely(folder: Path) -> None:
    found = read(str(folder), "all", ReadOptions(bad_boxes="drop"))
    check_annotations(found)
    images = []
    for path in sorted((folder / "ds" / "ann").iterdir()):
        boxes = []
        for figure in loads(path.read_bytes())["objects"]:
            points = figure.get("points", {}).get("exterior", [])
            if figure.get("geometryType", "rectangle") in ("rectangle", "polygon") and len(points) > 1:
                xs, ys = ([float(point[side]) for point in points] for side in (0, 1))
                boxes.append(Box(min(xs), min(ys), max(xs), max(ys), figure["classTitle"]))
            elif not any("left out" in note for note in found.notes):
                raise Failure("wrong", f"{figure} is ignored")
        images.append(boxes)
    compare(folder, found, images)


FUZZERS = (
    Fuzzer("huggingface", make_huggingface, run_huggingface, fraction=0.5),
    Fuzzer("ultralytics", make_ultralytics, run_ultralytics, fraction=0.5),
    Fuzzer("crowdhuman", make_crowdhuman, run_crowdhuman, fraction=0.5),
    Fuzzer("bdd", make_bdd, run_bdd, fraction=0.5),
    Fuzzer("datumaro", make_datumaro, run_datumaro, fraction=0.5),
    Fuzzer("supervisely", make_supervisely, run_supervisely, fraction=0.5),
)
