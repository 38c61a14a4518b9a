"""COCO JSON -> Source."""

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import count
from mmap import ACCESS_READ, mmap
from typing import Annotated, Any, TypeVar

from msgspec import Meta, Raw, Struct, field

from datasets.errors import DataError, open_file
from datasets.formats.file import File, Folder
from datasets.formats.source import Degrees, NoAngle, Source, box_around, points_box
from datasets.formats.splits import read_split, select_images
from datasets.formats.typed_json import ABSENT, Side, as_object, optional, parse, rows, shown
from datasets.store import Split
from utils.text import clean_name, first_names

T = TypeVar("T")
Id = int | float | str
Length = Annotated[int, Meta(gt=0, lt=2**31)]
ADD = "add it, or remove the annotations"
_ROWS = re.compile(rb'"annotations"\s*:\s*\[\s*')
_BOX = re.compile(rb'"(bbox|segmentation|segments_info)"')  # panoptic annotations have boxes in segments_info
_CAPTION = re.compile(rb'\{[^{}]*"caption"\s*:')
MAX_ID = 2**53  # larger whole numbers are not exact in every program that reads JSON


class Image(Struct, gc=False):
    id: Id
    file_name: Annotated[str, Meta(min_length=1)] | None = None
    width: Side | None = None
    height: Side | None = None
    coco_url: str | None = None
    split: Any = None
    neg_category_ids: list[Id] | None = None  # LVIS: verified negatives, classes that the image does not have
    not_exhaustive_category_ids: list[Id] | None = None  # LVIS: not exhaustive, only some objects have boxes

    def __post_init__(self) -> None:
        if not self.name():
            raise ValueError("Object missing required field `file_name`")

    def name(self) -> str:
        """Returns the path of the image. LVIS has only its address, which ends with its folder and name."""
        return self.file_name or "/".join((self.coco_url or "").split("/")[-2:])


class Category(Struct, gc=False):
    id: Id
    name: str | int | float
    supercategory: Any = None


class Annotation(Struct, gc=False):
    image_id: Id
    category_id: Id
    id: Any = None
    bbox: tuple[float, ...] | None = None
    area: Annotated[float, Meta(ge=0, lt=1e300)] | None = None
    iscrowd: Annotated[int, Meta(ge=0, le=1)] | bool | None = None
    ignore: Annotated[int, Meta(ge=0, le=1)] | bool | None = None  # as VOC's difficult: a crowd region
    open: Annotated[int, Meta(ge=0, le=1)] | bool | None = (
        None  # this program's own key: a crowd region that is an ignore region
    )
    segmentation: Raw = ABSENT  # parsed only without bbox
    turned: Degrees = field(name="attributes", default=Degrees())  # the attribute rotation, as CVAT writes it
    rotation: NoAngle = NoAngle()
    angle: NoAngle = NoAngle()
    theta: NoAngle = NoAngle()


class RunLengths(Struct):
    """A mask as lengths of runs, compressed (text) or not."""

    size: tuple[Length, Length]
    counts: str | list[Annotated[int, Meta(ge=0, lt=2**31)]]


def has_labels(path: str | os.PathLike) -> bool:
    """Returns whether a JSON file is no COCO file for another task: one with captions or panoptic segments, or without labels.

    A COCO file with an empty list of annotations has labels: its images are backgrounds. The file is read up to its first
    box, because the images may come first."""
    with open_file(path) as file, mmap(file.fileno(), 0, access=ACCESS_READ) as contents:
        if contents.find(b'"images"') < 0:
            return True
        start = _ROWS.search(contents)
        if start is None or contents[start.end() : start.end() + 1] == b"]":
            return start is not None
        first = _BOX.search(contents, start.end())
        return first is not None and first[1] != b"segments_info"


def read_folder(folder: Folder, names: Iterable[str]) -> list[Source]:
    """Reads the file of a split, of those with the official name instances_..., or else of all. Raises DataError."""
    every = list(names)
    return read_split(
        folder, [name for name in every if name.rpartition("/")[2].startswith("instances")] or every, read
    )


