"""Finds the columns of a table (CSV) with boxes, by its header or by the number and kinds of its values."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from datasets.errors import DataError, one_line
from datasets.formats.named_boxes import Corners, points_box
from datasets.formats.rotation import angle_problem
from datasets.formats.splits import word_split
from utils.images import IMAGE_SUFFIXES
from utils.text import number_of

CORNERS, EXTENT, CENTER = ("x1", "y1", "x2", "y2"), ("x1", "y1", "w", "h"), ("xc", "yc", "w", "h")
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
    "xc": ("xcenter", "centerx", "xcentre", "centrex", "xc", "cx", "bboxxcenter", "bboxcenterx"),
    "yc": ("ycenter", "centery", "ycentre", "centrey", "yc", "cy", "bboxycenter", "bboxcentery"),
    "width": ("imagewidth", "imgwidth", "imagew", "imgw", "width"),
    "height": ("imageheight", "imgheight", "imageh", "imgh", "height"),
    "bbox": ("bbox", "boundingbox", "geometry"),  # one field such as "[10, 20, 30, 40]"
    "crowd": ("isgroupof", "iscrowd"),
}
SPLIT = "split"  # name of the column with the split of an image
SPLITS = (SPLIT, "datasplit", "set", "subset", "dataset", "partition", "usage", "fold", "phase")  # if they name splits
ORDERS = {  # of the columns of a table without a header: (number of columns, position of the image) -> names
    (6, 0): ("image", *CORNERS, "class"),
    (8, 0): ("image", "width", "height", "class", *CORNERS),
    (8, 5): ("class", *EXTENT, "image", "width", "height"),  # Make Sense
}
SKU = ("image", *CORNERS, "class", "width", "height")  # SKU-110K, also 8 columns
ANGLE = re.compile(
    "(r|bbox|box|boundingbox|object|obj|annbbox)?(rotation|rot|angle|theta)(deg|degrees|degree|rad|radians)?"
)
NOT_SIZES = ("id", "score", "confidence", "area", "difficult", "occluded", "truncated", "crowd")  # of a box
OF_IMAGE = ("image", "img", "orig", "frame", "photo")  # beginnings of names of columns about the image
FORMS = (
    "filename,width,height,class,xmin,ymin,xmax,ymax or path,x1,y1,x2,y2,class; "
    "x,y,w,h or x_center,y_center,w,h may stand for the corners"
)
RENAME = "name the columns of the image's size image_width and image_height, and the columns of the box's size w and h"
ONE_CLASS = "object"  # of a table without a column for the class
CROWD, NO_CROWD = ("1", "1.0", "true"), ("0", "0.0", "false", "", "-1")  # -1: not known (Open Images)


class Columns(NamedTuple):
    """The positions of the fields in a row, and the fields that hold its box."""

    at: dict[str, int]  # name -> position
    box: tuple[str, ...]  # names of the fields with the box: CORNERS, EXTENT, CENTER, ("bbox",) or more x1, y1, x2, ...
    is_header: bool = False  # the first row is no data
    note: str = ""  # what a user should check
    maybe_image_size: bool = False  # the size of the box is in the columns width and height
    others: tuple[int, ...] = ()  # positions of columns that are not read, but may have the size of the box
    splits: Mapping[str, int] = {}  # name -> position of columns that may have the split, in the order of SPLITS
    angles: Mapping[str, int] = {}  # name -> position of columns that may have an angle of the box
    unread: Mapping[str, int] = {}  # name -> position of the other columns
    classes: Mapping[str, int] = {}  # name -> position of the columns that may have the class, if there are several

    def fields(self, row: Sequence[str]) -> dict[str, str]:
        """Returns {name: text} of a row. Raises IndexError if it is too short."""
        return {name: row[index].strip() for name, index in self.at.items()}

    def angle_problem(self, row: Sequence[str]) -> str:
        """Returns what is wrong with an angle in a row, and the fix; "" if there is none, or it is 0."""
        return angle_problem({name: row[at].strip() for name, at in self.angles.items() if at < len(row)})

    def split_words(self, row: Sequence[str]) -> list[str]:
        """Returns the words in the columns that may have the split; "" for a field that is missing at the end of a row."""
        return [word_split(row[index]) if index < len(row) else "" for index in self.splits.values()]

    def corners(self, fields: Mapping[str, str]) -> Corners:
        """Returns x1, y1, x2, y2 of the box in a row. Raises ValueError with the fix."""
        words = [fields[name] for name in self.box]
        if len(words) > len(CORNERS):
            return self._polygon(words)
        try:
            values = [number_of(word) for word in (_numbers(words[0]) if len(words) == 1 else words)]
        except ValueError as error:
            what = {CORNERS: "x1,y1,x2,y2", CENTER: "x_center,y_center,width,height"}.get(self.box, "x,y,width,height")
            raise ValueError(f"{','.join(words)!r} is not a box: write {what} as numbers") from error
        if self.box == CORNERS:
            return tuple(values)
        if len(values) == 4:
            x, y, width, height = values
            if self.box == CENTER:
                return x - width / 2, y - height / 2, x + width / 2, y + height / 2
            return x, y, x + width, y + height
        if len(values) < 6 or len(values) % 2:
            raise ValueError(f"{words[0][:60]!r} is not a box: write [x, y, width, height], or the points of a polygon")
        return points_box(zip(values[::2], values[1::2], strict=True))

    def _polygon(self, words: Sequence[str]) -> Corners:
        """Returns the bounding box of the corners x1, y1, x2, y2, ... in a row; blank ones do not count. Raises ValueError."""
        pairs = [pair for pair in zip(words[::2], words[1::2], strict=True) if any(pair)]
        try:
            points = [(number_of(x), number_of(y)) for x, y in pairs]
        except ValueError:
            points = []
        if len(points) < 3:
            raise ValueError(
                f"{','.join(words)!r} is not a polygon: write {','.join(self.box)} as numbers, at least three corners"
            )
        return points_box(points)

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
    points = _points(place, words)
    at |= {name: words.index(name) for name in points}
    found = len({"image", "class", "bbox", *CORNERS, "xc", "yc"} & at.keys())
    if found >= 3 or {"image", "bbox"} <= at.keys():
        return _of_header(place, row, words, at, points)
    _refuse(place, words)
    images = [index for index, word in enumerate(words) if word.endswith(IMAGE_SUFFIXES)]
    order = ORDERS.get((len(row), images[0] if images else 0), ())
    if len(row) == 8 and order[:1] == ("image",) and is_number(row[3]) and not is_number(row[5]):
        order = SKU  # its class is no number
    at, box = {name: index for index, name in enumerate(order)}, CORNERS if "x2" in order else EXTENT
    if not order or _is_text(row, at, box):
        shown = one_line(f" ({','.join(row)[:200]})") if row else ""
        raise DataError(f"{place}: {len(row)} columns without a known header{shown}: write {FORMS}")
    return Columns(at, box)


def _is_text(row: Sequence[str], at: Mapping[str, int], box: Sequence[str]) -> bool:
    """Returns whether a row has neither an image nor a number where they should be, but text: it is a header."""
    words = [row[at[name]].strip() for name in box]
    is_image = row[at["image"]].strip().lower().endswith(IMAGE_SUFFIXES)
    return any(words) and not is_image and not any(map(is_number, words))


def _points(place: str, words: Sequence[str]) -> tuple[str, ...]:
    """Returns the names of the columns with the corners of a polygon: x1, y1, x2, y2, x3, y3, ...; empty for a header with less.

    Raises DataError for an x without its y."""
    names = {word for word in words if re.fullmatch(r"[xy](0|[1-9]\d?)", word)}
    numbers = sorted({int(name[1:]) for name in names})
    if len(numbers) < 3:
        return ()
    points = tuple(f"{axis}{number}" for number in numbers for axis in "xy")
    if missing := [name for name in points if name not in names]:
        raise DataError(f"{place}: the header has no column for {', '.join(missing)}: add it, or rename the others")
    return points


def _of_header(
    place: str, row: Sequence[str], words: Sequence[str], at: dict[str, int], points: tuple[str, ...]
) -> Columns:
    """Returns the columns of a header, of which those in `at` are known. `points`: the columns of a polygon. Raises DataError."""
    boxes = (box for box in (CORNERS, EXTENT, CENTER, ("bbox",)) if set(box) <= at.keys())
    likely = CENTER if at.keys() & {"xc", "yc"} else CORNERS
    box = CORNERS if at.keys() & {"x2", "y2"} else next(boxes, likely)
    box = points or box
    if box == CORNERS:
        _refuse_two_boxes(place, row, words)
    missing = [name for name in ("image", *box) if name not in at]
    if missing:
        raise DataError(f"{place}: the header has no column for {', '.join(missing)}: write {FORMS}")
    is_unsure = box in (EXTENT, CENTER) and words[at["w"]] == "width"
    others = _others(words, set(at.values())) if is_unsure else {}
    _refuse_other_sizes(place, row, others)
    is_unsure &= at.get("width") == at.get("w")  # otherwise the size of the image has separate columns
    of_box = {at[name] for name in box}
    keep = {"image", "class", "crowd", *box, *(name for name in ("width", "height") if at.get(name) not in of_box)}
    at = {name: index for name, index in at.items() if name in keep}
    splits = {name: words.index(name) for name in SPLITS if name in words}
    angles = {row[index].strip(): index for index, word in enumerate(words) if ANGLE.fullmatch(word)}
    read = {*at.values(), *splits.values(), *angles.values()}
    unread = {word.strip(): index for index, word in enumerate(row) if index not in read}
    notes = []
    if box == ("bbox",):
        notes.append(f"the column {row[at['bbox']]} is read as x, y, width, height, or as the points of a polygon")
    if "class" not in at:
        left = ", ".join(row[index] for index in unread.values()) or "none"
        fix = f"if one of them holds the class, rename it to class; merge={ONE_CLASS}:NAME renames the class"
        notes.append(
            f"no column for the class, so all boxes are {ONE_CLASS!r}; columns that are not read: {left}; {fix}"
        )
    classes = {row[index]: index for index, word in enumerate(words) if word in NAMES["class"]}
    classes = classes if len(classes) > 1 else {}
    return Columns(at, box, True, "; ".join(notes), is_unsure, tuple(others.values()), splits, angles, unread, classes)


def _refuse_two_boxes(place: str, row: Sequence[str], words: Sequence[str]) -> None:
    """Raises DataError if a header has two columns for each corner of a box, such as xmin and x1: either may be the label."""
    columns = [[row[index] for index, word in enumerate(words) if word in NAMES[name]] for name in CORNERS]
    if all(len(several) > 1 for several in columns):
        sets = " and ".join(",".join(several[i] for several in columns) for i in (0, 1))
        raise DataError(f"{place}: two sets of corners, {sets}: remove the columns that are not the labels")


def _others(words: Sequence[str], read: set[int]) -> dict[str, int]:
    """Returns {name: position} of the columns that are not read and may be about the box, not about the image."""
    left = {word: index for index, word in enumerate(words) if index not in read}
    return {word: at for word, at in left.items() if not (word.startswith(OF_IMAGE) or word in NOT_SIZES)}


def _refuse_other_sizes(place: str, row: Sequence[str], others: Mapping[str, int]) -> None:
    """Raises DataError if a header with width and height has another pair of columns that may be the size of the box."""
    for word, index in others.items():
        for partner in _heights_of(word):
            if partner in others:
                pairs = f"width and height, or {row[index]} and {row[others[partner]]}"
                raise DataError(f"{place}: the size of the boxes may be in the columns {pairs}: {RENAME}")


def _heights_of(word: str) -> Iterator[str]:
    """Yields the names that the column of the height may have if `word` names the column of the width: objw -> objh."""
    if "width" in word:
        yield word.replace("width", "height")
    if word.startswith("w"):
        yield "h" + word[1:]
    if word.endswith("w"):
        yield word[:-1] + "h"


def is_number(word: str) -> bool:
    """Returns whether a field of a table is a number."""
    try:
        number_of(word)
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
