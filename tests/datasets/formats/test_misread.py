"""What was read wrong without a word: fields of exports that say something else than a plain box."""

import json
from pathlib import Path

import pytest
from files import boxes, coco, paint, text
from refused import mentions, refused

from datasets.check_images import check_images
from datasets.errors import DataError
from datasets.formats.options import ReadOptions, read_options
from datasets.formats.read import read
from datasets.formats.source import Source
from datasets.formats.splits import select_rows
from datasets.sources import read_train_and_val

CORNERS = [[1, 2], [9, 8]]


@pytest.mark.parametrize(
    ("fields", "crowd"), [({"ignore": 1}, True), ({"ignore": 0}, False), ({"iscrowd": 1, "ignore": 1}, True)]
)
def test_ignored_boxes_of_coco_are_crowd_regions(tmp_path: Path, fields: dict, crowd: bool) -> None:
    """Conversions of CrowdHuman, CityPersons and VisDrone write ignore. They were trained on."""
    paint(tmp_path / "a.png")
    row = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 2, 8, 6], **fields}
    data = {"images": [{"id": 1, "file_name": "a.png"}], "annotations": [row], "categories": [{"id": 1, "name": "cat"}]}
    found = read(str(text(tmp_path / "x.json", data)), "train")
    assert found.crowd.tolist() == [crowd]


RECT = {"shape_attributes": {"name": "rect", "x": 1, "y": 2, "width": 8, "height": 6}}
RESULT = {"type": "rectanglelabels", "original_width": 40, "original_height": 20}
RESULT |= {"value": {"x": 10, "y": 10, "width": 20, "height": 30, "rectanglelabels": ["cat"]}}
TWICE = {  # a file of each JSON reader -> a key in it, and the value that comes first
    "coco.json": (coco("a.png"), "annotations", []),
    "bbox.json": (coco("a.png"), "bbox", [1, 1, 2, 2]),
    "a.json": ({"imagePath": "a.png", "shapes": [{"label": "cat", "points": CORNERS}]}, "shapes", []),
    "label/a.json": ({"imagePath": "a.png", "shapes": [{"label": "cat", "points": CORNERS}]}, "label", "dog"),
    "tasks.json": ([{"data": {"image": "a.png"}, "annotations": [{"result": [RESULT]}]}], "annotations", []),
    "result.json": ([{"data": {"image": "a.png"}, "annotations": [{"result": [RESULT]}]}], "rectanglelabels", ["x"]),
    "via.json": (
        {"a.png1": {"filename": "a.png", "regions": [RECT | {"region_attributes": {"c": "cat"}}]}},
        "a.png1",
        {},
    ),
    "createml.json": ([{"image": "a.png", "annotations": []}], "annotations", []),
    "ann/a.png.json": ({"objects": [{"classTitle": "cat", "points": {"exterior": CORNERS}}]}, "objects", []),
    "metadata.jsonl": ({"file_name": "a.png", "objects": {"bbox": [], "category": []}}, "bbox", []),
    "output.manifest": (
        {"source-ref": "a.png", "p": {"annotations": []}, "p-metadata": {"type": "groundtruth/object-detection"}},
        "p",
        {},
    ),
}


@pytest.mark.parametrize("name", TWICE)
def test_a_key_that_is_there_twice_is_an_error(tmp_path: Path, name: str) -> None:
    """Its last value counted, without a word: a file joined by hand lost half of its boxes."""
    contents, key, first = TWICE[name]
    paint(tmp_path / "a.png")
    path, words = tmp_path / name, json.dumps(contents)
    read(str(text(path, words).parent), "train")
    twice = json.dumps({key: first})[1:-1]
    text(path, words.replace(f'"{key}":', f'{twice}, "{key}":'))
    with refused(DataError, path, key, "twice"):
        read(str(path.parent), "train")


@pytest.mark.parametrize("field", ["split", "set", "subset", "partition", "usage"])
@pytest.mark.parametrize("kind", ["COCO", "Hugging Face", "Create ML", "Label Studio", "VIA"])
def test_the_fields_that_name_a_split_are_the_same_in_all_formats(tmp_path: Path, kind: str, field: str) -> None:
    """Images of COCO with subset: test were trained on."""
    splits = {"a.png": {field: "train"}, "b.png": {field: " Test"}, "c.png": {field: "valid"}}
    data = coco(*splits)
    data["images"] = [image | splits[image["file_name"]] for image in data["images"]]
    region = RECT | {"region_attributes": {"c": "cat"}}
    contents = {
        "COCO": data,
        "Hugging Face": [{"file_name": n, "objects": {"bbox": [], "category": []}, **s} for n, s in splits.items()],
        "Create ML": [{"image": n, "annotations": [], **s} for n, s in splits.items()],
        "Label Studio": [{"data": {"image": n} | s, "annotations": [{"result": [RESULT]}]} for n, s in splits.items()],
        "VIA": {n: {"filename": n, "regions": [region], "file_attributes": s} for n, s in splits.items()},
    }[kind]
    words = "\n".join(map(json.dumps, contents)) if kind == "Hugging Face" else contents
    path = text(tmp_path / ("x.jsonl" if kind == "Hugging Face" else "x.json"), words)
    for split, name in (("train", "a.png"), ("test", "b.png"), ("val", "c.png")):
        assert [Path(row[0]).name for row in boxes(read(str(path), split))] == [name]
    assert len(read(str(path), "all")) == 3


