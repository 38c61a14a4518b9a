"""What a reader returns: the images and raw boxes of one file or folder. `datasets.formats.read` makes Annotations of it."""

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from datasets.errors import check_path, first_ten, graded
from datasets.store import Classes, Strings
from utils.text import class_name_problem, clean_name, look_of

Corners = tuple[float, float, float, float]  # x1, y1, x2, y2
CROWD = ("1", "1.0", "true", "yes")
NO_CROWD = ("0", "0.0", "false", "no", "", "-1", "unspecified")  # -1: not known (Open Images)
MARKS = ("iscrowd", "isgroupof", "difficult", "ignore")  # of an object, in any spelling: it becomes a crowd region
FIELDS = ("rotation", "angle", "theta")  # of an annotation, or columns of a table
FIX = "this format does not define rotated boxes: write the box around the object and remove the field"


@dataclass(eq=False)
class Source:
    """Images with raw boxes, class names, notes and problems, as they are written. Nothing is selected or left out yet."""

    path: str  # the file or folder that was read
    root: str = ""  # folder of relative image names
    names: Classes = None  # class names by label; None: the labels are positions in the list that the user gives
    names_from: str = "the list of classes"  # for messages
    one_class: bool = False  # without `names`: the list that the user gives must have one class
    needs_classes: str = ""  # problem if `names` is None and the user gives no list; "": classes are then "0", "1", ...
    names_are_numbers: bool = False  # `names` are positions in the list that the user gives, if its names are words
    category_ids: list[int] | None = None  # of `names`; None: 0, 1, ...
    is_coco: bool = False  # ids and areas come from a COCO JSON
    find_images: bool = False  # image names come from an annotation file: images are near `path` or in image_root
    sizes_problem: str = ""  # problem if all boxes are fractions and no image can be read; "": the scan reports images
    other_splits: tuple[str, ...] = ()  # of the file or folder, which were not read
    has_yolo_labels: bool = False  # a data file or a list names images whose boxes are in label files of YOLO
    label_files: list[str] = field(default_factory=list)  # in a folder, of all splits
    problems: list[str] = field(default_factory=list)  # with file and line
    notes: list[str] = field(default_factory=list)
    images: Strings = field(default_factory=Strings)  # [N] paths as written
    files: Strings = field(default_factory=Strings)  # [N] the file with the boxes, "" where it is `path`
    lines: array = field(default_factory=lambda: array("i"))  # [N] line in `path`, 0 where there is none
    image_ids: array = field(default_factory=lambda: array("q"))  # [N]
    sizes: array = field(default_factory=lambda: array("i"))  # [N * 2] height, width; 0, 0: not known
    are_fractions: bytearray = field(default_factory=bytearray)  # [N] whether the boxes are fractions of the image
    starts: array = field(default_factory=lambda: array("q"))  # [N] index of the first box of each image
    boxes: array = field(default_factory=lambda: array("d"))  # [K * 4] xyxy, in pixels or fractions
    labels: array = field(default_factory=lambda: array("d"))  # [K]
    crowd: array = field(default_factory=lambda: array("d"))  # [K] 0 or 1
    areas: array = field(default_factory=lambda: array("d"))  # [K] NaN: the area of the box
    ignored_rows: set[int] = field(default_factory=set)  # boxes, all of them crowd, that are ignore regions in any case
    # image -> annotated labels (verified negatives), besides those of its boxes
    annotated: dict[int, list[int]] = field(default_factory=dict)
    places: Strings = field(default_factory=Strings)  # [K] for messages: train.txt:12
    box_lines: array = field(default_factory=lambda: array("i"))  # [K] line of the box in its file; 0: none

    def __len__(self) -> int:
        return len(self.starts)

    def add_image(
        self,
        name: str,
        line: int = 0,
        file: str = "",
        image_id: int | None = None,
        size: tuple[int, int] = (0, 0),
        fractions: bool = False,
    ) -> None:
        """Starts an image, to which the following boxes belong. `size` is height, width; image ids default to 1, 2, ..."""
        try:
            self.images.append(check_path(name))
        except ValueError as error:
            self.images.append("")
            self.problems.append(f"{file or self.path}: {error}")
        self.starts.append(len(self.labels))
        self.lines.append(line)
        self.image_ids.append(len(self.starts) if image_id is None else image_id)
        self.sizes.extend(size)
        self.are_fractions.append(fractions)
        self.files.append(file)

    def add_box(
        self,
        place: str,
        x1: float,
        y1: float,
        x2: float,
        y2: float,
        label: float,
        crowd: float = 0.0,
        area: float = math.nan,
        line: int = 0,
    ) -> None:
        """Adds a box to the last image. `resolve_labels` checks it. `line`: of the box, if it has a line."""
        self.boxes.extend((x1, y1, x2, y2))
        self.labels.append(label)
        self.crowd.append(crowd)
        self.areas.append(area)
        self.places.append(place)
        self.box_lines.append(line)


