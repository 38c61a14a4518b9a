"""Files: written completely or not at all, the files of a folder, and the cache folder."""

import difflib
import errno
import glob
import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

from utils.text import brief

_JPEG_2000 = (".jp2", ".j2k", ".j2c", ".jpc", ".jpf", ".jpx")
_PLAIN = (".bmp", ".ppm", ".pgm", ".pbm", ".pnm", ".tif", ".tiff")
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".jfif", ".jpe", ".mpo", ".png", ".apng", ".webp", ".gif", *_JPEG_2000, *_PLAIN)
DRAWN_MARK = b"\nThaw drew boxes into this image"  # at the end of files, which decoders ignore
DISK_ERRORS = {errno.ENOSPC, errno.EFBIG, errno.EIO, getattr(errno, "EDQUOT", errno.ENOSPC)}  # EDQUOT: not on Windows
DETECTIONS = "detections.json"  # of predict.py
EVALUATION = {"metrics.json", "ground_truth.json"}  # of evaluate.py
DRAWN, CROPS = "drawn", "crops"  # its folders next to it: images that are no data


def is_drawn(path: str) -> bool:
    """Returns whether this program drew boxes into an image or a video."""
    with suppress(OSError), open(path, "rb") as file:
        file.seek(max(os.path.getsize(path) - len(DRAWN_MARK), 0))
        return file.read() == DRAWN_MARK
    return False


def left_instead(head: bytes) -> str:
    """Returns what a clone or a download left in the place of a file that begins with `head`, and the fix; "" for others."""
    if head.startswith(b"version https://git-lfs"):
        return "a pointer of Git LFS, not the file itself: git lfs pull fetches it"
    if head.lstrip()[:9].lower().startswith((b"<!doctype", b"<html")):
        return "a web page, not the file itself: fetch it again, in a browser if it needs a login"
    return ""


def matched(word: str) -> str:
    """Returns the path that a pattern as runs/a*/best.pt matches, which cmd.exe and PowerShell leave to the program.

    A pattern that matches several paths or none, and any other word, stays as it is."""
    paths = [] if os.path.exists(word) else glob.glob(word)
    return paths[0] if len(paths) == 1 else word


def missing_text(path: str) -> str:
    """Returns that there is no such file or folder, with a path that exists and differs in one similar name, if there is one."""
    try:
        os.stat(path)
    except PermissionError as error:
        return f"{error.strerror}: correct the permissions of the folders that lead to it"
    except (OSError, ValueError):
        pass
    if paths := sorted(glob.glob(path)):
        return f"{len(paths)} paths match: name one, such as {brief(paths[0])}"
    near = similar_path(path)
    fix = f"did you mean {brief(near)}?" if near else "correct the path"
    place = "" if os.path.isabs(path) else f" in {os.getcwd()}"
    return f"there is no such file or folder{place}; {fix}"


def similar_path(path: str) -> str | None:
    """Returns a path that exists and differs from a missing one in one similar name, such as runs/mine-2026-01-31-1 from
    runs/mine; None if there is none."""
    missing = next((part for part in (*reversed(Path(path).parents), Path(path)) if not os.path.exists(part)), None)
    if not missing or not os.path.isdir(missing.parent) or not os.access(missing.parent, os.R_OK):
        return None
    names = os.listdir(missing.parent)
    longer = sorted((name for name in names if name.startswith(f"{missing.name}-")), reverse=True)
    for name in [*difflib.get_close_matches(missing.name, names, cutoff=0.7), *longer]:
        near = missing.with_name(name) / Path(path).relative_to(missing)
        if os.path.exists(near):
            return str(near)
    return None


