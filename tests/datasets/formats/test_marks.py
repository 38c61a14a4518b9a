"""What a label file says beyond boxes and classes: marks of objects in any spelling, and what is not read, is named."""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from files import coco, paint, text, voc
from refused import refused, told

from datasets.classes import class_notes
from datasets.errors import WARNING, DataError
from datasets.formats.options import read_options
from datasets.formats.read import read


def of_coco(root: Path, mark: dict[str, Any]) -> Path:
    contents = coco("a.png")
    (first,) = contents["annotations"]
    contents["annotations"].append(first | {"id": 1, "bbox": [2, 2, 7, 6]} | mark)
    return text(root / "boxes.json", contents)


def of_attributes(root: Path, mark: dict[str, Any]) -> Path:
    return of_coco(root, {"attributes": mark})


def of_voc(root: Path, mark: dict[str, Any]) -> Path:
    words = "".join(f"<{key}>{value}</{key}>" for key, value in mark.items())
    return text(root / "a.xml", voc("cat", "dog").replace("<name>dog", f"{words}<name>dog")).parent


def of_cvat(root: Path, mark: dict[str, Any]) -> Path:
    words = "".join(f'<attribute name="{key}">{value}</attribute>' for key, value in mark.items())
    shapes = "".join(f'<box label="cat" xtl="{x}" ytl="2" xbr="9" ybr="8">{{}}</box>' for x in (1, 2)).format("", words)
    return text(root / "a.xml", f'<annotations><image name="a.png">{shapes}</image></annotations>')


def of_table(root: Path, mark: dict[str, Any]) -> Path:
    lines = (["path,x1,y1,x2,y2,class", *mark], ["a.png,1,2,9,8,cat", *["0"] * len(mark)], ["a.png,2,2,9,8,cat"])
    lines[2].extend(map(str, mark.values()))
    return text(root / "x.csv", "".join(f"{','.join(line)}\n" for line in lines))


def of_labelme(root: Path, mark: dict[str, Any]) -> Path:
    shapes = [{"label": "cat", "points": [[x, 2], [9, 8]], "shape_type": "rectangle"} for x in (1, 2)]
    return text(root / "a.json", {"imagePath": "a.png", "shapes": [shapes[0], shapes[1] | mark]}).parent


def of_circle(root: Path, mark: dict[str, Any]) -> Path:
    shapes = [{"label": "cat", "points": [[x, 8], [x, 5]], "shape_type": "circle"} for x in (5, 6)]
    return text(root / "a.json", {"imagePath": "a.png", "shapes": [shapes[0], shapes[1] | mark]}).parent


def of_flags(root: Path, mark: dict[str, Any]) -> Path:
    return of_labelme(root, {"flags": mark})


def of_via(root: Path, mark: dict[str, Any]) -> Path:
    shapes = [{"name": "rect", "x": x, "y": 2, "width": 7, "height": 6} for x in (1, 2)]
    rows = [{"shape_attributes": shape, "region_attributes": {"class": "cat"}} for shape in shapes]
    rows[1]["region_attributes"] |= mark
    return text(root / "via.json", {"a": {"filename": "a.png", "regions": rows}})


def of_hugging_face(root: Path, mark: dict[str, Any]) -> Path:
    objects = {"bbox": [[1, 2, 7, 6], [2, 2, 7, 6]], "category": ["cat", "cat"]}
    objects |= {key: [0, value] for key, value in mark.items()}
    return text(root / "metadata.jsonl", json.dumps({"file_name": "a.png", "objects": objects}) + "\n")


ALL = (of_coco, of_attributes, of_voc, of_cvat, of_table, of_labelme, of_circle, of_flags, of_via, of_hugging_face)
SPELLINGS: dict[Callable, tuple[str, ...]] = dict.fromkeys(ALL, ("difficult", "is_crowd", "isCrowd", "Ignore"))
SPELLINGS |= dict.fromkeys((of_labelme, of_circle), ("difficult", "Difficult"))
SPELLINGS |= {of_hugging_face: ("iscrowd",)}


