"""Fuzzers of JSON and XML: COCO, LabelMe, Label Studio, VIA, VOC and CVAT."""

import json
import random
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from datasets.formats.options import ReadOptions
from datasets.formats.read import read

from . import mutate
from .harness import Case, Failure, Fuzzer
from .samples import SIZES, Box, bare, boxes_of, check_annotations, compare, image_files


def loads(data: bytes) -> Any:
    """Reads JSON with Python's reader, in which lone surrogates, NaN and bytes that are not UTF-8 are allowed."""
    try:
        text = data.decode("utf-8-sig", "surrogatepass")
    except UnicodeDecodeError:
        text = data.decode("utf-8-sig", "replace")
    return json.loads(text, parse_constant=str)


def listed(value: Any) -> Any:
    """A list may be null."""
    return value if value not in (None, "null") else []


def _load(path: Path) -> Any:
    return loads(path.read_bytes())


# ---- COCO


def make_coco(rng: random.Random) -> Case:
    names = list(mutate_names(rng))
    images, annotations = [], []
    for index, (name, (width, height)) in enumerate(SIZES.items()):
        images.append({"id": 7 * index + 1, "file_name": name, "width": width, "height": height})
        for x1, y1, x2, y2, label, _ in boxes_of(rng, name):
            row = {
                "id": len(annotations) + 1,
                "image_id": 7 * index + 1,
                "category_id": 3 * ["cat", "small dog", "鸟"].index(label) + 1,
            }
            row |= {
                "bbox": [x1, y1, x2 - x1, y2 - y1],
                "area": (x2 - x1) * (y2 - y1),
                "iscrowd": int(rng.random() < 0.2),
            }
            outline = [[x1, y1, x2, y1, x2, y2]]
            row["segmentation"] = rng.choice(
                (outline, [], {"size": [height, width], "counts": [0, 5, width * height - 5]})
            )
            for key in ("area", "iscrowd", "segmentation", *(["bbox"] if row["segmentation"] else [])):
                if rng.random() < 0.15:
                    row.pop(key, None)
            annotations.append(row)
    categories = [{"id": 3 * index + 1, "name": name, "supercategory": "none"} for index, name in enumerate(names)]
    data = {"info": {}, "images": images, "annotations": annotations, "categories": categories}
    likely = ("bbox", "area", "id", "image_id", "category_id", "name", "file_name", "width", "segmentation", "iscrowd")
    return {"coco.json": mutate.spoil_json(rng, data, likely), **image_files()}


def mutate_names(rng: random.Random) -> Sequence[str]:
    """Class names, of which one is odd at times."""
    names = ["cat", "small dog", "鸟"]
    if rng.random() < 0.1:
        names[rng.randrange(3)] = rng.choice(mutate.WORDS)
    return names


def run_coco(folder: Path) -> None:
    source = folder / "coco.json"
    found = read(str(source), "all", ReadOptions(bad_boxes="drop"))
    check_annotations(found)
    data = _load(source)
    names = {_id(row["id"]): _name(row["name"]) for row in data.get("categories") or ()}
    images: dict[Any, list[Box]] = {_id(row["id"]): [] for row in data["images"]}
    for row in data.get("annotations") or ():
        bbox = row.get("bbox")
        x, y, w, h = map(float, _outline(row["segmentation"]) if bbox in (None, [], "null") else bbox)
        crowd = float(_boolean(row.get("iscrowd") or 0)) == 1
        images[_id(row["image_id"])].append(Box(x, y, x + w, y + h, names[_id(row["category_id"])], crowd))
    compare(source, found, images.values(), 1e-4)
    _check_areas(found, data)
    _check_index(source, found)


def _id(value: Any) -> Any:
    """5, 5.0 and "5" are the same id."""
    if isinstance(value, str):
        return int(value) if value.isascii() and value.isdigit() and (value == "0" or value[0] != "0") else value
    return int(value) if value == value and abs(value) < 2**53 and int(value) == value else value


def _name(value: Any) -> str:
    return value if isinstance(value, str) else str(value)


def _boolean(value: Any) -> Any:
    words = {"true": 1, "false": 0, "null": 0}
    return words.get(value.lower(), value) if isinstance(value, str) else value


