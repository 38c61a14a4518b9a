"""Recognition of formats: a file by its suffix and keys, a folder by what it holds; their readers do the rest."""

import os
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from datasets.classes import join
from datasets.errors import DataError, open_file
from datasets.formats import image_paths, listing
from datasets.formats.annotation_file import read_annotation_file
from datasets.formats.class_lists import find_lists, names_next_to
from datasets.formats.coco import read_coco
from datasets.formats.cvat import is_cvat, read_cvat
from datasets.formats.image_paths import with_root
from datasets.formats.labelme import read_labelme
from datasets.formats.labelstudio import read_labelstudio
from datasets.formats.record_files import is_supervisely, read_datumaro, read_lines, read_scalabel, read_supervisely
from datasets.formats.refusals import BLANKS, refuse_folder, refuse_json, refuse_texts
from datasets.formats.tables import is_table, read_table
from datasets.formats.typed_json import BOM, open_json
from datasets.formats.unread import (
    CSV,
    CVAT,
    JSON,
    JSON_LINES,
    LABELME,
    LINES,
    SUPERVISELY,
    TEXT,
    VOC,
    YOLO,
    is_label_xml,
    is_other_json,
    left_over,
    with_boxes,
)
from datasets.formats.via import is_via, read_via
from datasets.formats.voc import read_voc
from datasets.formats.yolo import (
    config_images,
    has_label,
    is_label,
    label_file,
    label_folders,
    read_config,
    read_yolo_folder,
    read_yolo_images,
    unread_configs,
)
from datasets.store import Annotations, Classes, Part
from utils.files import files_under
from utils.images import IMAGE_SUFFIXES
from utils.text import printable

_YOLO = re.compile(rb"^[\"']?(train|val|valid|validation|test)[\"']? *:", re.IGNORECASE | re.MULTILINE)
_NAMES = re.compile(rb"^[\"']?names[\"']? *:", re.IGNORECASE | re.MULTILINE)
_DARKNET = re.compile(rb"^\s*(train|valid|names) *=", re.IGNORECASE | re.MULTILINE)


def read_path(path: Path, part: Part, classes: Classes, image_root: str | None, bad_boxes: str) -> Annotations:
    """Reads a folder, or a file by its suffix, with a note about images that are labeled several times. Raises DataError."""
    found = _read_path(path, part, classes, image_root, bad_boxes)
    return replace(found, notes=(*found.notes, *_labeled_twice(found)))


def _labeled_twice(data: Annotations) -> list[str]:
    """Returns a note about images that occur several times. Each trains as if the boxes of the others were not there."""
    first: dict[str, int] = {}
    pairs = ((first.setdefault(os.path.normpath(data.path(index)), index), index) for index in range(len(data)))
    again = [(one, other) for one, other in pairs if one != other]
    if not again:
        return []
    fix = "keep one per image" + ", or write all its boxes in one line" * bool(data.lines[again[0][1]])
    text = f"labels of images that have labels already: {len(again)}; each trains as another image, without the others: {fix}"
    rows = [f"  {_places(data, one, other)}" for one, other in again[:10]]
    rows += [f"  ... and {len(again) - 10} more"] * (len(again) > 10)
    return [printable("\n".join([f"{data.source}: {text}", *rows]))]


def _places(data: Annotations, *indices: int) -> str:
    """Returns the path of an image, and the different places of its boxes."""
    rows = ((data.files[index], f"line {data.lines[index]}" * bool(data.lines[index])) for index in indices)
    places = dict.fromkeys(filter(None, (": ".join(filter(None, row)) for row in rows)))
    return ": ".join([data.path(indices[0]), *[" and ".join(places)] * (len(places) > 1)])


def _read_path(path: Path, part: Part, classes: Classes, image_root: str | None, bad_boxes: str) -> Annotations:
    if image_root is not None and not os.path.isdir(image_root):
        raise DataError(f"image_root={image_root}: there is no such folder: correct the path")
    if path.is_dir():
        return read_folder(path, part, classes, image_root, bad_boxes)
    kind = path.suffix.lower()
    if kind == ".txt":
        return read_text(str(path), classes, image_root, bad_boxes)
    if kind == ".json":
        return read_json_file(str(path), classes, image_root, bad_boxes)
    if kind in (".csv", ".tsv"):
        return read_table(str(path), classes, image_root, bad_boxes)
    if kind in JSON_LINES:
        return read_lines(str(path), part, classes, image_root, bad_boxes)
    if kind == ".xml":
        return read_cvat(str(path), classes, image_root, bad_boxes)
    if kind in (".yaml", ".yml", ".data"):
        return read_config(path, part, classes, bad_boxes, image_root)
    raise DataError(
        f"{path}: give an annotation file (.txt), JSON (COCO, Label Studio, VIA), CSV, YOLO yaml, CVAT XML, or a folder "
        f"with any of these, or with VOC, LabelMe or YOLO label files"
    )


