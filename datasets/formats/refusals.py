"""Errors for known formats that are not read. They name the format and the fix."""

import re
from collections.abc import Iterable
from pathlib import Path

from datasets.errors import DataError, open_file
from datasets.formats import listing
from datasets.formats.file import File

BLANKS = b"\xef\xbb\xbf \t\r\n"  # before JSON, with a byte order mark
CONVERT = "export the boxes as COCO, VOC or YOLO, or convert them with datumaro (pip install datumaro)"
JSON, LINES, TEXT, OTHER = "JSON", "JSON Lines", "text", "other"
_NUMBER = rb"-?\d+(\.\d+)?"
_FORMATS = (  # kind of file, pattern that its beginning matches (for other files: their name), name of the format
    (JSON, rb'^\[(?!.*"data"\s*:).*"annotations?".*"coordinates"\s*:\s*\{', "CreateML"),
    (JSON, rb'"detection_categories"', "MegaDetector"),
    (JSON, rb'"classes".*"labels".*"bounding_box"|"samples".*"bounding_box"', "FiftyOne"),
    (JSON, rb'"assets".*"regions"', "VoTT"),
    (JSON, rb'"instances".*"className"', "SuperAnnotate"),
    (JSON, rb'"item".*"slots"', "V7 (Darwin)"),
    (JSON, rb'"imgHeight".*"polygon"', "Cityscapes"),
    (JSON, rb'"item1"\s*:.*"bounding_box"', "DeepFashion2"),
    (LINES, rb'"source-ref"', "SageMaker Ground Truth"),
    (LINES, rb'"image_url"', "Azure ML"),
    (LINES, rb'"data_row"', "Labelbox"),
    (LINES, rb'"suffix"', "PaliGemma or Florence"),
    (TEXT, rb"^[A-Za-z_]+( " + _NUMBER + rb"){14,15}\s", "KITTI"),
    (TEXT, rb"^# Compatible with PASCAL Annotation", "PASCAL 1.00"),
    (TEXT, rb"^(imagesource|gsd):", "DOTA"),
    (TEXT, rb"^(" + _NUMBER + rb" ){8}(?![-\d.]+[eE][-+\d]+ )\S*[A-Za-z]\S* [0-2]\s", "DOTA"),
    (TEXT, rb"^" + rb",".join([rb"-?\d+"] * 8) + rb",?\s", "VisDrone"),
    (TEXT, rb"^\d+,-?\d+(," + _NUMBER + rb"){5,8}\s", "MOT"),
    (TEXT, rb"^[^\n]+\.jpg\s+\d+\s+(" + _NUMBER + rb" ){4}", "WIDER FACE"),
    (TEXT, rb"^[^\n;]+\.(ppm|png|jpg);\d+;\d+;\d+;\d+;", "a table with semicolons"),
    (TEXT, rb"^[A-Za-z]\S*( [01]?\.\d+){4}\s", "YOLO labels with class names"),
    (TEXT, rb"^[A-Za-z][A-Za-z ]*( \d+(\.\d+)?){4}\s", "the OIDv4 toolkit"),
    (OTHER, rb"\.(tfrecord|record|tfrec)$", "TFRecord"),
    (OTHER, rb"\.(parquet|arrow)$", "Hugging Face (Parquet)"),
    (OTHER, rb"\.mat$", "MATLAB"),
    (OTHER, rb"\.(zip|tar|gz|tgz|rar|7z)$", "an archive"),
)
_MISTAKES = {  # what is not a separate format -> the fix
    "a table with semicolons": "name it .csv, with class as sixth column",
    "YOLO labels with class names": "write the numbers of the classes, from 0",
    "an archive": "unpack it, and name the folder",
}


def refuse_json(path: str | Path, head: bytes) -> None:
    """Raises DataError if a JSON file that begins with `head` has a known format that is not read."""
    _refuse(path, JSON, head.lstrip(BLANKS)[:16384])


def error_of_lines(path: str | Path, head: bytes) -> DataError:
    """Returns the error for JSON Lines that begin with `head`, which no reader knows."""
    return _error(path, _name_of(LINES, head) or "an unknown kind of JSON Lines")


def refuse_texts(paths: Iterable[Path]) -> None:
    """Raises DataError for the first of these text files that has a known format that is not read."""
    for path in paths:
        with open_file(path) as file:
            _refuse(path, TEXT, file.read(2000))


def is_label_file(file: File, has_image: bool) -> bool:
    """Returns whether a text with the name of an image has a known format that is not read."""
    if not has_image or file.suffix != ".txt" or file.name.lower() in listing.CLASS_FILES:
        return False
    return _name_of(TEXT, file.head[:2000]) is not None


def refuse_folder(folder: Path, files: list[str]) -> None:
    """Raises DataError that names what is in a folder with `files`, of which none can be read."""
    for file in files:
        _refuse(folder / file, OTHER, file.lower().encode())
    if (images := listing.images_of(files)) and not listing.of_suffix(files, ".txt"):
        what = f"no file with boxes, only images ({len(images)}), for example {images[0]}"
        raise DataError(f"{folder}: {what}: name the file or the folder with the boxes, or label the images first")


def _refuse(path: str | Path, kind: str, head: bytes) -> None:
    name = _name_of(kind, head)
    if name is not None:
        raise _error(path, name)


def _error(path: str | Path, name: str) -> DataError:
    if name in _MISTAKES:
        return DataError(f"{path}: {name}: {_MISTAKES[name]}")
    return DataError(f"{path}: in the format of {name}, which is not read: {CONVERT}")


def _name_of(kind: str, head: bytes) -> str | None:
    """Returns the name of the known format that is not read of a file that begins with `head`, None if there is none."""
    return next((name for own, pattern, name in _FORMATS if own == kind and re.search(pattern, head, re.DOTALL)), None)
