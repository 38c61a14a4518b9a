"""Scan of all images of a data set before training: sizes, orientations, digests, and images that cannot be read."""

import hashlib
import io
import itertools
import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from PIL import Image
from tqdm import tqdm

from datasets.errors import Problems
from datasets.store import Annotations
from utils.boxes import area, clip
from utils.config import cache_folder
from utils.images import ImageError, decode_image, read_bytes, read_orientation


class Scan(NamedTuple):
    """What `scan` found, by image."""

    sizes: np.ndarray  # int32 [N, 2] height, width after EXIF; 0, 0 where unknown
    orientations: np.ndarray  # uint8 [N] EXIF orientation, 1: upright
    digests: np.ndarray  # int64 [N] equal for files of equal content; 0 for files that cannot be read
    problems: dict[int, str]  # index -> what is wrong


def scan(paths: list[str]) -> Scan:
    """Reads every image: size, EXIF orientation, digest of the content, and whether it decodes to its end.

    Results for files of the same path, size and time come from a cache in `utils.config.cache_folder`. An image that cannot
    be read raises no error; it is listed in `problems`.
    """
    count = len(paths)
    result = Scan(np.zeros((count, 2), np.int32), np.ones(count, np.uint8), np.zeros(count, np.int64), {})
    cache = _Cache()
    with (
        ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool,
        tqdm(total=count, desc="scanning images", unit="", delay=1, leave=False, disable=None) as bar,
    ):
        for start in range(0, count, 500):
            block = [os.path.abspath(path) for path in paths[start : start + 500]]
            groups = (block[i : i + 50] for i in range(0, len(block), 50))
            stamps = list(itertools.chain.from_iterable(pool.map(lambda group: list(map(file_stamp, group)), groups)))
            known = cache.read(block)
            fresh = [i for i, path in enumerate(block) if known.get(path, ())[:2] != stamps[i]]
            rows = dict(zip(fresh, pool.map(_examine, (block[i] for i in fresh)), strict=True))
            # a file without a digest could not be opened, which may change without a new size and time
            cache.write([(block[i], *stamps[i], *row) for i, row in rows.items() if row[3]])
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
    """Returns size and modification time of a file, by which a change is noticed; 0, 0 for a missing file."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # ValueError: a name that the system cannot have
        return 0, 0
    return status.st_size, status.st_mtime_ns


def _examine(path: str) -> tuple[int, int, int, int, str]:
    """Reads one image -> height, width, EXIF orientation, digest, problem ("" for none)."""
    height = width = digest = 0
    orientation, problem = 1, ""
    try:
        data = read_bytes(path)
        digest = int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big", signed=True)
        orientation = read_orientation(data)
        with Image.open(io.BytesIO(data)) as image:
            width, height = image.size[::-1] if orientation >= 5 else image.size
            jpeg = image.format in ("JPEG", "MPO")
            image.draft(None, (max(width // 8, 1), max(height // 8, 1)))
            image.load()  # of a JPEG it reads all and decodes an eighth of the size
        if not jpeg:
            height, width = decode_image(data, path).shape[:2]
    except ImageError as error:
        problem = str(error)
    except Exception as error:  # Pillow raises many kinds of errors for damaged files
        problem = f"{path}: cannot be decoded ({error}): fetch or save it again, or remove it"
    return height, width, orientation, digest, problem


class _Cache:
    """Results of `_examine` in an SQLite file; if it cannot be used, every image is examined again."""

    def __init__(self) -> None:
        folder = cache_folder()
        self._connection = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(folder / "images-1.sqlite", timeout=60)
            columns = "path TEXT PRIMARY KEY, bytes, time, height, width, orientation, digest, problem"
            self._connection.execute(f"CREATE TABLE IF NOT EXISTS images ({columns}) WITHOUT ROWID")
        except (OSError, sqlite3.Error):
            self.close()

    def read(self, paths: list[str]) -> dict[str, tuple]:
        """Returns {path: (bytes, time, *result of _examine)} of the known paths."""
        marks = ",".join("?" * len(paths))
        rows = self._run(lambda c: c.execute(f"SELECT * FROM images WHERE path IN ({marks})", paths).fetchall())
        return {row[0]: row[1:] for row in rows or []}

    def write(self, rows: list[tuple]) -> None:
        statement = "INSERT OR REPLACE INTO images VALUES (?,?,?,?,?,?,?,?)"
        self._run(lambda c: (c.executemany(statement, rows), c.commit()) if rows else None)

    def _run(self, work):
        try:
            return work(self._connection) if self._connection else None
        except (sqlite3.Error, UnicodeError):  # a read-only or damaged cache, a file name that is not text
            return None

    def close(self) -> None:
        if self._connection:
            self._connection.close()
        self._connection = None


def prepare(
    annotations: Annotations, skip_bad_images: bool = False, bad_boxes: str = "error"
) -> tuple[Annotations, list[str]]:
    """Scans the images and checks the boxes against them -> (annotations with sizes, lines of report).

    Images that cannot be read are a DataError, or are left out with `skip_bad_images`. Boxes wholly outside their image are
    a DataError, or are left out with `bad_boxes="drop"`. Boxes partly outside stay as written and are counted.
    """
    report = list(annotations.notes)
    found = scan([annotations.path(i) for i in range(len(annotations))])
    problems = Problems()
    for index, problem in sorted(found.problems.items()):
        problems.add(f"{annotations.where(index)}: {problem}")
    source, good = annotations.source, np.setdiff1d(np.arange(len(annotations)), list(found.problems))
    if problems.count and (not skip_bad_images or not len(good)):
        coco = "; image_root names the folder of the images" if source.endswith(".json") else ""
        problems.raise_any(
            f"{source}: {problems.count} of {len(annotations)} images cannot be read; "
            f"skip_bad_images=True leaves them out{coco}"
        )
    report += _size_report(annotations, found.sizes)
    annotations = replace(annotations, sizes=found.sizes)
    if problems.count:
        report.append(f"{source}: images that cannot be read, left out: {problems.count}\n{problems}")
        annotations = annotations.select(good)
    return _check_boxes(annotations, bad_boxes, report)


def _size_report(annotations: Annotations, sizes: np.ndarray) -> list[str]:
    differ = np.flatnonzero((annotations.sizes != sizes).any(1) & annotations.sizes.all(1) & sizes.all(1))
    if not len(differ):
        return []
    (old_height, old_width), (height, width) = annotations.sizes[differ[0]], sizes[differ[0]]
    return [
        f"{annotations.source}: images whose size differs from the one in the annotations, so that boxes may be off: "
        f"{len(differ)}; {annotations.where(differ[0])}: {old_width}x{old_height}, but the image is {width}x{height}"
    ]


def clipped_boxes(annotations: Annotations) -> np.ndarray:
    """Returns all boxes, float64 [K, 4], clipped to their images, whose sizes must be known."""
    height, width = annotations.sizes[annotations.image_of_boxes()].T
    return clip(annotations.boxes, width, height)


def _check_boxes(annotations: Annotations, bad_boxes: str, report: list[str]) -> tuple[Annotations, list[str]]:
    clipped, images = clipped_boxes(annotations), annotations.image_of_boxes()
    outside = np.abs(clipped - annotations.boxes).max(1, initial=0) > 0.01  # pixels; less is rounding
    gone = area(clipped.astype(np.float32)) <= 0
    problems = Problems()
    for row in np.flatnonzero(gone):
        box, (height, width) = ",".join(f"{v:g}" for v in annotations.boxes[row]), annotations.sizes[images[row]]
        problems.add(f"{annotations.where(images[row])}: box {box} lies outside its image of {width}x{height}")
    title = f"{annotations.source}: boxes without area inside their images"
    if problems.count and bad_boxes == "error":
        problems.raise_any(f'{title}: {problems.count}; bad_boxes="drop" leaves them out')
    if problems.count:
        report.append(f"{title}, left out: {problems.count}\n{problems}")
        annotations = annotations.keep_boxes(~gone)
    outside = int((outside & ~gone).sum())
    if outside:
        report.append(f"{annotations.source}: boxes that reach outside their images and are clipped: {outside}")
    return annotations, report
