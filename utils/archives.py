"""Unpacks .zip and .tar files into a folder. Nothing is written outside of it."""

import tarfile
import zipfile
import zlib
from pathlib import Path

from utils.remote import FetchError
from utils.tar import extract_tar

SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz")
# RuntimeError: a password; KeyError: a hard link to a file that is not in the archive
DAMAGED = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, KeyError)
TWICE = (FileExistsError, IsADirectoryError, NotADirectoryError)  # a name is that of a file and of a folder


def is_archive(path: str) -> bool:
    """Returns whether a path or an address is that of an archive, by its suffix."""
    return path.lower().endswith(SUFFIXES)


def extract(archive: str, folder: Path, shown: str) -> None:
    """Unpacks an archive into a new folder. Raises FetchError, which names the archive as `shown`."""
    folder.mkdir(parents=True)
    try:
        with open(archive, "rb") as file:
            is_zip = file.read(2) == b"PK"
        if is_zip:
            with zipfile.ZipFile(archive) as opened:
                opened.extractall(folder)  # without "..", and without links
        else:
            with tarfile.open(archive) as tar:
                extract_tar(tar, folder)
    except (*DAMAGED, *TWICE) as error:
        raise FetchError(f"{shown}: cannot be unpacked ({error}): get another copy, without a password") from error
    if not any(folder.iterdir()):
        raise FetchError(f"{shown}: there are no files in this archive")
