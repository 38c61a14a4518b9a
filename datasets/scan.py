"""Scan of all images of a data set before training: sizes, orientations, digests, and images that cannot be read."""

import hashlib
import io
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

import cv2
import numpy as np
import PIL
from PIL import Image

from datasets.store import Annotations
from utils import images, jpeg
from utils.boxes import clip
from utils.files import DRAWN_MARK, make_cache_folder
from utils.progress import progress_bar
from utils.value_range import FULL, NO_LIMITS, limits_of, to_8_bits

LEAST = 32  # pixels of the shorter side of the reduced image that is hashed
FLAT = 0.05  # gray levels; an image in which no wave is stronger shows nothing but noise
_CACHE_ERRORS = (OSError, sqlite3.Error, UnicodeError)  # a read-only or damaged file, a file name that is not text


class Scan(NamedTuple):
    """What `scan` found, by image."""

    sizes: np.ndarray  # int32 [N, 2] height, width after EXIF; 0, 0 where unknown
    orientations: np.ndarray  # uint8 [N] EXIF orientation, 1: upright
    digests: np.ndarray  # int64 [N] equal for files of equal content; 0 for files that cannot be read
    hashes: np.ndarray  # uint64 [N, 4] perceptual hash, see `image_hash`; 0 where there is none
    problems: dict[int, str]  # index -> what is wrong
    repairable: set[int]  # those with a problem that can be decoded: JPEGs that are cut off
    limits: np.ndarray  # int32 [N, 2] least and largest value of 16-bit images, see `limits_of`; -1 for others
    several: list[int]  # indices of files with several images, of which the first is read


class Examined(NamedTuple):
    """What `_examine` found in one image: the columns of the cache after path and stamp."""

    height: int
    width: int
    orientation: int  # EXIF
    digest: int
    hash: bytes  # b"" for none
    repairable: int  # 0 or 1
    problem: str  # "" for none
    low: int  # limits of a 16-bit image
    high: int
    frames: int  # images in the file


def scan(paths: list[str]) -> Scan:
    """Reads every image: size, EXIF orientation, digest, hash, and whether it decodes to its end. Raises no error.

    Results for unchanged files and decoders (see `_stamp`) come from a cache."""
    found: list[Examined] = []
    with (
        ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool,
        progress_bar(None, "scanning images", total=len(paths), delay=1) as bar,
    ):
        for block in images.batched(map(os.path.abspath, paths), 500):
            stamps = _in_groups(pool, _stamp, block, 50)
            known = _read_cache(block)
            stamp_of = dict(zip(block, stamps, strict=True))
            examined = {path: image for path, (stamp, image) in known.items() if stamp == stamp_of[path]}
            fresh = [path for path in stamp_of if path not in examined]
            examined |= zip(fresh, _in_groups(pool, _examine, fresh, 10), strict=True)
            # a file without a digest could not be opened, which may change without a new size and time
            _write_cache([(path, stamp_of[path], *examined[path]) for path in fresh if examined[path].digest])
            found += [examined[path] for path in block]
            bar.update(len(block))
    return Scan(
        sizes=np.array([(one.height, one.width) for one in found], np.int32).reshape(-1, 2),
        orientations=np.array([one.orientation for one in found], np.uint8),
        digests=np.array([one.digest for one in found], np.int64),
        hashes=np.frombuffer(b"".join(one.hash or bytes(32) for one in found), np.uint64).reshape(-1, 4),
        problems={index: one.problem for index, one in enumerate(found) if one.problem},
        repairable={index for index, one in enumerate(found) if one.repairable},
        limits=np.array([(one.low, one.high) for one in found], np.int32).reshape(-1, 2),
        several=[index for index, one in enumerate(found) if one.frames > 1],
    )


def _in_groups(pool: ThreadPoolExecutor, work: Callable, items: Iterable[str], size: int) -> Iterator:
    """Yields work(item) for all items in order; a call in a thread is for `size` items, because each call has a price."""
    return chain.from_iterable(pool.map(lambda group: list(map(work, group)), images.batched(items, size)))


