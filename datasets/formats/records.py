"""JSON and JSON Lines with one record per image -> Source: Hugging Face, SageMaker Ground Truth, Create ML and Supervisely."""

import os
import re
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import Any

from msgspec import Raw, Struct, field

from datasets.errors import DataError, open_file
from datasets.formats.file import File, Folder, text_lines
from datasets.formats.labelme import read_files
from datasets.formats.source import Box, LabelFile, Source, crowd_of, names_of, points_box
from datasets.formats.splits import SPLITS, SplitFields, source_of_split, word_split
from datasets.formats.typed_json import ABSENT, BOM, as_list, parse
from datasets.store import Split

Four = tuple[float, float, float, float]

IN_ANN = re.compile(r"(^|/)ann/[^/]+$", re.IGNORECASE)


def _box(name: Any, x: float, y: float, width: float, height: float) -> Box:
    return Box(str(name), (x, y, x + width, y + height))


def _lines(path: str) -> list[tuple[str, Raw]]:
    """Returns (place, JSON) of the lines that are not blank."""
    return [(f"{path}:{number}", Raw(line.encode())) for number, line in text_lines(path) if line.strip()]


def _source(
    path: str, kind: "type[HuggingFace | CreateML]", rows: Iterable[tuple[str, Raw]], split: Split, problems: list[str]
) -> Source:
    """Returns the records in `rows` (place, JSON) that belong to a split."""
    files, words = [], []
    for place, raw in rows:
        if record := parse(raw, kind, place, problems):
            name = record.image()
            problem = "" if name else "no image: name it"
            files.append(LabelFile(place, name, boxes=list(record.boxes()), problem=problem))
            words.append(record.split_word())
    places = [(file.image, file.path) for file in files]
    names = names_of(files)
    are_numbers = bool(names) and all(map(str.isdecimal, names))
    if are_numbers:
        names = tuple(sorted(names, key=int))
    found = source_of_split(path, files, names, words, split, problems, places)
    found.names_are_numbers = are_numbers
    return found


# ---- Hugging Face


class _Objects(Struct, frozen=True):
    bbox: list[Four]
    category: list[int | str] | None = None
    categories: list[int | str] | None = None
    label: list[int | str] | None = None
    labels: list[int | str] | None = None
    iscrowd: list[Any] | None = None


class HuggingFace(SplitFields, kw_only=True):
    """A line of metadata.jsonl: the boxes are x, y, width, height in pixels, as its guides have them."""

    file_name: str
    objects: _Objects

    def image(self) -> str:
        return self.file_name

    def boxes(self) -> Iterator[Box]:
        found = self.objects
        names = next((n for n in (found.category, found.categories, found.label, found.labels) if n is not None), [])
        if len(names) != len(found.bbox):
            yield Box("", (), problem=f"{len(found.bbox)} boxes, but {len(names)} categories: give each box one")
            return
        for name, bbox, mark in zip_longest(names, found.bbox, (found.iscrowd or ())[: len(names)]):
            crowd, problem = crowd_of({"iscrowd": mark})
            yield _box(name, *bbox)._replace(crowd=crowd, problem=problem)


def read_hugging_face(file: File, split: Split) -> Source:
    """Reads metadata.jsonl of Hugging Face. Raises DataError."""
    return _source(file.path, HuggingFace, _lines(file.path), split, [])


# ---- Create ML


class _Center(Struct, frozen=True):
    x: float
    y: float
    width: float
    height: float


class _Labeled(Struct, frozen=True):
    label: str
    coordinates: _Center


class CreateML(SplitFields, kw_only=True):
    """An image of Create ML (Apple, Roboflow, LabelImg): x, y is the center of a box, in pixels from the upper left corner.

    Tools write image and annotations; Apple's pages have imagefilename and annotation."""

    image_name: str = field(name="image", default="")
    image_file_name: str = field(name="imagefilename", default="")
    annotations: list[_Labeled] | None = None
    annotation: list[_Labeled] | None = None

    def image(self) -> str:
        return self.image_name or self.image_file_name

    def boxes(self) -> Iterator[Box]:
        labeled = self.annotation if self.annotations is None else self.annotations
        if labeled is None:
            yield Box("", (), problem="no annotations: write an empty list for a background image")
        for one in labeled or ():
            at = one.coordinates
            yield _box(one.label, at.x - at.width / 2, at.y - at.height / 2, at.width, at.height)


def is_create_ml(file: File) -> bool:
    """Returns whether a JSON file is a list of images with annotations, as Create ML has it."""
    images, lists = {"[].image", "[].imagefilename"}, {"[].annotations", "[].annotation"}
    return not images.isdisjoint(file.keys) and not lists.isdisjoint(file.keys)


def read_create_ml(file: File, split: Split) -> Source:
    """Reads a JSON file of Create ML. Raises DataError."""
    rows = [(f"{file.path}: [{index}]", raw) for index, raw in enumerate(as_list(file.json))]
    return _source(file.path, CreateML, rows, split, [])


