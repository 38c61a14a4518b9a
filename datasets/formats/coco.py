"""COCO JSON -> Source."""

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Annotated, Any, TypeVar

from msgspec import Meta, Raw, Struct

from datasets.errors import DataError, raise_any
from datasets.formats.file import File, Folder
from datasets.formats.source import Degrees, NoAngle, Source, box_around, crowd_of, points_box
from datasets.formats.splits import SplitFields, read_split, select_images
from datasets.formats.typed_json import ABSENT, Side, as_object, optional, parse, rows, shown
from datasets.store import FAR, Split
from utils.text import clean_name, first_names

T = TypeVar("T")
Id = int | float | str
Key = int | str  # an id in the form in which ids are compared
Flag = Annotated[int, Meta(ge=0, le=1)] | bool | None
Length = Annotated[int, Meta(gt=0, lt=2**31)]
ADD = "add it, or remove the annotations"
# Names of a category without boxes: nothing is in the image.
EMPTY = ("empty", "blank", "background", "none", "nothing")
KNOWN = {"license", "flickr_url", "coco_url", "date_captured", "keypoints", "num_keypoints"}  # of COCO; not read
MAX_ID = 2**53  # larger whole numbers are not exact in every program that reads JSON


class Image(SplitFields, gc=False, kw_only=True):
    id: Id
    file_name: Annotated[str, Meta(min_length=1)] | None = None
    width: Side | None = None
    height: Side | None = None
    coco_url: str | None = None
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


class Attributes(Degrees):
    """The attributes of an object, as CVAT and Datumaro write them: the angle `rotation`, and marks such as difficult."""

    crowd = False

    @classmethod
    def of(cls, value: Any) -> "Attributes":
        """Returns what an object of attributes says. Raises ValueError for a mark with an unknown value."""
        found = cls(Degrees.of(value))
        found.crowd, problem = crowd_of(value) if isinstance(value, dict) else (False, "")
        if problem:
            raise ValueError(problem)
        return found


class Annotation(Struct, gc=False):
    image_id: Id
    category_id: Id
    id: Any = None
    bbox: tuple[float, ...] | None = None
    area: Annotated[float, Meta(ge=0, lt=1e300)] | None = None
    iscrowd: Flag = None
    ignore: Flag = None  # as difficult: a crowd region
    difficult: Flag = None
    open: Flag = None  # this program's own key: a crowd region that is an ignore region
    segmentation: Raw = ABSENT  # parsed only without bbox
    attributes: Attributes = Attributes()
    rotation: NoAngle = NoAngle()
    angle: NoAngle = NoAngle()
    theta: NoAngle = NoAngle()

    def has_shape(self) -> bool:
        """Returns whether there is a box or an outline, also a wrong one. Camera traps may have the category only."""
        return bool(self.bbox) or bytes(memoryview(self.segmentation)[:5]) not in (b"", b"null", b"[]")


class RunLengths(Struct):
    """A mask as lengths of runs, compressed (text) or not."""

    size: tuple[Length, Length]
    counts: str | list[Annotated[int, Meta(ge=0, lt=2**31)]]


def matches(file: File) -> bool:
    """Returns whether a JSON file has a list of images, or annotations of images, as COCO names their fields."""
    fields = {key for key in file.keys if key.startswith(("images.", "annotations.image_id"))}
    return not fields.isdisjoint(("images.id", "images.file_name", "annotations.image_id")) or (
        "images" in file.keys and not fields
    )


def read_folder(folder: Folder, names: Iterable[str]) -> list[Source]:
    """Reads the file of a split, of those with the official name instances_..., or else of all. Raises DataError."""
    every = list(names)
    official = [name for name in every if name.rpartition("/")[2].startswith("instances")]
    return read_split(folder, official or every, read)