def read_text(source: str, classes: Classes, image_root: str | None, bad_boxes: str) -> Annotations:
    """Reads an annotation file, or a list of images, whose boxes are in label files of YOLO or VOC."""
    path = Path(source)
    if "ImageSets" in path.parts[-3:-1]:
        folder = path.parents[0 if path.parent.name == "ImageSets" else 1].parent
        return read_voc(folder, (), classes, bad_boxes, image_root, path)
    refuse_texts([path])
    names = names_next_to(path)
    listed = read_annotation_file(source, classes, bad_boxes, names)
    found = listed if image_root is None else with_root(listed, image_root)
    if len(found.boxes) or not len(found):
        return found
    paths = _located(path, found)
    before = paths if image_root is None else _located(path, listed)
    labeled = [place if has_label(place) else moved for place, moved in zip(before, paths, strict=True)]
    if any(has_label(place) for place in labeled if place.lower().endswith(IMAGE_SUFFIXES)):
        labels = list(map(label_file, labeled))
        folders = label_folders(labeled, labels)
        lists = find_lists(path.parent, folders, folders)
        notes = [*found.notes, *(lists.notes(source) if lists else [])]
        return read_yolo_images(source, paths, lists, classes, bad_boxes, notes, labels)
    if listing.of_suffix(files_under(path.parent), ".xml"):
        return read_voc(path.parent, (), classes, bad_boxes, image_root, path)
    return found


def _located(path: Path, data: Annotations) -> list[str]:
    return image_paths.locate_all(path, [data.names[i] for i in range(len(data))], [data.root])


def read_json_file(path: str, classes: Classes, image_root: str | None, bad_boxes: str) -> Annotations:
    """Returns the annotations of a file of COCO, LabelMe, Label Studio or VIA, recognized by its keys. Raises DataError."""
    contents = open_json(path)
    refuse_json(path, _head(Path(path)))
    if isinstance(contents, list):
        if any(b'"box2d"' in bytes(row) for row in contents):
            return read_scalabel(path, contents, classes, image_root, bad_boxes)
        return read_labelstudio(path, contents, classes, image_root, bad_boxes)
    if "shapes" in contents:
        return read_labelme(Path(path).parent, [Path(path)], classes, bad_boxes, image_root)
    if "images" in contents:
        return read_coco(path, contents, classes, image_root, bad_boxes)
    if {"items", "categories"} <= contents.keys():
        return read_datumaro(path, contents, classes, image_root, bad_boxes)
    if "frames" in contents:
        return read_scalabel(path, contents["frames"], classes, image_root, bad_boxes)
    if is_via(contents):
        return read_via(path, contents, classes, image_root, bad_boxes)
    there = ", ".join(list(contents)[:5]) or "nothing"
    raise DataError(
        f"{path}: not a COCO ground truth, it has no images, nor a file of LabelMe, Label Studio or VIA (2), but {there}: "
        "export the boxes as COCO"
    )


def read_folder(folder: Path, part: Part, classes: Classes, image_root: str | None, bad_boxes: str) -> Annotations:
    """Reads a folder by what it holds: a YOLO data file, XML, JSON, lists, or YOLO label files, in this order.

    Label files of other formats, and images that no label file names, are reported."""
    config, others = _data_files(folder)
    if config:
        images = config_images(config, image_root)
        found = read_config(config, part, classes, bad_boxes, image_root)
        notes = unread_configs(config, images, others, image_root)
        notes += left_over(folder, found, part, YOLO, image_root, images)
    else:
        kind, found = _read_labels(folder, part, classes, image_root, bad_boxes)
        notes = left_over(folder, found, part, kind, image_root)
    return replace(found, notes=(*found.notes, *map(printable, notes)))


