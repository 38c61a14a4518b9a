"""Errors for known formats that are not read. They name the format and the fix."""

import re
from collections.abc import Iterable
from pathlib import Path

from datasets.errors import DataError, open_file
from datasets.formats import listing
from datasets.formats.file import File

BLANKS = b"\xef\xbb\xbf \t\r\n"  # before JSON, with a byte order mark
EXPORT = "export the boxes as COCO, VOC or YOLO"
_DATUM = (
    'pip install datumaro, and python -c "import datumaro; '
    "datumaro.Dataset.import_from('FOLDER', '{}').export('NEW_FOLDER', 'coco', save_media=True)\" makes it COCO"
)
_NUMBER = rb"-?\d+(\.\d+)?"
_JSON = (  # pattern that the beginning of a file matches, name of the format with the fix
    (rb'^\[(?!.*"data"\s*:).*"annotations?".*"coordinates"\s*:\s*\{', "CreateML, which is not read: " + EXPORT),
    (rb'"detection_categories"', "detections of MegaDetector, which are not labels: correct them in a labeling tool first"),
    (rb'"classes".*"labels".*"bounding_box"|"samples".*"bounding_box"', "a data set of FiftyOne, which is not read: "
     "export it with dataset_type=fiftyone.types.COCODetectionDataset"),
    (rb'"assets".*"regions"', "a project of VoTT, which is not read: export it as CSV or Pascal VOC"),
    (rb'"instances".*"className"', "SuperAnnotate, which is not read: export as COCO"),
    (rb'"item".*"slots"', "Darwin JSON of V7, which is not read: export as COCO"),
    (rb'"imgHeight".*"polygon"', "polygons of Cityscapes, which are not read: convert them to COCO"),
    (rb'"item1"\s*:.*"bounding_box"', "DeepFashion2, which is not read: convert it to COCO"),
)  # fmt: skip
_TEXTS = (
    (rb"^[A-Za-z_]+( " + _NUMBER + rb"){14,15}\s", "labels of KITTI, which are not read: " + _DATUM.format("kitti")),
    (rb"^# Compatible with PASCAL Annotation", "PASCAL 1.00, which is not read: write the boxes as VOC XML, COCO or CSV"),
    (rb"^(imagesource|gsd):|^(" + _NUMBER + rb" ){8}(?![-\d.]+[eE][-+\d]+ )\S*[A-Za-z]\S* [0-2]\s",
     "rotated boxes of DOTA, which are not read: write them as COCO or YOLO"),
    (rb"^" + rb",".join([rb"-?\d+"] * 8) + rb",?\s", "boxes of VisDrone, which are not read: write them as YOLO or COCO"),
    (rb"^\d+,-?\d+(," + _NUMBER + rb"){5,8}\s", "tracks of MOT, which are not read: write the boxes as COCO or CSV"),
    (rb"^[^\n]+\.jpg\s+\d+\s+(" + _NUMBER + rb" ){4}", "WIDER FACE, which is not read: " + _DATUM.format("wider_face")),
    (rb"^[^\n;]+\.(ppm|png|jpg);\d+;\d+;\d+;\d+;", "a table with semicolons: name it .csv, with class as sixth column"),
    (rb"^[A-Za-z]\S*( [01]?\.\d+){4}\s", "YOLO labels with class names: write the numbers of the classes, from 0"),
    (rb"^[A-Za-z][A-Za-z ]*( \d+(\.\d+)?){4}\s", "labels of the OIDv4 toolkit, which are not read: use the CSV of Open Images"),
)  # fmt: skip
_SUFFIXES = {
    (".tfrecord", ".record", ".tfrec"): "TFRecord, which is not read: " + EXPORT,
    (
        ".parquet",
        ".arrow",
    ): "tables of Hugging Face, which are not read: save the images with a metadata.jsonl next to them",
    (".mat",): "files of MATLAB, which are not read: write the boxes as COCO or CSV",
    (".zip", ".tar", ".gz", ".tgz", ".rar", ".7z"): "an archive: unpack it, and name the folder",
}


def refuse_json(path: str | Path, head: bytes) -> None:
    """Raises DataError if a JSON file that begins with `head` has a known format that is not read."""
    _refuse(path, head.lstrip(BLANKS)[:16384], _JSON)


def refuse_texts(paths: Iterable[Path]) -> None:
    """Raises DataError for the first of these text files that has a known format that is not read."""
    for path in paths:
        with open_file(path) as file:
            _refuse(path, file.read(2000), _TEXTS)


def is_label_file(file: File, has_image: bool) -> bool:
    """Returns whether a text with the name of an image has a known format that is not read."""
    if not has_image or file.suffix != ".txt" or file.name.lower() in listing.CLASS_FILES:
        return False
    return any(re.search(pattern, file.head[:2000], re.DOTALL) for pattern, _ in _TEXTS)


def refuse_folder(folder: Path, files: list[str]) -> None:
    """Raises DataError that names what is in a folder with `files`, of which none can be read."""
    for suffixes, what in _SUFFIXES.items():
        if found := listing.of_suffix(files, suffixes):
            raise DataError(f"{folder / found[0]}: {what}")
    if (images := listing.images_of(files)) and not listing.of_suffix(files, ".txt"):
        what = f"no file with boxes, only images ({len(images)}), for example {images[0]}"
        raise DataError(f"{folder}: {what}: name the file or the folder with the boxes, or label the images first")


def _refuse(path: str | Path, head: bytes, forms: tuple) -> None:
    for pattern, what in forms:
        if re.search(pattern, head, re.DOTALL):
            raise DataError(f"{path}: {what}")