def read(file: File, split: Split) -> Source:
    """Reads a COCO file. Raises DataError.

    Ids that are not whole numbers are numbered. A box that is missing is computed from the segmentation."""
    path, contents = file.path, as_object(file.json)
    problems: list[str] = []
    unread: dict[str, set[str]] = {}  # keys of each list

    def listed(key: str, kind: type[T]) -> Iterator[tuple[int, T]]:
        return rows(contents.get(key, ABSENT), kind, f"{path}: {key}", problems, unread.setdefault(key, set()))

    categories = [row for _, row in listed("categories", Category)]
    images = [row for _, row in listed("images", Image)]
    if not categories and b'"caption"' in bytes(memoryview(contents.get("annotations", ABSENT))[:4096]):
        raise DataError(f"{path}: captions, not boxes: give the file with the boxes, such as instances_train2017.json")
    by_image, used = _annotations(path, listed("annotations", Annotation), problems)
    others = {key: ", ".join(sorted(unread[key] - KNOWN)) for key in ("images", "annotations")}
    notes = [f"{path}: keys of the {key} that are not read: {text}" for key, text in others.items() if text]
    names, category_ids = _categories(path, categories, used, notes)
    found = Source(path, os.path.dirname(path), tuple(names), find_images=True, is_coco=True)
    found.problems, found.notes = problems, notes
    found.category_ids = [category_ids[key] for key in names.values()]
    labels = {key: label for label, key in enumerate(names.values())}
    empty = {_key(row.id) for row in categories if clean_name(str(row.name)).lower() in EMPTY}
    _add_images(found, images, by_image, labels, empty, split)
    for key, left in by_image.items():
        text = f"{len(left)} annotations of image {shown(key)}, which is not among the images; {ADD}"
        problems.append(f"{path}: {text}")
    return found


def _add_images(
    found: Source,
    images: list[Image],
    by_image: dict[Key, list[Annotation]],
    labels: dict[Key, int],
    empty: set[Key],
    split: Split,
) -> None:
    """Adds the images of a split with their annotations, which are taken out of `by_image`.

    An annotation without a shape is an object without a box, unless its category is one of `empty`: its image is left out."""
    image_ids, seen = whole_ids("images", (_key(image.id) for image in images), found.path, found.notes), set()
    chosen = select_images(found, [image.name() for image in images], [image.split_word() for image in images], split)
    without_box: list[str] = []
    for image in images:
        key, name = _key(image.id), image.name()
        if key in seen:
            problem = "the id must be one that no other image has: export the file again"
            found.problems.append(f"{found.path}: image {image.id!r} {name!r}: {problem}")
            continue
        seen.add(key)
        annotations = by_image.pop(key, [])
        if name not in chosen:
            continue
        bare = [row for row in annotations if not row.has_shape() and _key(row.category_id) not in empty]
        if bare:
            without_box.append(f"{name} (annotation {bare[0].id})")
            continue
        found.add_image(name, image_id=image_ids[key], size=(int(image.height or 0), int(image.width or 0)))
        for annotation in annotations:
            if annotation.has_shape():
                _add_box(found, annotation, labels, f"{found.path}: annotation {annotation.id} of {name}")
        _add_annotated(found, image, labels)
    if without_box and not len(found.labels):
        raise_any(f"{found.path}: problems: {len(found.problems)}", found.problems)
        what = f"every image has an annotation without a box (bbox), for example {without_box[0]}"
        raise DataError(f"{found.path}: {what}: give the file with the boxes")
    if without_box:
        text = f"images with objects that have a category but no box, left out: {len(without_box)}"
        found.notes.append(f"{found.path}: {text}, for example {without_box[0]}")


def _annotations(
    path: str, annotations: Iterable[tuple[int, Annotation]], problems: list[str]
) -> tuple[dict[Key, list[Annotation]], dict[Key, bool]]:
    """Returns (annotations by the key of their image, whether a category of theirs has boxes)."""
    by_image: dict[Key, list[Annotation]] = defaultdict(list)
    used: dict[Key, bool] = {}
    for index, annotation in annotations:
        by_image[_key(annotation.image_id)].append(annotation)
        has_shape, category = annotation.has_shape(), _key(annotation.category_id)
        used[category] = has_shape or used.get(category, False)
        if has_shape and not annotation.bbox:
            place = f"{path}: annotations[{index}].segmentation (id {annotation.id})"
            annotation.bbox = _outline_box(annotation.segmentation, place, problems)
        elif annotation.attributes and annotation.bbox and len(annotation.bbox) == 4:
            x, y, width, height = annotation.bbox
            annotation.bbox = _xywh(box_around((x, y, x + width, y + height), annotation.attributes))
        if annotation.bbox:
            annotation.segmentation = ABSENT
    return by_image, used


def _key(id_: Id) -> Key:
    """Returns an id in the form in which images, categories and annotations are compared: 5, 5.0 and "5" are equal."""
    if isinstance(id_, int) and abs(id_) < MAX_ID:
        return id_
    text = f"{id_:.0f}" if isinstance(id_, float) and id_.is_integer() else str(id_)
    return int(text) if re.fullmatch("0|[1-9][0-9]{0,15}", text) and int(text) < MAX_ID else text