def _data_files(folder: Path) -> tuple[Path | None, list[Path]]:
    """Returns (the YOLO data file of a folder, if it has one; others, which are not read).

    It is data.yaml, or the only other yaml file, or else the only darknet file. Raises DataError if there are several."""
    names = sorted(os.listdir(folder), key=lambda name: (name.lower() != "data.yaml", name))
    names = [name for name in names if not os.path.isdir(folder / name)]
    yamls = [folder / name for name in listing.of_suffix(names, (".yaml", ".yml"))]
    heads = {path: _head(path).removeprefix(BOM) for path in yamls}
    own = [path for path in yamls if path.name.lower() == "data.yaml"][:1]
    data = own or [path for path in yamls if _YOLO.search(heads[path])]
    darknet = [folder / name for name in listing.of_suffix(names, ".data")]
    darknet = [path for path in darknet if _DARKNET.search(_head(path).removeprefix(BOM))]
    chosen = data or darknet
    if len(chosen) > 1:
        shown = ", ".join(path.name for path in chosen[:5])
        raise DataError(f"{folder}: several data files ({shown}): name one of them")
    if not chosen:
        return None, []
    others = [path for path in yamls if _YOLO.search(heads[path]) or _NAMES.search(heads[path])] + darknet
    return chosen[0], [path for path in others if path != chosen[0]]


def _read_labels(
    folder: Path, part: Part, classes: Classes, image_root: str | None, bad_boxes: str
) -> tuple[str, Annotations]:
    """Reads a folder without a YOLO data file -> (format, annotations)."""
    options = (classes, bad_boxes)
    kinds = {"classes": classes, "image_root": image_root, "bad_boxes": bad_boxes}
    files = files_under(folder)
    xmls = listing.of_suffix(files, ".xml")
    if any(is_label_xml(folder / file) for file in xmls):  # otherwise they are settings or the like
        if len(xmls) < 100 and all(is_cvat(folder / file) for file in xmls):
            return CVAT, _join(folder, xmls, part, partial(read_cvat, **kinds))
        return VOC, read_voc(folder, part, *options, image_root)
    if any(map(is_supervisely, files)):
        return SUPERVISELY, read_supervisely(folder, files, part, *options, image_root)
    if jsons := _jsons(folder, files):
        if any(jsons.values()):
            every = [file for file in listing.of_suffix(files, ".json") if not is_other_json(folder, file)]
            chosen = [folder / file for file in listing.select_part(folder, every, part)]
            return LABELME, listing.noted(read_labelme(folder, chosen, *options, image_root), folder, every, part)
        return JSON, _join(folder, with_boxes(list(jsons)), part, partial(read_json_file, **kinds))
    if lines := listing.of_suffix(files, JSON_LINES):
        return LINES, _join(folder, lines, part, partial(read_lines, part=part, **kinds))
    found = _read_texts(folder, files, part, classes, image_root, bad_boxes)
    if found is not None:
        return (TEXT if any(found.lines.tolist()) else YOLO), found
    if tables := listing.of_suffix(files, (".csv", ".tsv")):
        tables = [table for table in tables if is_table(str(folder / table))] or tables
        return CSV, _join(folder, tables, part, partial(read_table, **kinds))
    if xmls:
        return VOC, read_voc(folder, part, *options, image_root)  # which reports what is wrong with them
    refuse_folder(folder, files)
    inside = ", ".join(sorted(path.name for path in folder.iterdir() if path.is_dir())[:5])
    raise DataError(
        f"{folder}: neither data.yaml or label files (YOLO) nor *.xml (VOC, CVAT) nor *.json (COCO, LabelMe) nor *.csv is in "
        f"this folder: name the file, or the folder above or below it{f' ({inside})' if inside else ''}"
    )


