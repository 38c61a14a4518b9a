"""LabelMe: where images are found, what is left out, and damaged files."""

from pathlib import Path
from typing import Any

import pytest
from files import boxes, paint, text
from refused import mentions, refused

from datasets.errors import DataError
from datasets.formats.options import ReadOptions
from datasets.formats.read import read


def shape(label: Any, points: Any, kind: str | None = "polygon") -> dict[str, Any]:
    return {"label": label, "points": points, "shape_type": kind, "flags": {}}


def labelme(path: Path, image: Any, *shapes: Any, **changes: Any) -> Path:
    return text(path, {"imagePath": image, "imageHeight": 20, "imageWidth": 40, "shapes": shapes, **changes})


def test_shapes_become_bounding_boxes(tmp_path: Path) -> None:
    drawn = [shape("dog", [[9, 8], [1, 2]], "rectangle"), shape("猫", [[1, 1], [5.5, 3], [2, 7]])]
    drawn += [shape("dog", [[10, 10], [13, 14]], "circle"), shape("dog", [[1, 1], [5, 3], [2, 7]], None)]
    labelme(tmp_path / "set" / "a.json", "..\\images\\a.png", *drawn)
    image = paint(tmp_path / "images" / "a.png")
    found = read(str(tmp_path / "set"), "train")
    assert Path(found.path(0)).resolve() == image.resolve()
    assert found.boxes.tolist() == [[1, 2, 9, 8], [1, 1, 5.5, 7], [5, 5, 15, 15], [1, 1, 5, 7]]
    assert [found.classes[label] for label in found.labels] == ["dog", "猫", "dog", "dog"]


BOX = shape("dog", [[1, 2], [9, 8]], "rectangle")


@pytest.mark.parametrize("image", [None, "", "C:\\phone\\other.jpg", "/photos/else.jpeg", "gone.png"])
@pytest.mark.parametrize("suffix", [".JPG", ".tif", ".WebP"])
def test_an_image_next_to_its_file_is_found_whatever_the_file_says(tmp_path: Path, image: Any, suffix: str) -> None:
    labelme(tmp_path / "a.1.json", image, BOX)
    paint(tmp_path / f"a.1{suffix}"), paint(tmp_path / "a.png")
    found = read(str(tmp_path), "train")
    assert boxes(found) == [(str(tmp_path / f"a.1{suffix}"), [[1, 2, 9, 8]], ["dog"], [False])]
    assert len(found.notes) == 1 and mentions(found.notes[0], "a.png")
    twin = paint(tmp_path / "a.1.bmp")
    with refused(DataError, "a.1.json", tmp_path / f"a.1{suffix}", twin):
        read(str(tmp_path), "train")
    labelme(tmp_path / "a.1.json", twin.name, BOX)
    found = read(str(tmp_path), "train")
    assert Path(found.path(0)) == twin and mentions(found.notes[0], 2)


def test_images_may_be_in_a_folder_next_to_that_of_the_files(tmp_path: Path) -> None:
    labelme(tmp_path / "labels" / "a.json", "C:\\phone\\a.png", BOX)
    image = paint(tmp_path / "images" / "a.png")
    assert Path(read(str(tmp_path / "labels"), "train").path(0)).resolve() == image
    root = paint(tmp_path / "root" / "a.png")
    assert read(str(tmp_path / "labels"), "train", ReadOptions(image_root=str(root.parent))).path(0) == str(root)


@pytest.mark.parametrize("named", ["{}a.png", "../old/a.png", "a.png"])
@pytest.mark.parametrize("inside", ["", "sub/"])
def test_image_root_counts_before_an_image_next_to_the_file(tmp_path: Path, named: str, inside: str) -> None:
    paint(tmp_path / "x" / "sub" / "a.png")
    found = paint(tmp_path / "far" / f"{inside}a.png")
    text(tmp_path / "x" / "sub" / "a.json", {"shapes": [], "imagePath": named.format(inside)})
    data = read(str(tmp_path / "x"), "train", ReadOptions(image_root=str(tmp_path / "far")))
    assert data.path(0) == str(found) and data.notes == ()


def test_all_mistakes_are_reported_in_one_pass(tmp_path: Path) -> None:
    wrong = [shape(None, [[1, 2], [3, 4]]), shape(" ", [[1, 2], [3, 4]]), shape("x", []), shape("x", [[1, "a"]]), 7]
    labelme(tmp_path / "a.json", ["a.png"], BOX, *wrong, imageHeight="64px")
    text(tmp_path / "b.json", {"shapes": 5})
    for name in ("a.png", "b.jpg"):
        paint(tmp_path / name)
    with pytest.raises(DataError) as caught:
        read(str(tmp_path), "train")
    for words in (
        "problems: 8",
        'a.json: imagePath is ["a.png"]: expected `str',
        'a.json: imageHeight is "64px"',
        "a.json: object 2: the label is null: give the shape a label",
        "a.json: object 3: class name ' ' is blank",
        "a.json: object 4: 'x' needs points",
        'a.json: shapes[4].points[0][1] is "a"',
        "a.json: shapes[5] is 7",
        "b.json: shapes is 5",
    ):
        assert words in str(caught.value)


def test_a_circle_of_any_size_is_refused_cleanly(tmp_path: Path) -> None:
    labelme(tmp_path / "a.json", "a.png", shape("sun", [[10, 10], [1e200, 14]], "circle"))
    with refused(DataError, "a.json: object 1", "-1e+200,-1e+200,1e+200,1e+200"):
        read(str(tmp_path), "train")