def files_under(folder: str | os.PathLike) -> list[str]:
    """Returns the sorted paths of all files in a folder and its subfolders, relative to it and with "/".

    Hidden files and folders are left out, the images that predict.py makes of others, and the results of an evaluation, whose
    boxes are those of validation images; a folder that links lead to twice is listed once."""
    found, seen, tops = [], set(), [os.fspath(folder)]
    for top in tops:  # links are appended, so a folder that is also reachable without links keeps its own path
        for place, folders, names in os.walk(top, onerror=_raise_unreadable):
            real = os.path.realpath(place)
            if real in seen:
                folders.clear()
                continue
            seen.add(real)
            derived = (DRAWN, CROPS) if DETECTIONS in names else ()
            folders[:] = sorted(
                name for name in folders if not name.startswith((".", "__MACOSX")) and name not in derived
            )
            tops += filter(os.path.islink, (os.path.join(place, name) for name in folders))
            prefix = os.path.relpath(place, folder).replace(os.sep, "/") + "/"
            if EVALUATION.issubset(names):
                names = []
            found += [prefix.removeprefix("./") + name for name in names if not name.startswith(".")]
    return sorted(found)


def real_path(path: str) -> str:
    """Returns the path with the real folder, but with the name of the file as it is: ".." leads out of the real folder."""
    place, name = os.path.split(path)
    return os.path.join(_real_folder(os.path.abspath(place)), name)


_real_folder = lru_cache(maxsize=1000)(os.path.realpath)


def _raise_unreadable(error: OSError) -> None:
    """Raises the error of a folder that cannot be listed, unless it is gone or belongs to the file system of a disk."""
    if not (isinstance(error, FileNotFoundError | NotADirectoryError) or error.filename.endswith("lost+found")):
        raise error


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Adds the path of a file to errors of the disk that do not have it, such as those of a full disk while it is written."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno in DISK_ERRORS:
            error.filename = str(path)
        raise


@contextmanager
def atomic_write(path: str | Path) -> Iterator[BinaryIO]:
    """Opens a temporary file that replaces `path` when the block ends without an error.

    At any moment, kill -9 and power cuts included, `path` is the whole old or the whole new file. After an error, also
    KeyboardInterrupt, the temporary file is removed. The folder must exist.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{socket.gethostname()}-{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        with naming(path), open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        if os.name != "nt":  # Windows cannot open folders; elsewhere the rename itself survives a power cut
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Yields a temporary path of a file or folder with the name of `path`, which it replaces if the block ends without an error.

    After an error, also KeyboardInterrupt, what was written is removed. The folder of `path` must exist.
    """
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent) as folder:
        temporary = Path(folder, path.name)
        with naming(path):
            yield temporary
        for part in (temporary, *temporary.rglob("*")):
            if part.is_file():
                with open(part, "rb+") as file:
                    os.fsync(file.fileno())
        if path.is_dir():  # which only an empty folder may replace
            path.rename(Path(folder, "old"))
        os.replace(temporary, path)


@contextmanager
def warn_if_disk_fails(errors: list[Exception] | None = None) -> Iterator[None]:
    """Prints disk errors as warnings and appends them to `errors`, so that training continues and can save later."""
    try:
        yield
    except OSError as error:
        if errors is not None:
            errors.append(error)
        print(f"WARNING: {error}")
        hint = "; make room on the disk before it ends" if error.errno in DISK_ERRORS else ""
        print(f"WARNING: training continues and saves again later{hint}")


def cache_folder() -> Path:
    """The folder for downloaded weights and decoded images: $THAW_CACHE, or ~/.cache/thaw."""
    home = os.path.expanduser("~")
    if not os.path.isabs(home):  # a user without a home folder, as in some containers
        home = "/nonexistent"
    return Path(os.environ.get("THAW_CACHE") or Path(home, ".cache", "thaw"))


def make_cache_folder(inside: str = "") -> Path:
    """Creates the cache folder, which only this user may open, and a folder `inside`. Returns the latter. Raises OSError."""
    for folder in (cache_folder(), cache_folder() / inside):
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            fix = "name a folder for the cache in the environment variable THAW_CACHE"
            raise OSError(error.errno, f"{error.strerror}: {fix}", str(folder)) from error
    return folder