def _read_texts(
    folder: Path, files: list[str], part: Part, classes: Classes, image_root: str | None, bad_boxes: str
) -> Annotations | None:
    """Reads a folder with annotation files, lists of images or YOLO label files. None if it has none of these."""
    texts = listing.of_suffix(files, ".txt")
    images, labeled = listing.images_of(files), image_paths.Stems(texts)
    images += listing.images_of(files_under(image_root)) if image_root else []
    read = partial(read_text, classes=classes, image_root=image_root, bad_boxes=bad_boxes)
    if exported := [
        text for text in texts if os.path.basename(text).lower() == "_annotations.txt"
    ]:  # Roboflow's YOLOv4
        return _join(folder, exported, part, read)
    paired = image_paths.Stems(images)
    labels = [text for text in texts if paired.nearest(text)] or texts  # others may be notes of any form
    refuse_texts(folder / text for text in labels[:: max(len(labels) // 10, 1)])
    lists = [t for t in texts if "/" not in t and t.lower() not in listing.CLASS_FILES and not paired.nearest(t)]
    lists = [text for text in lists if not is_label(folder / text, least=5)]  # the user named labels/train
    notes = listing.no_part_notes(folder, [text for text in lists if _names_images(folder / text)], part, by_name=True)
    sure = [text for text in lists if _names_images(folder / text) or listing.part_of(text)]  # others may be a README
    lists = sure or lists
    if len(lists) > 1:
        lists = [text for text in lists if listing.part_of(text)]
    if sure and lists and (part or len(lists) == 1):
        chosen, others = _list_of(folder, lists, part)
        found = read(str(folder / chosen))
        found = replace(found, notes=(*found.notes, *others, *notes))
        return listing.with_splits(found, folder, listing.splits_of(lists, by_name=True), part)
    near = any(has_label(str(folder / image)) for image in images[:100])  # the user named images/train
    if near or any(map(labeled.nearest, images)) or any(re.search("(^|/)labels/", text) for text in texts):
        return read_yolo_folder(folder, files, part, classes, bad_boxes, image_root)
    return _join(folder, lists, part, read) if lists else None


def _names_images(path: Path) -> bool:
    """Returns whether the first line of a text holds the name of an image."""
    first = _head(path).partition(b"\n")[0].lower()
    return any(suffix.encode() in first for suffix in IMAGE_SUFFIXES)


def _list_of(folder: Path, lists: list[str], part: Part) -> tuple[str, list[str]]:
    """Returns (the list of a part, notes about others of this part). One with the very name of the part is preferred.

    Raises DataError for several without it."""
    chosen = listing.select_part(folder, lists, part, by_name=True)
    exact = {text.lower(): text for text in chosen}
    named = [exact[f"{name}.txt"] for name in part if f"{name}.txt" in exact]
    if not named and len(chosen) > 1:
        fix = f"join them to {part[0]}.txt, or name one of them"
        raise DataError(f"{folder}: {len(chosen)} lists are of the part {part[0]} ({', '.join(chosen[:5])}): {fix}")
    others = [text for text in chosen if named and text.lower()[:-4] not in listing.PART_NAMES]
    text = f"{folder}: lists that are not read, because there is {', '.join(named[:1])}: {', '.join(others[:5])}"
    return [*named, *chosen][0], [text] * bool(others)


def _join(folder: Path, files: list[str], part: Part, read: Callable[..., Annotations]) -> Annotations:
    """Returns the annotations in the file of a part; without a part, in all files together."""
    chosen = listing.select_part(folder, files, part, by_name=True) if len(files) > 1 else files
    if part and len(chosen) > 1:
        names = ", ".join(chosen[:5])
        raise DataError(
            f"{folder}: {len(chosen)} files may have the annotations ({names}): name the one with the boxes"
        )
    found: list[Annotations] = []
    for file in chosen:
        own = {"classes": found[0].classes} if found else {}
        found.append(read(str(folder / file), **own))
    return listing.noted(join(found, str(folder)), folder, files, part, by_name=True)


def _jsons(folder: Path, files: list[str]) -> dict[str, bool]:
    """Returns {file: whether it is of LabelMe} of the JSON files that look like annotations. Raises DataError for others,
    of a known form that is not read."""
    found, others = {}, []
    for file in listing.of_suffix(files, ".json"):
        head = _head(folder / file)
        if _is_data(head):
            refuse_json(folder / file, head)
            found[file] = b'"shapes"' in head
        elif len(others) < 20:
            others.append((folder / file, head))
    for path, head in others if not found else ():
        refuse_json(path, head)
    return found


def _head(path: Path) -> bytes:
    with open_file(path) as file:
        return file.read(1 << 16)


def _is_data(head: bytes) -> bool:
    """Returns whether a JSON file that begins with `head` looks like annotations, not like notes or settings."""
    words = (b'"images"', b'"shapes"', b'"regions"', b'"_via_', b'"bbox"', b'"annotations"', b'"frames"')
    return any(word in head for word in words) or head.lstrip(BLANKS)[:1] == b"["
