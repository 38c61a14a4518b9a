"""Data sets in the layouts of many tools and downloads are read, or refused by their names with the fix."""

import copy
import json
from collections.abc import Callable, Iterator
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
HEADER = "filename,width,height,class,xmin,ymin,xmax,ymax"


def paint(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    level = sum(map(ord, path.stem)) % 200
    path.write_bytes(cv2.imencode(path.suffix, np.full((HEIGHT, WIDTH, 3), level, np.uint8))[1].tobytes())


def lines(*rows: Any) -> str:
    return "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows)


def each(form: str) -> Iterator[str]:
    """The form of a line, filled for both boxes of the images a and b."""
    for image in ("a", "b"):
        for name, x1, y1, x2, y2 in BOXES:
            fractions = {f"f{key}": value / side for key, value, side in _fractions(x1, y1, x2, y2)}
            yield form.format(image=image, name=name, x1=x1, y1=y1, x2=x2, y2=y2, w=x2 - x1, h=y2 - y1, **fractions)


def _fractions(*corners: int) -> Iterator[tuple[str, int, int]]:
    return zip(("x1", "y1", "x2", "y2"), corners, (WIDTH, HEIGHT) * 2, strict=True)


TABLES = {
    "Kaggle wheat": ("image_id,width,height,bbox,source", '{image},200,100,"[{x1}.0, {y1}.0, {w}.0, {h}.0]",usask'),
    "Kaggle cars": ("image,xmin,ymin,xmax,ymax", "{image}.png,{x1}.25,{y1},{x2}.25,{y2}"),
    "Kaggle chest": ("image_id,class_name,class_id,x_min,y_min,x_max,y_max", "{image},{name},7,{x1},{y1},{x2},{y2}"),
    "Kaggle airplanes": (
        "id,image_id,geometry,class",
        '1,{image}.png,"[({x1}, {y1}), ({x2}, {y1}), ({x2}, {y2}), ({x1}, {y2}), ({x1}, {y1})]",{name}',
    ),
    "extent": ("filename,label,x,y,width,height", "{image}.png,{name},{x1},{y1},{w},{h}"),
    "extent and sizes": ("img_width,img_height,image,x,y,w,h,class", "200,100,{image}.png,{x1},{y1},{w},{h},{name}"),
    "SKU-110K": ("", "{image}.png,{x1},{y1},{x2},{y2},{name},200,100"),
    "Make Sense": ("", "{name},{x1},{y1},{w},{h},{image}.png,200,100"),
    "VoTT": ('"image","xmin","ymin","xmax","ymax","label"', '"{image}.png",{x1},{y1},{x2},{y2},"{name}"'),
    "LISA": (
        "Filename;Annotation tag;Upper left corner X;Upper left corner Y;Lower right corner X;Lower right corner Y;Origin",
        "{image}.png;{name};{x1};{y1};{x2};{y2};a.avi",
    ),
    "PyLabel": (
        "img_filename;img_width;img_height;ann_bbox_xmin;ann_bbox_ymin;ann_bbox_xmax;ann_bbox_ymax;cat_id;cat_name",
        "{image}.png;200;100;{x1};{y1};{x2};{y2};4;{name}",
    ),
    "Open Images": (
        "ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,IsOccluded,IsGroupOf",
        "{image},xclick,/m/{name},1,{fx1},{fx2},{fy1},{fy2},0,0",
    ),
}


@pytest.mark.parametrize("tool", TABLES)
def test_tables_of_many_kinds_are_read(tmp_path: Path, tool: str) -> None:
    """Tables next to them that hold no boxes do not matter: names of classes, and what a competition wants back."""
    header, form = TABLES[tool]
    for name in ("a", "b"):
        paint(tmp_path / "train" / f"{name}.png")
    text(tmp_path / "labels.csv", lines(*filter(None, [header]), *each(form)))
    text(tmp_path / "classes.csv", "cat,0\ndog,1\n"), text(tmp_path / "sample_submission.csv", "id,PredictionString\n")
    text(tmp_path / "class-descriptions-boxable.csv", "/m/cat,cat\n/m/dog,dog\n")
    found, notes = check_images(read(str(tmp_path), "train"))
    assert np.allclose(found.boxes, [box[1:] for box in BOXES] * 2, atol=0.26) and len(found) == 2
    if "cat" in found.classes:
        assert [row[2] for row in boxes(found)] == [["cat", "dog"]] * 2
    else:
        assert (
            found.classes == ("object",) and "no column for the class" in notes[0] and "merge=object:NAME" in notes[0]
        )
        assert read(str(tmp_path), "train", ReadOptions(merge="object:car")).classes == ("car",)


@pytest.mark.parametrize(
    ("row", "place", "named"),
    [
        ("TRAIN,gs://b/a.jpg,cat,0.1,0.2,,,0.3,0.4,,", "x.csv:1", "Vertex AI"),
        ("annotation_id,annotator,created_at,id,image,label,lead_time,updated_at", "x.csv:1", "Label Studio"),
        ("video_id,sequence,image_id,annotations", "x.csv:1", "column annotations"),
        ("image_id,PredictionString", "x.csv:1", "predictions"),
        ("image,class,bbox\na.png,cat,[1 2]", "x.csv:2", "[x, y, width, height]"),
        ("image,class,bbox\na.png,cat,left", "x.csv:2", "'left'"),
    ],
)
def test_tables_that_are_not_read_tell_why(tmp_path: Path, row: str, place: str, named: str) -> None:
    with refused(DataError, place, named):
        read(str(text(tmp_path / "x.csv", row + "\n")), "train")


def per_image(record: Callable[[str], Any]) -> list[Any]:
    return [record(image) for image in ("a", "b")]


def _figure(name: str, x1: int, y1: int, x2: int, y2: int) -> dict:
    points = {"exterior": [[x1, y1], [x2, y2]], "interior": []}
    return {"classTitle": name, "geometryType": "rectangle", "points": points}


def _human(box: tuple, tag: str = "cat", **extra: int) -> dict:
    return {"tag": tag, "fbox": box, "hbox": [0, 0, 1, 1], "extra": extra}


FRAMES = per_image(
    lambda image: {
        "name": f"{image}.png",
        "labels": [{"category": n, "box2d": {"x1": a, "y1": b, "x2": c, "y2": d}} for n, a, b, c, d in BOXES]
        + [{"category": "lane", "poly2d": []}],
    }
)
DATUMARO = {
    "categories": {"label": {"labels": [{"name": "cat"}, {"name": "dog"}]}},
    "items": per_image(
        lambda image: {
            "id": image,
            "image": {"path": f"{image}.png", "size": [100, 200]},
            "annotations": [
                {"type": "bbox", "label_id": 0, "bbox": XYWH[0]},
                {"type": "polygon", "label_id": 1, "points": [100, 20, 180, 20, 180, 90]},
            ],
        }
    ),
}
JSON = {
    "Hugging Face": lines(
        *per_image(lambda i: {"file_name": f"{i}.png", "objects": {"bbox": XYWH, "category": ["cat", "dog"]}})
    ),
    "CrowdHuman": lines(
        *per_image(lambda i: {"ID": i, "gtboxes": [_human(XYWH[0], extra=0), _human(XYWH[1], tag="dog")]})
    ),
    "Ultralytics": lines(
        {"type": "dataset", "task": "detect", "class_names": {"0": "cat", "1": "dog"}},
        *per_image(
            lambda image: {
                "type": "image",
                "file": f"{image}.png",
                "width": WIDTH,
                "height": HEIGHT,
                "split": "train",
                "annotations": {"boxes": [[0, 0.2, 0.3, 0.2, 0.4], [1, 0.7, 0.55, 0.4, 0.7]]},
            }
        ),
    ),
    "Grounding DINO": lines(
        *per_image(
            lambda image: {
                "filename": f"{image}.png",
                "detection": {"instances": [{"bbox": box, "label": 0, "category": name} for name, *box in BOXES]},
            }
        )
    ),
    "BDD100K": FRAMES,
    "Scalabel": {"frames": FRAMES, "config": {}},
    "Datumaro": DATUMARO,
}
SUFFIXES = {"Hugging Face": ".jsonl", "CrowdHuman": ".odgt", "Ultralytics": ".ndjson", "Grounding DINO": ".jsonl"}


@pytest.mark.parametrize("tool", JSON)
def test_json_of_many_tools_is_read(tmp_path: Path, tool: str) -> None:
    path = text(tmp_path / "annotations" / f"all{SUFFIXES.get(tool, '.json')}", JSON[tool])
    for name in ("a", "b"):
        paint(tmp_path / "images" / f"{name}.png")
    for source in (path, tmp_path):
        found, notes = check_images(read(str(source), "train"))
        assert np.allclose(found.boxes, [box[1:] for box in BOXES] * 2) and found.classes == ("cat", "dog")
        assert [row[2] for row in boxes(found)] == [["cat", "dog"]] * 2
        assert len(notes) == (tool in ("BDD100K", "Scalabel")) and all(
            "'lane' (label without box2d)" in n for n in notes
        )


@pytest.mark.parametrize(
    ("attributes", "crowd"),
    [
        ({"is_crowd": True}, True),
        ({"is_crowd": False, "occluded": True}, False),
        ({"is_crowd": "true"}, True),
        (None, False),
    ]
    + [({"difficult": True}, True), ({"difficult": "perhaps"}, False), ({"is_crowd": 1}, True), ({}, False)],
)
def test_crowd_regions_of_datumaro_are_kept(tmp_path: Path, attributes: dict | None, crowd: bool) -> None:
    contents = copy.deepcopy(DATUMARO)
    for annotation in contents["items"][0]["annotations"]:
        annotation["attributes"] = attributes
    found = read(str(text(tmp_path / "all.json", contents)), "train")
    assert found.crowd.tolist() == [crowd, crowd, False, False]


def test_an_unclear_crowd_region_of_datumaro_is_a_problem(tmp_path: Path) -> None:
    contents = copy.deepcopy(DATUMARO)
    contents["items"][0]["annotations"][0]["attributes"] = {"is_crowd": "perhaps"}
    with refused(DataError, "all.json: items[0]: object 1", "'perhaps'"):
        read(str(text(tmp_path / "all.json", contents)), "train")


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


def test_ignored_people_of_crowdhuman_are_crowd_regions(tmp_path: Path) -> None:
    people = [_human(XYWH[0], "person"), _human(XYWH[1], "person", ignore=1), _human((1, 1, 9, 9), "mask", ignore=1)]
    text(tmp_path / "annotation_train.odgt", lines({"ID": "a", "gtboxes": people})), paint(tmp_path / "a.png")
    found = read(str(tmp_path), "train")
    assert found.classes == ("person",) and found.crowd.tolist() == [False, True, True]


def test_parts_in_one_file_of_json_lines_are_read(tmp_path: Path) -> None:
    head, *rows = JSON["Ultralytics"].splitlines()
    path = text(tmp_path / "pets.ndjson", lines(head, rows[0], rows[1].replace('"train"', '"val"')))
    names = {part: [Path(r[0]).name for r in boxes(read(str(path), part))] for part in ("train", "val", "all")}
    assert names == {"train": ["a.png"], "val": ["b.png"], "all": ["a.png", "b.png"]}
    with refused(DataError, "pets.ndjson", "test", "train, val"):
        read(str(path), "test")


def test_images_of_no_part_in_json_lines_are_reported(tmp_path: Path) -> None:
    splits = {"a": {}, "b": {"split": "train "}, "c": {"split": "val"}, "d": {"split": None}, "e": {"split": "more"}}
    objects = {"bbox": XYWH[:1], "category": ["cat"]}
    rows = [{"file_name": f"{name}.png", "objects": objects, **split} for name, split in splits.items()]
    path = text(tmp_path / "m.jsonl", lines(*rows))
    for part, name in (("train", "b.png"), ("val", "c.png")):
        found = read(str(path), part)
        assert [Path(row[0]).name for row in boxes(found)] == [name]
        assert (
            "m.jsonl: images that belong to no split, left out: 3, for example a.png (" in found.notes[0]
            and "'more'" in found.notes[0]
        )
    assert len(read(str(path), "all")) == 5 and not read(str(path), "all").notes


def test_lines_of_one_image_in_two_splits_are_a_problem(tmp_path: Path) -> None:
    objects = {"bbox": XYWH[:1], "category": ["cat"]}
    rows = [{"file_name": "a.png", "objects": objects, "split": split} for split in ("train", "test")]
    with refused(DataError, "m.jsonl:2", "a.png", "'test'", "m.jsonl:1"):
        read(str(text(tmp_path / "m.jsonl", lines(*rows))), "train")


def test_all_parts_of_json_lines_have_the_classes_of_the_file(tmp_path: Path) -> None:
    rows = [
        {"file_name": f"{name}.png", "objects": {"bbox": XYWH[:1], "category": [name]}, "split": split}
        for name, split in (("dog", "train"), ("cat", "val"))
    ]
    path = text(tmp_path / "m.jsonl", lines(*rows))
    assert [read(str(path), split).classes for split in ("train", "val")] == [("cat", "dog")] * 2


def test_a_part_with_mistakes_only_is_not_called_missing(tmp_path: Path) -> None:
    good = {"file_name": "a.png", "objects": {"bbox": XYWH[:1], "category": ["cat"]}, "split": "val"}
    path = text(tmp_path / "m.jsonl", lines({"file_name": 7, "objects": {}, "split": "train"}, good))
    with refused(DataError, "m.jsonl:1.file_name", "7"):
        read(str(path), "train")


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


def test_nan_in_records_is_named(tmp_path: Path) -> None:
    record = {"file_name": "a.png", "objects": {"bbox": [(1, 2, float("nan"), 4)], "category": ["cat"]}}
    human = {"ID": "a", "gtboxes": [_human((1, 2, float("inf"), 4))]}
    figures = {"objects": [_figure("cat", 1, 2, float("nan"), 4)]}
    for name, contents, word in (
        ("m.jsonl", record, "NaN"),
        ("m.odgt", human, "Infinity"),
        ("ds0/ann/a.png.json", figures, "NaN"),
    ):
        source = text(tmp_path / name, lines(contents))
        with refused(DataError, source.name, f"JSON ({word}"):
            read(str(tmp_path if "/" in name else source), "train")


def test_polygons_and_rotated_boxes_of_ultralytics_become_boxes(tmp_path: Path) -> None:
    head = {"class_names": {"0": "cat"}, "type": "dataset"}
    for kind in ("segments", "obb"):
        rows = [[0, 0.1, 0.2, 0.5, 0.2, 0.3, 0.4]]
        record = {"file": "a.png", "width": 100, "height": 50, "annotations": {kind: rows}}
        found = read(str(text(tmp_path / "pets.ndjson", lines(head, record))), "train")
        assert np.allclose(found.boxes, [[10, 10, 50, 20]]) and found.classes == ("cat",)


MISSING = {  # a file, and the place and the value of its problem
    "unknown annotations": ("x.ndjson", lines({"class_names": {}, "type": "dataset"}, {"file": "a", "annotations": {"a": []}}),
                            ("x.ndjson:2.annotations", "`a`")),
    "class without a name": ("x.ndjson", lines({"class_names": {"0": "cat"}, "type": "dataset"},
                             {"file": "a", "width": 9, "height": 9, "annotations": {"boxes": [[3, 0.5, 0.5, 0.2, 0.2]]}}),
                             ("x.ndjson:2: object 1", "'3'", "(0)")),
    "no objects": ("metadata.jsonl", lines({"file_name": "a", "objects": {"bbox": []}}, {"file_name": "b", "object": {}}),
                   ("metadata.jsonl:2", "`objects`")),
    "no boxes": ("x.odgt", lines({"ID": "a", "gtboxes": []}, {"ID": "b", "gtbox": []}),
                 ("x.odgt:2", "`gtboxes`")),
    "no list": ("x.json", {"frames": {"a": "box2d"}}, ("x.json: frames", "`array`")),
    "no names": ("x.json", {"categories": {"label": {"labels": []}}, "items": [{"id": "a", "annotations": [
                 {"type": "bbox", "label_id": 2, "bbox": [1, 2, 3, 4]}]}]}, ("x.json: items[0]: object 1", "'2'")),
    "odd points": ("x.json", {"categories": {"label": {"labels": [{"name": "cat"}]}}, "items": [{"id": "a", "annotations": [
                   {"type": "polygon", "label_id": 0, "points": [1, 2, 3, 4, 5]}]}]},
                   ("x.json: items[0]: object 1", "5 numbers")),
    "too deep": ("x.odgt", lines({"ID": "a", "gtboxes": []}) + '{"ID": ' + "[" * 3000 + "]" * 3000 + "}",
                 ("x.odgt:2",)),
}  # fmt: skip


@pytest.mark.parametrize("what", MISSING)
def test_what_is_missing_in_records_is_not_taken_for_a_background(tmp_path: Path, what: str) -> None:
    name, contents, named = MISSING[what]
    with refused(DataError, *named):
        read(str(text(tmp_path / name, contents)), "train")


def test_bdd_is_recognized_after_many_images_without_boxes(tmp_path: Path) -> None:
    frames = [{"name": f"{i}.png", "labels": None} for i in range(20)]
    found = read(str(text(tmp_path / "bdd.json", [*frames, {**FRAMES[0], "name": "z.png"}])), "train")
    assert len(found) == 21 and np.allclose(found.boxes, [box[1:] for box in BOXES])


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


@pytest.mark.parametrize("name", ["split", "set", "subset", "usage"])
def test_json_lines_are_divided_by_the_field_that_names_splits(tmp_path, name):
    """Images of the test split were trained on."""
    rows = []
    for image, word in (("a.png", "train"), ("b.png", "valid"), ("c.png", "test")):
        paint(tmp_path / image)
        rows.append({"file_name": image, name: word, "objects": {"bbox": [[1, 2, 3, 4]], "category": ["cat"]}})
    path = text(tmp_path / "metadata.jsonl", lines(*rows))
    assert [len(read(str(path), split)) for split in ("train", "val", "test", "all")] == [1, 1, 1, 3]


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


def test_the_subsets_of_a_project_of_cvat_are_its_splits(tmp_path: Path) -> None:
    """Images of the test split were trained on. CVAT writes subset= into every image of an exported project."""
    box = '<box label="cat" xtl="1" ytl="2" xbr="9" ybr="8"/>'
    subsets = ("Train", "Validation", "Test")
    rows = [f'<image name="{number}.png" subset="{subsets[number % 3]}">{box}</image>' for number in range(6)]
    for number in range(6):
        paint(tmp_path / "images" / f"{number}.png")
    path = text(tmp_path / "annotations.xml", f"<annotations>{''.join(rows)}</annotations>")
    for source in (tmp_path, path):
        for split, numbers in (("train", "03"), ("val", "14"), ("test", "25"), ("all", "012345")):
            assert [Path(row[0]).stem for row in boxes(read(str(source), split))] == list(numbers)
    path.write_text(path.read_text().replace("Validation", "Train").replace("Test", "Train"))
    with refused(DataError, path, "val", "train"):
        read(str(path), "val")
