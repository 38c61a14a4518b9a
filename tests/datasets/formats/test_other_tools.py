"""Data sets in the layouts of many tools and downloads are read, or refused by their names with the fix."""

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from files import boxes, text
from refused import refused

from datasets.check_images import check_images
from datasets.errors import DataError
from datasets.formats.file import File
from datasets.formats.formats import NOT_READ, format_of
from datasets.formats.options import ReadOptions
from datasets.formats.read import read

WIDTH, HEIGHT = 200, 100
BOXES = [("cat", 20, 10, 60, 50), ("dog", 100, 20, 180, 90)]  # of every image
XYWH = [(x1, y1, x2 - x1, y2 - y1) for _, x1, y1, x2, y2 in BOXES]


def paint(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    level = sum(map(ord, path.stem)) % 200
    path.write_bytes(cv2.imencode(path.suffix, np.full((HEIGHT, WIDTH, 3), level, np.uint8))[1].tobytes())


def lines(*rows: Any) -> str:
    return "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows)


def _figure(name: str, x1: int, y1: int, x2: int, y2: int) -> dict:
    points = {"exterior": [[x1, y1], [x2, y2]], "interior": []}
    return {"classTitle": name, "geometryType": "rectangle", "points": points}


@pytest.mark.parametrize(("word", "crowd"), [("true", True), ("false", False), (None, False)])
def test_crowd_regions_of_cvat_are_kept(tmp_path: Path, word: str | None, crowd: bool) -> None:
    attribute = f'<attribute name="is_crowd">{word}</attribute>' if word else ""
    box = f'<box label="cat" xtl="1" ytl="2" xbr="30" ybr="9">{attribute}</box>'
    root = f'<annotations><image id="0" name="a.png" width="40" height="20">{box}</image></annotations>'
    assert read(str(text(tmp_path / "all.xml", root)), "train").crowd.tolist() == [crowd]


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path: Path) -> None:
    mark = "\ufeff"
    for place in ("s/img/a.png", "y/images/a.png", "together/a.png"):
        paint(tmp_path / place)
    text(tmp_path / "s" / "ann" / "a.png.json", mark + json.dumps({"objects": [_figure(*BOXES[0])]}))
    text(tmp_path / "y" / "pets.yaml", f"{mark}train: images\nnames: [cat]\n")
    text(tmp_path / "y" / "labels" / "a.txt", f"{mark}0 .5 .5 .2 .2\n")
    (
        text(tmp_path / "together" / "a.txt", f"{mark}0 .5 .5 .2 .2\n"),
        text(tmp_path / "together" / "classes.txt", "cat\n"),
    )
    text(tmp_path / "together" / "list.txt", "a.png\n")
    for source in ("s", "y", "together/list.txt"):
        assert [row[2] for row in boxes(read(str(tmp_path / source), "train"))] == [["cat"]], source


def test_numbers_of_classes_are_named_by_a_file(tmp_path: Path) -> None:
    """Hugging Face's guides show files with numbers only."""
    record = {"file_name": "a.png", "objects": {"bbox": XYWH, "categories": [0, 11]}}
    path = text(tmp_path / "train" / "metadata.jsonl", lines(record))
    found = read(str(tmp_path), "train")
    assert found.classes == ("0", "11") and "classes=FILE names them" in found.notes[0]
    huge = {"file_name": "a.png", "objects": {"bbox": XYWH, "categories": [9, 10**20]}}
    assert read(str(text(tmp_path / "huge.jsonl", lines(huge))), "train").classes == ("9", str(10**20))
    names = tuple(f"name{i}" for i in range(12))
    assert [row[2] for row in boxes(read(str(path), "train", ReadOptions(classes=names)))] == [["name0", "name11"]]


def test_numbers_that_name_the_classes_of_a_training_stay_names(tmp_path: Path) -> None:
    record = {"file_name": "a.png", "objects": {"bbox": XYWH, "categories": [1, 2]}}
    path = str(text(tmp_path / "val.jsonl", lines(record)))
    assert [row[2] for row in boxes(read(path, "val", ReadOptions(classes=("1", "2", "3"))))] == [["1", "2"]]
    with refused(DataError, "val.jsonl:1: object 1", "'1'", "(2, 3)"):
        read(path, "val", ReadOptions(classes=("2", "3")))
    with refused(DataError, "val.jsonl", "(1, 2)", "(1, 2, cat)"):
        read(path, "val", ReadOptions(classes=("1", "2", "cat")))


def test_mistakes_in_records_are_reported_in_one_pass(tmp_path: Path) -> None:
    rows = [
        {"file_name": "a.png", "objects": {"bbox": [[1, 2, 3]], "category": ["cat"]}},
        {"file_name": "b.png", "objects": {"bbox": XYWH, "category": ["cat"]}},
        {"file_name": "", "objects": {"bbox": [], "category": []}},
    ]
    with pytest.raises(DataError) as caught:
        read(str(text(tmp_path / "metadata.jsonl", lines(*rows))), "train")
    for words in (
        "metadata.jsonl:1.objects.bbox[0]",
        "metadata.jsonl:2: object 1: 2 boxes, but 1 categories",
        ":3: no image",
    ):
        assert words in str(caught.value)