@pytest.mark.parametrize(("put", "name"), [(put, name) for put, names in SPELLINGS.items() for name in names])
def test_a_marked_object_is_a_crowd_region_in_every_format(tmp_path: Path, put: Callable, name: str) -> None:
    paint(tmp_path / "a.png")
    for value, crowd in ((1, True), (0, False)):
        assert read(str(put(tmp_path, {name: value})), "train").crowd.tolist() == [False, crowd]
    with refused(DataError, "many"):
        read(str(put(tmp_path, {name: "many"})), "train")


def test_several_marks_of_an_object_count_together(tmp_path: Path) -> None:
    paint(tmp_path / "a.png")
    for put in (of_coco, of_voc, of_table):
        for mark in ({"iscrowd": 0, "difficult": 1}, {"iscrowd": 1, "difficult": 0}):
            assert read(str(put(tmp_path / put.__name__, mark)), "train").crowd.tolist() == [False, True]
            paint(tmp_path / put.__name__ / "a.png")


@pytest.mark.parametrize(("key", "other"), [("file_name", "fileName"), ("image_id", "imageId"), ("iscrowd", "isCrowd")])
def test_keys_of_json_are_read_in_any_spelling(tmp_path: Path, key: str, other: str) -> None:
    paint(tmp_path / "a.png")
    file = of_coco(tmp_path, {"iscrowd": 1})
    expected = read(str(file), "train")
    text(file, file.read_text().replace(f'"{key}"', f'"{other}"'))
    found = read(str(file), "train")
    assert found.boxes.tolist() == expected.boxes.tolist() and found.crowd.tolist() == [False, True]
    with refused(DataError, key, "twice"):
        read(
            str(text(file, re.sub(f'"{other}": ([^,}}]+)', rf'"{key}": \1, "{other}": \1', file.read_text()))), "train"
        )


def test_keys_that_are_not_read_are_named(tmp_path: Path) -> None:
    paint(tmp_path / "a.png")
    contents = coco("a.png")
    contents["images"][0] |= {"phase": "test", "license": 1, "flickr_url": ""}
    contents["annotations"][0] |= {"score": 0.5, "iscrowd": 0, "segmentation": []}
    (images, annotations) = read(str(text(tmp_path / "x.json", contents)), "train").notes
    assert images.endswith(": phase") and annotations.endswith(": score")


def test_a_deleted_object_of_labelmes_page_is_left_out(tmp_path: Path) -> None:
    paint(tmp_path / "a.png")
    found = read(str(of_voc(tmp_path, {"deleted": 1})), "train")
    assert len(found.labels) == 1 and "deleted" in found.notes[0]
    assert len(read(str(of_voc(tmp_path, {"deleted": 0})), "train").labels) == 2


@pytest.mark.parametrize("name", ["ignore", "_ignore_", "Ignored regions", "DontCare", "don't care", "NaN"])
def test_a_class_whose_name_means_no_object_is_named_with_the_constant_that_ignores_it(
    tmp_path: Path, name: str
) -> None:
    (note,) = class_notes(["cat", name, "signore", "nanny"])
    note = note.rpartition(", ")[2]
    paint(tmp_path / "a.png")
    options = read_options(ignore_regions=shlex.split(note)[-1].partition("=")[2])
    found = read(str(text(tmp_path / "a.xml", voc("cat", name)).parent), "train", options)
    assert found.classes == ("cat",) and found.is_ignored.tolist() == [False, True]


@pytest.mark.parametrize(("area", "count"), [(48, 0), (30, 0), (None, 0), (0, 1), (480, 1)])
def test_areas_that_are_not_those_of_their_boxes_are_named(tmp_path: Path, area: float | None, count: int) -> None:
    paint(tmp_path / "a.png")
    contents = coco("a.png")
    contents["annotations"][0]["area"] = area
    assert len(read(str(text(tmp_path / "x.json", contents)), "train").notes) == count


OTHERS = {
    "<gps><lat>48.1</lat><lon>11.5</lon><height>500</height><heading>90</heading></gps>": 0,
    "<source><database>x</database><flickrid>123 4</flickrid></source><date>2019-01-02 10:20:30</date>": 0,
    "<region><name>cat</name><x>1</x><y>2</y><width>8</width><height>6</height></region>": 1,
    "<target><box left='1' top='2' width='8' height='6'/></target>": 1,
}


