"""Every accepted form of data, read into the same packed store: `read` finds out which one it is."""

import os
from collections import defaultdict
from itertools import count
from pathlib import Path
from typing import Any

from datasets.annotations import read_annotation_file, read_json, text_lines
from datasets.folders import has_xml, read_labelme, read_voc
from datasets.store import Annotations, DataError, Packer, check_path
from datasets.yolo import is_in_labels, read_yolo_folder, read_yolo_pictures, read_yolo_yaml

Classes = tuple[str, ...] | None

PARTS = {  # part -> names by which it goes, the first that is there counts
    "train": ("train", "trainval"),
    "val": ("val", "valid", "validation", "test"),
    "test": ("test",),
    "all": (),
}


def read(
    source: str, part: str, classes: Classes = None, image_root: str | None = None, bad_boxes: str = "error"
) -> Annotations:
    """Reads an annotation file, COCO JSON, YOLO yaml, VOC or LabelMe folder, or a list under a VOC ImageSets/Main.

    `part` ("train", "val", "test", "all") chooses in a source that holds several; `classes` is the list of names wanted
    (None: those of the data); `image_root` is where the pictures of a COCO JSON are; boxes without area are an error or
    left out, as `bad_boxes` ("error", "drop") says. Raises DataError.
    """
    source = os.fspath(source)
    try:
        path = Path(check_path(source))
    except ValueError as error:
        raise DataError(str(error)) from error
    if not path.exists():
        raise DataError(f"{source}: no such file or folder, seen from {os.getcwd()}: correct the path")
    kind = path.suffix.lower()
    if path.is_dir():
        return _read_folder(path, PARTS[part], classes, image_root, bad_boxes)
    if kind == ".txt" and "ImageSets" in path.parts[-3:-1]:
        folder = path.parents[0 if path.parent.name == "ImageSets" else 1].parent
        return read_voc(folder, (), classes, bad_boxes, path)
    if kind == ".txt":
        return _read_text(source, classes, bad_boxes)
    if kind == ".json":
        return read_coco(source, read_json(source), classes, image_root, bad_boxes)
    if kind in (".yaml", ".yml"):
        return read_yolo_yaml(path, PARTS[part], classes, bad_boxes)
    raise DataError(f"{source}: give an annotation file (.txt), COCO JSON, YOLO yaml, or a VOC or LabelMe folder")


def read_classes(path: str) -> tuple[str, ...]:
    """The names in a classes file, one a line. Raises DataError for blank lines between, a name twice, and no name."""
    try:
        lines = [(number, line.strip()) for number, line in text_lines(check_path(os.fspath(path)))]
    except (OSError, ValueError) as error:
        raise error if isinstance(error, DataError) else DataError(f"{path}: {error}: correct the path") from error
    while lines and not lines[-1][1]:
        lines.pop()
    seen: dict[str, int] = {}
    for number, name in lines:
        if not name:
            raise DataError(f"{path}:{number}: a blank line between the names shifts the classes: remove it")
        if name in seen:
            raise DataError(f"{path}:{number}: class {name!r} is already in line {seen[name]}: remove or rename it")
        seen[name] = number
    if not seen:
        raise DataError(f"{path}: no names: write one a line")
    return tuple(seen)


def _read_text(source: str, classes: Classes, bad_boxes: str) -> Annotations:
    beside = os.path.join(os.path.dirname(source), "classes.txt")
    names = read_classes(beside) if os.path.exists(beside) else None
    found = read_annotation_file(source, classes, bad_boxes, names)
    paths = [found.path(i) for i in range(len(found))] if not len(found.boxes) else []
    if any(is_in_labels(path) for path in paths):  # a YOLO list of pictures
        return read_yolo_pictures(source, paths, names, classes, bad_boxes)
    return found


def _read_folder(
    folder: Path, part: tuple[str, ...], classes: Classes, image_root: str | None, bad_boxes: str
) -> Annotations:
    yamls = [folder / "data.yaml"] if (folder / "data.yaml").exists() else sorted(folder.glob("*.y*ml"))
    if len(yamls) == 1:
        return read_yolo_yaml(yamls[0], part, classes, bad_boxes)
    if any(has_xml(folder / name) for name in ("Annotations", "annotations", "")):
        return read_voc(folder, part, classes, bad_boxes)
    files = sorted(folder.glob("*.json"))
    if len(files) == 1 and "images" in (data := read_json(str(files[0]))):
        return read_coco(str(files[0]), data, classes, image_root, bad_boxes)
    if files:
        return read_labelme(folder, files, classes, bad_boxes)
    beside = next((path for path in (folder / "classes.txt", folder / "labels" / "classes.txt") if path.exists()), None)
    if beside or (folder / "labels").is_dir():
        return read_yolo_folder(folder, part, read_classes(str(beside)) if beside else None, classes, bad_boxes)
    inside = ", ".join(sorted(path.name for path in folder.iterdir() if path.is_dir())[:5])
    raise DataError(
        f"{folder}: neither data.yaml (YOLO) nor Annotations/*.xml (VOC) nor *.json (LabelMe, COCO) is in this folder: "
        f"name the file, or the folder above or below it{f' ({inside})' if inside else ''}"
    )


