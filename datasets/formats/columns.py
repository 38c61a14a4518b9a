"""Finds the columns of a table (CSV) with boxes, by its header or by the number and kinds of its values."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from datasets.errors import DataError
from datasets.formats.named_boxes import Corners, points_box
from utils.images import IMAGE_SUFFIXES

CORNERS, EXTENT = ("x1", "y1", "x2", "y2"), ("x1", "y1", "w", "h")
SIZES = (  # names of the columns with the size of a box; width and height may also be the size of the image
    ("bboxwidth", "bboxheight"),
    ("bboxw", "bboxh"),
    ("boundingboxwidth", "boundingboxheight"),
    ("boxwidth", "boxheight"),
    ("boxw", "boxh"),
    ("bw", "bh"),
    ("w", "h"),
    ("width", "height"),
)
NAMES = {  # of the columns in headers, without case, blanks and "_"
    "image": ("filename", "file", "path", "filepath", "image", "imagename", "imagepath", "imageid", "img", "imgpath")
    + ("imgfilename", "patientid"),
    "class": (
        "class",
        "label",
        "classname",
        "labelname",
        "category",
        "name",
        "categoryname",
        "catname",
        "annotationtag",
    ),
    "x1": ("x1", "xmin", "left", "bboxxmin", "annbboxxmin", "upperleftcornerx", "roi.x1", "x", "bboxx"),
    "y1": ("y1", "ymin", "top", "bboxymin", "annbboxymin", "upperleftcornery", "roi.y1", "y", "bboxy"),
    "x2": ("x2", "xmax", "right", "bboxxmax", "annbboxxmax", "lowerrightcornerx", "roi.x2"),
    "y2": ("y2", "ymax", "bottom", "bboxymax", "annbboxymax", "lowerrightcornery", "roi.y2"),
    "width": ("imagewidth", "imgwidth", "imagew", "imgw", "width"),
    "height": ("imageheight", "imgheight", "imageh", "imgh", "height"),
    "bbox": ("bbox", "boundingbox", "geometry"),  # one field such as "[10, 20, 30, 40]"
    "crowd": ("isgroupof", "iscrowd"),
}
ORDERS = {  # of the columns of a table without a header: (number of columns, position of the image) -> names
    (6, 0): ("image", *CORNERS, "class"),
    (8, 0): ("image", "width", "height", "class", *CORNERS),
    (8, 5): ("class", *EXTENT, "image", "width", "height"),  # Make Sense
}
SKU = ("image", *CORNERS, "class", "width", "height")  # SKU-110K, also 8 columns
OF_IMAGE = ("image", "img", "orig", "frame", "photo")  # beginnings of names of columns about the image
FORMS = "filename,width,height,class,xmin,ymin,xmax,ymax or path,x1,y1,x2,y2,class"
RENAME = "name the columns with the size of the image image_width and image_height, and those of the boxes w and h"
ONE_CLASS = "object"  # of a table without a column for the class
CROWD, NO_CROWD = ("1", "1.0", "true"), ("0", "0.0", "false", "", "-1")  # -1: not known (Open Images)


class Columns(NamedTuple):
    """The positions of the fields in a row, and the fields that hold its box."""

    at: dict[str, int]  # name -> position
    box: tuple[str, ...]  # names of the fields with the box: CORNERS, EXTENT or ("bbox",)
    is_header: bool = False  # the first row is no data
    note: str = ""  # what a user should check
    maybe_image_size: bool = False  # the size of the box is in the columns width and height

    def fields(self, row: Sequence[str]) -> dict[str, str]:
        """Returns {name: text} of a row. Raises IndexError if it is too short."""
        return {name: row[index].strip() for name, index in self.at.items()}

    def corners(self, fields: Mapping[str, str]) -> Corners:
        """Returns x1, y1, x2, y2 of the box in a row. Raises ValueError with the fix."""
        words = [fields[name] for name in self.box]
        try:
            values = [float(word) for word in (_numbers(words[0]) if len(words) == 1 else words)]
        except ValueError as error:
            what = "x1,y1,x2,y2" if self.box == CORNERS else "x,y,width,height"
            raise ValueError(f"{','.join(words)!r} is not a box: write {what} as numbers") from error
        if self.box == CORNERS:
            return tuple(values)
        if len(values) == 4:
            x, y, width, height = values
            return x, y, x + width, y + height
        if len(values) < 6 or len(values) % 2:
            raise ValueError(f"{words[0][:60]!r} is not a box: write [x, y, width, height], or the points of a polygon")
        return points_box(zip(values[::2], values[1::2], strict=True))

    def is_crowd(self, fields: Mapping[str, str]) -> bool:
        """Returns whether the box in a row is a crowd region. Raises ValueError that tells what to write."""
        word = fields.get("crowd", "").lower()
        if word not in (*CROWD, *NO_CROWD):
            raise ValueError(f"{word!r} does not tell whether the box is a crowd region: write 0 or 1")
        return word in CROWD


def _numbers(word: str) -> list[str]:
    if not re.fullmatch(r"[\[(][-+\d.,eE\s()\[\]]*[\])]", word):
        raise ValueError(word)
    return re.findall(r"[-+\d.eE]+", word)


def columns_of(place: str, row: Sequence[str]) -> Columns:
    """Returns the columns of a table by its first row. Raises DataError, which starts with `place`, with the fix."""
    words = ["".join(word.lower().replace("_", " ").split()) for word in row]
    at = {name: next((words.index(word) for word in known if word in words), -1) for name, known in NAMES.items()}
    at = {name: index for name, index in at.items() if index >= 0}
    size = next((pair for pair in SIZES if set(pair) <= set(words)), ())
    at |= {name: words.index(word) for name, word in zip("wh", size, strict=False)}
    found = len({"image", "class", "bbox", *CORNERS} & at.keys())
    if found >= 3 or {"image", "bbox"} <= at.keys():
        return _of_header(place, row, words, at)
    _refuse(place, words)
    images = [index for index, word in enumerate(words) if word.endswith(IMAGE_SUFFIXES)]
    order = ORDERS.get((len(row), images[0] if images else 0), ())
    if len(row) == 8 and order[:1] == ("image",) and _is_number(row[3]) and not _is_number(row[5]):
        order = SKU  # its class is no number
    if not order:
        raise DataError(f"{place}: {len(row)} columns without a known header: write {FORMS}")
    return Columns({name: index for index, name in enumerate(order)}, CORNERS if "x2" in order else EXTENT)


def _of_header(place: str, row: Sequence[str], words: Sequence[str], at: dict[str, int]) -> Columns:
    boxes = (box for box in (CORNERS, EXTENT, ("bbox",)) if set(box) <= at.keys())
    box = CORNERS if at.keys() & {"x2", "y2"} else next(boxes, CORNERS)
    missing = [name for name in ("image", *box) if name not in at]
    if missing:
        raise DataError(f"{place}: the header has no column for {', '.join(missing)}: write {FORMS}")
    is_unsure = box == EXTENT and words[at["w"]] == "width"
    if is_unsure:
        _refuse_other_sizes(place, row, words, set(at.values()))
    of_box = {at[name] for name in box}
    keep = {"image", "class", "crowd", *box, *(name for name in ("width", "height") if at.get(name) not in of_box)}
    at = {name: index for name, index in at.items() if name in keep}
    notes = []
    if box == ("bbox",):
        notes.append(f"the column {row[at['bbox']]} is read as x, y, width, height, or as the points of a polygon")
    if "class" not in at:
        others = ", ".join(word for index, word in enumerate(row) if index not in at.values()) or "none"
        fix = f"if one of them holds the class, rename it to class; merge={ONE_CLASS}:NAME renames the class"
        notes.append(
            f"no column for the class, so all boxes are {ONE_CLASS!r}; columns that are not read: {others}; {fix}"
        )
    return Columns(at, box, True, "; ".join(notes), is_unsure)


def _refuse_other_sizes(place: str, row: Sequence[str], words: Sequence[str], read: set[int]) -> None:
    """Raises DataError if a header with width and height has another pair of columns that may be the size of the box."""
    others = {word: index for index, word in enumerate(words) if index not in read and not word.startswith(OF_IMAGE)}
    for word, index in others.items():
        for partner in _heights_of(word):
            if partner in others:
                pairs = f"width and height, or {row[index]} and {row[others[partner]]}"
                raise DataError(f"{place}: the size of the boxes may be in the columns {pairs}: {RENAME}")


def _heights_of(word: str) -> Iterator[str]:
    """Yields the names that the column of the height may have if `word` is that of the width: objw -> objh."""
    if "width" in word:
        yield word.replace("width", "height")
    if word.startswith("w"):
        yield "h" + word[1:]
    if word.endswith("w"):
        yield word[:-1] + "h"


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _refuse(place: str, words: Sequence[str]) -> None:
    """Raises DataError for known kinds of tables that are not read."""
    if words[:1] and words[0] in ("train", "validation", "test", "unassigned") and len(words) >= 9:
        raise DataError(f"{place}: CSV of Vertex AI (AutoML), which is not read: write {FORMS}")
    if {"annotationid", "leadtime"} <= set(words):
        raise DataError(f"{place}: Label Studio's CSV, which is not read: export the project as JSON")
    if "annotations" in words and {"imageid", "videoid"} & set(words):
        raise DataError(
            f"{place}: a list of boxes in the column annotations is not read: write {FORMS}, one box per line"
        )
    if "predictionstring" in words:
        raise DataError(f"{place}: predictions for a competition are not labels: name the file with the boxes")
