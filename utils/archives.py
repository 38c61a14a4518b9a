"""Contents of .zip and .tar files, as files in a folder: nothing is written outside of it, and nothing becomes a link."""

import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from utils.remote import FetchError

SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz")
# KeyError: a hard link to a file that is not there; RuntimeError: a password
DAMAGED = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, KeyError)


def is_archive(path: str) -> bool:
    """Whether a path or an address is that of an archive, by its suffix."""
    return path.lower().endswith(SUFFIXES)


def is_hidden(name: str) -> bool:
    """Whether a file is of no data set: .DS_Store, or in __MACOSX, for example."""
    return any(part.startswith((".", "__MACOSX")) for part in name.split("/"))


def parts_of(name: str, where: str) -> list[str]:
    """Returns the folders and the name of a file. Raises FetchError, which begins with `where`, for one that leads elsewhere."""
    parts = name.split("/")
    if any(part in ("", ".", "..") or os.sep in part or "\0" in part for part in parts):
        raise FetchError(f"{where}: {name!r} cannot be the name of a file here: rename it")
    return parts


def extract(archive: str, folder: Path, shown: str) -> None:
    """Writes the files of an archive into a new folder, without hidden ones. Raises FetchError, which names it as `shown`."""
    folder.mkdir(parents=True)
    try:
        for name, file in _files_in(archive, shown):
            target = folder.joinpath(*parts_of(name, shown))
            if not is_hidden(name):
                target.parent.mkdir(parents=True, exist_ok=True)
                with open(target, "xb") as out:
                    shutil.copyfileobj(file, out, 1 << 20)
    except (FileExistsError, NotADirectoryError) as error:
        why = "is there twice, as a file and as a folder, or in upper and lower case, which are one name on this disk"
        raise FetchError(f"{shown}: {name!r} {why}: rename one of them") from error
    except DAMAGED as error:
        raise FetchError(f"{shown}: cannot be unpacked ({error}): get another copy, without a password") from error
    if not any(folder.iterdir()):
        raise FetchError(f"{shown}: there are no files in this archive")


def _files_in(archive: str, shown: str) -> Iterator[tuple[str, IO[bytes]]]:
    """Yields the names and contents of the files in an archive. Raises FetchError for a symbolic link."""
    link = "is a symbolic link: write the archive with the files themselves (tar --dereference)"
    with open(archive, "rb") as file:
        is_zip = file.read(2) == b"PK"
    if is_zip:
        with zipfile.ZipFile(archive) as opened:
            for info in opened.infolist():
                if stat.S_ISLNK(info.external_attr >> 16):
                    raise FetchError(f"{shown}: {info.filename!r} {link}")
                if not info.is_dir():
                    with opened.open(info) as file:
                        yield info.filename.replace("\\", "/"), file
        return
    with tarfile.open(archive, "r:*") as opened:
        for member in opened:
            if member.issym():
                raise FetchError(f"{shown}: {member.name!r} {link}")
            if member.isreg() or member.islnk():
                if contents := opened.extractfile(member):  # of a hard link, those of the file
                    yield member.name.removeprefix("./"), contents
