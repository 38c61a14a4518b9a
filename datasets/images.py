"""Reading pictures, the same way for training, evaluation and prediction, and looking through all of them beforehand.

`read_image` defines what a picture is: gray is repeated in the three channels, of 16 bits the upper eight are taken,
transparency is ignored, palettes are resolved, and the EXIF orientation is applied.
"""

import hashlib
import io
import itertools
import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from PIL import Image
from tqdm import tqdm

from datasets.annotations import PICTURE_SUFFIXES
from datasets.store import Annotations, Problems
from utils.boxes import area, clip

Image.MAX_IMAGE_PIXELS = None  # Pillow refuses large pictures as an attack; these are the user's own

_JPEG_EXIF_MARK = b"Exif\0\0"
_TIFF_MARKS = (b"II*\0", b"MM\0*")
_JPEG_MARK = b"\xff\xd8\xff"
_FLAGS = {  # by reduction
    1: cv2.IMREAD_COLOR,
    2: cv2.IMREAD_REDUCED_COLOR_2,
    4: cv2.IMREAD_REDUCED_COLOR_4,
    8: cv2.IMREAD_REDUCED_COLOR_8,
}
_TURNS = {  # EXIF orientation -> the picture as one sees it
    2: lambda image: image[:, ::-1],
    3: lambda image: image[::-1, ::-1],
    4: lambda image: image[::-1],
    5: lambda image: image.transpose(1, 0, 2),
    6: lambda image: np.rot90(image, -1),
    7: lambda image: image[::-1, ::-1].transpose(1, 0, 2),
    8: lambda image: np.rot90(image),
}


class ImageError(ValueError):
    """A picture cannot be read; the message names the file and the cure."""


class Scan(NamedTuple):
    """What a look at every picture tells."""

    sizes: np.ndarray  # int32 [N, 2] height, width after EXIF; 0, 0 where unknown
    orientations: np.ndarray  # uint8 [N] EXIF orientation, 1: upright
    digests: np.ndarray  # int64 [N] equal for files of equal content; 0 for files that cannot be read
    problems: dict[int, str]  # index -> what is wrong


def read_image(path: str) -> np.ndarray:
    """-> uint8 [H, W, 3] BGR. Any path that the system can open. Raises ImageError."""
    return decode_image(_read_bytes(path), path)


def read_reduced(path: str, reduction: int) -> tuple[np.ndarray, int]:
    """As `read_image`, and the reduction done: a JPEG is decoded `reduction` (1, 2, 4, 8) times smaller, in less time.

    Its sides are divided and rounded up, so that coordinates are divided by the reduction exactly (in a picture that EXIF
    mirrors or turns, to a pixel). Other kinds of files come as they are, reduction 1.
    """
    data = _read_bytes(path)
    reduction = reduction if data.startswith(_JPEG_MARK) else 1
    return decode_image(data, path, reduction), reduction


def decode_image(data: bytes, path: str, reduction: int = 1) -> np.ndarray:
    """The bytes of a picture -> uint8 [H, W, 3] BGR, turned upright. Raises ImageError naming `path`."""
    tiff = data.startswith(_TIFF_MARKS)  # the only format that OpenCV turns even when told not to
    flags = _FLAGS[reduction] if tiff else _FLAGS[reduction] | cv2.IMREAD_IGNORE_ORIENTATION
    try:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error:
        image = None
    if image is None:
        raise ImageError(f"{path}: cannot be decoded: save it again as JPEG or PNG with 8 or 16 bits, or remove it")
    orientation = 1 if tiff else _orientation(data)
    return image if orientation == 1 else np.ascontiguousarray(_TURNS[orientation](image))


def _read_bytes(path: str) -> bytes:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        missing = "there is no such file: correct the path"
        hint = " (with / instead of \\)" if "\\" in path and os.sep == "/" else ""
        what = missing + hint if isinstance(error, FileNotFoundError) else error.strerror
        raise ImageError(f"{path}: {what}") from error
    if not data:
        raise ImageError(f"{path}: the file is empty: fetch it again, or remove it")
    return data