# ---- formats with class names


class Box(NamedTuple):
    """One object of a label file; where it cannot be read, `problem` says why and there are no corners."""

    name: str
    corners: tuple[float, ...]  # x1, y1, x2, y2 in pixels, or in fractions if the LabelFile has them
    crowd: bool = False
    problem: str = ""
    no_box: str = ""  # kind of an object that is not an area, such as a point: it is left out and counted
    place: str = ""  # for messages; "": its number in the file
    line: int = 0  # in a file with one box per line


class LabelFile(NamedTuple):
    """The boxes of one image, from a whole file or a part of a file."""

    path: str  # of the label file, or its part for messages; "" with `line`
    image: str = ""  # name of the image as the file has it
    size: tuple[int, int] = (0, 0)  # height, width
    boxes: Sequence[Box] = ()
    problem: str = ""
    line: int = 0  # in a file with many images
    fractions: bool = False  # the corners are fractions of the image, not pixels


def add_files(source: Source, rows: Iterable[tuple[str, LabelFile]]) -> None:
    """Adds `rows` (path of the image, its label file) to a source."""
    labels = {clean_name(name): label for label, name in enumerate(source.names or ())}
    left_out = []
    for image, file in rows:
        if file.problem:
            source.problems.append(f"{file.path}: {file.problem}")
        source.add_image(image, file=file.path, size=file.size, line=file.line, fractions=file.fractions)
        for number, box in enumerate(file.boxes, 1):
            place = box.place or f"{file.path}: object {number}"
            name = clean_name(box.name)
            if box.no_box:
                left_out.append(f"{place}: {box.name!r} ({box.no_box})")
            elif box.problem:
                source.problems.append(f"{place}: {box.problem}")
            elif name in labels:
                x1, y1, x2, y2 = box.corners
                source.add_box(place, x1, y1, x2, y2, labels[name], int(box.crowd), line=box.line)
            else:
                source.problems.append(f"{place}: {class_name_problem(box.name)}")
    if left_out:
        note = f"{source.path}: objects without a box, left out: {len(left_out)}\n{first_ten(left_out)}"
        source.notes.append(graded(note, len(left_out), len(left_out) + len(source.labels)))


def names_of(files: Iterable[LabelFile]) -> tuple[str, ...]:
    """Returns the sorted class names of label files, without blanks at their ends and without those that cannot be used."""
    names = {clean_name(box.name) for file in files for box in file.boxes if not (box.problem or box.no_box)}
    return tuple(sorted(name for name in names if not class_name_problem(name)))


@lru_cache(maxsize=1000)
def is_mark(name: str | None) -> bool:
    """Returns whether a field, column or attribute of an object is one of MARKS: iscrowd, is_crowd, isCrowd."""
    return look_of(name or "") in MARKS


