"""Rotated boxes: the box around them is read where the format defines the angle. Any other angle is a problem by name."""

from pathlib import Path
from typing import Any

import pytest
from files import boxes, paint, text
from refused import refused

from datasets.errors import DataError
from datasets.formats.options import ReadOptions
from datasets.formats.read import read

UPRIGHT, AROUND = [10, 8, 18, 12], [12, 6, 16, 14]  # a quarter of a turn around the center
FIELDS = ("rotation", "angle", "theta")


def coco(folder: Path, attributes: Any = None, **fields: Any) -> Path:
    shape = {"id": 7, "image_id": 1, "category_id": 1, "bbox": [10, 8, 8, 4]} | fields
    shape |= {} if attributes is None else {"attributes": attributes}
    categories = [{"id": 1, "name": "cat"}]
    images = [{"id": 1, "file_name": "a.png"}]
    return text(folder / "x.json", {"images": images, "annotations": [shape], "categories": categories})


def voc(folder: Path, attributes: Any = None, **fields: Any) -> Path:
    names = ("xmin", "ymin", "xmax", "ymax")
    box = "".join(f"<{name}>{value}</{name}>" for name, value in zip(names, UPRIGHT, strict=True))
    rows = (
        f"<attribute><name>{key}</name><value>{value}</value></attribute>" for key, value in (attributes or {}).items()
    )
    more = "".join(f"<{key}>{value}</{key}>" for key, value in fields.items())
    shape = f"<object><name>cat</name><bndbox>{box}</bndbox>{more}<attributes>{''.join(rows)}</attributes></object>"
    return text(folder / "a.xml", f"<annotation><filename>a.png</filename>{shape}</annotation>").parent


def labelme(folder: Path, **fields: Any) -> Path:
    shape = {"label": "cat", "shape_type": "rectangle", "points": [UPRIGHT[:2], UPRIGHT[2:]]} | fields
    return text(folder / "a.json", {"imagePath": "a.png", "shapes": [shape]}).parent


def table(folder: Path, **fields: Any) -> Path:
    header, values = ",".join(["image,x1,y1,x2,y2,class", *fields]), ",".join(map(str, ("cat", *fields.values())))
    return text(folder / "a.csv", f"{header}\na.png,{','.join(map(str, UPRIGHT))},{values}\n")


@pytest.mark.parametrize("writer", [coco, voc])
@pytest.mark.parametrize("angle", [90, -90.0, "90"])
def test_the_attribute_rotation_of_cvat_turns_the_box_around_its_center(tmp_path: Path, writer, angle: Any) -> None:
    paint(tmp_path / "a.png")
    ((_, (corners,), _, _),) = boxes(read(writer(tmp_path, {"rotation": angle, "occluded": False}), "train"))
    assert corners == pytest.approx(AROUND)


@pytest.mark.parametrize("writer", [coco, voc])
@pytest.mark.parametrize("attributes", [{}, {"rotation": 0.0}, {"rotation": "left"}, {"rotation": ""}])
def test_attributes_without_an_angle_leave_the_box_as_it_is(tmp_path: Path, writer, attributes: dict) -> None:
    paint(tmp_path / "a.png")
    assert boxes(read(writer(tmp_path, attributes), "train"))[0][1] == [UPRIGHT]


@pytest.mark.parametrize("attributes", [[], [{"name": "rotation", "value": 4}], "none", {"rotation": None}])
def test_attributes_of_other_forms_do_not_matter_in_coco(tmp_path: Path, attributes: Any) -> None:
    paint(tmp_path / "a.png")
    assert boxes(read(coco(tmp_path, attributes), "train"))[0][1] == [UPRIGHT]


@pytest.mark.parametrize("writer", [coco, voc])
def test_a_rotation_that_is_not_finite_is_a_problem(tmp_path: Path, writer) -> None:
    paint(tmp_path / "a.png")
    with refused(DataError, "nan,nan,nan,nan"):
        read(writer(tmp_path, {"rotation": "inf"}), "train")


@pytest.mark.parametrize("writer", [coco, voc, labelme, table])
@pytest.mark.parametrize("field", FIELDS)
def test_an_angle_that_the_format_does_not_define_is_a_problem(tmp_path: Path, writer, field: str) -> None:
    paint(tmp_path / "a.png")
    with pytest.raises(DataError) as caught:
        read(writer(tmp_path, **{field: 12.5}), "train", ReadOptions(bad_boxes="drop"))
    message = str(caught.value)
    place = {table: "a.csv:2", labelme: "a.json: ", voc: "a.xml: object 1"}.get(writer, "annotations[0]")
    assert place in message and field in message and "12.5" in message and "remove" in message


@pytest.mark.parametrize("writer", [coco, voc, labelme, table])
@pytest.mark.parametrize("value", [0, "0.0", "", "NaN", "north"])
def test_fields_without_an_angle_are_fine(tmp_path: Path, writer, value: Any) -> None:
    paint(tmp_path / "a.png")
    fields = dict.fromkeys(FIELDS, value)
    assert boxes(read(writer(tmp_path, **fields), "train"))[0][1] == [UPRIGHT]
    if writer is not table and writer is not voc:
        fields = dict.fromkeys(FIELDS)
        assert boxes(read(writer(tmp_path, **fields), "train"))[0][1] == [UPRIGHT]


def test_a_polygon_of_labelme_with_an_angle_is_the_box_of_its_points(tmp_path: Path) -> None:
    paint(tmp_path / "a.png")
    points = [[10, 8], [18, 8], [18, 12], [10, 12]]
    path = labelme(tmp_path, shape_type="rotation", points=points, angle=3.1)
    assert boxes(read(path, "train"))[0][1] == [UPRIGHT]
