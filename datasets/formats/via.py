"""VIA (VGG Image Annotator) 2: a project, or its annotations exported as JSON -> Annotations."""

from collections.abc import Sequence
from typing import Any

from msgspec import Raw, Struct

from datasets.errors import DataError
from datasets.formats.named_boxes import Box, LabelFile, ellipse_box, pack_source, points_box
from datasets.formats.typed_json import ABSENT, Angle, brief, parse, rows
from datasets.store import Annotations, Classes
from utils.text import clean_name

NAMES = ("class", "label", "name", "type")  # of the attribute with the class, where there are several


class Shape(Struct):
    name: str
    x: float = 0.0
    y: float = 0.0
    width: float = 0.0
    height: float = 0.0
    cx: float = 0.0
    cy: float = 0.0
    r: float = 0.0
    rx: float = 0.0
    ry: float = 0.0
    theta: Angle = 0.0
    all_points_x: list[float] = []
    all_points_y: list[float] = []


class Region(Struct):
    shape_attributes: Shape
    region_attributes: dict[str, Any] = {}


class Image(Struct):
    filename: str
    regions: Raw = ABSENT  # a list; in VIA 1 an object with the keys "0", "1", ...


def is_via(contents: dict[str, Raw]) -> bool:
    """Returns whether an object is a project of VIA 2 or its annotations."""
    first = next(iter(contents.values()), Raw(b""))
    return "_via_img_metadata" in contents or b'"regions"' in bytes(first)


def read_via(
    source: str, contents: dict[str, Raw], classes: Classes, image_root: str | None, bad_boxes: str
) -> Annotations:
    """Returns the annotations in `contents`, the top level of the VIA file `source`. Raises DataError.

    The class is the only attribute of the regions, or the one that is named class, label, name or type."""
    problems: list[str] = []
    if "_via_img_metadata" in contents:
        contents = parse(contents["_via_img_metadata"], dict[str, Raw], f"{source}: _via_img_metadata", problems) or {}
    found = []
    for key, raw in contents.items():
        image = parse(raw, Image, f"{source}: {brief(key)}", problems)
        if image is not None:
            place = f"{source}: {image.filename}"
            found.append((place, image.filename, _regions(image.regions, f"{place}: regions", problems)))
    attribute = _attribute(source, [region for *_, regions in found for _, region in regions], classes)
    files = []
    for place, name, regions in found:
        boxes = [_box(region, attribute, classes, f"{place}, region {index + 1}") for index, region in regions]
        files.append(LabelFile(place, name, boxes=boxes))
    return pack_source(source, files, classes, image_root, bad_boxes, problems=problems)


def _regions(raw: Raw, place: str, problems: list[str]) -> list[tuple[int, Region]]:
    if not bytes(raw).startswith(b"{"):
        return list(rows(raw, Region, place, problems))
    values = (parse(raw, dict[str, Raw], place, problems) or {}).values()
    parsed = [(index, parse(value, Region, f"{place}[{index}]", problems)) for index, value in enumerate(values)]
    return [(index, region) for index, region in parsed if region is not None]


def _attribute(source: str, regions: Sequence[Region], classes: Classes) -> str | None:
    """Returns the name of the attribute with the class; None if there are no attributes and only one class."""
    names = list(dict.fromkeys(name for region in regions for name in region.region_attributes))
    fitting = names if len(names) == 1 else [name for name in names if name.lower() in NAMES]
    if len(fitting) == 1:
        return fitting[0]
    if names:
        there = ", ".join(map(repr, names[:10]))
        raise DataError(f"{source}: which attribute is the class? There are {there}: name one of them class in VIA")
    if regions and (classes is None or len(classes) != 1):
        problem = "the regions have no attribute for the class"
        raise DataError(f"{source}: {problem}: add one in VIA or, if there is one class, name it by classes=FILE")
    return None


def _box(region: Region, attribute: str | None, classes: Classes, place: str) -> Box:
    shape, value = region.shape_attributes, region.region_attributes.get(attribute)
    if isinstance(value, dict):  # check boxes
        value = (
            next((key for key, chosen in value.items() if chosen), None)
            if sum(map(bool, value.values())) == 1
            else None
        )
    if attribute is None:
        value = (classes or ("",))[0]
    name = "" if value is None else clean_name(str(value))
    if shape.name == "rect":
        corners = (shape.x, shape.y, shape.x + shape.width, shape.y + shape.height)
    elif shape.name == "circle":
        corners = ellipse_box(shape.cx, shape.cy, shape.r, shape.r)
    elif shape.name == "ellipse":
        corners = ellipse_box(shape.cx, shape.cy, shape.rx, shape.ry, shape.theta)
    elif shape.name != "polygon":
        return Box(name, (), no_box=shape.name or "shape without a name", place=place)
    elif not shape.all_points_x or len(shape.all_points_x) != len(shape.all_points_y):
        return Box(name, (), problem="the polygon needs as many x as y: draw it again, or remove it", place=place)
    else:
        corners = points_box(zip(shape.all_points_x, shape.all_points_y, strict=True))
    problem = "" if name else f"{attribute} has no value, or several: choose one class in VIA, or remove the region"
    return Box(name, corners, problem=problem, place=place)
