"""JSON and JSON-MIN of Label Studio -> Source. Coordinates are in per cent of the image."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Raw, Struct, convert, field

from datasets.errors import DataError, raise_any
from datasets.formats.file import File
from datasets.formats.source import (
    Box,
    Corners,
    LabelFile,
    Source,
    ellipse_box,
    names_of,
    points_box,
    rotated_box,
)
from datasets.formats.splits import SplitFields, source_of_split
from datasets.formats.typed_json import ABSENT, Angle, Side, as_list, parse, rows
from datasets.store import Split
from utils.images import IMAGE_SUFFIXES

OPEN = "tasks without a submitted annotation, left out"
SEVERAL = "tasks with several annotations, of which one counts"
# What a JSON-MIN task holds of itself, next to its data and its controls: nothing in it is drawn.
OWN_KEYS = {"id", "annotator", "annotation_id", "created_at", "updated_at", "lead_time", "agreement"}


class Region(Struct, frozen=True):
    """A drawn object; its labels have the name of the tool."""

    x: float | None = None
    y: float | None = None
    width: float | None = None
    height: float | None = None
    rotation: Angle = 0.0  # degrees around the corner x, y
    points: list[tuple[float, float]] | None = None
    radius_x: float | None = field(name="radiusX", default=None)
    radius_y: float | None = field(name="radiusY", default=None)
    rectanglelabels: list[str] = []
    polygonlabels: list[str] = []
    ellipselabels: list[str] = []
    labels: list[str] = []
    original_width: Side = 0.0
    original_height: Side = 0.0

    def tool_names(self) -> list[str]:
        """Returns the labels of the control with which the object was drawn."""
        return self.rectanglelabels or self.polygonlabels or self.ellipselabels

    def names(self) -> list[str]:
        return self.tool_names() or self.labels


class Result(Struct):
    """One entry of an annotation: a drawn object, or an answer about the image or about an object."""

    value: Region = Region()
    id: Any = None
    type: str = ""
    to_name: str = ""  # the image or page to which the object belongs
    item_index: int | None = None
    original_width: Side = 0.0
    original_height: Side = 0.0
    image_rotation: float = 0.0


Numbered = list[tuple[int, Result]]  # with their indices


class Work(Struct):
    """What one person annotated in a task."""

    result: Raw = ABSENT
    was_cancelled: bool = False
    ground_truth: bool = False


def matches(file: File) -> bool:
    """Returns whether a JSON file holds a list of tasks: with data, as JSON-MIN, or with drawn objects."""
    drawn = ("x", "original_width", "rectanglelabels", "polygonlabels", "ellipselabels")
    marks = {"[].data", "[].annotator", "[].lead_time", *(f"[].*.{key}" for key in drawn)}
    return not marks.isdisjoint(file.keys)


def read(file: File, split: Split) -> Source:
    """Reads a JSON or JSON-MIN file of Label Studio. Raises DataError.

    Of a task with several annotations the first one counts, or the one that is marked as ground truth. Boxes are in pixels
    where the file has the size of the image, otherwise in fractions of the image."""
    path = file.path
    problems: list[str] = []
    left_out: dict[str, list[str]] = {OPEN: [], SEVERAL: []}  # what was not read -> places
    files, words = [], []
    seen: set[tuple[bytes, str]] = set()  # ids and images of JSON-MIN, which has a row for each annotation
    for index, raw in enumerate(as_list(file.json)):
        row = parse(raw, dict[str, Raw], f"{path}: [{index}]", problems)
        if row is None:
            continue
        number = bytes(row.get("id", b"")).decode(errors="replace")[:40] or index + 1
        place = f"{path}: task {number}"
        found = _task(row, place, left_out, problems) if "data" in row else _minimal(row, place, problems)
        if found is None:
            continue
        data, results = found
        image, problem = _image(data, results)
        key = bytes(row.get("id", b"")), image
        if "data" not in row and key[0] and key in seen:
            left_out[SEVERAL].append(place)
            continue
        seen.add(key)
        files.append(_label_file(place, image, problem, results))
        words.append(convert(data, SplitFields).split_word())
    if not files and left_out[OPEN]:
        raise_any(f"{path}: problems: {len(problems)}", problems)  # annotations that could not be read
        fix = "label them, and export again"
        raise DataError(f"{path}: none of {len(left_out[OPEN])} tasks has a submitted annotation: {fix}")
    source = source_of_split(path, files, names_of(files), words, split, problems)
    source.sizes_problem = "the size of the image is not known: export with original_width, or give image_root=FOLDER"
    notes = [f"{path}: {what}: {len(places)}, for example {places[0]}" for what, places in left_out.items() if places]
    source.notes = notes + source.notes
    return source


def _task(
    row: Mapping[str, Raw], place: str, left_out: Mapping[str, list[str]], problems: list[str]
) -> tuple[dict[str, Any], Numbered] | None:
    """Returns (data, results) of a task; None, with its place in `left_out`, without a submitted annotation."""
    data = parse(row["data"], dict[str, Any], f"{place}: data", problems) or {}
    listed = row.get("annotations", row.get("completions", ABSENT))
    works = [work for _, work in rows(listed, Work, f"{place}: annotations", problems) if not work.was_cancelled]
    if not works:
        left_out[OPEN].append(place)
        return None
    if len(works) > 1:
        left_out[SEVERAL].append(place)
    truth = max(works, key=lambda work: work.ground_truth)
    return data, list(rows(truth.result, Result, f"{place}: result", problems))


def _minimal(row: Mapping[str, Raw], place: str, problems: list[str]) -> tuple[dict[str, Any], Numbered]:
    """Returns (data, results) of a JSON-MIN task, in which each control has a list of drawn objects."""
    drawn = [key for key, value in row.items() if key not in OWN_KEYS and re.match(rb"\[\s*\{", bytes(value))]
    regions = [region for key in drawn for region in rows(row[key], Region, f"{place}: {key}", problems)]
    data = {key: parse(value, str, place, problems) for key, value in row.items() if bytes(value).startswith(b'"')}
    return data, [(index, Result(value=region)) for index, region in regions]


def _label_file(place: str, image: str, problem: str, results: Numbered) -> LabelFile:
    """Returns the boxes of a task. Labels of the control <Labels> on an object of another control are not read."""
    tools = {str(result.id) for _, result in results if result.id is not None and result.value.tool_names()}
    results = [
        (index, result)
        for index, result in results
        if result.value.tool_names() or str(result.id) not in tools or not result.value.labels
    ]
    height, width = _written_size(results)
    boxes = list(_boxes(results, place, width, height))
    return LabelFile(place, image, (height, width), boxes, problem, fractions=bool(boxes) and not width)


def _written_size(results: Numbered) -> tuple[int, int]:
    for _, result in results:
        sized = result if result.original_width else result.value
        if sized.original_width and sized.original_height:
            return int(sized.original_height), int(sized.original_width)
    return 0, 0


def _image(data: Mapping[str, Any], results: Numbered) -> tuple[str, str]:
    """Returns (path of the image of a task, what is wrong): the value of "image", or the one with the suffix of an image."""
    drawn = [result for _, result in results if result.value.names()]
    if len({result.to_name for result in drawn}) > 1 or any(result.item_index for result in drawn):
        return "", "its boxes are on several images or pages: import each of them as a task, and label them there"
    texts = {key: value for key, value in data.items() if isinstance(value, str) and value}
    found = {value for value in texts.values() if value.partition("?X-Amz")[0].lower().endswith(IMAGE_SUFFIXES)}
    if len(found) > 1 and "image" not in texts:
        shown = " or ".join(sorted(found)[:5])
        return "", f"its image may be {shown}: name the right one image in the data of the task"
    image = texts.get("image") or next(iter(found), "")
    return image, "" if image else "there is no image: export the task again, or remove it"


def _boxes(results: Numbered, place: str, width: int, height: int) -> Iterator[Box]:
    """Yields the boxes of a task in pixels, or in fractions of the image if its width and height are 0."""
    labeled = {str(result.id) for _, result in results if result.id is not None and result.value.names()}
    for index, result in results:
        names, where = result.value.names(), f"{place}, result {index + 1}"
        corners = _corners(result.value, (width or 1) / 100, (height or 1) / 100)
        problem = ""
        if not names and str(result.id) in labeled:
            continue  # another result has the label of this object
        if corners is None:
            yield Box(", ".join(names), (), no_box=result.type or "object without corners", place=where)
            continue
        turned = bool(result.value.rotation) or result.value.radius_x is not None
        if result.image_rotation:
            problem = "the image is rotated in Label Studio: rotate the file, and draw again"
        elif turned and not width:
            problem = "a rotated box or an ellipse needs the size of the image: export with original_width"
        elif not names:
            problem = "the object has no label: choose one, or remove it"
        for name in names or [""]:
            yield Box(name, corners, problem=problem, place=where)


def _corners(region: Region, wide: float, high: float) -> Corners | None:
    """Returns the bounding box of an object in pixels, None for an object without area, such as a point.

    `wide` and `high` are the pixels of a per cent of the image."""
    if region.points:
        return points_box((x * wide, y * high) for x, y in region.points)
    if region.x is None or region.y is None:
        return None
    x, y, angle = region.x * wide, region.y * high, math.radians(region.rotation)
    if region.radius_x is not None and region.radius_y is not None:
        return ellipse_box(x, y, region.radius_x * wide, region.radius_y * high, angle)
    if region.width is None or region.height is None:
        return None
    return rotated_box(x, y, x + region.width * wide, y + region.height * high, angle, (x, y))
