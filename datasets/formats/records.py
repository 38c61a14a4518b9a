"""Types of the JSON records of other tools, one class per tool. A record is one image with its boxes.

record_files.py reads the files.
"""

from collections.abc import Iterator
from typing import Annotated, Any

from msgspec import Meta, Struct, field

from datasets.formats.named_boxes import Box, points_box
from datasets.formats.rotation import Degrees, NoAngle, box_around
from datasets.formats.splits import SPLITS, word_split
from datasets.formats.typed_json import Side

Four = tuple[float, float, float, float]
Points = list[tuple[float, float]]

TRUE, FALSE = (True, "true", "True", "1"), (False, None, "", "false", "False", "0")  # values of attributes; 1 == True
NO_KIND = "shape of no kind"


class Record(Struct):
    """One image with its boxes."""

    split: Any = ""  # of the data, where all splits are in one file

    def split_word(self) -> str:
        """Returns `word_split` of the field with the split; "" without one."""
        return word_split(str(self.split or ""))

    def image(self) -> str:  # path or name
        raise NotImplementedError

    def size(self) -> tuple[float, float]:  # height, width; 0: not in the file
        return 0, 0

    def boxes(self) -> Iterator[Box]:
        raise NotImplementedError


def _box(name: Any, x: float, y: float, width: float, height: float, crowd: bool = False) -> Box:
    return Box(str(name), (x, y, x + width, y + height), crowd)


def _polygon(name: str, values: list[float], scale: tuple[float, float] = (1, 1)) -> Box:
    """Returns the bounding box of the points x1, y1, x2, y2, ..., multiplied by `scale`."""
    if len(values) < 4 or len(values) % 2:
        return Box(name, (), problem=f"{len(values)} numbers are not a polygon: write x1, y1, x2, y2, ...")
    return Box(name, points_box((x * scale[0], y * scale[1]) for x, y in zip(values[::2], values[1::2], strict=True)))


# ---- JSON Lines


class _Objects(Struct, frozen=True):
    bbox: list[Four]
    category: list[int | str] | None = None
    categories: list[int | str] | None = None
    label: list[int | str] | None = None
    labels: list[int | str] | None = None


class HuggingFace(Record, kw_only=True):
    """A line of metadata.jsonl: the boxes are x, y, width, height in pixels, as its guides have them."""

    file_name: str
    objects: _Objects
    set: Any = ""  # these fields count as the split if they name one
    subset: Any = ""
    dataset: Any = ""
    partition: Any = ""
    usage: Any = ""
    fold: Any = ""

    def split_word(self) -> str:
        """Returns the split in the first field that names one."""
        others = (self.set, self.subset, self.dataset, self.partition, self.usage, self.fold)
        words = [word_split(str(value)) for value in others]
        named = next((word for word in words if word in SPLITS), "")
        return super().split_word() or named

    def image(self) -> str:
        return self.file_name

    def boxes(self) -> Iterator[Box]:
        found = self.objects
        names = next((n for n in (found.category, found.categories, found.label, found.labels) if n is not None), [])
        if len(names) != len(found.bbox):
            yield Box("", (), problem=f"{len(found.bbox)} boxes, but {len(names)} categories: give each box one")
            return
        yield from (_box(name, *bbox) for name, bbox in zip(names, found.bbox, strict=True))


class _Extra(Struct, frozen=True):
    ignore: Annotated[int, Meta(ge=0, le=1)] = 0


class _Human(Struct, frozen=True):
    tag: str
    fbox: Four
    extra: _Extra = _Extra()


class CrowdHuman(Record, kw_only=True):
    """A line of an .odgt file: full bodies are boxes; ignored ones and masks are crowd regions of the class person."""

    id: str = field(name="ID")
    gtboxes: list[_Human]

    def image(self) -> str:
        return self.id

    def boxes(self) -> Iterator[Box]:
        for human in self.gtboxes:
            ignored = human.tag == "mask" or bool(human.extra.ignore)
            yield _box("person" if human.tag == "mask" else human.tag, *human.fbox, crowd=ignored)