def _orientation(data: bytes) -> int:
    marks = (_JPEG_EXIF_MARK,) if data.startswith(_JPEG_MARK) else (_JPEG_EXIF_MARK, b"eXIf", b"EXIF")  # PNG, WebP
    if not data.startswith(_TIFF_MARKS) and not any(mark in data for mark in marks):
        return 1
    try:
        with Image.open(io.BytesIO(data)) as image:
            orientation = int(image.getexif().get(0x0112, 1))
            return orientation if orientation in _TURNS else 1
    except Exception:  # damaged EXIF raises many kinds of errors, and means nothing
        return 1


def pictures_under(folder: str) -> list[str]:
    """-> sorted paths, relative to the folder and with "/", of the pictures in it and in the folders inside."""
    found = []
    for place, _, names in os.walk(folder, followlinks=True):
        prefix = os.path.relpath(place, folder).replace(os.sep, "/") + "/"
        found += [prefix.removeprefix("./") + name for name in names if name.lower().endswith(PICTURE_SUFFIXES)]
    return sorted(name for name in found if not name.rpartition("/")[2].startswith("."))


def scan(paths: list[str]) -> Scan:
    """Looks at every picture: size, orientation, content, and whether it decodes to its end.

    What is known of a file of the same path, size and time comes from the cache in $THAW_CACHE or ~/.cache/thaw. A bad
    picture is not raised but told in `problems`.
    """
    count = len(paths)
    result = Scan(np.zeros((count, 2), np.int32), np.ones(count, np.uint8), np.zeros(count, np.int64), {})
    cache = _Cache()
    with (
        ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool,
        tqdm(total=count, desc="looking at the pictures", unit="", delay=1, leave=False, disable=None) as bar,
    ):
        for start in range(0, count, 500):
            block = [os.path.abspath(path) for path in paths[start : start + 500]]
            parts = pool.map(
                lambda some: list(map(file_stamp, some)), (block[i : i + 50] for i in range(0, len(block), 50))
            )
            stamps = list(itertools.chain.from_iterable(parts))
            known = cache.read(block)
            fresh = [i for i, path in enumerate(block) if known.get(path, ())[:2] != stamps[i]]
            rows = dict(zip(fresh, pool.map(_examine, (block[i] for i in fresh)), strict=True))
            readable = {i: row for i, row in rows.items() if row[3]}  # a forbidden file may be allowed tomorrow
            cache.write([(block[i], *stamps[i], *row) for i, row in readable.items()])
            for i, path in enumerate(block):
                height, width, orientation, digest, problem = rows[i] if i in rows else known[path][2:]
                result.sizes[start + i] = height, width
                result.orientations[start + i], result.digests[start + i] = orientation, digest
                if problem:
                    result.problems[start + i] = problem
            bar.update(len(block))
    cache.close()
    return result


