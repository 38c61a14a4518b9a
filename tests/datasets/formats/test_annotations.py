"""Annotation files: every line that is read, every mistake that is named, and the packed store."""

import pickle
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from files import paint, read_annotation_file
from hypothesis import given
from hypothesis import strategies as st
from refused import refused

from datasets.formats.annotation_file import (
    DataError,
    annotation_line,
    split_line,
    text_lines,
)
from datasets.store import Annotations

NAMES = ("cat", "dog")


def write(folder: Path, text: str | bytes) -> str:
    path = folder / "train.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def read(folder: Path, text: str | bytes, classes: tuple | None = NAMES, bad_boxes: str = "error") -> Annotations:
    return read_annotation_file(write(folder, text), classes, bad_boxes)


@pytest.mark.parametrize(
    "name",
    ["a.jpg", "img (1).jpg", "my  two blanks.png", "猫/图 片.jpg", "a,b,c,d,e.jpg", "1,2,3,4,0.png", "no_suffix"],
)
def test_paths_may_contain_blanks_and_any_script(tmp_path: Path, name: str) -> None:
    found = read(tmp_path, f"{name} 1,2,30,40,0 5.5,6.25,7e1,80,1,1\n{name}\n")
    assert found.path(0) == found.path(1) == str(tmp_path / name)
    boxes, labels, crowd = found.boxes_of(0)
    assert boxes.tolist() == [[1, 2, 30, 40], [5.5, 6.25, 70, 80]]
    assert labels.tolist() == [0, 1] and crowd.tolist() == [False, True]
    assert len(found.boxes_of(1)[0]) == 0


def test_byte_order_mark_blank_lines_and_line_ends_are_accepted(tmp_path: Path) -> None:
    found = read(tmp_path, b"\xef\xbb\xbfa.jpg 1,2,3,4,0 \r\n\r\n   \nb.jpg\t1,2,3,4,1\t\r\n")
    assert [found.names[i] for i in range(len(found))] == ["a.jpg", "b.jpg"]
    assert found.lines.tolist() == [1, 4] and found.where(1) == f"{tmp_path / 'train.txt'}:4"


def test_all_line_ends_are_accepted(tmp_path: Path) -> None:
    """A lone carriage return once made one polygon of three YOLO boxes."""
    for number, ends in enumerate((b"\r", b"\r\n", b"\n", b"\r\r\n")):
        path = tmp_path / f"{number}.txt"
        path.write_bytes(b"a 1" + ends * 2 + b"b" + ends)
        assert list(text_lines(str(path))) == [(1, "a 1"), (2, ""), (3, "b")]


def test_absolute_paths_are_kept(tmp_path: Path) -> None:
    assert read(tmp_path, f"{tmp_path}/x/a.jpg 1,2,3,4,0").path(0) == f"{tmp_path}/x/a.jpg"


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("a.jpg 1,2,3,4", "'1,2,3,4'"),
        ("a.jpg 1,2,3,4,0,1,7", "'1,2,3,4,0,1,7'"),
        ("a.jpg 1,2,x,4,0", "'1,2,x,4,0'"),
        ("a.jpg 1,2,nan,4,0", "box 1,2,nan,4,0"),
        ("a.jpg 1,2,inf,4,0", "box 1,2,inf,4,0"),
        ("a.jpg 1,2,3,4,0.5", "class 0.5"),
        ("a.jpg 1,2,3,4,0,2", "crowd 2"),
        ("a.jpg 1,2,3,4,2", "class 2, but the list of classes has 2 names (0-1)"),
        ("a.jpg 1,2,3,4,-1", "class -1"),
        ("a.jpg 1, 2, 3, 4, 0", "'1, 2, 3, 4, 0'"),
        ("a.jpg 1 2 3 4 0", "'1 2 3 4 0'"),
        ("a.jpg,1,2,3,4,0", "'a.jpg,1,2,3,4,0'"),
        ("1,2,3,4,0", "'1,2,3,4,0'"),
        ("C:\temp\a.jpg 1,2,3,4,0", r"'C:\temp\x07.jpg'"),
        ("a.jpg 5,2,5,4,0", "box 5,2,5,4"),
        ("a.jpg 5,2,3,4,0", "box 5,2,3,4"),
    ],
)
def test_errors_name_the_line(tmp_path: Path, line: str, named: str) -> None:
    with refused(DataError, "train.txt:2", named) as caught:
        read(tmp_path, f"a.jpg 1,2,3,4,0\n{line}\n")
    assert "train.txt:1:" not in str(caught.value)


def test_text_that_is_not_utf8_is_an_error_with_its_line(tmp_path: Path) -> None:
    with refused(DataError, "train.txt:2", "UTF-8"):
        read(tmp_path, "a.jpg 1,2,3,4,0\n猫的图片.jpg 1,2,3,4,0\n".encode("gbk"))