def read(file: File, split: Split) -> Source:
    """Reads a COCO file. Raises DataError.

    Ids that are not whole numbers are numbered. A box that is missing is computed from the segmentation."""
    source, contents = file.path, as_object(file.json)
    problems: list[str] = []
    categories = [row for _, row in _rows(source, contents, "categories", Category, problems)]
    images = [row for _, row in _rows(source, contents, "images", Image, problems)]
    if not categories and _CAPTION.search(memoryview(contents.get("annotations", ABSENT))[:4096]):
        raise DataError(
            f"{source}: captions, not boxes: give the file with the boxes, such as instances_train2017.json"
        )
    by_image, used, notes = _annotations(source, contents, problems)
    names, category_ids = _categories(source, categories, used, notes)
    found = Source(source, os.path.dirname(source), tuple(names), find_images=True, is_coco=True)
    found.problems, found.notes = problems, notes
    found.category_ids = [category_ids[key] for key in names.values()]
    _add_images(found, images, by_image, {key: label for label, key in enumerate(names.values())}, split)
    for key, left in by_image.items():
        problems.append(
            f"{source}: {len(left)} annotations of image {shown(key)}, which is not among the images; {ADD}"
        )
    return found


def _add_images(
    found: Source, images: list[Image], by_image: dict[Id, list[Annotation]], labels: dict[Id, int], split: Split
) -> None:
    """Adds the images of a split with their annotations, which are taken out of `by_image`."""
    image_ids, seen = whole_ids("images", (_key(image.id) for image in images), found.path, found.notes), set()
    words = [image.split if isinstance(image.split, str) else "" for image in images]
    chosen = select_images(found, [image.name() for image in images], words, split)
    for image in images:
        key, name = _key(image.id), image.name()
        if key in seen:
            problem = "the id must be one that no other image has: export the file again"
            found.problems.append(f"{found.path}: image {image.id!r} {name!r}: {problem}")
            continue
        seen.add(key)
        annotations = by_image.pop(key, ())
        if name in chosen:
            found.add_image(name, image_id=image_ids[key], size=(int(image.height or 0), int(image.width or 0)))
            for annotation in annotations:
                _add_box(found, annotation, labels, f"{found.path}: annotation {annotation.id} of {name}")
            _add_annotated(found, image, labels)


def _annotations(
    source: str, contents: dict[str, Raw], problems: list[str]
) -> tuple[dict[Id, list[Annotation]], set[Id], list[str]]:
    """Returns (annotations by the key of their image, keys of their categories, notes)."""
    by_image, used, outlined, ignored = defaultdict(list), set(), 0, 0
    for index, annotation in _rows(source, contents, "annotations", Annotation, problems):
        used.add(annotation.category_id)
        ignored += bool(annotation.ignore and not annotation.iscrowd)
        by_image[_key(annotation.image_id)].append(annotation)
        if not annotation.bbox:
            outlined += 1
            place = f"{source}: annotations[{index}].segmentation (id {annotation.id})"
            annotation.bbox = outline_box(annotation.segmentation, place, problems)
        elif annotation.turned:
            annotation.bbox = _box_around(annotation.bbox, annotation.turned)
        annotation.segmentation = ABSENT
    notes = []
    if outlined:
        notes.append(f"{source}: boxes without bbox, computed from their segmentation: {outlined}")
    if ignored:
        notes.append(f"{source}: boxes with ignore, which are crowd regions: {ignored}")
    return by_image, set(map(_key, used)), notes


def _box_around(bbox: tuple[float, ...], degrees: float) -> tuple[float, ...]:
    """Returns x, y, width, height around a rotated box; what is not four numbers, which is reported later, stays."""
    if len(bbox) != 4:
        return bbox
    x, y, width, height = bbox
    x1, y1, x2, y2 = box_around((x, y, x + width, y + height), degrees)
    return x1, y1, x2 - x1, y2 - y1


def _rows(
    source: str, contents: dict[str, Raw], key: str, kind: type[T], problems: list[str]
) -> Iterator[tuple[int, T]]:
    return rows(contents.get(key, ABSENT), kind, f"{source}: {key}", problems)


def _key(id_: Id) -> Id:
    """Returns an id in the form by which images, categories and annotations are compared: 5, 5.0 and "5" are equal."""
    if isinstance(id_, int):
        return id_ if abs(id_) < MAX_ID else str(id_)
    if isinstance(id_, float):
        return int(id_) if abs(id_) < MAX_ID and id_.is_integer() else id_
    whole = id_.isascii() and id_.isdigit() and len(id_) < 16 and (id_ == "0" or id_[0] != "0")
    return int(id_) if whole else id_


