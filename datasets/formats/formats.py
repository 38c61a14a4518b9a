"""What a file is: one table of formats, which is used for a file, for a folder, and for what in it is not read.

A file is recognized by its beginning. A new format is a reader and one row of FORMATS.
"""

import os
import re
from collections.abc import Callable, Iterable
from itertools import islice
from typing import NamedTuple

from datasets.errors import DataError
from datasets.formats import (
    annotation_file,
    coco,
    cvat,
    data_file,
    labelme,
    labelstudio,
    records,
    tables,
    via,
    voc,
    yolo,
)
from datasets.formats.file import CLASS_FILES, File, Folder, parse_xml, text_lines
from datasets.formats.source import Source
from datasets.store import Split
from utils.files import left_instead

JSON, XML, TEXT, TABLE = (".json",), (".xml",), (".txt",), (".csv", ".tsv")
LINES = (".jsonl", ".ndjson", ".odgt", ".manifest")
WRITE_LINES = (
    "write one line per image into boxes.txt, PATH x1,y1,x2,y2,CLASS x1,y1,x2,y2,CLASS ..., in pixels, with the "
    "numbers of the classes from 0, and their names into classes.txt next to it, one per line"
)


class Format(NamedTuple):
    """A format of label files: what a file of it looks like, how it is read, and the images that it labels."""

    name: str
    suffixes: tuple[str, ...]
    matches: Callable[[File], bool]
    read: Callable[[File, Split], Source] | None = None  # a file of many images; None: of the image of its name
    read_folder: Callable[[Folder, Iterable[str]], list[Source]] | None = None  # its files; None: `read` of its split
    fix: str = ""  # what to do with a file that is not read


def has(*keys: str) -> Callable[[File], bool]:
    """Returns whether a JSON file has all of these keys in its beginning, as `key_paths` writes them."""
    return lambda file: file.keys.issuperset(keys)


def has_any(*keys: str) -> Callable[[File], bool]:
    """Returns whether a JSON file has one of these keys in its beginning."""
    return lambda file: not file.keys.isdisjoint(keys)


YAML = Format(
    "YOLO data file", (".yaml", ".yml", ".data"), data_file.matches, data_file.read_data_file, data_file.read_folder
)
CVAT = Format("CVAT", XML, cvat.matches, cvat.read)
LISTS = Format(
    "annotation files",
    TEXT,
    annotation_file.is_list,
    annotation_file.read_text,
    annotation_file.read_lists,
)
YOLO = Format("YOLO", TEXT, yolo.matches, read_folder=yolo.read_folder)
CSV = Format("CSV", TABLE, tables.is_table, tables.read)
FORMATS = (  # after NOT_READ, the first one that matches a file reads it
    YAML,
    CVAT,
    Format("VOC", XML, voc.matches, read_folder=voc.read_folder),
    Format("Supervisely", JSON, records.is_supervisely, read_folder=records.read_supervisely),
    Format("LabelMe", JSON, has("shapes"), read_folder=labelme.read_folder),
    Format("COCO", JSON, coco.matches, coco.read, coco.read_folder),
    Format("Label Studio", JSON, labelstudio.matches, labelstudio.read),
    Format("Create ML", JSON, records.is_create_ml, records.read_create_ml),
    Format("VIA", JSON, via.matches, via.read),
    Format("SageMaker Ground Truth", LINES, has("source-ref"), records.read_manifest),
    Format("Hugging Face", LINES, has("file_name", "objects"), records.read_hugging_face),
    LISTS,
    YOLO,
    CSV,
    Format(
        "annotation files",
        TEXT,
        annotation_file.is_list_below,
        annotation_file.read_text,
        annotation_file.refuse_lists_below,
    ),
)
BY_SUFFIX = {suffix: row for row in (YAML, CVAT, CSV, LISTS) for suffix in row.suffixes}  # they tell what is wrong


def _text(pattern: str, is_list: bool = False) -> Callable[[File], bool]:
    """Returns whether a text that belongs to an image, or is a list of images, begins with a pattern. N in it is a number."""
    found = re.compile(pattern.replace("N", r"-?\d+(\.\d+)?").encode(), re.DOTALL)
    return lambda file: (is_list or file.has_image is not False) and found.match(file.head[:2000]) is not None


def _named(file: File) -> bool:
    return True  # its suffix tells it


def _is_custom_vision(file: File) -> bool:
    return any(key.endswith((".regions.tagName", ".regions.tag_name", ".originalImageUri")) for key in file.keys)