def _outline(segmentation: Any) -> Sequence[float]:
    if isinstance(segmentation, dict):
        from pycocotools import mask

        rle = dict(segmentation)
        rle["size"] = sides = [int(float(side)) for side in rle["size"]]
        if isinstance(rle["counts"], list):
            rle = mask.frPyObjects(rle | {"counts": [int(float(count)) for count in rle["counts"]]}, *sides)
        return mask.toBbox(rle).tolist()
    points = np.array([float(value) for polygon in segmentation for value in polygon]).reshape(-1, 2)
    return [*points.min(0), *(points.max(0) - points.min(0))]


def _check_areas(found: Any, data: dict) -> None:
    areas = [row.get("area") for row in data.get("annotations") or ()]
    written = sorted(float(area) for area in areas if area not in (None, "null"))
    if len(written) == len(areas) == len(found.areas) and not np.allclose(np.sort(found.areas), written):
        raise Failure("wrong", f"areas {found.areas.tolist()[:5]} instead of {written[:5]}")


def _check_index(source: Path, found: Any) -> None:
    """What is written again as COCO is read by pycocotools with equal ids."""
    from pycocotools.coco import COCO

    written = source.parent.parent / "again.json"
    written.write_text(json.dumps(found.coco()), encoding="utf-8")
    coco = COCO(str(written))
    if len(coco.imgs) != len(found) or len(coco.anns) != len(found.boxes) or len(coco.cats) != len(found.classes):
        raise Failure(
            "wrong", f"pycocotools finds {len(coco.imgs)} images, {len(coco.anns)} boxes, {len(coco.cats)} classes"
        )


# ---- LabelMe


def make_labelme(rng: random.Random) -> Case:
    case: Case = image_files()
    wrong = rng.choice(list(SIZES))
    for name, (width, height) in SIZES.items():
        shapes = []
        for x1, y1, x2, y2, label, _ in boxes_of(rng, name):
            points, kind = [[x1, y1], [x2, y2]], "rectangle"
            if rng.random() < 0.4:
                points, kind = [[x1, y1], [x2, y1], [x2, y2]], rng.choice(("polygon", "polygon", None))
            if rng.random() < 0.1:
                points, kind = [[x1, y1], [x1, y2]], rng.choice(("circle", "line", "linestrip"))
            shapes.append({"label": label, "points": points, "shape_type": kind, "flags": {}})
        data = {
            "version": "5",
            "shapes": shapes,
            "imagePath": name,
            "imageData": None,
            "imageHeight": height,
            "imageWidth": width,
        }
        likely = ("label", "points", "shape_type", "imagePath", "shapes", "imageHeight")
        spoiled = name == wrong or rng.random() < 0.2
        case[f"{name[:-4]}.json"] = mutate.spoil_json(rng, data, likely) if spoiled else json.dumps(data).encode()
    return case


def run_labelme(folder: Path) -> None:
    found = read(str(folder), "all", ReadOptions(bad_boxes="drop"))
    check_annotations(found)
    images = []
    for path in sorted(folder.glob("*.json")):
        boxes = []
        for shape in listed(_load(path)["shapes"]):
            kind = shape.get("shape_type") or "polygon"
            if kind not in ("polygon", "rectangle", "circle", "mask", "rotation", "oriented_rectangle"):
                continue
            xs, ys = ([float(point[side]) for point in shape["points"]] for side in (0, 1))
            if kind == "circle" and len(xs) == 2:
                radius = np.hypot(xs[1] - xs[0], ys[1] - ys[0])
                xs, ys = [xs[0] - radius, xs[0] + radius], [ys[0] - radius, ys[0] + radius]
            boxes.append(Box(min(xs), min(ys), max(xs), max(ys), _name(shape["label"])))
        images.append(boxes)
    compare(folder, found, images)


# ---- Label Studio


def make_labelstudio(rng: random.Random) -> Case:
    tasks, minimal = [], rng.random() < 0.3
    for index, (name, (width, height)) in enumerate(SIZES.items()):
        results = []
        for number, (x1, y1, x2, y2, label, _) in enumerate(boxes_of(rng, name)):
            value: dict = {"x": 100 * x1 / width, "y": 100 * y1 / height, "rotation": 0}
            value |= {"width": 100 * (x2 - x1) / width, "height": 100 * (y2 - y1) / height, "rectanglelabels": [label]}
            sizes = {"original_width": width, "original_height": height}
            results.append(
                value | sizes if minimal else {"id": f"r{number}", "type": "rectanglelabels", "value": value, **sizes}
            )
        image = f"/data/upload/1/0a1b2c3d-{name}" if rng.random() < 0.3 else name
        if minimal:
            tasks.append({"id": index, "image": image, "label": results, "annotator": 1})
        else:
            tasks.append(
                {"id": index, "data": {"image": image}, "annotations": [{"result": results, "was_cancelled": False}]}
            )
    likely = ("x", "width", "rotation", "rectanglelabels", "image", "result", "original_width", "annotations", "value")
    return {"tasks.json": mutate.spoil_json(rng, tasks, likely), **image_files()}