@pytest.mark.parametrize("row", [{"file_name": "b", "object": {}}, {"file_name": "b", "objects": {}}])
def test_what_is_missing_in_records_is_not_taken_for_a_background(tmp_path: Path, row: dict) -> None:
    good = {"file_name": "a", "objects": {"bbox": [], "category": []}}
    with refused(DataError, "metadata.jsonl:2"):
        read(str(text(tmp_path / "metadata.jsonl", lines(good, row))), "train")


def test_lvis_has_addresses_instead_of_file_names(tmp_path: Path) -> None:
    paint(tmp_path / "train2017" / "1.png")
    image = {"id": 1, "coco_url": "http://images.cocodataset.org/train2017/1.png", "width": WIDTH, "height": HEIGHT}
    annotation = {"id": 1, "image_id": 1, "category_id": 1, "bbox": XYWH[0]}
    data = {"images": [image], "annotations": [annotation], "categories": [{"id": 1, "name": "cat"}]}
    found, _ = check_images(read(str(text(tmp_path / "lvis_v1_train.json", data)), "train"))
    assert found.path(0) == str(tmp_path / "train2017" / "1.png")


def test_label_files_of_yolo_are_never_refused(tmp_path: Path) -> None:
    rows = ["0 .5 .5 .2 .2", "0 0.1 0.1 0.9 0.1 0.9 0.9 0.1 0.9", "", "1 1 1 1 1", "a.jpg 1,2,3,4,0", "00001", "a 1"]
    rows += ["0 0.1 0.1 0.9 0.1 0.9 0.9 0.8 1e-05 1 0.2"]  # a polygon
    for number, row in enumerate(rows):
        assert format_of(File(text(tmp_path / f"{number}.txt", f"{row}\n{row}\n"))) not in NOT_READ


def _coco_of(name: str, *boxes: tuple) -> dict:
    rows = [{"id": i, "image_id": 1, "category_id": 1, "bbox": box} for i, box in enumerate(boxes)]
    return {"images": [{"id": 1, "file_name": "a.png"}], "annotations": rows, "categories": [{"id": 1, "name": name}]}


def _voc_of(*names: str) -> str:
    box = "<bndbox><xmin>{}</xmin><ymin>2</ymin><xmax>9</xmax><ymax>8</ymax></bndbox>"
    objects = (f"<object><name>{name}</name>{box.format(NAMES.index(name))}</object>" for name in names)
    return f"<annotation><filename>a.png</filename>{''.join(objects)}</annotation>"


NAMES = ("cat", "dog")
MERGED = {  # files of one image, made class by class -> the classes of its boxes, and how many equal ones count once
    "VOC": (
        {"cats/a.xml": _voc_of("cat"), "dogs/a.xml": _voc_of("dog", "dog"), "both/a.xml": _voc_of("dog")},
        "cat dog",
        2,
    ),
    "LabelMe": (
        {
            f"{name}.json": {"imagePath": "a.png", "shapes": [{"label": name, "points": [[1, 2], [9, 8]]}]}
            for name in NAMES
        },
        "cat dog",
        0,
    ),
    "annotation file": (
        {"train.txt": "a.png 1,2,9,8,0\n./a.png 3,4,9,8,1 1,2,9,8,0\n", "classes.txt": "cat\ndog\n"},
        "cat dog",
        1,
    ),
    "COCO": ({"x.json": _coco_of("cat", (1, 2, 3, 4)), "y.json": _coco_of("dog", (1, 2, 3, 4))}, "cat dog", 0),
    "YOLO": ({"data.yaml": "train: [., a.png]\nnames: [cat]\n", "a.txt": "0 .5 .5 .2 .2\n"}, "cat", 1),
}


@pytest.mark.parametrize("form", MERGED)
def test_label_files_of_one_image_that_were_made_class_by_class_are_merged(tmp_path: Path, form: str) -> None:
    """Each image was there twice, and trained with half of its boxes."""
    files, names, equal = MERGED[form]
    paint(tmp_path / "a.png")
    for name, contents in files.items():
        text(tmp_path / name, contents)
    found = read(str(tmp_path), "all" if form == "COCO" else "train")
    (row,) = boxes(found)
    assert Path(row[0]).name == "a.png" and sorted(row[2]) == names.split()
    (note,) = [note for note in found.notes if "merged: 1" in note]
    assert f"counted once: {equal}" in note and "a.png" in note
    assert len(found.box_lines) == len(found.areas) == len(found.boxes) == found.starts[-1]
