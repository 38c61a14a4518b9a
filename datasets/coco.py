"""COCO JSON -> Annotations."""

import os
from collections import defaultdict
from itertools import count
from typing import Any

from datasets.errors import DataError, check_names
from datasets.find import image_roots
from datasets.store import Annotations, Classes, Packer


def read_coco(source: str, data: Any, classes: Classes, image_root: str | None, bad_boxes: str) -> Annotations:
    """Returns the annotations in `data`, the contents of the COCO file `source`. Raises DataError.

    Images are searched in `image_root`, in the folder of the file and in images/ there.
    """
    if not isinstance(data, dict) or "images" not in data:
        kind = "a LabelMe file: give its folder" if "shapes" in data else "not a COCO ground truth: it has no images"
        raise DataError(f"{source}: {kind}")
    images, annotations, rows = (_rows(source, data, key) for key in ("images", "annotations", "categories"))
    by_image = defaultdict(list)
    for annotation in annotations:
        by_image[annotation.get("image_id")].append(annotation)
    folder = os.path.dirname(source)
    categories, notes = _categories(source, rows, {annotation.get("category_id") for annotation in annotations})
    pack = Packer(source, folder, tuple(categories), classes)
    pack.notes += notes
    labels = {id_: label for label, id_ in enumerate(categories.values())}
    roots, seen = ([os.path.abspath(image_root)] if image_root else []) + image_roots(source), set()
    for image in images:
        id_, name = image.get("id"), str(image.get("file_name", "")).replace("\\", "/")
        if not isinstance(id_, int) or id_ in seen or not name:
            problem = "the id must be a whole number that no other image has, and file_name must be there"
            pack.problems.append(f"{source}: image {id_!r} {name!r}: {problem}")
            continue
        seen.add(id_)
        places = [os.path.join(root, name) for root in roots]
        place = next((place for place in places if os.path.exists(os.path.join(folder, place))), places[0])
        pack.add_image(place, image_id=id_, size=(int(image.get("height") or 0), int(image.get("width") or 0)))
        for annotation in by_image.pop(id_, ()):
            try:
                pack.add_box(*_box(annotation, labels))
            except ValueError as error:
                pack.complain(f"{source}: annotation {annotation.get('id')} of {name}", error)
    for id_, left in by_image.items():
        pack.problems.append(f"{source}: {len(left)} annotations of image {id_!r}, which is not among the images")
    new_ids = count(max(categories.values(), default=0) + 1)
    names = categories if classes is None else classes
    return pack.finish(bad_boxes, [categories[name] if name in categories else next(new_ids) for name in names])


def _rows(source: str, data: dict[str, Any], key: str) -> list[dict[str, Any]]:
    rows = data.get(key) or []
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{source}: {key} must be a list of objects: export the file again")
    return rows


def _categories(source: str, rows: list[dict[str, Any]], used: set) -> tuple[dict[str, int], list[str]]:
    """Returns (category id by name in the order of ids, notes). `used` are the category ids of the annotations.

    Some services export an unused category 0 that names the group of all others; it is left out.
    """
    if not all(isinstance(row.get("id"), int) and row.get("name") for row in rows):
        raise DataError(f"{source}: every category needs a name and a whole number as id")
    rows = sorted(rows, key=lambda row: row["id"])
    ids = {row["id"]: str(row["name"]) for row in rows}
    check_names(ids.values(), source)
    if len(ids) < len(rows) or len(set(ids.values())) < len(rows):
        raise DataError(f"{source}: two categories have the same id or name: rename one of them")
    groups = {row.get("supercategory") for row in rows if row["id"]}
    heads = [row for row in rows if row["id"] == 0 and row.get("supercategory") in (None, "", "none", row["name"])]
    notes = []
    if heads and 0 not in used and used and (ids[0] in groups or groups <= {None, "", "none"}):
        notes.append(f"{source}: category 0 {ids.pop(0)!r} has no box and is left out")
    return {name: id_ for id_, name in ids.items()}, notes


def _box(annotation: dict[str, Any], labels: dict[int, int]) -> tuple[float, ...]:
    """Returns x1, y1, x2, y2, label, crowd, area of an annotation. Raises ValueError."""
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
