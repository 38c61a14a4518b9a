"""Chooses the reader of a file or a folder."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from datasets.errors import DataError, one_line
from datasets.formats.file_readers import read_file
from datasets.formats.folder_readers import FOLDER_READERS, Folder
from datasets.formats.source import Source
from datasets.formats.unread import left_over
from datasets.store import Annotations, Split


class Reading(NamedTuple):
    """What was read from a file or folder."""

    sources: list[Source]  # one, or several files that are joined: their images have the same classes
    notes: Callable[[Annotations], list[str]] | None = None  # about what the folder holds besides


def read_path(path: Path, split: Split, image_root: str | None) -> Reading:
    """Reads a file or a folder. Raises DataError."""
    if image_root is not None and not os.path.isdir(image_root):
        raise DataError(f"image_root={image_root}: there is no such folder: correct the path")
    if path.is_dir():
        return read_folder(path, split, image_root)
    return Reading([read_file(path, split, image_root)])


def _joined(folder: Folder, source: Source) -> list[str]:
    """Returns a note about the data sets in a folder, if it holds several that are read together."""
    marks = re.compile(r"(.+?)/(data\.ya?ml|ImageSets/.+\.txt)", re.IGNORECASE)
    places = sorted({found[1] for found in map(marks.fullmatch, folder.files) if found})
    if len(places) < 2 or source.listed is not None:
        return []
    shown = ", ".join(map(one_line, places[:5]))
    return [f"{folder.path}: {len(places)} data sets are read together ({shown}): give one of them to read it alone"]


def read_folder(path: Path, split: Split, image_root: str | None) -> Reading:
    """Reads a folder with the first reader that claims label files in it. Raises DataError.

    Label files that it does not read, and images that no label file names, are reported."""
    folder = Folder(path, split, image_root)
    reader, claimed = next((reader, found) for reader in FOLDER_READERS if (found := reader.claims(folder)))
    sources = reader.read(folder, claimed)
    sources[0].notes += _joined(folder, sources[0])
    return Reading(sources, lambda found: left_over(folder, reader, sources, found))
