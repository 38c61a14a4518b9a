"""Files that may hold labels, but cannot be read: JSON and XML that are cut off, texts in UTF-16, empty files."""

import os
from itertools import islice

from datasets.errors import DataError, open_file
from datasets.formats import listing
from datasets.formats.annotation_file import text_lines
from datasets.formats.file import File
from datasets.formats.record_files import JSON_LINES
from datasets.formats.tables import SUFFIXES as TABLES
from datasets.formats.xml_file import parse_xml

SUFFIXES = (".json", ".xml", ".txt", *TABLES, *JSON_LINES)


def is_label_file(file: File, has_image: bool) -> bool:
    """Returns whether a file has the suffix of a label file, but cannot be read."""
    return bool(problem_of(file))


def problem_of(file: File) -> str:
    """Returns what is wrong with a file that has the suffix of a label file: path, reason and fix. "" if it can be read."""
    if file.suffix not in SUFFIXES or file.name.lower() in listing.CLASS_FILES:
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
    if file.suffix != ".txt" and not os.path.getsize(path):
        raise DataError(f"{path}: empty: export the file again, or remove it")
    if file.suffix == ".json":
        _ = file.json
    elif file.suffix == ".xml":
        with open_file(path) as opened:
            try:
                parse_xml(opened)
            except ValueError as error:
                raise DataError(f"{path}: {error}") from error
    elif any("\0" in line for _, line in islice(text_lines(path), 2)):  # UTF-16 without a byte order mark
        raise DataError(f"{path}: not UTF-8 text: save the file as UTF-8")