def run_labelstudio(folder: Path) -> None:
    source = folder / "tasks.json"
    found = read(str(source), "all", ReadOptions(bad_boxes="drop"))
    check_annotations(found)
    if any("are united" in note for note in found.notes):
        return  # tasks of one image
    contents = _load(source)
    if any("several annotations" in note for note in found.notes) and not any("data" in task for task in contents):
        return  # rows of one task in JSON-MIN
    images = []
    for task in contents:
        if "data" in task and not isinstance(task.get("annotations"), list):
            return  # none, or in another key
        regions = next((value for value in task.values() if isinstance(value, list) and value), ())
        if "data" in task:
            works = [
                work for work in task["annotations"] if str(work.get("was_cancelled")).lower() not in ("true", "1")
            ]
            if not works:
                continue
            regions = [
                row.get("value", {}) | {k: row[k] for k in row if k.startswith("original")}
                for row in works[0].get("result") or ()
            ]
        boxes = []
        for region in regions:
            if not isinstance(region, dict):
                return  # not an object
            if any(region.get(key) in (None, "null") for key in ("x", "y", "width", "height")) or float(
                region.get("rotation") or 0
            ):
                return  # left out with a note, or turned
            if any(key not in region for key in ("original_width", "original_height", "rectanglelabels")):
                return  # the size of the image, or of another object
            w, h = float(region["original_width"]), float(region["original_height"])
            if (w, h) != SIZES.get(Path(found.path(len(images))).name.removeprefix("0a1b2c3d-")):
                return  # of several sizes the first one counts
            x, y = float(region["x"]) * w / 100, float(region["y"]) * h / 100
            corners = (x, y, x + float(region["width"]) * w / 100, y + float(region["height"]) * h / 100)
            boxes += [Box(*corners, _name(name)) for name in region["rectanglelabels"]]
        images.append(boxes)
    sizes = {(float(h), float(w)) for h, w in found.sizes.tolist()}
    if not sizes <= {(h, w) for w, h in SIZES.values()} | {(0, 0)}:
        return  # other sizes were written, of which the first counts
    compare(source, found, images, 1e-3)


# ---- VIA


def make_via(rng: random.Random) -> Case:
    images = {}
    for name in SIZES:
        regions = []
        for x1, y1, x2, y2, label, _ in boxes_of(rng, name):
            shape: dict = {"name": "rect", "x": x1, "y": y1, "width": x2 - x1, "height": y2 - y1}
            if rng.random() < 0.3:
                shape = {"name": "polygon", "all_points_x": [x1, x2, x2], "all_points_y": [y1, y1, y2]}
            attributes = {"class": label} if rng.random() < 0.8 else {"class": {label: True}}
            regions.append({"shape_attributes": shape, "region_attributes": attributes})
        listed = regions if rng.random() < 0.8 else {str(i): region for i, region in enumerate(regions)}
        images[f"{name}123"] = {"filename": name, "size": 123, "regions": listed, "file_attributes": {}}
    data = images if rng.random() < 0.5 else {"_via_settings": {}, "_via_img_metadata": images, "_via_attributes": {}}
    likely = ("shape_attributes", "region_attributes", "class", "x", "all_points_x", "filename", "regions", "name")
    return {"via.json": mutate.spoil_json(rng, data, likely), **image_files()}


def run_via(folder: Path) -> None:
    source = folder / "via.json"
    found = read(str(source), "all", ReadOptions(bad_boxes="drop"))
    check_annotations(found)
    data, images = _load(source), []
    for image in data.get("_via_img_metadata", data).values():
        boxes = []
        regions = image.get("regions") or []
        for region in regions.values() if isinstance(regions, dict) else regions:
            shape, attributes = region["shape_attributes"], region.get("region_attributes", {})
            if "class" not in attributes or shape["name"] not in ("rect", "polygon"):
                return  # another attribute is the class, or the shape is noted
            name = attributes["class"]
            name = next(key for key in name if name[key]) if isinstance(name, dict) else bare(_name(name))
            if shape["name"] == "rect":
                x, y, w, h = (float(shape.get(key, 0)) for key in ("x", "y", "width", "height"))
                boxes.append(Box(x, y, x + w, y + h, name))
            else:
                xs, ys = ([float(v) for v in shape[f"all_points_{side}"]] for side in "xy")
                boxes.append(Box(min(xs), min(ys), max(xs), max(ys), name))
        images.append(boxes)
    compare(source, found, images)


