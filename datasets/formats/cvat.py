"""XML of CVAT ("CVAT for images 1.1") -> Source."""

import math
import re
import xml.etree.ElementTree as ElementTree

from datasets.errors import DataError
from datasets.formats.file import File, parse_xml
from datasets.formats.source import (
    Box,
    Corners,
    LabelFile,
    Source,
    box_around,
    crowd_of,
    ellipse_box,
    names_of,
    points_box,
    side,
)
from datasets.formats.splits import source_of_split
from datasets.store import Split
from utils.text import clean_name, number_of

NO_AREA = ("attribute", "polyline", "points", "cuboid", "skeleton", "tag")  # elements without a box
_ROOT = re.compile(rb"<(\w+:)?annotations\b")


def matches(file: File) -> bool:
    """Returns whether an XML file has many images."""
    return bool(_ROOT.search(file.head.replace(b"\0", b"")))  # UTF-16 has zeros


def read(file: File, split: Split) -> Source:
    """Reads an XML file with the boxes, polygons, ellipses and masks of many images. Raises DataError.

    The classes are the labels of the task or project, in its order."""
    path = file.path
    root = parse_xml(path)
    if root.find("track") is not None:
        raise DataError(f"{path}: of a video, not images: export as CVAT for images 1.1, or as COCO")
    files = [_label_file(path, node) for node in root.iterfind("image")]
    used = names_of(files)
    labels = dict.fromkeys(clean_name(node.findtext("name", "")) for node in root.iterfind("meta//labels/label"))
    names = tuple(labels) if set(used) <= set(labels) and all(labels) else used
    words = [node.get("subset", "") for node in root.iterfind("image")]  # of a project: Train, Validation or Test
    return source_of_split(path, files, names, words, split, [])


def _label_file(path: str, node: ElementTree.Element) -> LabelFile:
    name = node.get("name", "")
    size = side(node.get("height", "")), side(node.get("width", ""))
    boxes = [_box(shape, f"{path}: {name}, object {number}") for number, shape in enumerate(node, 1)]
    return LabelFile(f"{path}: {name}", name, size, boxes, "" if name else "an image without a name: export it again")


def _box(shape: ElementTree.Element, place: str) -> Box:
    name = clean_name(shape.get("label", ""))
    if shape.tag in NO_AREA:
        return Box(name, (), no_box=shape.tag, place=place)
    crowd, problem = crowd_of({node.get("name"): node.text for node in shape.iterfind("attribute")})
    try:
        return Box(name, _corners(shape), crowd, problem, place=place)
    except ValueError:
        what = " ".join(f'{key}="{value[:40]}"' for key, value in shape.items())
        return Box(name, (), problem=f"<{shape.tag} {what}> has no box of numbers: export it again", place=place)


def _corners(shape: ElementTree.Element) -> Corners:
    """Returns the bounding box of an element in pixels. Raises ValueError."""

    def numbers(*names: str) -> list[float]:
        return [number_of(shape.get(name) or "") for name in names]

    degrees = number_of(shape.get("rotation", "0"))
    if shape.tag == "box":
        return box_around(tuple(numbers("xtl", "ytl", "xbr", "ybr")), degrees)
    if shape.tag == "ellipse":
        x, y, radius_x, radius_y = numbers("cx", "cy", "rx", "ry")
        return ellipse_box(x, y, radius_x, radius_y, math.radians(degrees))
    if shape.tag == "mask":
        left, top, width, height = numbers("left", "top", "width", "height")
        return left, top, left + width, top + height
    points = [tuple(map(float, point.split(","))) for point in shape.get("points", "").split(";")]
    return points_box((x, y) for x, y in points)
