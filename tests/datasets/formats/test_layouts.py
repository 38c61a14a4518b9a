"""Folders as tools and people leave them: tests/data/layouts.yaml lists the files of each, and what is read from it.

Every image has 40 x 20 pixels and, unless the list says otherwise, one box of the class cat with the corners 1, 2, 9, 8.
"""

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from files import coco, cvat, paint, text, voc
from refused import mentions, refused

from datasets.check_images import check_images
from datasets.errors import DataError
from datasets.formats.options import ReadOptions
from datasets.formats.read import read

LAYOUTS = yaml.safe_load((Path(__file__).parents[2] / "data" / "layouts.yaml").read_text(encoding="utf-8"))
BOX = {"x1": 1, "y1": 2, "x2": 9, "y2": 8}
CORNERS = [[1, 2], [9, 8]]
XYWH = [1, 2, 8, 6]
CENTER = {"x": 5, "y": 5, "width": 8, "height": 6}


def via(*images: str) -> dict[str, Any]:
    shape = {"name": "rect", **dict(zip(("x", "y", "width", "height"), XYWH, strict=True))}
    regions = [{"shape_attributes": shape, "region_attributes": {"class": "cat"}}]
    return {f"{name}1": {"filename": name, "regions": regions} for name in images}


def studio(*images: str) -> list[Any]:
    value = {"x": 2.5, "y": 10, "width": 20, "height": 30, "rotation": 0, "rectanglelabels": ["cat"]}
    result = {"id": "a", "original_width": 40, "original_height": 20, "value": value}
    return [{"data": {"image": name}, "annotations": [{"result": [result]}]} for name in images]


CONTENTS = {  # word in layouts.yaml -> contents of a file that labels these images
    "annotations": lambda *images: "".join(f"{name} 1,2,9,8,0\n" for name in images),
    "captions": lambda image: {
        "images": coco(image)["images"],
        "annotations": [{"id": 1, "image_id": 0, "caption": "a cat"}],
    },
    "coco": coco,
    "csv": lambda *images: "path,x1,y1,x2,y2,class\n" + "".join(f"{name},1,2,9,8,cat\n" for name in images),
    "cvat": cvat,
    "hf": lambda *images: "\n".join(
        json.dumps({"file_name": name, "objects": {"bbox": [XYWH], "category": ["cat"]}}) for name in images
    ),
    "labelme": lambda image="": {
        "imagePath": image,
        "shapes": [{"label": "cat", "points": CORNERS, "shape_type": "rectangle"}],
    },
    "lines": lambda *lines: "".join(f"{line}\n" for line in lines),
    "createml": lambda *images: [
        {"image": name, "annotations": [{"label": "cat", "coordinates": CENTER}]} for name in images
    ],
    "studio": studio,
    "supervisely": lambda: {"objects": [{"classTitle": "cat", "points": {"exterior": CORNERS}}]},
    "via": via,
    "voc": voc,
    "voc_of": lambda image: voc("cat").replace("<annotation>", f"<annotation><filename>{image}</filename>"),
    "yolo": lambda: "0 .125 .25 .2 .3\n",
}
USUAL = {".xml": "voc cat", ".txt": "yolo", ".json": "labelme"}  # contents of a file without any in the list


def variants(layout: dict[str, Any]) -> Iterator[dict[str, str]]:
    """The values of the words in braces, in all combinations."""
    each = layout.get("each", {})
    yield from (dict(zip(each, values, strict=True)) for values in itertools.product(*each.values()))


def fill(value: Any, words: dict[str, str]) -> Any:
    """A list, mapping or text of a layout with the words for those in braces."""
    if isinstance(value, str):
        return re.sub(r"\{(\w+)\}", lambda found: str(words.get(found[1], found[0])), value)
    if isinstance(value, list):
        return [fill(item, words) for item in value]
    return {fill(key, words): fill(item, words) for key, item in value.items()} if isinstance(value, dict) else value


def plant(root: Path, tree: list[str], splits: list[str]) -> None:
    """Writes the files of a layout: `PATH`, or `PATH = CONTENTS`.

    #3 in a path stands for three files, 0, 1 and 2. A row with SPLIT is there for each split."""
    rows = [row.replace("SPLIT", split) for row in tree for split in (splits if "SPLIT" in row else [""])]
    for row in rows:
        name, _, contents = row.partition(" = ")
        found = re.search(r"#(\d+)", name)
        for number in range(int(found[1]) if found else 1):
            path = root / re.sub(r"#\d+", str(number), name)
            if not contents and path.suffix.lower() in (".jpg", ".png", ".jfif", ".bmp"):
                paint(path.with_suffix({".jfif": ".jpg"}.get(path.suffix, path.suffix))).rename(path)
                continue
            word, *images = (contents or USUAL[path.suffix]).split(" ")
            text(path, CONTENTS[word](*images) if word in CONTENTS else contents)


def check(root: Path, request: str, expected: Any) -> None:
    """Reads `SOURCE SPLIT OPTION=VALUE ...`, and compares images, boxes and notes, or the names in the error."""
    source, split, *options = request.split(" ")
    values = dict(option.split("=") for option in options)
    values |= {"image_root": str(root / values["image_root"])} if "image_root" in values else {}
    values |= {"classes": tuple(values["classes"].split(","))} if "classes" in values else {}
    wanted = expected if isinstance(expected, dict) else {"images": expected}
    if "refused" in wanted:
        with refused(DataError, *wanted["refused"]):
            found, _ = check_images(read(str(root / source), split, ReadOptions(**values)))
        return
    found, _ = check_images(read(str(root / source), split, ReadOptions(**values)))
    places = [Path(found.path(i)).resolve().relative_to(root.resolve()).as_posix() for i in range(len(found))]
    counts = np.diff(found.starts)
    rows = [place if count == 1 else f"{place} {count}" for place, count in zip(places, counts, strict=True)]
    assert sorted(rows) == sorted(wanted["images"])
    assert np.allclose(found.boxes, [list(BOX.values())] * len(found.boxes)) and set(found.classes) <= {"cat"}
    missing = [name for name in wanted.get("notes", ()) if not any(mentions(note, name) for note in found.notes)]
    assert not missing and bool(found.notes) == bool(wanted.get("notes")), (missing, found.notes)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout["what"])
def test_what_is_read_from_a_folder(tmp_path: Path, layout: dict[str, Any]) -> None:
    for number, words in enumerate(variants(layout)):
        root = tmp_path / f"d{number}"
        words["root"] = str(root)
        plant(root, fill(layout["tree"], words), layout.get("splits", []))
        for request, expected in fill(layout["read"], words).items():
            check(root, request, expected)