@pytest.mark.parametrize("part", OTHERS)
def test_only_what_may_be_a_box_makes_an_xml_file_without_objects_doubtful(tmp_path: Path, part: str) -> None:
    paint(tmp_path / "a.png"), paint(tmp_path / "b.png")
    text(tmp_path / "a.xml", voc("cat")), text(tmp_path / "b.xml", voc().replace("<annotation>", f"<annotation>{part}"))
    if OTHERS[part]:
        with refused(DataError, "b.xml", "problems: 1"):
            read(str(tmp_path), "train")
    else:
        assert len(read(str(tmp_path), "train")) == 2


# ---- what is there twice, of which one would not be read


TWICE = {
    "a.xml": (voc("cat"), "<name>cat</name>", "<name>cat</name><name>dog</name>"),
    "b.xml": (voc("cat"), "<xmin>1</xmin>", "<xmin>1</xmin><xmin>3</xmin>"),
    "data.yaml": ("train: .\nnames: [cat]\n", "names: [cat]", "names: [cat]\nnames: [dog]"),
    "b.yaml": ("train: .\nnames:\n  0: cat\n", "  0: cat\n", "  0: cat\n  0: dog\n"),
    "x.data": ("train = l.txt\nnames = n.txt\n", "train = l.txt", "train = l.txt\ntrain = m.txt"),
}


@pytest.mark.parametrize("name", TWICE)
def test_what_is_there_twice_is_an_error(tmp_path: Path, name: str) -> None:
    words, one, both = TWICE[name]
    paint(tmp_path / f"{name.partition('.')[0]}.png"), paint(tmp_path / "i.png")
    text(tmp_path / "i.txt", "0 .5 .5 .2 .2\n"), text(tmp_path / "l.txt", "i.png\n"), text(tmp_path / "n.txt", "cat\n")
    file = text(tmp_path / name, words)
    source = tmp_path if name.endswith("xml") else file
    if source == tmp_path:
        for other in ("i.txt", "l.txt", "n.txt"):
            (tmp_path / other).unlink()
    assert read(str(source), "train").classes == ("cat",)
    key = re.findall(r"\w+", one)[0]
    text(file, words.replace(one, both))
    with refused(DataError, name, key):
        read(str(source), "train")


# ---- label files without an image


@pytest.mark.parametrize("other", ["a_1", "a%201", "a 1.jpg", "a 1 "])
def test_an_image_and_a_label_file_whose_names_look_alike_are_an_error(tmp_path: Path, other: str) -> None:
    for name in ("a 1", "b"):
        paint(tmp_path / "images" / f"{name}.jpg")
    text(tmp_path / "labels" / "b.txt", "0 .5 .5 .2 .2\n"), text(tmp_path / "classes.txt", "cat\n")
    label = text(tmp_path / "labels" / f"{other}.txt", "0 .5 .5 .2 .2\n")
    with refused(DataError, label, "a 1.txt"):
        read(str(tmp_path), "train")
    label.rename(label.with_name("a 1.txt"))
    assert len(read(str(tmp_path), "train").labels) == 2


@pytest.mark.parametrize("source", ["", "data.yaml", "x.data"])
def test_many_label_files_without_an_image_are_damage(tmp_path: Path, source: str) -> None:
    """Frames that were exported with a step have their boxes in label files of other numbers."""
    for number in range(4):
        paint(tmp_path / "images" / f"{number}.jpg"), text(tmp_path / "labels" / f"{number}.txt", "0 .5 .5 .2 .2\n")
    text(tmp_path / "classes.txt", "cat\n"), text(tmp_path / "list.txt", "images/0.jpg\nimages/1.jpg\n")
    text(tmp_path / "data.yaml", "train: images\nnames: [cat]\n")
    text(tmp_path / "x.data", "train = list.txt\nnames = classes.txt\n")
    if not source:
        (tmp_path / "data.yaml").unlink(), (tmp_path / "x.data").unlink(), (tmp_path / "list.txt").unlink()
    assert not read(str(tmp_path / source), "train").notes
    for number in (5, 10):
        text(tmp_path / "labels" / f"frame_{number}.txt", "0 .5 .5 .2 .2\n")
    (note,) = read(str(tmp_path / source), "train").notes
    assert note.startswith(WARNING)
    told(note, "2", "frame_10.txt")


