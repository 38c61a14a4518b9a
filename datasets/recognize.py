"""Reading a folder: its format is recognized by what it holds."""

import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from datasets import find
from datasets.combine import join
from datasets.cvat import is_cvat, read_cvat
from datasets.errors import DataError
from datasets.files import read_text, without_root
from datasets.labelme import read_labelme
from datasets.store import Annotations, Classes, Part
from datasets.tables import read_table
from datasets.typed import read_json_file
from datasets.voc import read_voc
from datasets.yolo import has_label, names_near, read_config, read_yolo_folder

_YOLO = re.compile(rb"^(train|val|valid|validation|test) *:", re.IGNORECASE | re.MULTILINE)


def read_folder(folder: Path, part: Part, classes: Classes, image_root: str | None, bad_boxes: str) -> Annotations:
    """Reads a folder by what it holds: a YOLO data file, XML, JSON, lists, or YOLO label files, in this order."""
    options = (classes, bad_boxes)
    kinds = {"classes": classes, "image_root": image_root, "bad_boxes": bad_boxes}
    yamls = [folder / "data.yaml"]
    if not yamls[0].exists():
        yamls = [path for path in sorted(folder.glob("*.y*ml")) if _YOLO.search(_head(path))]
    if len(yamls) > 1:
        raise DataError(
            f"{folder}: several data files ({', '.join(path.name for path in yamls[:5])}): name one of them"
        )
    if yamls:
        return read_config(yamls[0], part, *options, image_root)
    if len(configs := sorted(folder.glob("*.data"))) == 1:
        return read_config(configs[0], part, *options, image_root)
    files = find.files_under(folder)
    if xmls := find.of_suffix(files, ".xml"):
        if len(xmls) < 100 and all(is_cvat(folder / file) for file in xmls):
            return _join(folder, xmls, part, partial(read_cvat, **kinds))
        return read_voc(folder, part, *options, image_root)
    jsons = {file: head for file in find.of_suffix(files, ".json") if _is_data(head := _head(folder / file))}
    if any(b'"shapes"' in head for head in jsons.values()):
        chosen = find.select_part(folder, find.of_suffix(files, ".json"), part)
        return read_labelme(folder, [folder / file for file in chosen], *options, image_root)
    if jsons:
        return _join(folder, _boxes_only(list(jsons)), part, partial(read_json_file, **kinds))
    texts = find.of_suffix(files, ".txt")
    images, labeled = find.images_of(files), find.Stems(texts)
    paired = find.Stems(images)
    lists = [t for t in texts if "/" not in t and t not in ("classes.txt", "labels.txt") and not paired.nearest(t)]
    if len(lists) > 1:
        lists = [text for text in lists if find.part_of(text)]
    if lists and (part or len(lists) == 1):
        exact = [f"{name}.txt" for name in part if f"{name}.txt" in lists]
        chosen = exact or find.select_part(folder, lists, part, by_name=True)
        return read_text(folder / chosen[0], classes, image_root, bad_boxes)
    near = any(has_label(str(folder / image)) for image in images[:100])  # the user named images/train
    if near or any(map(labeled.nearest, images)) or any(re.search("(^|/)labels/", text) for text in texts):
        top = Path(os.path.abspath(folder))
        places = dict.fromkeys([folder, *(folder / os.path.dirname(text) for text in texts)])
        names = next(filter(None, map(names_near, [*list(places)[:20], *top.parents[:2]])), None)
        return without_root(read_yolo_folder(folder, files, part, names, *options), image_root)
    if tables := find.of_suffix(files, (".csv", ".tsv")):
        return _join(folder, tables, part, partial(read_table, **kinds))
    inside = ", ".join(sorted(path.name for path in folder.iterdir() if path.is_dir())[:5])
    raise DataError(
        f"{folder}: neither data.yaml or label files (YOLO) nor *.xml (VOC, CVAT) nor *.json (COCO, LabelMe) nor *.csv is in "
        f"this folder: name the file, or the folder above or below it{f' ({inside})' if inside else ''}"
    )


def _join(folder: Path, files: list[str], part: Part, read: Callable[..., Annotations]) -> Annotations:
    """Returns the annotations in the file of a part; without a part, in all files together."""
    chosen = find.select_part(folder, files, part, by_name=True) if len(files) > 1 else files
    if part and len(chosen) > 1:
        names = ", ".join(chosen[:5])
        raise DataError(
            f"{folder}: {len(chosen)} files may have the annotations ({names}): name the one with the boxes"
        )
    found: list[Annotations] = []
    for file in chosen:
        own = {"classes": found[0].classes} if found else {}
        found.append(read(str(folder / file), **own))
    return join(found, str(folder))


def _head(path: Path) -> bytes:
    with open(path, "rb") as file:
        return file.read(1 << 16)


def _is_data(head: bytes) -> bool:
    """Returns whether a JSON file that begins with `head` looks like annotations, not like notes or settings."""
    words = (b'"images"', b'"shapes"', b'"regions"', b'"_via_', b'"bbox"', b'"annotations"')
    return any(word in head for word in words) or head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"["


def _boxes_only(files: list[str]) -> list[str]:
    """Returns the files of COCO with boxes: not those with captions or key points next to them."""
    others = re.compile(r"captions|keypoints|panoptic|stuff|image_info", re.IGNORECASE)
    return [file for file in files if not others.search(os.path.basename(file))] or files