def file_stamp(path: str) -> str:
    """Returns size, times of modification and change, and inode of a file, by which a change is noticed."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # ValueError: a name that the system cannot have
        return "missing"
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}"


def _stamp(path: str) -> str:
    """Returns what the result of `_examine` depends on: the file, the versions of the decoders, and their limit of pixels."""
    return f"{file_stamp(path)} {cv2.__version__} {PIL.__version__} {images.MAX_PIXELS}"


def _examine(path: str) -> Examined:
    """Reads one image."""
    height = width = digest = 0
    limits, frames = NO_LIMITS, 1
    orientation, looks, repairable, problem = 1, b"", 0, ""
    try:
        data = images.read_bytes(path)
        digest = int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big", signed=True)
        if data.endswith(DRAWN_MARK):
            fix = "give the image without them, such as image_root=FOLDER, or remove it"
            raise images.ImageError(f"{path}: this program drew boxes into the image: {fix}")
        if jpeg.is_cut_off(data):
            data += jpeg.END
            images.decode_image(data, path)
            repairable, problem = 1, f"{path}: the JPEG is cut off: fetch it again, or remove it"
        orientation = images.read_orientation(data)
        images.check_header(data, path)
        with Image.open(io.BytesIO(data), formats=images.FORMATS) as image:
            width, height = image.size[::-1] if orientation >= 5 else image.size
            mode = "L" if image.mode == "RGB" else None
            drafted = image.draft(mode, (max(image.width // 8, LEAST), max(image.height // 8, LEAST)))
            image.load()  # of a JPEG it reads all and decodes down to an eighth of the size
            if is_jpeg := image.format in ("JPEG", "MPO"):
                gray = np.asarray(image if image.mode == "L" else image.convert("L"))
            image.close()  # frees the pixels, before OpenCV decodes them again
        if is_jpeg:
            gray = images.TURNS[orientation](gray[..., None])[..., 0] if orientation > 1 else gray
            shrink = max(height, width) / max(drafted[1]) if drafted else 1
        else:
            pixels, frames = images.decode_deep(data, path), images.frame_count(data)
            limits = limits_of(pixels)
            if limits != NO_LIMITS:
                value_range = limits if limits[0] < limits[1] else FULL
                pixels = to_8_bits(pixels, value_range)
            height, width = pixels.shape[:2]
            shrink = max(min(height, width) // (2 * LEAST), 1)
            gray = np.asarray(Image.fromarray(cv2.cvtColor(pixels, cv2.COLOR_BGR2GRAY)).reduce(shrink))
        looks = image_hash(gray, height / shrink, width / shrink)
    except images.ImageError as error:
        repairable, problem = 0, str(error)
    except Exception as error:  # Pillow raises many kinds of errors for damaged files
        repairable, problem = 0, f"{path}: cannot be decoded ({error}): fetch or save it again, or remove it"
    return Examined(height, width, orientation, digest, looks, repairable, problem, *limits, frames)


def image_hash(gray: np.ndarray, height: float, width: float) -> bytes:
    """Returns the 32 bytes of the perceptual hash of an image [h, w], b"" for an image without contrast.

    The bits are the signs of its lowest frequencies (DCT), which scale, compression and brightness hardly change. `height` and
    `width` may be smaller than h and w by a part of a pixel, where the last row and column reach outside of the image."""
    frequencies = _cosines(gray.shape[0], height) @ gray.astype(np.float32) @ _cosines(gray.shape[1], width)[:16].T
    waves = frequencies.ravel()[1:257]  # without the mean
    return np.packbits(waves > 0).tobytes() if np.abs(waves).max() > FLAT * gray.size else b""


@lru_cache(1000)
def _cosines(count: int, length: float) -> np.ndarray:
    """The 17 lowest cosine waves over `length`, float32 [17, count], one value for each pixel, of which the last may be cut."""
    edges = np.arange(count + 1).clip(max=length)
    centers, sides = (edges[1:] + edges[:-1]) / 2, np.diff(edges)
    waves = np.cos(np.pi / length * np.arange(17)[:, None] * centers) * sides
    waves[1:] -= waves[1:].sum(1, keepdims=True) / length * sides  # the mean of the image adds nothing
    return waves.astype(np.float32)


def _read_cache(paths: list[str]) -> dict[str, tuple[str, Examined]]:
    """Returns {path: (stamp, result of `_examine`)} of the paths in the cache."""
    query = f"SELECT * FROM images WHERE path IN ({','.join('?' * len(paths))})"
    with suppress(*_CACHE_ERRORS), _open_cache() as cache:
        return {path: (stamp, Examined(*columns)) for path, stamp, *columns in cache.execute(query, paths)}
    return {}


def _write_cache(rows: list[tuple]) -> None:
    with suppress(*_CACHE_ERRORS), _open_cache() as cache:
        marks = ",".join("?" * (len(Examined._fields) + 2))
        cache.executemany(f"INSERT OR REPLACE INTO images VALUES ({marks})", rows)


@contextmanager
def _open_cache() -> Iterator[sqlite3.Connection]:
    """Opens the SQLite file with results of `_examine`, and commits what is written to it."""
    file = make_cache_folder() / "images-7.sqlite"
    with closing(sqlite3.connect(file, timeout=60)) as connection, connection:
        columns = ", ".join(Examined._fields)
        table = f"images (path TEXT PRIMARY KEY, stamp, {columns})"
        connection.execute(f"CREATE TABLE IF NOT EXISTS {table} WITHOUT ROWID")
        yield connection


def clipped_boxes(annotations: Annotations) -> np.ndarray:
    """Returns all boxes, float64 [K, 4], clipped to their images, whose sizes must be known."""
    height, width = annotations.sizes[annotations.image_of_boxes()].T
    return clip(annotations.boxes, width, height)
