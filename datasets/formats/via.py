"""VIA (VGG Image Annotator) 2: a project, or its annotations exported as JSON -> Source."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Raw, Struct, field

from datasets.errors import DataError
from datasets.formats.file import File
from datasets.formats.source import Box, LabelFile, Source, crowd_of, ellipse_box, names_of, points_box
from datasets.formats.splits import SplitFields, source_of_split
from datasets.formats.typed_json import Angle, as_object, parse, shown
from datasets.store import Split
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
    file_attributes: SplitFields = field(default_factory=SplitFields)
    regions: list[Raw] | dict[str, Raw] = []  # in VIA 1 an object with the keys "0", "1", ...


def matches(file: File) -> bool:
    """Returns whether a JSON file holds a project of VIA, or an object of images with regions."""
    return "_via_img_metadata" in file.keys or ("*.regions" in file.keys and "[].regions" not in file.keys)


def read(file: File, split: Split) -> Source:
    """Reads a project of VIA, or its annotations. Raises DataError.

    The class is the only attribute of the regions, or the one that is named class, label, name or type. Without any, the
    classes that the user gives must be one class."""
    source, contents = file.path, as_object(file.json)
    problems: list[str] = []
    options = _options(contents, source, problems)
    if "_via_img_metadata" in contents:
        contents = parse(contents["_via_img_metadata"], dict[str, Raw], f"{source}: _via_img_metadata", problems) or {}
    found = []
    for key, raw in contents.items():
        image = parse(raw, Image, f"{source}: {shown(key)}", problems)
        if image is not None:
            place = f"{source}: {image.filename}"
            found.append((place, image, _regions(image, place, problems)))
    every = [region for *_, regions in found for _, region in regions]
    attribute = _attribute(source, every)
    files = []
    for place, image, regions in found:
        named = options.get(attribute or "", {})
        boxes = [_box(region, attribute, f"{place}, region {index + 1}", named) for index, region in regions]
        files.append(LabelFile(place, image.filename, boxes=boxes))
    words = [image.file_attributes.split_word() for _, image, _ in found]
    packed = source_of_split(source, files, names_of(files), words, split, problems)
    if attribute is None and every:
        packed.names, packed.one_class = None, True
        fix = "add one in VIA or, if there is one class, name it by classes=FILE"
        packed.needs_classes = f"the regions have no attribute for the class: {fix}"
    return packed


class _Attribute(Struct):
    options: dict[str, Any] = {}


class _Attributes(Struct):
    region: dict[str, _Attribute] = {}


def _options(contents: Mapping[str, Raw], source: str, problems: list[str]) -> dict[str, dict[str, Any]]:
    """Returns {attribute: {id: description}} of a project: its regions hold the ids of drop-downs and buttons."""
    if "_via_attributes" not in contents:
        return {}
    found = parse(contents["_via_attributes"], _Attributes, f"{source}: _via_attributes", problems)
    return {name: attribute.options for name, attribute in (found.region if found else {}).items()}


def _regions(image: Image, place: str, problems: list[str]) -> list[tuple[int, Region]]:
    raws = image.regions.values() if isinstance(image.regions, dict) else image.regions
    parsed = (parse(raw, Region, f"{place}: regions[{index}]", problems) for index, raw in enumerate(raws))
    return [(index, region) for index, region in enumerate(parsed) if region is not None]


def _attribute(source: str, regions: Sequence[Region]) -> str | None:
    """Returns the name of the attribute with the class; None without attributes. Raises DataError."""
    names = list(dict.fromkeys(name for region in regions for name in region.region_attributes))
    fitting = names if len(names) == 1 else [name for name in names if name.lower() in NAMES]
    if len(fitting) == 1:
        return fitting[0]
    if names:
        there = ", ".join(map(repr, names[:10]))
        raise DataError(f"{source}: which attribute is the class? There are {there}: name one of them class in VIA")
    return None


def _box(region: Region, attribute: str | None, place: str, named: Mapping[str, Any]) -> Box:
    """Returns the box of a region. `named`: the ids of a drop-down or of radio buttons, with their descriptions."""
    shape, value = region.shape_attributes, region.region_attributes.get(attribute or "")
    if isinstance(value, dict):  # check boxes
        chosen = [key for key, is_chosen in value.items() if is_chosen]
        value = chosen[0] if len(chosen) == 1 else None
    name = "" if value is None else clean_name(str(named.get(str(value)) or value))
    corners = _corners(shape)
    if corners is None:
        return Box(name, (), no_box=shape.name or "shape without a name", place=place)
    crowd, problem = crowd_of({key: one for key, one in region.region_attributes.items() if key != attribute})
    if attribute is None:
        name = "object"  # the user names the only class
    elif not name:
        problem = f"{attribute} has no value, or several: choose one class in VIA, or remove the region"
    if not corners:
        problem = "the polygon needs as many x as y: draw it again, or remove it"
    return Box(name, corners, crowd, problem, place=place)


def _corners(shape: Shape) -> tuple[float, ...] | None:
    """Returns the corners of the box around a shape; () for a wrong polygon, None for a shape without an area."""
    if shape.name == "rect":
        return shape.x, shape.y, shape.x + shape.width, shape.y + shape.height
    if shape.name == "circle":
        return ellipse_box(shape.cx, shape.cy, shape.r, shape.r)
    if shape.name == "ellipse":
        return ellipse_box(shape.cx, shape.cy, shape.rx, shape.ry, shape.theta)
    if shape.name != "polygon":
        return None
    is_whole = shape.all_points_x and len(shape.all_points_x) == len(shape.all_points_y)
    return points_box(zip(shape.all_points_x, shape.all_points_y, strict=True)) if is_whole else ()
