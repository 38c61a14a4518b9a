"""Readers of single files: an ordered list, of which the first that claims a file reads it."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from datasets.errors import DataError
from datasets.formats import coco, cvat, data_file, labelme, labelstudio, record_files, tables, texts, via
from datasets.formats.file import File
from datasets.formats.refusals import refuse_json
from datasets.formats.source import Source
from datasets.store import Split


class FileReader(NamedTuple):
    """A format of single files: what it looks like, and its reader."""

    claims: Callable[[File], bool]
    # (file, split) or, where label files and images are paired by their names, also image_root
    read: Callable[..., Source]
    takes_image_root: bool = False


FILE_READERS = (  # the first one that claims a file reads it
    FileReader(texts.claims, texts.read, takes_image_root=True),
    FileReader(record_files.claims_scalabel, record_files.read_scalabel),
    FileReader(labelstudio.claims, labelstudio.read),
    FileReader(labelme.claims, labelme.read, takes_image_root=True),
    FileReader(coco.claims, coco.read),
    FileReader(record_files.claims_datumaro, record_files.read_datumaro),
    FileReader(via.claims, via.read),
    FileReader(tables.claims, tables.read),
    FileReader(record_files.claims_lines, record_files.read_lines),
    FileReader(cvat.claims, cvat.read),
    FileReader(data_file.claims, data_file.read, takes_image_root=True),
)


def read_file(path: Path, split: Split, image_root: str | None = None) -> Source:
    """Reads a file in the format of the first reader that claims it. Raises DataError."""
    file = File(path)
    if file.suffix == ".json":
        _ = file.json  # what is not JSON is reported before its format is recognized
        refuse_json(path, file.head)
    for reader in FILE_READERS:
        if reader.claims(file):
            return reader.read(file, split, image_root) if reader.takes_image_root else reader.read(file, split)
    if file.suffix == ".json":
        there = ", ".join(list(file.json)[:5]) or "nothing"
        raise DataError(
            f"{path}: not a COCO ground truth, it has no images, nor a file of LabelMe, Label Studio or VIA (2), but "
            f"{there}: export the boxes as COCO"
        )
    raise DataError(
        f"{path}: give an annotation file (.txt), JSON (COCO, Label Studio, VIA), CSV, YOLO yaml, CVAT XML, or a folder "
        f"with any of these, or with VOC, LabelMe or YOLO label files"
    )