class _Fractions(Struct, frozen=True, forbid_unknown_fields=True):
    """Rows with a class and fractions of the image; boxes are center and size, segments and obb are points."""

    boxes: list[tuple[int, float, float, float, float]] = []
    segments: list[Annotated[list[float], Meta(min_length=1)]] = []
    obb: list[Annotated[list[float], Meta(min_length=1)]] = []


class Ultralytics(Record, kw_only=True):
    """A line of Ultralytics' NDJSON: class, center and size in fractions of the image."""

    file: str
    width: Side
    height: Side
    annotations: _Fractions = _Fractions()

    def image(self) -> str:
        return self.file

    def size(self) -> tuple[float, float]:
        return self.height, self.width

    def boxes(self) -> Iterator[Box]:
        for label, x, y, width, height in self.annotations.boxes:
            left, top = (x - width / 2) * self.width, (y - height / 2) * self.height
            yield _box(label, left, top, width * self.width, height * self.height)
        for label, *points in (*self.annotations.segments, *self.annotations.obb):
            yield _polygon(f"{label:g}", points, (self.width, self.height))


class _Instance(Struct, frozen=True):
    bbox: Four
    category: str


class _Detection(Struct, frozen=True):
    instances: list[_Instance]


class Grounding(Record, kw_only=True):
    """A line of ODVG, the training data of Grounding DINO."""

    filename: str
    detection: _Detection

    def image(self) -> str:
        return self.filename

    def boxes(self) -> Iterator[Box]:
        return (Box(instance.category, instance.bbox) for instance in self.detection.instances)


# ---- a list in one JSON file


class _Corners(Struct, frozen=True):
    x1: float
    y1: float
    x2: float
    y2: float


class _Scalabel(Struct, frozen=True):
    category: str
    box2d: _Corners | None = None


class Scalabel(Record, kw_only=True):
    """A frame of Scalabel and BDD100K; labels without box2d are lanes and areas."""

    name: str
    labels: list[_Scalabel] | None = None

    def image(self) -> str:
        return self.name

    def boxes(self) -> Iterator[Box]:
        for label in self.labels or ():
            box = label.box2d
            corners = (box.x1, box.y1, box.x2, box.y2) if box else ()
            yield Box(label.category, corners, no_box="" if box else "label without box2d")


class _Attributes(Struct, frozen=True):
    is_crowd: Any = False  # of COCO
    difficult: Any = False  # of VOC
    rotation: Degrees = Degrees()  # of CVAT


class _Item(Struct, frozen=True):
    type: str
    label_id: int | None = None
    bbox: Four | None = None
    points: list[float] = []
    attributes: _Attributes | None = None
    rotation: NoAngle = NoAngle()
    angle: NoAngle = NoAngle()
    theta: NoAngle = NoAngle()


class _File(Struct, frozen=True):
    path: str = ""


class Datumaro(Record, kw_only=True):
    """An item of Datumaro: boxes and polygons. Those that are marked as crowd or as difficult are crowd regions."""

    id: str = ""
    file: _File = field(name="image", default=_File())
    annotations: list[_Item]

    def image(self) -> str:
        return self.file.path or self.id

    def boxes(self) -> Iterator[Box]:
        for item in self.annotations:
            name = "" if item.label_id is None else str(item.label_id)
            found = item.attributes or _Attributes()
            crowd = found.is_crowd in TRUE or found.difficult in TRUE
            if item.bbox:
                box = _box(name, *item.bbox, crowd)
                box = box._replace(corners=box_around(box.corners, found.rotation))
            elif item.type == "polygon" and item.points:
                box = _polygon(name, item.points)._replace(crowd=crowd)
            else:
                box = Box(name, (), no_box=item.type or NO_KIND)
            if found.is_crowd not in (*TRUE, *FALSE):
                box = box._replace(problem=f"is_crowd is {found.is_crowd!r}: write true or false")
            yield box


# ---- one JSON file per image


class _Exterior(Struct, frozen=True):
    exterior: Points = []


class _Figure(Struct, frozen=True):
    name: str = field(name="classTitle")
    kind: str = field(name="geometryType", default="rectangle")
    points: _Exterior = _Exterior()


class _Tag(Struct, frozen=True):
    name: str = ""


class Supervisely(Record, kw_only=True):
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
            yield Box(figure.name, corners, no_box="" if is_area else figure.kind or NO_KIND)