def test_an_image_of_camera_traps_is_empty_only_where_its_category_says_so(tmp_path: Path) -> None:
    data = coco("empty.png", "boxed.png", "cat only.png", "nothing.png")
    data["categories"].append({"id": 0, "name": "empty"})
    data["annotations"] = [
        {"id": "x", "image_id": 0, "category_id": 0},
        {"id": "y", "image_id": 1, "category_id": 1, "bbox": [1, 2, 8, 6]},
        {"id": "z", "image_id": 2, "category_id": 1, "bbox": None},
        {"id": "v", "image_id": 2, "category_id": 1, "bbox": [1, 2, 8, 6]},
    ]
    found = read(str(text(tmp_path / "x.json", data)), "train")
    assert [(Path(row[0]).name, len(row[1])) for row in boxes(found)] == [
        ("empty.png", 0),
        ("boxed.png", 1),
        ("nothing.png", 0),
    ]
    assert found.classes == ("cat",) and any("cat only.png" in note and ": 1, for" in note for note in found.notes)
    data["annotations"] = [row | {"bbox": None} for row in data["annotations"]]
    with refused(DataError, "x.json", "boxed.png", "bbox"):
        read(str(text(tmp_path / "x.json", data)), "train")


def test_a_fault_of_a_reader_does_not_look_like_bad_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = text(tmp_path / "x.json", coco("a.png"))
    for fault in (AttributeError, KeyError, IndexError, TypeError, ValueError, ZeroDivisionError):
        monkeypatch.setattr(
            "datasets.formats.coco.whole_ids", lambda *_, fault=fault: (_ for _ in ()).throw(fault("x"))
        )
        with pytest.raises(fault) as caught:
            read(str(path), "train")
        assert not isinstance(caught.value, DataError)


def shape(label: str, points: list, kind: str = "polygon", group: int | str | None = None) -> dict:
    return {"label": label, "points": points, "shape_type": kind, "group_id": group}


def test_parts_of_one_object_of_labelme_are_one_box(tmp_path: Path) -> None:
    paint(tmp_path / "a.png")
    one, two = [[1, 1], [5, 1], [5, 5]], [[20, 2], [30, 2], [30, 9]]
    shapes = [shape("cat", one, group=3), shape("cat", two, group=3), shape("dog", two, group=3), shape("cat", two)]
    text(tmp_path / "a.json", {"imagePath": "a.png", "shapes": shapes})
    found = read(str(tmp_path), "train")
    assert boxes(found)[0][1:3] == ([[1, 1, 30, 9], [20, 2, 30, 9], [20, 2, 30, 9]], ["cat", "dog", "cat"])
    (note,) = found.notes
    assert "a.json: object 2" in note


def test_shapes_of_labelme_with_an_empty_group_are_objects_of_their_own(tmp_path: Path) -> None:
    """They were one box around all shapes of their label."""
    paint(tmp_path / "a.png")
    shapes = [shape("cat", [[1, 1], [5, 5]], group=""), shape("cat", [[20, 2], [30, 9]], group="")]
    text(tmp_path / "a.json", {"imagePath": "a.png", "shapes": shapes})
    found = read(str(tmp_path), "train")
    assert boxes(found)[0][1] == [[1, 1, 5, 5], [20, 2, 30, 9]] and not found.notes


def test_shapes_of_labelme_that_are_not_known_are_left_out_and_named(tmp_path: Path) -> None:
    """An ellipse of its center and a corner was a quarter of the object."""
    paint(tmp_path / "a.png")
    shapes = [shape("cat", CORNERS, "ellipse"), shape("cat", CORNERS, "rectangle"), shape("cat", CORNERS, "mask")]
    text(tmp_path / "a.json", {"imagePath": "a.png", "shapes": shapes})
    found = read(str(tmp_path), "train")
    assert len(found.boxes) == 2 and any("a.json: object 1" in note and "ellipse" in note for note in found.notes)


@pytest.mark.parametrize("kind", ["dropdown", "radio", "checkbox"])
def test_the_ids_of_drop_downs_of_via_become_their_names(tmp_path: Path, kind: str) -> None:
    paint(tmp_path / "a.png")
    rect = {"name": "rect", "x": 1, "y": 2, "width": 8, "height": 6}
    values = [{"2": True} if kind == "checkbox" else "2", {"1": True} if kind == "checkbox" else "1"]
    regions = [{"shape_attributes": rect, "region_attributes": {"class": value}} for value in values]
    attributes = {"region": {"class": {"type": kind, "options": {"1": "cat", "2": "dog"}}}, "file": {}}
    image = {"filename": "a.png", "regions": regions}
    path = text(tmp_path / "x.json", {"_via_attributes": attributes, "_via_img_metadata": {"a.png1": image}})
    assert boxes(read(str(path), "train"))[0][2] == ["dog", "cat"]