def test_ten_problems_are_listed_and_all_are_counted(tmp_path: Path) -> None:
    paint(tmp_path / "a.jpg")
    with pytest.raises(DataError) as caught:
        read(tmp_path, "a.jpg 1,2,3,4,9\n" * 25)
    lines = str(caught.value).splitlines()
    assert sum(":" in line and "class 9" in line for line in lines) == 10
    assert "15 more" in lines[-1] and "25" in lines[0]


def test_boxes_without_area_are_an_error_or_dropped_and_counted(tmp_path: Path) -> None:
    text = "a.jpg 1,2,1,9,0 1,2,3,4,1\nb.jpg 9,2,3,4,0\n"
    with refused(DataError, "train.txt:1", "1,2,1,9", "train.txt:2", "9,2,3,4", "bad_boxes=drop"):
        read(tmp_path, text)
    found = read(tmp_path, text, bad_boxes="drop")
    assert found.starts.tolist() == [0, 1, 1] and found.labels.tolist() == [1]
    assert "left out: 2" in found.notes[0] and "train.txt:2" in found.notes[0]


def test_class_names_default_to_the_ids(tmp_path: Path) -> None:
    assert read(tmp_path, "a.jpg 1,2,3,4,2", classes=None).classes == ("0", "1", "2")
    with refused(DataError, "train.txt:1", "class 1000000000", "classes.txt"):
        read(tmp_path, "a.jpg 1,2,3,4,1000000000", classes=None)


def test_select_keeps_images_with_their_boxes(tmp_path: Path) -> None:
    lines = [f"p{i}.jpg" + "".join(f" {i},{k},{i + 1},{k + 1},{k % 2}" for k in range(i)) for i in range(5)]
    found = read(tmp_path, "\n".join(lines))
    chosen = found.select(np.array([3, 0, 4, 3]))
    assert [chosen.names[i] for i in range(4)] == ["p3.jpg", "p0.jpg", "p4.jpg", "p3.jpg"]
    assert chosen.image_ids.tolist() == [4, 1, 5, 4] and chosen.where(1) == found.where(0)
    for here, there in enumerate([3, 0, 4, 3]):
        for mine, theirs in zip(chosen.boxes_of(here), found.boxes_of(there), strict=True):
            assert np.array_equal(mine, theirs)
    assert len(found.select(np.array([], int))) == 0
    kept = found.keep_boxes(found.labels == 1)
    assert kept.boxes_per_class().tolist() == [0, 4] and np.diff(kept.starts).tolist() == [0, 0, 1, 1, 2]


def test_coco_returns_all_boxes_with_ids(tmp_path: Path) -> None:
    found = read(tmp_path, "a.jpg 1,2,4,6,1 0,0,9.5,10,0,1\nb.jpg\n")
    truth = found.coco()
    assert [image["id"] for image in truth["images"]] == [1, 2]
    assert truth["categories"] == [{"id": 0, "name": "cat"}, {"id": 1, "name": "dog"}]
    one = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [1.0, 2.0, 3.0, 4.0], "area": 12.0, "iscrowd": 0}
    two = {"id": 2, "image_id": 1, "category_id": 0, "bbox": [0.0, 0.0, 9.5, 10.0], "area": 95.0, "iscrowd": 1}
    assert truth["annotations"] == [one, two]
    assert found.boxes_per_class().tolist() == [0, 1]  # the crowd region is not counted


@given(
    name=st.text(st.characters(categories=("L", "N", "P", "S"), include_characters=" "), min_size=1).map(str.strip),
    rows=st.lists(st.tuples(*[st.integers(0, 10**9)] * 4, st.integers(0, 1), st.booleans()), max_size=4),
)
def test_annotation_line_is_read_back_unchanged(name: str, rows: list[tuple]) -> None:
    boxes = np.array([row[:4] for row in rows], float).reshape(-1, 4) / 1000
    labels, crowd = np.array([row[4] for row in rows], int), np.array([row[5] for row in rows], bool)
    try:
        line = annotation_line(name, boxes, labels, crowd)
    except ValueError:
        return  # a name that cannot be written is refused, never changed
    found, words = split_line(line)
    values = [[float(value) for value in word.split(",")] for word in words]
    assert found == name
    assert [value[:4] for value in values] == boxes.tolist()
    assert [value[4] for value in values] == labels.tolist() and [len(v) == 6 for v in values] == crowd.tolist()


def test_annotations_use_at_most_220_bytes_per_line(tmp_path: Path) -> None:
    """Arrays instead of Python objects: workers that share these pages never copy them."""
    path = write(tmp_path, "images/some folder/000000000001.jpg 1,2,30,40,0 5.5,6.5,70,80,1\n" * 20_000)
    tracemalloc.start()
    found = read_annotation_file(path, NAMES)
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(found) == 20_000 and size < 20_000 * 220  # 2 * 45 for boxes, 34 for the path, 32 for the image
    again = pickle.loads(pickle.dumps(found))
    assert again.path(19_999) == found.path(19_999) and np.array_equal(again.boxes, found.boxes)
    assert not any(isinstance(value, list | dict) for value in vars(again).values())