NOT_READ = (  # formats that many tools write, with the fix of `WRITE_LINES` where there is no shorter one
    Format("CrowdHuman", LINES, has("gtboxes")),
    Format("Ultralytics NDJSON", LINES, has("class_names")),
    Format("Grounding DINO (ODVG)", LINES, has("detection.instances")),
    Format("Scalabel or BDD100K", JSON, has_any("frames", "[].labels.box2d")),
    Format("Datumaro", JSON, has("items", "categories")),
    Format("FiftyOne", JSON, lambda file: has("classes", "labels")(file) or has("samples")(file)),
    Format("Azure Custom Vision", JSON, _is_custom_vision),
    Format("Edge Impulse", (".labels", ".json"), has_any("boundingBoxes", "files.boundingBoxes")),
    Format("Colabeler", XML, lambda file: b"<doc>" in file.head),
    Format("HRSC2016", XML, lambda file: b"<HRSC_Image>" in file.head),
    Format("VoTT", JSON, has("assets"), fix="export CSV or Pascal VOC from VoTT"),
    Format("COCO detections", JSON, has("[].image_id", "[].score"), fix="give the file with the labels"),
    Format(
        "VIA's CSV", TABLE, _text(r"#?filename,.*,region_shape_attributes", is_list=True), fix="export JSON from VIA"
    ),
    Format("Labelbox", LINES, has("data_row")),
    Format("KITTI", TEXT, _text(r"[A-Za-z_]+( N){14,15}\s")),
    Format("DOTA", TEXT, _text(r"(imagesource|gsd):")),
    Format("DOTA", TEXT, _text(r"(N ){8}(?![-\d.]+[eE][-+\d]+ )\S*[A-Za-z]\S* [0-2]\s")),
    Format("VisDrone", TEXT, _text(r"(-?\d+,){7}-?\d+,?\s")),
    Format("MOT", TEXT, _text(r"\d+,-?\d+(,N){5,8}\s")),
    Format("WIDER FACE", TEXT, _text(r"[^\n]+\.jpg\s+\d+\s+(N ){4}", is_list=True)),
    Format(
        "a table with semicolons",
        TEXT,
        _text(r"[^\n;]+\.(ppm|png|jpg);\d+;\d+;\d+;\d+;", is_list=True),
        fix="name it .csv, with class as sixth column",
    ),
    Format(
        "YOLO labels with class names",
        TEXT,
        _text(r"[A-Za-z]\S*( [01]?\.\d+){4}\s"),
        fix="write the numbers of the classes, from 0",
    ),
    Format("the OIDv4 toolkit", TEXT, _text(r"[A-Za-z][A-Za-z ]*( \d+(\.\d+)?){4}\s")),
    Format("TFRecord", (".tfrecord", ".record", ".tfrec"), _named),
    Format("Hugging Face (Parquet)", (".parquet", ".arrow"), _named),
    Format("MATLAB", (".mat",), _named),
    Format("an archive", (".zip", ".tar", ".gz", ".tgz", ".rar", ".7z"), _named, fix="unpack it, and name the folder"),
)


def problem_of(file: File) -> str:
    """Returns why a file with the suffix of a label file cannot be read: path, reason and fix. "" if it can be read."""
    if file.name.lower() in CLASS_FILES:
        return ""
    try:
        _require_readable(file)
    except DataError as error:
        return str(error)
    return ""


def _require_readable(file: File) -> None:
    """Raises DataError for JSON or XML that cannot be parsed, for empty files, and if the first two lines are no text.

    Texts may be empty."""
    path = file.path
    if what := left_instead(file.head[:100]):
        raise DataError(f"{path}: {what}")
    if file.suffix != ".txt" and not os.path.getsize(path):
        raise DataError(f"{path}: empty: export the file again, or remove it")
    if file.suffix == ".json":
        _ = file.json
    elif file.suffix == ".xml":
        parse_xml(path)
    elif any("\0" in line for _, line in islice(text_lines(path), 2)):  # UTF-16 without a byte order mark
        raise DataError(f"{path}: not UTF-8 text: save the file as UTF-8")


UNREADABLE = Format(
    "files that cannot be read", (*JSON, *XML, *TEXT, *TABLE, *LINES), lambda file: bool(problem_of(file))
)

_ROWS: dict[str, list[Format]] = {}  # by suffix, in the order in which they are tried
for _row in (*NOT_READ, *FORMATS, UNREADABLE):
    for _suffix in _row.suffixes:
        _ROWS.setdefault(_suffix, []).append(_row)


def format_of(file: File) -> Format | None:
    """Returns the format of a file, None if it is no label file."""
    return next((row for row in _ROWS.get(file.suffix, ()) if row.matches(file)), None)


def refusal(path: object, row: Format) -> DataError:
    """Returns the error for a file in a format that is not read."""
    return DataError(f"{path}: in the format of {row.name}, which is not read: {row.fix or WRITE_LINES}")


def read_file(path: str | os.PathLike, split: Split, image_root: str | None = None) -> Source:
    """Reads a file in its format. Raises DataError."""
    file = File(path, image_root)
    row = format_of(file)
    if row is UNREADABLE:
        raise DataError(problem_of(file))
    if row in NOT_READ:
        raise refusal(path, row)
    if row is None and file.suffix in XML:
        known = "neither annotation (VOC) nor annotations (CVAT)"
        raise DataError(f"{path}: no known format, the XML has {known}: {WRITE_LINES}")
    row = row or BY_SUFFIX.get(file.suffix)
    if row and row.read:
        return row.read(file, split)
    if row:
        raise DataError(f"{path}: a file of {row.name} with one image: give its folder")
    if file.suffix in (*JSON, *LINES):
        there = ", ".join(sorted({key.removeprefix("[].").split(".")[0] for key in file.keys} - {"*"})[:5]) or "no keys"
        raise DataError(f"{path}: no known format, with {there}: {WRITE_LINES}")
    raise DataError(
        f"{path}: give an annotation file (.txt), JSON (COCO, Label Studio, VIA), CSV, YOLO yaml, CVAT XML, or a folder "
        f"with any of these, or with VOC, LabelMe or YOLO label files"
    )
