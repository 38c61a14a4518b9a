"""Reading one file: an annotation file, a list of images with label files of YOLO or VOC, JSON, CSV, XML or a YOLO yaml."""

import os
from dataclasses import replace
from pathlib import Path

from datasets.annotations import read_annotation_file
from datasets.errors import DataError
from datasets.formats import read_classes
from datasets.store import Annotations, Classes, Part, Strings
from utils.images import IMAGE_SUFFIXES


def read_file(path: Path, part: Part, classes: Classes, image_root: str | None, bad_boxes: str) -> Annotations:
    """Reads a file by its suffix. Raises DataError."""
    kind = path.suffix.lower()
    if kind == ".txt":
        return read_text(path, classes, image_root, bad_boxes)
    if kind == ".json":
        from datasets.typed import read_json_file

        return read_json_file(str(path), classes, image_root, bad_boxes)
    if kind in (".csv", ".tsv"):
        from datasets.tables import read_table

        return read_table(str(path), classes, image_root, bad_boxes)
    if kind == ".xml":
        from datasets.cvat import read_cvat

        return read_cvat(str(path), classes, image_root, bad_boxes)
    if kind in (".yaml", ".yml", ".data"):
        from datasets.yolo import read_config

        return read_config(path, part, classes, bad_boxes, image_root)
    raise DataError(
        f"{path}: give an annotation file (.txt), JSON (COCO, Label Studio, VIA), CSV, YOLO yaml, CVAT XML, or a folder "
        f"with any of these, or with VOC, LabelMe or YOLO label files"
    )


def read_text(path: Path, classes: Classes, image_root: str | None, bad_boxes: str) -> Annotations:
    """Reads an annotation file, or a list of images, whose boxes are in label files of YOLO or VOC."""
    if "ImageSets" in path.parts[-3:-1]:
        from datasets.voc import read_voc

        folder = path.parents[0 if path.parent.name == "ImageSets" else 1].parent
        return read_voc(folder, (), classes, bad_boxes, image_root, path)
    file = path.with_name("classes.txt")
    names = read_classes(str(file)) if file.exists() else None
    found = read_annotation_file(str(path), classes, bad_boxes, names)
    if image_root is not None:
        found = _with_root(found, image_root)
    if len(found.boxes) or not len(found):
        return found
    from datasets import find
    from datasets.yolo import has_label, names_near, read_yolo_images

    listed = [found.names[i] for i in range(len(found))]
    paths = find.locate_all(path, listed, [found.root])
    if any(has_label(place) for place in paths if place.lower().endswith(IMAGE_SUFFIXES)):
        images = read_yolo_images(str(path), paths, names or names_near(path.parent), classes, bad_boxes)
        return without_root(images, image_root)
    if find.of_suffix(find.files_under(path.parent), ".xml"):
        from datasets.voc import read_voc

        return read_voc(path.parent, (), classes, bad_boxes, image_root, path)
    return found


def _with_root(found: Annotations, image_root: str) -> Annotations:
    """Returns the annotations with the images that are in `image_root` taken from there."""
    if not os.path.isdir(image_root):
        raise DataError(f"image_root={image_root}: there is no such folder: correct the path")
    places = [os.path.abspath(os.path.join(image_root, found.names[i])) for i in range(len(found))]
    there = list(map(os.path.exists, places))
    if not any(there):
        return without_root(found, image_root)
    names = (place if exists else found.names[i] for i, (place, exists) in enumerate(zip(places, there, strict=True)))
    return replace(found, names=Strings(names))


def without_root(found: Annotations, image_root: str | None) -> Annotations:
    """Returns the annotations with a note that `image_root` is not used, if it is given."""
    note = f"image_root={image_root} is not used: {found.source} tells by itself where its images are"
    return found if image_root is None else replace(found, notes=(*found.notes, note))