# ---- VOC and CVAT


def make_voc(rng: random.Random) -> Case:
    case: Case = image_files("JPEGImages/")
    wrong = rng.choice(list(SIZES))
    for name, (width, height) in SIZES.items():
        root = ElementTree.Element("annotation")
        ElementTree.SubElement(root, "filename").text = name
        size = ElementTree.SubElement(root, "size")
        for key, value in (("width", width), ("height", height), ("depth", 3)):
            ElementTree.SubElement(size, key).text = str(value)
        for box in boxes_of(rng, name):
            node = ElementTree.SubElement(root, "object")
            ElementTree.SubElement(node, "name").text = box.name
            ElementTree.SubElement(node, "difficult").text = rng.choice(("0", "0", "1"))
            corners = ElementTree.SubElement(node, "bndbox")
            for key, value in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=False):
                ElementTree.SubElement(corners, key).text = str(value)
        spoiled = name == wrong or rng.random() < 0.2
        data = mutate.spoil_xml(rng, root) if spoiled else ElementTree.tostring(root, encoding="utf-8")
        case[f"Annotations/{name[:-4]}.xml"] = data
    if rng.random() < 0.3:
        lines = mutate.data_of("".join(f"{name[:-4]}\n" for name in SIZES))
        case["ImageSets/Main/train.txt"] = mutate.spoil(rng, lines) if rng.random() < 0.5 else lines
    return case


def run_voc(folder: Path) -> None:
    found = read(str(folder), "all", ReadOptions(bad_boxes="drop"))
    check_annotations(found)
    images = []
    for path in sorted((folder / "Annotations").glob("*.xml")):
        boxes = []
        for node in _root(path).findall("object"):
            corners = [float(node.findtext(f"bndbox/{side}")) for side in ("xmin", "ymin", "xmax", "ymax")]
            crowd = node.findtext("difficult", "").strip() == "1"
            boxes.append(Box(*corners, bare(node.findtext("name")), crowd))
        images.append(boxes)
    compare(folder, found, images)


def _root(path: Path) -> ElementTree.Element:
    root = ElementTree.parse(path).getroot()
    for node in root.iter():
        node.tag = node.tag.rpartition("}")[2]
    return root


def make_cvat(rng: random.Random) -> Case:
    root = ElementTree.Element("annotations")
    ElementTree.SubElement(root, "version").text = "1.1"
    labels = ElementTree.SubElement(ElementTree.SubElement(ElementTree.SubElement(root, "meta"), "task"), "labels")
    for name in mutate_names(rng):
        label = ElementTree.SubElement(labels, "label")
        ElementTree.SubElement(label, "name").text = name
    for index, (name, (width, height)) in enumerate(SIZES.items()):
        image = ElementTree.SubElement(root, "image", id=str(index), name=name, width=str(width), height=str(height))
        for box in boxes_of(rng, name):
            corners = dict(zip(("xtl", "ytl", "xbr", "ybr"), map(str, box), strict=False))
            ElementTree.SubElement(image, "box", label=box.name, occluded="0", **corners)
    return {"annotations.xml": mutate.spoil_xml(rng, root), **image_files()}


def run_cvat(folder: Path) -> None:
    source = folder / "annotations.xml"
    found = read(str(source), "all", ReadOptions(bad_boxes="drop"))
    check_annotations(found)
    images = []
    for image in _root(source).findall("image"):
        boxes = []
        for node in image:
            if node.tag != "box" or "rotation" in node.attrib:
                return  # other elements are turned into boxes, or noted
            boxes.append(Box(*(float(node.get(key)) for key in ("xtl", "ytl", "xbr", "ybr")), bare(node.get("label"))))
        images.append(boxes)
    compare(source, found, images)


FUZZERS = (
    Fuzzer("coco", make_coco, run_coco, fraction=1.5),
    Fuzzer("labelme", make_labelme, run_labelme),
    Fuzzer("labelstudio", make_labelstudio, run_labelstudio),
    Fuzzer("via", make_via, run_via),
    Fuzzer("voc", make_voc, run_voc),
    Fuzzer("cvat", make_cvat, run_cvat),
)