def file_stamp(path: str) -> tuple[int, int]:
    """Size and time of a file, which change with it; 0, 0 where there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns


def _examine(path: str) -> tuple[int, int, int, int, str]:
    """-> height, width, EXIF orientation, digest, problem ("" for none)."""
    height = width = digest = 0
    orientation, problem = 1, ""
    try:
        data = _read_bytes(path)
        digest = int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big", signed=True)
        orientation = _orientation(data)
        with Image.open(io.BytesIO(data)) as image:
            width, height = image.size[::-1] if orientation >= 5 else image.size
            jpeg = image.format in ("JPEG", "MPO")
            image.draft(None, (max(width // 8, 1), max(height // 8, 1)))  # all of a JPEG is read, little of it computed
            image.load()
        if not jpeg:
            height, width = decode_image(data, path).shape[:2]
    except ImageError as error:
        problem = str(error)
    except Exception as error:  # Pillow raises many kinds of errors for damaged files
        problem = f"{path}: cannot be decoded ({error}): fetch or save it again, or remove it"
    return height, width, orientation, digest, problem


class _Cache:
    """Results of `_examine` in an SQLite file; without a place to write, nothing is remembered."""

    def __init__(self) -> None:
        folder = Path(os.environ.get("THAW_CACHE") or Path.home() / ".cache" / "thaw")
        self._connection = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(folder / "pictures-1.sqlite", timeout=60)
            columns = "path TEXT PRIMARY KEY, bytes, time, height, width, orientation, digest, problem"
            self._connection.execute(f"CREATE TABLE IF NOT EXISTS pictures ({columns}) WITHOUT ROWID")
        except (OSError, sqlite3.Error):
            self.close()

    def read(self, paths: list[str]) -> dict[str, tuple]:
        """-> path: (bytes, time, *result of _examine) of those that are known."""
        marks = ",".join("?" * len(paths))
        rows = self._run(lambda c: c.execute(f"SELECT * FROM pictures WHERE path IN ({marks})", paths).fetchall())
        return {row[0]: row[1:] for row in rows or []}

    def write(self, rows: list[tuple]) -> None:
        statement = "INSERT OR REPLACE INTO pictures VALUES (?,?,?,?,?,?,?,?)"
        self._run(lambda c: (c.executemany(statement, rows), c.commit()) if rows else None)

    def _run(self, work):
        try:
            return work(self._connection) if self._connection else None
        except (sqlite3.Error, UnicodeError):  # a read-only or damaged cache, a file name that is no text
            return None

    def close(self) -> None:
        if self._connection:
            self._connection.close()
        self._connection = None


def prepare(
    annotations: Annotations, skip_bad_images: bool = False, bad_boxes: str = "error"
) -> tuple[Annotations, list[str]]:
    """Scans the pictures -> (annotations with sizes, lines of report).

    A missing or undecodable picture is a DataError listing ten, or is left out; so is (`bad_boxes` "error" or "drop") a
    box of which nothing is left after clipping. Boxes that reach outside stay as written and are counted.
    """
    report = list(annotations.notes)
    found = scan([annotations.path(i) for i in range(len(annotations))])
    problems = Problems()
    for index, problem in sorted(found.problems.items()):
        problems.add(f"{annotations.where(index)}: {problem}")
    source, good = annotations.source, np.setdiff1d(np.arange(len(annotations)), list(found.problems))
    if problems.count and (not skip_bad_images or not len(good)):
        coco = "; image_root names the folder of the pictures" if source.endswith(".json") else ""
        problems.raise_any(
            f"{source}: {problems.count} of {len(annotations)} pictures cannot be read; "
            f"skip_bad_images=True leaves them out{coco}"
        )
    report += _size_report(annotations, found.sizes)
    annotations = replace(annotations, sizes=found.sizes)
    if problems.count:
        report.append(f"{source}: pictures that cannot be read, left out: {problems.count}\n{problems}")
        annotations = annotations.select(good)
    return _check_boxes(annotations, bad_boxes, report)


def _size_report(annotations: Annotations, sizes: np.ndarray) -> list[str]:
    differ = np.flatnonzero((annotations.sizes != sizes).any(1) & annotations.sizes.all(1) & sizes.all(1))
    if not len(differ):
        return []
    (old_height, old_width), (height, width) = annotations.sizes[differ[0]], sizes[differ[0]]
    return [
        f"{annotations.source}: pictures of another size than written with their boxes, which may be off: "
        f"{len(differ)}; {annotations.where(differ[0])} says {old_width}x{old_height}, the picture is {width}x{height}"
    ]


def clipped_boxes(annotations: Annotations) -> np.ndarray:
    """-> float64 [K, 4], every box clipped to its own picture (whose size is known)."""
    height, width = annotations.sizes[annotations.pictures_of_boxes()].T
    return clip(annotations.boxes, width, height)


def _check_boxes(annotations: Annotations, bad_boxes: str, report: list[str]) -> tuple[Annotations, list[str]]:
    clipped, pictures = clipped_boxes(annotations), annotations.pictures_of_boxes()
    outside = np.abs(clipped - annotations.boxes).max(1, initial=0) > 0.01  # pixels; less is rounding
    gone = area(clipped.astype(np.float32)) <= 0
    problems = Problems()
    for row in np.flatnonzero(gone):
        box, (height, width) = ",".join(f"{v:g}" for v in annotations.boxes[row]), annotations.sizes[pictures[row]]
        problems.add(f"{annotations.where(pictures[row])}: box {box} lies outside its picture of {width}x{height}")
    title = f"{annotations.source}: boxes without area inside their pictures"
    if problems.count and bad_boxes == "error":
        problems.raise_any(f'{title}: {problems.count}; bad_boxes="drop" leaves them out')
    if problems.count:
        report.append(f"{title}, left out: {problems.count}\n{problems}")
        annotations = annotations.keep_boxes(~gone)
    outside = int((outside & ~gone).sum())
    if outside:
        report.append(f"{annotations.source}: boxes that reach outside their pictures and are clipped: {outside}")
    return annotations, report
