"""COCO JSON: every kind of ids, segmentation without boxes, groups of categories, places of images, and damaged values."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from files import boxes, paint, text
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pycocotools import mask
from pycocotools.coco import COCO
from refused import refused, told

from datasets.errors import DataError
from datasets.formats.options import ReadOptions
from datasets.formats.read import read
from datasets.sources import read_train_and_val
from train import Config


def image(id_: Any, name: str, **changes: Any) -> dict:
    return {"id": id_, "file_name": name, "width": 40, "height": 20} | changes


def annotation(image_id: Any = 1, category_id: Any = 1, **changes: Any) -> dict:
    return {"id": 5, "image_id": image_id, "category_id": category_id, "bbox": [1, 2, 3, 4]} | changes


def write(folder: Path, images: Any = None, annotations: Any = None, categories: Any = None, name="x.json") -> str:
    contents = {
        "info": {"any": [1, {}]},
        "images": [image(1, "a.png")] if images is None else images,
        "annotations": [annotation()] if annotations is None else annotations,
        "categories": [{"id": 1, "name": "cat"}] if categories is None else categories,
    }
    return str(text(folder / name, json.dumps(contents)))


def problems_of(path: str) -> str:
    """The message about the problems of a file whose images can be read."""
    for name in ("a.png", "b.png"):
        paint(Path(path).with_name(name))
    with pytest.raises(DataError) as caught:
        read(path, "train")
    return str(caught.value)


def test_ids_of_any_type_become_whole_numbers_and_whole_numbers_stay(tmp_path: Path) -> None:
    categories = [{"id": "b-7", "name": "dog"}, {"id": 7.0, "name": "cat"}, {"id": "9", "name": "owl"}]
    images = [image("6f1e-uuid", "a.png"), image(12, "b.png"), image(2.5, "c.png")]
    rows = [annotation("6f1e-uuid", "b-7"), annotation("12", 7), annotation(2.5, 9, id="any")]
    found = read(write(tmp_path, images, rows, categories), "train")
    assert found.classes == ("cat", "owl", "dog") and found.category_ids.tolist() == [7, 9, 10]
    assert found.image_ids.tolist() == [13, 12, 14]
    assert [row[2] for row in boxes(found)] == [["dog"], ["cat"], ["owl"]]
    assert "images whose id is not a whole number below 2^53, which are numbered: 2" in "".join(found.notes)
    assert "categories whose id is not a whole number below 2^53, which are numbered: 1" in "".join(found.notes)


def test_boxes_come_from_the_segmentation_where_there_is_no_bbox(tmp_path: Path) -> None:
    pixels = np.zeros((20, 40), np.uint8, order="F")
    pixels[3:9, 5:21] = 1
    packed = mask.encode(pixels)
    packed["counts"] = packed["counts"].decode()
    runs = [5 * 20 + 3, *([6, 14] * 16)[:-1]]
    runs.append(20 * 40 - sum(runs))
    outlines = [[[1, 2, 9, 2.5, 4, 8], [3, 1, 11, 4, 5, 5]], packed, {"size": [20, 40], "counts": runs}]
    rows = [annotation(bbox=bbox, segmentation=one) for one, bbox in zip(outlines, (None, [], None), strict=True)]
    found = read(write(tmp_path, annotations=rows), "train")
    assert found.boxes.tolist() == [[1, 1, 11, 8], [5, 3, 21, 9], [5, 3, 21, 9]]
    kept = [annotation(segmentation=[["junk"]])]  # with a bbox it is not even parsed
    assert read(write(tmp_path, annotations=kept, name="y.json"), "train").boxes.tolist() == [[1, 2, 4, 6]]


def test_a_missing_segmentation_and_damaged_ones_are_errors_with_their_place(tmp_path: Path) -> None:
    damaged = [[[1, 2, 3]], [["a"]], 5, {"size": [0, 4], "counts": "a"}, {"size": [4, 4], "counts": [-1]}]
    rows = [{"id": 90 + n, "image_id": 1, "category_id": 1, "segmentation": one} for n, one in enumerate(damaged)]
    message = problems_of(write(tmp_path, annotations=rows))
    assert f"problems: {len(damaged)}" in message
    assert all(f"x.json: annotations[{n}].segmentation" in message for n in range(len(damaged)))
    assert "(id 90)" in message and 'annotations[1].segmentation (id 91)[0][0] is "a"' in message


def test_category_0_without_boxes_in_one_part_stays_a_class(tmp_path: Path) -> None:
    categories = [{"id": 0, "name": "person"}, {"id": 1, "name": "cat", "supercategory": "animal"}]
    train = read(write(tmp_path, categories=categories), "train")
    val = read(
        write(tmp_path, None, [annotation(1, 0)], categories, "val.json"), "val", ReadOptions(classes=train.classes)
    )
    assert train.classes == val.classes == ("person", "cat") and val.labels.tolist() == [0]


def test_a_group_with_the_name_of_a_class_is_left_out_first(tmp_path: Path) -> None:
    categories = [{"id": 0, "name": "cat", "supercategory": "none"}]
    categories += [{"id": n, "name": name, "supercategory": "cat"} for n, name in ((1, "cat"), (2, "dog"))]
    path = write(tmp_path, categories=categories)
    for classes in (None, ("cat", "dog")):
        found = read(path, "train", ReadOptions(classes=classes))
        assert found.classes == ("cat", "dog") and found.category_ids.tolist() == [1, 2]
        assert found.labels.tolist() == [0] and "category 0 'cat' has no box" in found.notes[0]


@pytest.mark.parametrize(
    ("file", "place", "name"),
    [
        ("annotations/instances_train2017.json", "train2017/a.png", "a.png"),
        ("annotations/instances_train2017.json", "images/train2017/a.png", "a.png"),
        ("annotations/instances_train.json", "images/train/a.png", "a.png"),
        ("annotations/train.json", "train/a.png", "a.png"),
        ("annotations/custom_train.json", "train2017/a.png", "a.png"),
        ("annotations/custom_train.json", "images/Training/a.png", "a.png"),
        ("annotations/val.json", "valid/a.png", "a.png"),
        ("annotations/instances_default.json", "images/default/a.png", "a.png"),
        ("annotations/x.json", "images/a.png", "a.png"),
        ("annotations/x.json", "train2017/a.png", "train2017/a.png"),
        ("train.json", "train/a.png", "a.png"),
        ("result.json", "images/3f2a9c1d-a.png", "/data/upload/7/3f2a9c1d-a.png"),
        ("result.json", "images/a.png", "upload\\7\\3f2a9c1d-a.png"),
        ("result.json", "images/a 1.png", "/data/local-files/?d=other%20disk/a%201.png"),
        ("result.json", "images/deep/a.png", "C:\\Users\\me\\a.png"),
        ("result.json", "a.png", "https://host/bucket/a.png"),
    ],
)
def test_images_are_found_where_tools_put_them(tmp_path: Path, file: str, place: str, name: str) -> None:
    paint(tmp_path / place)
    found = read(write(tmp_path, [image(1, name)], name=file), "all")
    assert Path(found.path(0)).resolve() == (tmp_path / place).resolve()


def test_images_are_found_from_the_folder_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, [image(1, "/data/upload/a.png")])
    paint(tmp_path / "deep" / "a.png")
    monkeypatch.chdir(tmp_path)
    assert read("x.json", "train").path(0) == "deep/a.png"


def test_image_root_serves_both_official_parts(tmp_path: Path) -> None:
    for part in ("train", "val"):
        paint(tmp_path / "pixels" / f"{part}2017" / "a.png")
        path = write(tmp_path, name=f"labels/instances_{part}2017.json")
        found = read(path, part, ReadOptions(image_root=str(tmp_path / "pixels")))
        assert found.path(0) == str(tmp_path / "pixels" / f"{part}2017" / "a.png")


def test_names_that_several_images_have_are_not_exchanged(tmp_path: Path) -> None:
    paint(tmp_path / "images" / "a.png")
    found = read(write(tmp_path, [image(1, "one/a.png"), image(2, "two/a.png")]), "train")
    assert [found.names[i] for i in range(2)] == ["one/a.png", "two/a.png"]  # reported as missing later
    other = paint(tmp_path / "spare" / "a.png")
    message = problems_of(write(tmp_path, [image(1, "other/a.png")]))
    assert "other/a.png" in message and str(other) in message and str(tmp_path / "images" / "a.png") in message


def test_all_damaged_values_are_reported_in_one_pass_with_their_place(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        [image(1, "a.png", height="64px"), image(2, "b.png"), 7],
        [
            annotation(2, area=-5),
            annotation(2, area=float("nan")),
            annotation(2, bbox=[1, 2, "x", 4]),
            annotation(True),
            annotation(2, bbox=[1, 2, float("inf"), 4]),
            annotation(2, bbox=[1, 2]),
        ],
    )
    message = problems_of(path)
    assert "problems: 8" in message
    for place in (
        'images[0].height (id 1) is "64px"',
        "images[2] is 7",
        "annotations[0].area (id 5) is -5: expected `float` >= 0.0",
        'annotations[1].area (id 5) is "NaN"',
        'annotations[2].bbox[2] (id 5) is "x"',
        "annotations[3].image_id (id 5) is true",
        "annotation 5 of b.png: box 1,2,inf,6",
        "annotation 5 of b.png: bbox [1.0, 2.0] must be",
    ):
        assert f"x.json: {place}" in message


TOO_DEEP = ("recursion",) if sys.version_info < (3, 12) else ("images[0]",)  # later versions read deeper ones


@pytest.mark.parametrize(
    ("contents", "words"),
    [
        ('{"images": 5, "annotations": "no"}', ("images is 5: expected `array", 'annotations is "no"')),
        ('{"images": [], "annotations": [{"image_id": 1, "category_id": 1e999}]}', ("annotations[0].category_id",)),
        ('{"images": [{"id": 1, "file_name": "a", "width": ' + "9" * 400 + "}]}", ("images[0].width",)),
        ('{"images": [' + "[" * 5000 + "]" * 5000 + "]}", TOO_DEEP),
        ('{"images": [{"id": ' + "[" * 900 + "]" * 900 + "}]}", ("images[0]",)),
        ('{"images": ' + "9" * 5000 + ', "x": NaN}', ("not JSON",)),
        ('{"images": [1, 2', ("x.json:1: not JSON",)),
        ("5", ("a number or text",)),
        ("NaN", ("a number or text",)),
        ('{"images": [{"id": 1, "file_name": "a", "width": 1e999, "height": NaN}]}', ("images[0].width", '"1e999"')),
        ('{"annotations": []}', ("annotations",)),
        ('{"images": [{"image_name": "a.png", "labels": []}]}', ("no known format", "images", "boxes.txt")),
        ('[{"image_id": 1, "bbox": [1, 2, 3, 4], "score": 0.5}]', ("COCO detections",)),
    ],
)
def test_any_structure_is_one_clean_error(tmp_path: Path, contents: str, words: tuple) -> None:
    message = problems_of(str(text(tmp_path / "x.json", contents)))
    assert "x.json" in message and all(word in message for word in words)


def test_text_that_is_not_utf8_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(b'{"images": [{"id": 1, "file_name": "\xe9.png"}]}')
    assert "utf-8" in problems_of(str(tmp_path / "x.json"))
    (tmp_path / "x.json").write_bytes('{"images": []}'.encode("utf-16"))
    assert "utf-8" in problems_of(str(tmp_path / "x.json"))


number = st.floats(0.25, 50).map(lambda value: round(value, 2))
corner = st.floats(1, 50).map(lambda value: round(value, 2))  # a box within the first pixel is a bad box
BOX = st.tuples(corner, corner, number, number).map(list)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.tuples(st.integers(1, 3), st.integers(4, 6), BOX, st.booleans(), number), max_size=8),
    bitmap=st.lists(st.integers(0, 1), min_size=12, max_size=12),
)
def test_everything_is_read_as_by_pycocotools(tmp_path: Path, rows: list, bitmap: list) -> None:
    images = [image(n, f"{n}.png") for n in (3, 1, 2)]
    annotations = [
        {"id": n, "image_id": i, "category_id": c, "bbox": box, "iscrowd": int(crowd), "area": area}
        for n, (i, c, box, crowd, area) in enumerate(rows, 1)
    ]
    runs = mask.encode(np.asfortranarray(np.array(bitmap, np.uint8).reshape(3, 4)))
    if any(bitmap):
        outline = {"size": [3, 4], "counts": runs["counts"].decode()}
        annotations.append(
            {"id": 99, "image_id": 2, "category_id": 4, "segmentation": outline, "area": 1, "iscrowd": 0}
        )
    path = write(tmp_path, images, annotations, [{"id": n, "name": f"c{n}"} for n in (6, 4, 5)])
    found, theirs = read(path, "train").coco(), COCO(path)
    keys = ("image_id", "category_id", "iscrowd", "area")
    mine = sorted((*(row[key] for key in keys), *np.round(row["bbox"], 6)) for row in found["annotations"])
    truth = [row | {"bbox": row.get("bbox", mask.toBbox(runs).tolist())} for row in theirs.anns.values()]
    assert mine == sorted((*(row[key] for key in keys), *np.round(row["bbox"], 6)) for row in truth)
    assert [row["id"] for row in found["images"]] == [3, 1, 2]
    assert {row["id"]: row["name"] for row in found["categories"]} == {n: c["name"] for n, c in theirs.cats.items()}


def test_a_word_that_is_no_split_divides_nothing(tmp_path):
    path = write(tmp_path, [image(1, "a.png", split="roof"), image(2, "b.png", subset="ground")])
    assert len(read(path, "train")) == 2


def test_a_file_with_captions_only_is_an_error_that_names_what_to_give(tmp_path):
    path = tmp_path / "captions.json"
    images = [{"id": 1, "file_name": "1.png"}]
    path.write_text(json.dumps({"images": images, "annotations": [{"id": 5, "image_id": 1, "caption": "a cat"}]}))
    with refused(DataError, "captions.json", "instances_train2017.json"):
        read(str(path), "train")


def test_a_file_that_names_its_splits_needs_no_val(tmp_path: Path) -> None:
    """It was refused as training data without a split for validation."""
    for name in ("a.png", "b.png"):
        paint(tmp_path / name)
    images = [image(1, "a.png", subset="train"), image(2, "b.png", subset="val")]
    path = write(tmp_path, images, [annotation(1), annotation(2)])
    parts = read_train_and_val(path, Config.val, ReadOptions(), lambda note: None)
    assert [Path(part.path(0)).name for part in parts] == ["a.png", "b.png"]


def test_an_image_whose_object_has_no_box_is_left_out_and_one_marked_empty_is_a_background(tmp_path: Path) -> None:
    """As in data sets of camera traps. The counter-check: where every image has such an object, there is nothing to train."""
    images, categories = (
        [image(n, f"{n}.png") for n in (1, 2, 3)],
        [{"id": 0, "name": "Empty"}, {"id": 1, "name": "cat"}],
    )
    marks = [annotation(2, 0, id=6, bbox=None), annotation(3, 1, id=7, bbox=None)]
    found = read(write(tmp_path, images, [annotation(1, 1), *marks], categories), "train")
    assert [Path(found.path(i)).name for i in range(len(found))] == ["1.png", "2.png"] and found.classes == ("cat",)
    told("\n".join(found.notes), "3.png", "annotation 7", "'Empty'")
    with refused(DataError, "3.png", "annotation 7", "give the file with the boxes"):
        read(write(tmp_path, images[2:], marks[1:], categories), "train")