def read_coco(source: str, data: Any, classes: Classes, image_root: str | None, bad_boxes: str) -> Annotations:
    """COCO JSON, loaded already. Pictures are looked for in `image_root`, beside the file and in images/ beside it."""
    if not isinstance(data, dict) or "images" not in data:
        kind = "a LabelMe file: give its folder" if "shapes" in data else "no COCO ground truth: it has no images"
        raise DataError(f"{source}: {kind}")
    by_image = defaultdict(list)
    for annotation in data.get("annotations", ()):
        by_image[annotation.get("image_id")].append(annotation)
    folder = os.path.dirname(source)
    categories, notes = _categories(source, data)
    pack = Packer(source, folder, tuple(categories), classes)
    pack.notes += notes
    labels = {id_: label for label, id_ in enumerate(categories.values())}
    roots, seen = ([os.path.abspath(image_root)] if image_root else []) + ["", "images"], set()
    for image in data["images"]:
        id_, name = image.get("id"), str(image.get("file_name", "")).replace("\\", "/")
        if not isinstance(id_, int) or id_ in seen or not name:
            problem = "the id must be a whole number that no other picture has, and file_name must be there"
            pack.complain(source, ValueError(f"picture {id_!r} {name!r}: {problem}"))
            continue
        seen.add(id_)
        places = [os.path.join(root, name) for root in roots]
        place = next((place for place in places if os.path.exists(os.path.join(folder, place))), places[0])
        pack.picture(place, image_id=id_, size=(int(image.get("height") or 0), int(image.get("width") or 0)))
        for annotation in by_image.pop(id_, ()):
            try:
                pack.box(*_coco_box(annotation, labels))
            except ValueError as error:
                pack.complain(f"{source}: annotation {annotation.get('id')} of {name}", error)
    for id_, left in by_image.items():
        pack.complain(source, ValueError(f"{len(left)} annotations of a picture {id_!r} that is not among the images"))
    ids = count(max(categories.values(), default=0) + 1)
    wanted = categories if classes is None else classes
    return pack.finish(bad_boxes, [categories[name] if name in categories else next(ids) for name in wanted])


def _categories(source: str, data: dict[str, Any]) -> tuple[dict[str, int], list[str]]:
    """-> (id by name in the order of ids, notes), without the category 0 that heads the exports of some services."""
    rows = data.get("categories", ())
    if not all(isinstance(row.get("id"), int) and row.get("name") for row in rows):
        raise DataError(f"{source}: every category needs a name and a whole number as id")
    rows = sorted(rows, key=lambda row: row["id"])
    ids = {row["id"]: str(row["name"]) for row in rows}
    if len(ids) < len(rows) or len(set(ids.values())) < len(rows):
        raise DataError(f"{source}: two categories have the same id or name: rename one of them")
    used = {annotation.get("category_id") for annotation in data.get("annotations", ())}
    groups = {row.get("supercategory") for row in rows if row["id"]}
    heads = [row for row in rows if row["id"] == 0 and row.get("supercategory") in (None, "", "none", row["name"])]
    notes = []
    if heads and 0 not in used and used and (ids[0] in groups or groups <= {None, "", "none"}):
        notes.append(f"{source}: category 0 {ids.pop(0)!r} has no box and is left out")
    return {name: id_ for id_, name in ids.items()}, notes


def _coco_box(annotation: dict[str, Any], labels: dict[int, int]) -> tuple[float, ...]:
    """-> x1, y1, x2, y2, label, crowd, area."""
    label = labels.get(annotation.get("category_id"))
    if label is None:
        raise ValueError(f"category {annotation.get('category_id')!r} is not among the categories")
    try:
        x, y, width, height = (float(value) for value in annotation["bbox"])
        area = annotation.get("area")
        area = width * height if area is None else float(area)
        return x, y, x + width, y + height, label, int(annotation.get("iscrowd") or 0), area
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"bbox {annotation.get('bbox')!r} must be x, y, width, height") from error