def crowd_of(fields: Mapping[Any, Any]) -> tuple[bool, str]:
    """Returns whether one of the MARKS in `fields` (name -> value) makes an object a crowd region, and what is wrong."""
    words = {name: str(value or 0).strip().lower() for name, value in fields.items() if is_mark(name)}
    for name, word in words.items():
        if word not in (*CROWD, *NO_CROWD):
            return False, f"{name} is {word!r}, which does not tell whether the box is a crowd region: write 0 or 1"
    return not set(CROWD).isdisjoint(words.values()), ""


def side(text: str) -> int:
    """Returns the width or height of an image in pixels, 0 if the text is not one."""
    text = text.strip()
    return int(text) if text.isdecimal() and len(text) < 10 else 0


def points_box(points: Iterable[tuple[float, float]]) -> Corners:
    """Returns the bounding box of points x, y, with NaN if a coordinate is NaN. Raises ValueError if there are no points."""
    xs, ys = zip(*points, strict=True)
    box = min(xs), min(ys), max(xs), max(ys)
    return box if sum(xs) + sum(ys) == sum(xs) + sum(ys) else (math.nan,) * 4  # min and max may overlook NaN


def rotated_box(x1: float, y1: float, x2: float, y2: float, angle: float, pivot: tuple[float, float]) -> Corners:
    """Returns the bounding box of a rectangle that is rotated around the point `pivot`."""
    if not angle:
        return x1, y1, x2, y2
    sine, cosine = math.sin(angle), math.cos(angle)
    moved = [(x - pivot[0], y - pivot[1]) for x in (x1, x2) for y in (y1, y2)]
    return points_box((pivot[0] + x * cosine - y * sine, pivot[1] + x * sine + y * cosine) for x, y in moved)


def ellipse_box(x: float, y: float, radius_x: float, radius_y: float, angle: float = 0.0) -> Corners:
    """Returns the bounding box of an ellipse around x, y."""
    sine, cosine = math.sin(angle), math.cos(angle)
    width, height = math.hypot(radius_x * cosine, radius_y * sine), math.hypot(radius_x * sine, radius_y * cosine)
    return x - width, y - height, x + width, y + height


# ---- angles: CVAT defines the attribute rotation, in degrees around the center, clockwise. No format defines other fields


class Degrees(float):
    """An angle as a JSON file has it, by itself or in the attributes of an object; 0 for text that is not a number."""

    @classmethod
    def of(cls, value: Any) -> "Degrees":
        """Returns the angle of a number, of text, or of attributes with the entry rotation; NaN if it is not finite."""
        if isinstance(value, dict):
            value = value.get("rotation")
        if isinstance(value, str) and value.strip().lower() == "nan":  # an empty cell of pandas
            return cls(0)
        try:
            angle = float(value)
        except (TypeError, ValueError):
            return cls(0)
        except OverflowError:  # a whole number of more than 300 digits
            return cls("nan")
        return cls(angle if math.isfinite(angle) else "nan")


class NoAngle(float):
    """A field of a JSON file that may only hold an angle of 0, because the format does not define it."""

    @classmethod
    def of(cls, value: Any) -> "NoAngle":
        """Returns 0. Raises ValueError for any other angle."""
        if Degrees.of(value):
            raise ValueError(FIX)
        return cls(0)


def box_around(corners: tuple[float, ...], degrees: float) -> Corners:
    """Returns the bounding box of a box that is rotated around its center, clockwise on the screen."""
    x1, y1, x2, y2 = corners
    return rotated_box(x1, y1, x2, y2, math.radians(degrees), ((x1 + x2) / 2, (y1 + y2) / 2))


def angle_problem(fields: Mapping[str, Any]) -> str:
    """Returns what is wrong with the first angle in `fields` (name -> value), and the fix; "" if all are 0."""
    return next((f"{name} is {value}: {FIX}" for name, value in fields.items() if Degrees.of(value)), "")