def whole_ids(kind: str, keys: Iterable[Key], path: str, notes: list[str]) -> dict[Key, int]:
    """Returns {key: id}: whole numbers stay as they are, other keys get those after the largest one, with a note."""
    keys = list(dict.fromkeys(keys))
    whole = [key for key in keys if isinstance(key, int)]
    if others := len(keys) - len(whole):
        notes.append(f"{path}: {kind} whose id is not a whole number below 2^53, which are numbered: {others}")
    new_ids = count(max(whole, default=0) + 1)
    return {key: key if isinstance(key, int) else next(new_ids) for key in keys}


def _categories(
    path: str, categories: list[Category], used: dict[Key, bool], notes: list[str]
) -> tuple[dict[str, Key], dict[Key, int]]:
    """Returns (key of each name in the order of ids, id of each key). `used`: whether a category of annotations has boxes.

    Some services export an unused category 0 that names the group of all others. It is left out, and so is the one by which
    camera traps mark empty images."""
    found = [(_key(row.id), clean_name(str(row.name))) for row in categories]
    groups = [row.supercategory if isinstance(row.supercategory, str) else "" for row in categories]
    for (key, name), group in zip(list(found), groups, strict=True):
        is_group = key == 0 and group in ("", "none", name) and groups.count(name) > (group == name)
        is_empty = name.lower() in EMPTY and used.get(key) is False
        if is_empty or (is_group and used and key not in used):
            found.remove((key, name))
            notes.append(f"{path}: category {shown(key)} {name!r} has no box and is left out")
    ids = whole_ids("categories", (key for key, _ in found), path, notes)
    names = {name: key for key, name in sorted(found, key=lambda row: ids[row[0]])}
    if len(ids) < len(found) or len(names) < len(found):
        twice = tuple(sorted({name for key, name in found if names[name] != key})) or tuple(names)
        raise DataError(f"{path}: two categories have the same id or name {first_names(twice)}: rename one of them")
    return names, ids


def _add_box(source: Source, annotation: Annotation, labels: dict[Key, int], place: str) -> None:
    """Adds the box of an annotation, or a problem."""
    label = labels.get(_key(annotation.category_id))
    if label is None:
        problem = f"category {shown(annotation.category_id)} is not among the categories; {ADD}"
        source.problems.append(f"{place}: {problem}")
    elif not annotation.bbox:
        pass  # the outline is wrong, which was reported where it was read
    elif len(annotation.bbox) != 4:
        source.problems.append(f"{place}: bbox {list(annotation.bbox)} must be x, y, width, height")
    else:
        x, y, width, height = annotation.bbox
        area = width * height if annotation.area is None else annotation.area
        marks = (
            annotation.iscrowd,
            annotation.ignore,
            annotation.difficult,
            annotation.attributes.crowd,
            annotation.open,
        )
        crowd = int(any(marks))
        if annotation.open:
            source.ignored_rows.add(len(source.labels))
        source.add_box(place, x, y, x + width, y + height, label, crowd, area)


def _add_annotated(source: Source, image: Image, labels: dict[Key, int]) -> None:
    """Adds the verified negatives of LVIS for the last image, and an ignore region for each class that is not exhaustive.

    The region has no end, because a detection that reaches out of the image is in it, too. Only the evaluation has it."""
    if image.neg_category_ids is not None:
        source.annotated[len(source) - 1] = [labels[_key(one)] for one in image.neg_category_ids if _key(one) in labels]
    for one in image.not_exhaustive_category_ids or ():
        if _key(one) in labels:
            source.ignored_rows.add(len(source.labels))
            source.add_box(f"{source.path}: image {image.id!r}", -FAR, -FAR, FAR, FAR, labels[_key(one)], 1)


def _outline_box(segmentation: Raw, place: str, problems: list[str]) -> tuple[float, ...]:
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
    return _xywh(points_box(points))


def _xywh(corners: tuple[float, float, float, float]) -> tuple[float, ...]:
    x1, y1, x2, y2 = corners
    return x1, y1, x2 - x1, y2 - y1


def _mask_box(runs: RunLengths) -> tuple[float, ...]:
    from pycocotools import mask

    rle = {"size": list(runs.size), "counts": runs.counts}
    return tuple(mask.toBbox(mask.frPyObjects(rle, *runs.size) if isinstance(runs.counts, list) else rle).tolist())
