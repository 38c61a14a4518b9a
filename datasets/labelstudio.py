"""JSON and JSON-MIN of Label Studio -> Annotations. Coordinates are in per cent of the image."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Raw, Struct, field

from datasets.errors import DataError
from datasets.named import Box, LabelFile, pack_source
from datasets.shapes import Corners, ellipse_box, points_box, rotated_box
from datasets.store import Annotations, Classes
from datasets.typed import ABSENT, Side, parse, rows
from utils.images import IMAGE_SUFFIXES


class Region(Struct):
    """A drawn object; its labels have the name of the tool."""

    x: float | None = None
    y: float | None = None
    width: float | None = None
    height: float | None = None
    rotation: float = 0.0  # degrees around the corner x, y
    points: list[tuple[float, float]] | None = None
    radius_x: float | None = field(name="radiusX", default=None)
    radius_y: float | None = field(name="radiusY", default=None)
    rectanglelabels: list[str] = []
    polygonlabels: list[str] = []
    ellipselabels: list[str] = []
    labels: list[str] = []
    original_width: Side = 0.0
    original_height: Side = 0.0

    def names(self) -> list[str]:
        return self.rectanglelabels or self.polygonlabels or self.ellipselabels or self.labels


class Result(Struct):
    """One entry of an annotation: a drawn object, or an answer about the image or about an object."""

    value: Region
    id: Any = None
    type: str = ""
    original_width: Side = 0.0
    original_height: Side = 0.0
    image_rotation: float = 0.0


Numbered = list[tuple[int, Result]]  # with their indices


class Work(Struct):
    """What one person annotated in a task."""

    result: Raw = ABSENT
    was_cancelled: bool = False
    ground_truth: bool = False


def read_labelstudio(
    source: str, contents: list[Raw], classes: Classes, image_root: str | None, bad_boxes: str
) -> Annotations:
    """Returns the annotations in `contents`, the list in a JSON or JSON-MIN file of Label Studio. Raises DataError.

    Of a task with several annotations the first one counts, or the one that is marked as ground truth."""
    problems: list[str] = []
    if not any(map(_is_task, contents[:100])):
        problem = "not a COCO ground truth, but a list; detections are not labels"
        raise DataError(f"{source}: {problem}: export the boxes as COCO, or as JSON from Label Studio")
    files, open_tasks, several = [], 0, 0
    for index, raw in enumerate(contents):
        row = parse(raw, dict[str, Raw], f"{source}: [{index}]", problems)
        if row is None:
            continue
        place = f"{source}: task {bytes(row['id']).decode(errors='replace')[:40] if 'id' in row else index + 1}"
        if "data" in row:
            data = parse(row["data"], dict[str, Any], f"{place}: data", problems)
            listed = rows(
                row.get("annotations", row.get("completions", ABSENT)), Work, f"{place}: annotations", problems
            )
            works = [work for _, work in listed if not work.was_cancelled]
            if not works:
                open_tasks += 1
                continue
            several += len(works) > 1
            truth = max(works, key=lambda work: work.ground_truth)
            results = list(rows(truth.result, Result, f"{place}: result", problems))
        else:
            data, results = _minimal(row, place, problems)
        image = _image(data or {})
        if not image:
            problems.append(f"{place}: there is no image: export the task again, or remove it")
        size = next(((int(r.original_height), int(r.original_width)) for _, r in results if r.original_width), (0, 0))
        files.append(LabelFile(place, image, size, list(_boxes(results, place))))
    notes = [f"{source}: tasks without a submitted annotation, left out: {open_tasks}"] * bool(open_tasks)
    if several:
        notes.append(f"{source}: tasks with several annotations, of which one counts: {several}")
    return pack_source(source, files, classes, image_root, bad_boxes, problems=problems, notes=notes)


def _is_task(raw: Raw) -> bool:
    row = parse(raw, dict[str, Raw], "", [])
    return row is not None and ("data" in row or "annotator" in row or "lead_time" in row or bool(_drawn(row)))


def _drawn(row: Mapping[str, Raw]) -> list[str]:
    """Returns the keys of a JSON-MIN task that hold drawn objects."""
    return [key for key, value in row.items() if bytes(value).startswith(b"[{")]


def _minimal(row: Mapping[str, Raw], place: str, problems: list[str]) -> tuple[dict[str, Any], Numbered]:
    """Returns (data, results) of a JSON-MIN task."""
    regions = [region for key in _drawn(row) for region in rows(row[key], Region, f"{place}: {key}", problems)]
    data = {key: parse(value, Any, place, problems) for key, value in row.items() if bytes(value).startswith(b'"')}
    results = [
        (index, Result(value=region, original_width=region.original_width, original_height=region.original_height))
        for index, region in regions
    ]
    return data, results


def _image(data: Mapping[str, Any]) -> str:
    """Returns the path of the image of a task: the value of "image", or the first one with the suffix of an image."""
    texts = {key: value for key, value in data.items() if isinstance(value, str)}
    found = (value for value in texts.values() if value.partition("?X-Amz")[0].lower().endswith(IMAGE_SUFFIXES))
    return texts.get("image") or next(found, "")


def _boxes(results: Numbered, place: str) -> Iterator[Box]:
    labeled = {str(result.id) for _, result in results if result.id is not None and result.value.names()}
    for index, result in results:
        names, where = result.value.names(), f"{place}, result {index + 1}"
        corners = _corners(result)
        if corners is None:
            yield Box(", ".join(names), (), no_box=result.type or "object without corners", place=where)
        elif result.image_rotation:
            yield Box(
                "", (), problem="the image is rotated in Label Studio: rotate the file, and draw again", place=where
            )
        elif not result.original_width or not result.original_height:
            yield Box("", (), problem="original_width and original_height are missing: export it again", place=where)
        elif names:
            yield from (Box(name, corners, place=where) for name in names)
        elif str(result.id) not in labeled:  # otherwise another entry has the label of this object
            yield Box("", (), problem="the object has no label: choose one, or remove it", place=where)


def _corners(result: Result) -> Corners | None:
    """Returns the bounding box of an object in pixels, None for an object without area, such as a point."""
    value, wide, high = result.value, result.original_width / 100, result.original_height / 100
    if value.points:
        return points_box((x * wide, y * high) for x, y in value.points)
    if value.x is None or value.y is None:
        return None
    x, y, angle = value.x * wide, value.y * high, math.radians(value.rotation)
    if value.radius_x is not None and value.radius_y is not None:
        return ellipse_box(x, y, value.radius_x * wide, value.radius_y * high, angle)
    if value.width is None or value.height is None:
        return None
    return rotated_box(x, y, x + value.width * wide, y + value.height * high, angle, (x, y))
