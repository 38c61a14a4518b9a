"""VIA projects and exports, and CVAT's XML."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from files import boxes, paint, text
from refused import refused

from datasets.errors import DataError
from datasets.formats.options import ReadOptions
from datasets.formats.read import read

RECT = {"name": "rect", "x": 1, "y": 2, "width": 3, "height": 4}


def region(shape: dict, **attributes: Any) -> dict:
    return {"shape_attributes": shape, "region_attributes": attributes}


def via(*regions: Any, name: str = "a.png") -> dict:
    return {f"{name}77": {"filename": name, "size": 77, "regions": list(regions), "file_attributes": {}}}


def test_shapes_become_bounding_boxes(tmp_path: Path) -> None:
    image = paint(tmp_path / "images" / "a.png")
    shapes = [
        RECT,
        {"name": "polygon", "all_points_x": [1, 9.5, 4], "all_points_y": [2, 3, 8]},
        {"name": "circle", "cx": 10, "cy": 9, "r": 2.5},
        {"name": "ellipse", "cx": 10, "cy": 9, "rx": 4, "ry": 2, "theta": np.pi / 2},
        {"name": "polyline", "all_points_x": [1, 2], "all_points_y": [2, 3]},
        {"name": "point", "cx": 1, "cy": 2},
    ]
    images = via(*(region(shape, kind="cat") for shape in shapes))
    project = {"_via_settings": {"ui": {}}, "_via_img_metadata": images, "_via_attributes": {}}
    for contents in (images, project):
        found = read(str(text(tmp_path / "x.json", contents)), "train")
        ((path, corners, names, _),) = boxes(found)
        assert path == str(image) and names == ["cat"] * 4
        assert np.allclose(corners, [[1, 2, 4, 6], [1, 2, 9.5, 8], [7.5, 6.5, 12.5, 11.5], [8, 5, 12, 13]])
        assert "objects without a box, left out: 2" in found.notes[0] and "a.png, region 6" in found.notes[0]


def test_the_class_is_the_only_attribute_or_the_one_with_a_usual_name(tmp_path: Path) -> None:
    several = via(region(RECT, Label="cat", color="red"), region(RECT, Label={"dog": True, "cat": False}))
    assert read(str(text(tmp_path / "x.json", several)), "train").classes == ("cat", "dog")
    unclear = text(tmp_path / "x.json", via(region(RECT, color="red", kind="cat")))
    with refused(DataError, "x.json", "'color', 'kind'"):
        read(str(unclear), "train")


def test_regions_without_attributes_take_the_only_class(tmp_path: Path) -> None:
    """The first version of VIA has an object of regions; the well-known balloons have no attributes."""
    first = {"a.png77": {"filename": "a.png", "regions": {"0": region(RECT), "1": region(RECT)}}}
    path = str(text(tmp_path / "x.json", first))
    assert read(path, "train", ReadOptions(classes=("balloon",))).labels.tolist() == [0, 0]
    with refused(DataError, "x.json", "classes=FILE"):
        read(path, "train")


def test_all_mistakes_in_via_files_are_reported_in_one_pass(tmp_path: Path) -> None:
    wrong = [region(RECT | {"x": "left"}, c="cat"), region(RECT, c={"a": 1, "b": 1}), {"shape_attributes": 5}]
    wrong.append(region({"name": "polygon", "all_points_x": [1], "all_points_y": []}, c="cat"))
    contents = via(region(RECT, c="cat"), *wrong) | {"b": 5}
    paint(tmp_path / "a.png")
    with pytest.raises(DataError) as caught:
        read(str(text(tmp_path / "x.json", contents)), "train")
    for words in (
        "problems: 5",
        'a.png: regions[1].shape_attributes.x is "left"',
        "a.png, region 3: c has no value, or several",
        "regions[3].shape_attributes is 5",
        "region 5: the polygon needs as many x as y",
        '"b" is 5',
    ):
        assert words in str(caught.value)


LABELS = "<meta><job><labels><label><name>dog</name></label><label><name>cat</name></label></labels></job></meta>"


def cvat(path: Path, shapes: str, meta: str = LABELS) -> str:
    image = f'<image id="0" name="sub/a.png" width="40" height="20">{shapes}</image>'
    return str(text(path, f"<?xml version='1.0'?><annotations><version>1.1</version>{meta}{image}</annotations>"))


def test_cvat_xml_is_read(tmp_path: Path) -> None:
    image = paint(tmp_path / "images" / "sub" / "a.png")
    path = cvat(
        tmp_path / "annotations.xml",
        '<box label="cat" xtl="1" ytl="2" xbr="9.5" ybr="8" occluded="0"><attribute name="age">3</attribute></box>'
        '<box label="cat" xtl="4" ytl="6" xbr="14" ybr="10" rotation="90"/>'
        '<polygon label="dog" points="1,2;9,3;4,8.5"/><ellipse label="dog" cx="10" cy="9" rx="4" ry="2"/>'
        '<mask label="dog" left="3" top="4" width="5" height="6" rle="1"/>'
        '<points label="cat" points="1,2"/><polyline label="cat" points="1,2;3,4"/><tag label="cat"/>',
    )
    found = read(path, "train")
    ((place, corners, names, _),) = boxes(found)
    assert place == str(image) and found.classes == ("dog", "cat") and found.sizes.tolist() == [[20, 40]]
    assert names == ["cat", "cat", "dog", "dog", "dog"]
    assert np.allclose(corners, [[1, 2, 9.5, 8], [7, 3, 11, 13], [1, 2, 9, 8.5], [6, 7, 14, 11], [3, 4, 8, 10]])
    assert "objects without a box, left out: 3" in found.notes[0]
    assert boxes(read(str(tmp_path), "train")) == boxes(found)


@pytest.mark.parametrize(
    ("contents", "named"),
    [
        ("<annotations><track/></annotations>", "CVAT for images 1.1"),
        ("<annotation/>", "VOC"),
        ("<svg/>", "CVAT"),
        ("<annotations>", "line 1, column 13"),
        ('<annotations><image><box label="a" xtl="1"/></image></annotations>', '<box label="a" xtl="1">'),
    ],
)
def test_mistakes_in_cvat_files_are_errors(tmp_path: Path, contents: str, named: str) -> None:
    with refused(DataError, "x.xml", named):
        read(str(text(tmp_path / "x.xml", contents)), "train")
