"""The same two images in every format: classes, splits, image_root, bad_boxes and notes mean the same in all of them."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from files import boxes, paint, text
from refused import refused, told

from datasets.check_images import check_images
from datasets.errors import DataError
from datasets.formats.options import ReadOptions
from datasets.formats.read import read
from datasets.store import Annotations

WIDTH, HEIGHT = 200, 100
Rows = list[tuple[str, int, int, int, int]]  # class, x1, y1, x2, y2
ROWS: Rows = [("cat", 20, 10, 60, 50), ("dog", 100, 20, 180, 90)]  # of both images
NO_AREA: Rows = [*ROWS, ("dog", 30, 30, 30, 50)]
NAMES = ("cat", "dog")


def xywh(row: tuple) -> list[int]:
    return [row[1], row[2], row[3] - row[1], row[4] - row[2]]


def annotation_file(folder: Path, images: list[str], rows: Rows, split: str) -> None:
    words = " ".join(",".join(map(str, [*row[1:], NAMES.index(row[0])])) for row in rows)
    text(folder / f"{split or 'all'}.txt", "".join(f"images/{image}.png {words}\n" for image in images))
    text(folder / "classes.txt", "cat\ndog\n")


def yolo_labels(folder: Path, images: list[str], rows: Rows) -> None:
    lines = ""
    for name, x1, y1, x2, y2 in rows:
        center = ((x1 + x2) / 2 / WIDTH, (y1 + y2) / 2 / HEIGHT)
        lines += " ".join(map(str, [NAMES.index(name), *center, (x2 - x1) / WIDTH, (y2 - y1) / HEIGHT])) + "\n"
    for image in images:
        text(folder / f"{image}.txt", lines)


def yolo(folder: Path, images: list[str], rows: Rows, split: str) -> None:
    yolo_labels(folder / "labels" / split, images, rows)
    text(folder / "classes.txt", "cat\ndog\n")


def yolo_yaml(folder: Path, images: list[str], rows: Rows, split: str) -> None:
    yolo_labels(folder / "labels" / split, images, rows)
    splits = ("train", "val") if split else ("train",)
    entries = "".join(f"{name}: images/{name if split else ''}\n" for name in splits)
    text(folder / "data.yaml", f"{entries}names: [cat, dog]\n")


def voc(folder: Path, images: list[str], rows: Rows, split: str) -> None:
    for image in images:
        objects = "".join(
            f"<object><name>{name}</name><bndbox><xmin>{x1}</xmin><ymin>{y1}</ymin><xmax>{x2}</xmax><ymax>{y2}</ymax>"
            "</bndbox></object>"
            for name, x1, y1, x2, y2 in rows
        )
        path = folder / "Annotations" / split / f"{image}.xml"
        text(path, f"<annotation><filename>{image}.png</filename>{objects}</annotation>")


def cvat(folder: Path, images: list[str], rows: Rows, split: str) -> None:
    shapes = "".join(f'<box label="{n}" xtl="{a}" ytl="{b}" xbr="{c}" ybr="{d}"/>' for n, a, b, c, d in rows)
    found = "".join(f'<image name="{image}.png" width="200" height="100">{shapes}</image>' for image in images)
    text(folder / f"{split or 'all'}.xml", f"<annotations>{found}</annotations>")


def coco(folder: Path, images: list[str], rows: Rows, split: str) -> None:
    pairs = [(number, row) for number in range(len(images)) for row in rows]
    contents = {
        "images": [
            {"id": n, "file_name": f"{image}.png", "width": WIDTH, "height": HEIGHT} for n, image in enumerate(images)
        ],
        "annotations": [
            {"id": i, "image_id": number, "category_id": 5 + NAMES.index(row[0]), "bbox": xywh(row)}
            for i, (number, row) in enumerate(pairs)
        ],
        "categories": [{"id": 5 + label, "name": name} for label, name in enumerate(NAMES)],
    }
    text(folder / "annotations" / f"instances_{split or 'all'}.json", contents)


def labelme(folder: Path, images: list[str], rows: Rows, split: str) -> None:
    shapes = [{"label": n, "points": [[a, b], [c, d]], "shape_type": "rectangle"} for n, a, b, c, d in rows]
    for image in images:
        text(folder / "images" / split / f"{image}.json", {"imagePath": f"{image}.png", "shapes": shapes})


def labelstudio(folder: Path, images: list[str], rows: Rows, split: str) -> None:
    results = []
    for name, x1, y1, x2, y2 in rows:
        value = {"x": x1 / 2, "y": y1, "width": (x2 - x1) / 2, "height": y2 - y1, "rectanglelabels": [name]}
        results.append({"type": "rectanglelabels", "value": value})
    tasks = [{"data": {"image": f"/data/{image}.png"}, "annotations": [{"result": results}]} for image in images]
    text(folder / f"{split or 'all'}.json", tasks)


def via(folder: Path, images: list[str], rows: Rows, split: str) -> None:
    regions = []
    for row in rows:
        shape = {"name": "rect", **dict(zip(("x", "y", "width", "height"), xywh(row), strict=True))}
        regions.append({"shape_attributes": shape, "region_attributes": {"class": row[0]}})
    text(folder / f"{split or 'all'}.json", {i: {"filename": f"{i}.png", "regions": regions} for i in images})


def csv(folder: Path, images: list[str], rows: Rows, split: str) -> None:
    lines = ["filename,class,xmin,ymin,xmax,ymax"]
    lines += [",".join(map(str, [f"{image}.png", *row])) for image in images for row in rows]
    text(folder / f"{split or 'all'}.csv", "\n".join(lines) + "\n")


def csv_fractions(folder: Path, images: list[str], rows: Rows, split: str) -> None:
    lines = ["ImageID,LabelName,XMin,XMax,YMin,YMax"]
    for image in images:
        for name, x1, y1, x2, y2 in rows:
            lines.append(f"{image},{name},{x1 / WIDTH},{x2 / WIDTH},{y1 / HEIGHT},{y2 / HEIGHT}")
    text(folder / f"{split or 'all'}.csv", "\n".join(lines) + "\n")


def hugging_face(folder: Path, images: list[str], rows: Rows, split: str) -> None:
    objects = {"bbox": list(map(xywh, rows)), "category": [row[0] for row in rows]}
    lines = [json.dumps({"file_name": f"{image}.png", "objects": objects}) for image in images]
    text(folder / f"{split or 'all'}.jsonl", "\n".join(lines) + "\n")


def create_ml(folder: Path, images: list[str], rows: Rows, split: str) -> None:
    labels = []
    for name, x1, y1, x2, y2 in rows:
        center = {"x": (x1 + x2) / 2, "y": (y1 + y2) / 2, "width": x2 - x1, "height": y2 - y1}
        labels.append({"label": name, "coordinates": center})
    text(folder / f"{split or 'all'}.json", [{"image": f"{image}.png", "annotations": labels} for image in images])


def manifest(folder: Path, images: list[str], rows: Rows, split: str) -> None:
    shapes = []
    for row in rows:
        box = dict(zip(("left", "top", "width", "height"), xywh(row), strict=True))
        shapes.append({"class_id": NAMES.index(row[0]), **box})
    job = {"class-map": dict(enumerate(NAMES)), "type": "groundtruth/object-detection"}
    labels = {"pets": {"annotations": shapes}, "pets-metadata": job}
    lines = [json.dumps({"source-ref": f"s3://bucket/{image}.png", **labels}) for image in images]
    text(folder / f"{split or 'all'}.manifest", "\n".join(lines) + "\n")


FORMATS: dict[str, Callable[[Path, list[str], Rows, str], None]] = {
    "annotation file": annotation_file,
    "YOLO folder": yolo,
    "YOLO data.yaml": yolo_yaml,
    "VOC": voc,
    "CVAT": cvat,
    "COCO": coco,
    "LabelMe": labelme,
    "Label Studio": labelstudio,
    "VIA": via,
    "CSV": csv,
    "CSV of fractions": csv_fractions,
    "Hugging Face": hugging_face,
    "Create ML": create_ml,
    "SageMaker": manifest,
}


@pytest.fixture(params=FORMATS)
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    return request.param


def build(folder: Path, kind: str, rows: Rows = ROWS, splits: bool = False) -> str:
    """Writes the images a and b with their labels, b as validation split if there are `splits`."""
    for split, images in {"train": ["a"], "val": ["b"]}.items() if splits else [("", ["a", "b"])]:
        FORMATS[kind](folder, images, rows, split)
        for image in images:
            flat = kind == "annotation file"
            paint(folder / "images" / ("" if flat else split) / f"{image}.png", WIDTH, HEIGHT)
    return str(folder)


def labeled(found: Annotations) -> list[tuple[str, list[list[float]], list[str]]]:
    """(file name, boxes, class names) of each image, in the order of the names."""
    rows = [(Path(path).name, np.round(corners, 6).tolist(), names) for path, corners, names, _ in boxes(found)]
    return sorted(rows)


def expected(*images: str, rows: Rows = ROWS) -> list[tuple[str, list[list[float]], list[str]]]:
    corners, names = [list(map(float, row[1:])) for row in rows], [row[0] for row in rows]
    return [(f"{image}.png", corners, names) for image in images]


def test_boxes_classes_and_images_are_read_without_notes(tmp_path: Path, kind: str) -> None:
    found, notes = check_images(read(build(tmp_path, kind), "all"))
    assert labeled(found) == expected("a", "b")
    assert found.classes == NAMES
    assert found.sizes.tolist() == [[HEIGHT, WIDTH]] * 2
    assert notes == []


def test_splits_are_those_of_files_and_folders(tmp_path: Path, kind: str) -> None:
    source = build(tmp_path, kind, splits=True)
    assert labeled(read(source, "train")) == expected("a")
    assert labeled(read(source, "val")) == expected("b")
    assert labeled(read(source, "all")) == expected("a", "b")
    assert read(source, "train").other_splits == ("val",)


def test_classes_decide_the_order_and_other_classes_are_an_error_with_its_place(tmp_path: Path, kind: str) -> None:
    source = build(tmp_path, kind)
    found = read(source, "all", ReadOptions(classes=("dog", "bird", "cat")))
    assert labeled(found) == expected("a", "b")
    assert found.classes == ("dog", "bird", "cat")
    assert found.labels.tolist() == [2, 0] * 2
    with refused(DataError, source, "'cat'", "(dog)") as caught:
        read(source, "all", ReadOptions(classes=("dog",)))
    places = [line for line in str(caught.value).splitlines() if "'cat'" in line]
    assert len(places) == 1 and places[0].strip().startswith(source)
    told(places[0], "2 boxes")


def test_select_leaves_other_classes_out_and_merge_renames_them(tmp_path: Path, kind: str) -> None:
    source = build(tmp_path, kind)
    found = read(source, "all", ReadOptions(classes=("dog",), select=True))
    assert labeled(found) == expected("a", "b", rows=ROWS[1:])
    assert [("left out: 2" in note and "cat 2" in note) for note in found.notes] == [True]
    found = read(source, "all", ReadOptions(merge="dog:cat"))
    assert found.classes == ("cat",) and found.labels.tolist() == [0] * 4


def test_boxes_without_area_are_dropped_with_a_note_or_an_error(tmp_path: Path, kind: str) -> None:
    source = build(tmp_path, kind, NO_AREA)
    found, notes = check_images(read(source, "all"))
    assert labeled(found) == expected("a", "b")
    (note,) = notes
    assert "without area" in note and "left out: 2" in note and "30,30,30,50" in note
    with refused(DataError, "30,30,30,50", "bad_boxes=drop") as caught:
        read(source, "all", ReadOptions(bad_boxes="error"))
    assert str(caught.value).count("30,30,30,50") == 2


def test_images_are_found_in_image_root(tmp_path: Path, kind: str) -> None:
    source = build(tmp_path / "labels", kind)
    (tmp_path / "labels" / "images").rename(tmp_path / "elsewhere")
    if kind == "LabelMe":  # its files were next to the images
        (tmp_path / "labels" / "images").mkdir()
        for path in (tmp_path / "elsewhere").glob("*.json"):
            path.rename(tmp_path / "labels" / "images" / path.name)
    root = tmp_path / "elsewhere"
    if kind in ("annotation file", "YOLO data.yaml"):  # their paths hold the folder images
        root = tmp_path / "root"
        root.mkdir()
        (tmp_path / "elsewhere").rename(root / "images")
    if kind == "YOLO data.yaml":  # image_root replaces the folder of images and labels
        (tmp_path / "labels" / "labels").rename(root / "labels")
    found, notes = check_images(read(source, "all", ReadOptions(image_root=str(root))))
    assert labeled(found) == expected("a", "b") and notes == []
    assert all(found.path(index).startswith(str(root)) for index in range(len(found)))