# ---- SageMaker Ground Truth


class _Rectangle(Struct, frozen=True):
    class_id: int
    left: float
    top: float
    width: float
    height: float


class _Job(Struct, frozen=True):
    """The metadata of a labeling job."""

    kind: str = field(name="type", default="")
    class_map: dict[str, str] = field(name="class-map", default={})


class _Rectangles(Struct, frozen=True):
    annotations: list[_Rectangle]


def read_manifest(file: File, split: Split) -> Source:
    """Reads an augmented manifest of SageMaker Ground Truth, or of Rekognition Custom Labels. Raises DataError.

    A line has the boxes under the name of their labeling job. Lines without any were not labeled, and are left out."""
    path = file.path
    problems: list[str] = []
    files, unlabeled = [], []
    for place, raw in _lines(path):
        line = parse(raw, dict[str, Raw], place, problems) or {}
        image = parse(line.get("source-ref", ABSENT), str, f"{place}: source-ref", problems)
        jobs = _boxes_of_jobs(line, place, problems)
        if len(jobs) > 1:
            problems.append(f"{place}: boxes of several labeling jobs, {', '.join(jobs)}: keep those of one")
        elif image and jobs:
            files.append(LabelFile(place, image, boxes=next(iter(jobs.values()))))
        elif image:
            unlabeled.append(place)
    if unlabeled and not files and not problems:
        raise DataError(f"{path}: no line has boxes of a labeling job: give the output manifest of the job")
    source = source_of_split(path, files, names_of(files), [], split, problems)
    if unlabeled:
        text = f"images without the boxes of a labeling job, left out: {len(unlabeled)}, for example {unlabeled[0]}"
        source.notes.append(f"{path}: {text}")
    return source


def _boxes_of_jobs(line: dict[str, Raw], place: str, problems: list[str]) -> dict[str, list[Box]]:
    """Returns {name of a labeling job for boxes: its boxes} of a line."""
    found = {}
    for name in [key.removesuffix("-metadata") for key in line if key.endswith("-metadata")]:
        job = parse(line[f"{name}-metadata"], _Job, f"{place}: {name}-metadata", problems)
        if job is None or job.kind != "groundtruth/object-detection" or name not in line:
            continue
        drawn = parse(line[name], _Rectangles, f"{place}: {name}", problems)
        found[name] = [_rectangle(one, job) for one in drawn.annotations] if drawn else []
    return found


def _rectangle(one: _Rectangle, job: _Job) -> Box:
    name = job.class_map.get(str(one.class_id), "")
    box = _box(name, one.left, one.top, one.width, one.height)
    return box if name else box._replace(problem=f"class {one.class_id} is not in class-map: add it")


# ---- Supervisely: one JSON file per image


class _Exterior(Struct, frozen=True):
    exterior: list[tuple[float, float]] = []


class _Figure(Struct, frozen=True):
    name: str = field(name="classTitle")
    kind: str = field(name="geometryType", default="rectangle")
    points: _Exterior = _Exterior()


class _Tag(Struct, frozen=True):
    name: str = ""


class Supervisely(Struct):
    """An annotation file of Supervisely, NAME.jpg.json in the folder ann, with the images in img."""

    objects: list[_Figure]
    tags: list[_Tag] | None = None  # of the image; train and val are the usual splits

    def split_word(self) -> str:
        """Returns the split that a tag names; "" without one."""
        words = (word_split(tag.name) for tag in self.tags or ())
        return next((word for word in words if word in SPLITS), "")

    def boxes(self) -> Iterator[Box]:
        for figure in self.objects:
            is_area = figure.kind in ("rectangle", "polygon") and len(figure.points.exterior) > 1
            corners = points_box(figure.points.exterior) if is_area else ()
            yield Box(figure.name, corners, no_box="" if is_area else figure.kind or "shape of no kind")


def is_supervisely(file: File) -> bool:
    """Returns whether a JSON file holds the objects of one image as Supervisely writes them, or none."""
    below = [key for key in file.keys if key.startswith("objects.")]
    return "objects.classTitle" in file.keys or ("objects" in file.keys and not below)


def read_supervisely(folder: Folder, names: Iterable[str]) -> list[Source]:
    """Reads a project of Supervisely: one JSON file per image, in folders named ann, or anywhere. Raises DataError."""
    names = list(names)
    return [read_files(folder, [name for name in names if IN_ANN.search(name)] or names, _supervisely)]


def _supervisely(path: str, problems: list[str]) -> tuple[LabelFile, str]:
    with open_file(path) as opened:
        raw = Raw(opened.read().removeprefix(BOM))
    record = parse(raw, Supervisely, path, problems) or Supervisely(objects=[])
    image = os.path.splitext(os.path.basename(path))[0]
    if IN_ANN.search(path):
        image = f"../img/{image}"
    return LabelFile(path, image, boxes=list(record.boxes())), record.split_word()