def whole_ids(kind: str, keys: Iterable[Id], source: str, notes: list[str]) -> dict[Id, int]:
    """Returns {key: id}: whole numbers stay as they are, other keys get those after the largest one, with a note."""
    keys = list(dict.fromkeys(keys))
    ids: dict[Id, int] = {key: key for key in keys if isinstance(key, int)}
    if len(ids) < len(keys):
        notes.append(
            f"{source}: {kind} whose id is not a whole number below 2^53, which are numbered: {len(keys) - len(ids)}"
        )
    new_ids = count(max(ids.values(), default=0) + 1)
    return {key: ids[key] if key in ids else next(new_ids) for key in keys}


def _categories(
    source: str, categories: list[Category], used: set[Id], notes: list[str]
) -> tuple[dict[str, Id], dict[Id, int]]:
    """Returns (key of each name in the order of ids, id of each key). `used`: keys of the annotations.

    Some services export an unused category 0 that names the group of all others. It is left out."""
    found = [(_key(row.id), clean_name(str(row.name))) for row in categories]
    groups = [row.supercategory if isinstance(row.supercategory, str) else "" for row in categories]
    for (key, name), group in zip(list(found), groups, strict=True):
        is_group = key == 0 and group in ("", "none", name) and groups.count(name) > (group == name)
        if is_group and used and 0 not in used:
            found.remove((key, name))
            notes.append(f"{source}: category 0 {name!r} has no box and is left out")
    ids = whole_ids("categories", (key for key, _ in found), source, notes)
    names = {name: key for key, name in sorted(found, key=lambda row: ids[row[0]])}
    if len(ids) < len(found) or len(names) < len(found):
        twice = tuple(sorted({name for key, name in found if names[name] != key})) or tuple(names)
        raise DataError(f"{source}: two categories have the same id or name {first_names(twice)}: rename one of them")
    return names, ids


def _add_box(source: Source, annotation: Annotation, labels: dict[Id, int], place: str) -> None:
    """Adds the box of an annotation, or a problem."""
    label = labels.get(_key(annotation.category_id))
    if label is None:
        problem = f"category {shown(annotation.category_id)} is not among the categories; {ADD}"
        source.problems.append(f"{place}: {problem}")
    elif not annotation.bbox:
        pass  # reported where it was read
    elif len(annotation.bbox) != 4:
        source.problems.append(f"{place}: bbox {list(annotation.bbox)} must be x, y, width, height")
    else:
        x, y, width, height = annotation.bbox
        area = width * height if annotation.area is None else annotation.area
        crowd = int(annotation.iscrowd or annotation.ignore or annotation.open or 0)
        if annotation.open:
            source.ignored_rows.add(len(source.labels))
        source.add_box(place, x, y, x + width, y + height, label, crowd, area)


def _add_annotated(source: Source, image: Image, labels: dict[Id, int]) -> None:
    """Adds the verified negatives of LVIS for the last image, and an ignore region for each class that is not exhaustive."""
    if image.neg_category_ids is not None:
        source.annotated[len(source) - 1] = [labels[_key(one)] for one in image.neg_category_ids if _key(one) in labels]
    for one in image.not_exhaustive_category_ids or ():
        place = f"{source.path}: image {image.id!r} {image.name()!r}"
        if not image.width or not image.height:
            source.problems.append(f"{place}: not_exhaustive_category_ids without width and height: add them")
        elif _key(one) in labels:
            source.ignored_rows.add(len(source.labels))
            source.add_box(place, 0, 0, image.width, image.height, labels[_key(one)], 1)


def outline_box(segmentation: Raw, place: str, problems: list[str]) -> tuple[float, ...]:
    """Returns x, y, width, height of the polygons or of the mask of a segmentation, or () with a problem."""
    if bytes(segmentation).startswith(b"{"):
        found = parse(segmentation, RunLengths, place, problems)
        return () if found is None else _mask_box(found)
    known = len(problems)
    polygons = optional(segmentation, list[list[float]], place, problems) or []
    if len(problems) > known:
        return ()
    points = [pair for polygon in polygons for pair in zip(polygon[::2], polygon[1::2], strict=False)]
    if not points or any(len(polygon) % 2 for polygon in polygons):
        problems.append(f"{place} has no points x, y, and there is no bbox: draw the object again, or remove it")
        return ()
    x1, y1, x2, y2 = points_box(points)
    return x1, y1, x2 - x1, y2 - y1


def _mask_box(runs: RunLengths) -> tuple[float, ...]:
    from pycocotools import mask

    rle = {"size": list(runs.size), "counts": runs.counts}
    return tuple(mask.toBbox(mask.frPyObjects(rle, *runs.size) if isinstance(runs.counts, list) else rle).tolist())