def test_tags_of_supervisely_are_splits(tmp_path: Path) -> None:
    for name, tag in (("a", "train"), ("b", "val"), ("c", "test")):
        paint(tmp_path / "ds" / "img" / f"{name}.png")
        objects = [{"classTitle": name, "points": {"exterior": CORNERS}}]
        text(
            tmp_path / "ds" / "ann" / f"{name}.png.json", {"objects": objects, "tags": [{"name": "day"}, {"name": tag}]}
        )
    for split, names in (("train", "a"), ("val", "b"), ("test", "c"), ("all", "abc")):
        found = read(str(tmp_path), split)
        assert [Path(row[0]).stem for row in boxes(found)] == list(names) and found.classes == ("a", "b", "c")


def test_a_second_bndbox_of_a_voc_object_is_an_error(tmp_path: Path) -> None:
    paint(tmp_path / "a.png")
    box = "<bndbox><xmin>1</xmin><ymin>2</ymin><xmax>9</xmax><ymax>8</ymax></bndbox>"
    text(tmp_path / "a.xml", f"<annotation><object><name>cat</name>{box}{box}</object></annotation>")
    with refused(DataError, "a.xml: object 1", "2 bndbox"):
        read(str(tmp_path), "train")


def test_equal_boxes_and_turned_images_are_counted_at_the_start_of_a_training(tmp_path: Path) -> None:
    """Doubled rows of a table were trained on, and boxes of turned images, without a word."""
    paint(tmp_path / "a.png"), paint(tmp_path / "b.jpg")
    data = (tmp_path / "b.jpg").read_bytes()
    exif = b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x03\0\0\0\0\0\0\0"
    turned = data[:2] + b"\xff\xe1" + (len(exif) + 2).to_bytes(2, "big") + exif + data[2:]
    (tmp_path / "b.jpg").write_bytes(turned)
    text(tmp_path / "classes.txt", "cat\ndog\n")
    rows = "a.png 1,2,9,8,0 1,2,9,8,1 1,2,9,8,0 1,2,9,8,0 3,2,9,8,0\nb.jpg 1,2,9,8,0\n"
    path = str(text(tmp_path / "train.txt", rows))
    notes: list[str] = []
    text(tmp_path / "val.txt", "b.jpg 1,2,9,8,0\n")
    read_train_and_val(path, str(tmp_path / "val.txt"), read_options(), notes.append)
    assert any("train.txt" in note and ": 2, for example" in note and "train.txt:1" in note for note in notes), notes
    assert any("EXIF" in note and "train.txt" in note and ": 1" in note for note in notes), notes
    found, _ = check_images(read(path, "train"), ReadOptions())
    assert len(found.boxes) == 6


def test_rows_without_an_image_have_no_split_that_contradicts_another() -> None:
    """That they have no image is another problem, which is named once."""
    source = Source("t.csv")
    places = [("", "t.csv:2"), ("", "t.csv:3"), ("a.jpg", "t.csv:4"), ("a.jpg", "t.csv:5")]
    chosen = select_rows(source, places, ["train", "val", "train", "train"], ("train",))
    assert "a.jpg" in chosen and source.problems == []
    select_rows(source, places, ["train", "val", "train", "val"], ("train",))
    assert len(source.problems) == 1 and mentions(source.problems[0], "t.csv:5")


@pytest.mark.parametrize("words", [("batch 1", "batch 2"), ("", ""), ("Train", "batch 2")])
def test_subsets_of_cvat_that_are_no_splits_divide_nothing(tmp_path: Path, words: tuple[str, str]) -> None:
    nodes = []
    for name, word in zip("ab", words, strict=True):
        paint(tmp_path / f"{name}.png")
        box = '<box label="cat" xtl="1" ytl="2" xbr="9" ybr="9"/>'
        nodes.append(f'<image id="1" name="{name}.png" subset="{word}" width="64" height="48">{box}</image>')
    path = text(tmp_path / "annotations.xml", f"<annotations>{''.join(nodes)}</annotations>")
    found = read(str(path), "train")
    assert len(found) == (1 if "Train" in words else 2)


def test_an_image_of_cvat_without_a_name_is_refused(tmp_path: Path) -> None:
    box = '<box label="cat" xtl="1" ytl="2" xbr="9" ybr="9"/>'
    path = text(tmp_path / "annotations.xml", f'<annotations><image width="64" height="48">{box}</image></annotations>')
    with refused(DataError, str(path)):
        read(str(path), "train")


@pytest.mark.parametrize("boxes_of_lines", ["", " 1,1,9,9,0"])
def test_two_paths_without_a_line_end_are_an_error(tmp_path: Path, boxes_of_lines: str) -> None:
    """The last image was found by its name, and the first was lost."""
    for name in "abc":
        text(paint(tmp_path / f"images/{name}.png").with_suffix(".txt"), "0 .5 .5 .2 .2\n")
    lines = text(tmp_path / "train.txt", f"images/a.png{boxes_of_lines}\nimages/b.pngimages/c.png{boxes_of_lines}\n")
    with refused(DataError, "train.txt:2", "images/b.png"):
        check_images(read(str(lines), "train"))