# ---- advice


@pytest.mark.parametrize("character", "<&")
def test_a_character_of_xml_in_a_name_is_named_with_what_to_write(tmp_path: Path, character: str) -> None:
    paint(tmp_path / "a.png")
    file = text(tmp_path / "a.xml", voc("cat").replace("<name>", "\n<name>").replace("cat", f"cat {character} 3"))
    with refused(DataError, file, "line 2") as caught:
        read(str(tmp_path), "train")
    fix = next(word for word in str(caught.value).split() if word.startswith("&"))
    text(file, file.read_text().replace(f"cat {character}", f"cat {fix}"))
    assert read(str(tmp_path), "train").classes == (f"cat {character} 3",)


@pytest.mark.parametrize("row", ["cat,1,2,8,6,a.png,40,20", "a.png,1,2,9,8,cat,40,20", "TRAIN,a.png,cat,.1,.2,,,.3,.4"])
def test_a_row_of_data_is_no_header(tmp_path: Path, row: str) -> None:
    with refused(DataError, "x.csv:1", "data", "path,x1,y1,x2,y2,class"):
        read(str(text(tmp_path / "x.csv", f"{row}\n")), "train")


@pytest.mark.parametrize("header", ["image_id,width,height,bbox,source", "image_name,BoxesString,domain"])
def test_the_column_with_all_numbers_of_a_box_is_named(tmp_path: Path, header: str) -> None:
    with refused(DataError, "x.csv:1", "bbox" if "bbox" in header else "BoxesString", "x1,y1,x2,y2"):
        read(str(text(tmp_path / "x.csv", f'{header}\na,40,20,"[1, 2, 8, 6]",x\n')), "train")


def test_json_of_an_unknown_tool_in_a_folder_is_named_with_its_keys(tmp_path: Path) -> None:
    (
        paint(tmp_path / "a.png"),
        text(tmp_path / "a.json", {"asset": {"name": "a.png"}, "marks": [{"frame": [1, 2, 9, 8]}]}),
    )
    with refused(DataError, tmp_path / "a.json", "asset", "marks", "boxes.txt"):
        read(str(tmp_path), "train")


def test_many_boxes_without_area_are_a_question_about_the_order_of_the_numbers(tmp_path: Path) -> None:
    paint(tmp_path / "a.png"), text(tmp_path / "classes.txt", "cat\n")
    lines = "a.png 5,9,4,3,0 6,9,3,3,0 1,2,9,8,0\n"
    (note,) = read(str(text(tmp_path / "boxes.txt", lines)), "train").notes
    told(note, "width, height", "2 of 3")


# ---- label files that name another image than their own


def test_a_labelme_file_that_names_another_image_than_its_own_is_an_error(tmp_path: Path) -> None:
    """It was copied or renamed: the boxes of two files would be on one image."""
    paint(tmp_path / "a.png"), paint(tmp_path / "b.png")
    text(tmp_path / "b.json", (of_labelme(tmp_path, {}) / "a.json").read_text())
    with refused(DataError, tmp_path / "b.json", "a.png", "b.png"):
        read(str(tmp_path), "train")
    text(tmp_path / "b.json", (tmp_path / "b.json").read_text().replace("a.png", "b.png"))
    assert [len(read(str(tmp_path), "train").boxes_of(i)[0]) for i in range(2)] == [2, 2]


def test_an_xml_file_that_names_another_image_than_its_own_is_named(tmp_path: Path) -> None:
    """The one of its own name counts: tools that copy images seldom change what is in the file."""
    for name in "ab":
        paint(tmp_path / f"{name}.png"), text(tmp_path / f"{name}.xml", voc("cat", image="a.png"))
    found = read(str(tmp_path), "train")
    assert len(found) == 2 and len(found.labels) == 2
    told(*found.notes, "1", "b.xml")
    text(tmp_path / "b.xml", voc("cat", image="b.jpg"))
    assert not read(str(tmp_path), "train").notes
