"""Reading a folder: its format is recognized by what it holds."""

import os
import re
from pathlib import Path

from datasets import find
from datasets.annotations import read_json
from datasets.coco import read_coco
from datasets.combine import join
from datasets.errors import DataError
from datasets.folders import read_labelme
from datasets.lists import read_text, without_root
from datasets.store import Annotations, Classes, Part
from datasets.voc import read_voc
from datasets.yolo import label_file, names_near, read_config, read_yolo_folder


def read_folder(folder: Path, part: Part, classes: Classes, image_root: str | None, bad_boxes: str) -> Annotations:
    """Reads a folder by what it holds: a YOLO data file, XML, JSON, lists, or YOLO label files, in this order."""
    options = (classes, bad_boxes)
    yamls = [folder / "data.yaml"] if (folder / "data.yaml").exists() else sorted(folder.glob("*.y*ml"))
    if len(yamls) == 1:
        return read_config(yamls[0], part, *options, image_root)
    if len(configs := sorted(folder.glob("*.data"))) == 1:
        return read_config(configs[0], part, *options, image_root)
    files = find.files_under(folder)
    if find.of_suffix(files, ".xml"):
        return read_voc(folder, part, *options, image_root)
    jsons = [file for file in find.of_suffix(files, ".json") if not file.endswith("notes.json")]
    cocos = _boxes_only([file for file in jsons if is_coco(folder / file)] if len(jsons) < 100 else [])
    if cocos:
        cocos = find.select_part(folder, cocos, part, by_name=True) if len(cocos) > 1 else cocos
        paths = [str(folder / file) for file in cocos]
        if part and len(paths) > 1:
            raise DataError(f"{folder}: {len(paths)} COCO files ({', '.join(paths[:5])}): name the one with the boxes")
        parts = []
        for path in paths:
            parts.append(read_coco(path, read_json(path), classes, image_root, bad_boxes))
            classes = parts[0].classes
        return join(parts, str(folder))
    if jsons:
        return read_labelme(folder, [folder / file for file in jsons if "/" not in file], *options)
    texts = find.of_suffix(files, ".txt")
    if lists := [f"{name}.txt" for name in part if f"{name}.txt" in texts]:
        return read_text(folder / lists[0], classes, image_root, bad_boxes)
    images, labeled = find.images_of(files), find.Stems(texts)
    near = any(os.path.exists(label_file(str(folder / image))) for image in images[:100])  # the user named images/train
    if near or any(map(labeled.nearest, images)) or any(re.search("(^|/)labels/", text) for text in texts):
        top = Path(os.path.abspath(folder))
        places = dict.fromkeys([folder, *(folder / os.path.dirname(text) for text in texts)])
        names = next(filter(None, map(names_near, [*list(places)[:20], *top.parents[:2]])), None)
        return without_root(read_yolo_folder(folder, files, part, names, *options), image_root)
    inside = ", ".join(sorted(path.name for path in folder.iterdir() if path.is_dir())[:5])
    raise DataError(
        f"{folder}: neither data.yaml or label files (YOLO) nor *.xml (VOC) nor *.json (COCO, LabelMe) is in this folder: "
        f"name the file, or the folder above or below it{f' ({inside})' if inside else ''}"
    )


def is_coco(path: Path) -> bool:
    """Returns whether the beginning of a JSON file looks like COCO."""
    with open(path, "rb") as file:
        head = file.read(1 << 16)
    return head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"{" and b'"shapes"' not in head and b'"images"' in head


def _boxes_only(files: list[str]) -> list[str]:
    """Returns the files of COCO with boxes: not those with captions or key points next to them."""
    others = re.compile(r"captions|keypoints|panoptic|stuff|image_info", re.IGNORECASE)
    return [file for file in files if not others.search(os.path.basename(file))] or files
