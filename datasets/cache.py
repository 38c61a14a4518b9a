"""Cache of decoded images: files, shared by all processes of a node and by later runs, and the memory of one process.

The cache changes the speed only. An entry is valid for one path, state of the file (see `scan.file_stamp`), reduction, range
of values and version of OpenCV; anything else is decoded again.
"""

import hashlib
import os
import shutil
import struct
import tempfile
import time
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

import cv2
import numpy as np
import torch

from datasets.scan import file_stamp
from utils.files import cache_folder, make_cache_folder
from utils.images import read_reduced
from utils.value_range import ValueRange

KEPT = 600  # images in the memory of a process: more than the 513 from which a mosaic's partners are drawn
UNUSED = 86_400.0  # seconds without use after which a file may be removed
FRACTION = 0.25  # of the free memory, for all processes of a node together; the same again for the files
BATCHES = 1 / 16  # of the free memory, in which the batches of the validation stay

_HEAD = struct.Struct("<16siiQ")  # digest of the key and of the rest, height, width, sum of the pixels


class ImageCache:
    """Reads images like `images.read_reduced`, faster: from memory or from files. Pickles without the images in memory.

    `files` and `memory`: largest number of bytes. None: a quarter of what is free; for the files $THAW_CACHE_GB, if set."""

    def __init__(self, files: float | None = None, memory: float | None = None) -> None:
        self._files = _files_limit() if files is None else files
        self._memory = memory
        self._folder = cache_folder() / "decoded-2"
        self._kept: OrderedDict[tuple, np.ndarray] = OrderedDict()  # key -> image, the one unused for longest first
        self._bytes = 0  # of the images in memory
        self._room: float | None = None  # bytes that this process may still write; None: not counted yet

    def __getstate__(self) -> dict:
        return self.__dict__ | {"_kept": OrderedDict(), "_bytes": 0, "_room": None}

    def read(self, path: str, reduction: int, value_range: ValueRange | None = None) -> np.ndarray:
        """Returns an image, read-only uint8 [h, w, 3] BGR, whose sides are divided by `reduction`. Raises ImageError."""
        path = os.path.abspath(path)
        key = (path, reduction, file_stamp(path), value_range)
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        image = self._load(key) if self._files != 0 else None
        if image is None:
            image = read_reduced(path, reduction, value_range)
            if self._files != 0:
                self._save(key, image)
        self._keep(key, image)
        return image

    def _keep(self, key: tuple, image: np.ndarray) -> None:
        """Keeps an image in memory, and removes those that were not used for longest."""
        if self._memory is None:
            self._memory = FRACTION * free_memory() / _processes()
        image.flags.writeable = False
        self._kept[key] = image
        self._bytes += image.nbytes
        while self._bytes > self._memory or len(self._kept) > KEPT:
            _, oldest = self._kept.popitem(last=False)
            self._bytes -= oldest.nbytes

    def _file(self, key: tuple) -> Path:
        """Returns the file of an entry: one for each path and reduction, whichever version of the image it holds."""
        return self._folder / hashlib.blake2b(repr(key[:2]).encode(), digest_size=16).hexdigest()

    def _load(self, key: tuple) -> np.ndarray | None:
        """Reads the file of an entry; None if it is missing, damaged or of another version of the image."""
        try:
            with open(self._file(key), "rb", buffering=0) as file:
                status = os.fstat(file.fileno())
                digest, height, width, total = _HEAD.unpack(file.read(_HEAD.size))
                if digest != _digest(key, height, width, total) or status.st_size != _HEAD.size + 3 * height * width:
                    return None
                image = np.empty((height, width, 3), np.uint8)
                if file.readinto(image.data) != image.nbytes or _sum(image) != total:
                    return None
                if time.time() - status.st_mtime > UNUSED / 24:
                    os.utime(self._file(key))  # marks it as used
                return image
        except (OSError, ValueError, struct.error):
            return None

    def _save(self, key: tuple, image: np.ndarray) -> None:
        """Writes a temporary file, if there is room, and renames it, so that other processes never read half of it.

        Unlike `atomic_write` it does not wait for the disk: a file that a power cut damages is decoded again."""
        size = _HEAD.size + image.nbytes
        temporary = None
        try:
            if self._room is None or 0 < self._room < size:
                self._make_room()
            if self._room is None or size > self._room:
                return
            with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as file:
                temporary = file.name
                height, width = image.shape[:2]
                total = _sum(image)
                file.write(_HEAD.pack(_digest(key, height, width, total), height, width, total))
                file.write(image.data)
            os.replace(temporary, self._file(key))
            self._room -= size
        except OSError:  # a read-only or full disk, a file that another process holds open
            self._room = 0.0
            if temporary:
                Path(temporary).unlink(missing_ok=True)

    def _make_room(self) -> None:
        """Counts the files, removes unused ones if they fill most of the limit, and sets how much this process may write."""
        make_cache_folder(self._folder.name)
        files = []
        for entry in os.scandir(self._folder):
            with suppress(FileNotFoundError):  # another process has just renamed or removed it
                status = entry.stat()
                files.append((status.st_mtime, status.st_size, entry.path))
        files.sort()  # the one unused for longest first
        used = sum(size for _, size, _ in files)
        if self._files is None:
            self._files = FRACTION * min(free_memory(), shutil.disk_usage(self._folder).free + used)
        for when, size, path in files:
            if used < self._files - self._files / 8 or time.time() - when < UNUSED:
                break
            Path(path).unlink(missing_ok=True)
            used -= size
        room = self._files - used  # other processes write too: all together use half of it before they count again
        self._room = room / 2 / _processes() if room > self._files / 50 else 0.0


def _files_limit() -> float | None:
    """Returns the limit of the files in bytes from $THAW_CACHE_GB; None: not set. Raises ValueError."""
    text = os.environ.get("THAW_CACHE_GB", "").strip()
    with suppress(ValueError):
        if not text or 0 <= float(text) < float("inf"):
            return float(text) * 1e9 if text else None
    raise ValueError(f"THAW_CACHE_GB={text}: it must be a number of gigabytes; 0 keeps no files")


def _processes() -> int:
    """Returns the number of processes of this node that read images for this run."""
    info = torch.utils.data.get_worker_info()
    return (info.num_workers if info else 1) * max(int(os.environ.get("LOCAL_WORLD_SIZE", 1)), 1)


def fits_in_memory(num_bytes: float) -> bool:
    """Returns whether this process may keep so many bytes of validation batches."""
    return num_bytes <= BATCHES * free_memory() / _processes()


def free_memory() -> float:
    """Returns the bytes of memory available without swapping, within the limit of a container; 4 GB on systems without /proc."""
    available = 4e9
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        available = next(1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
        return min(available, float(Path("/sys/fs/cgroup/memory.max").read_text()))  # "max": no limit, a ValueError
    except (OSError, ValueError, StopIteration):
        return available


def _digest(key: tuple, height: int, width: int, total: int) -> bytes:
    """Returns a digest of the key with the stamp of the image, OpenCV's version, and the head of the file."""
    identity = (cv2.__version__, *key, height, width, total)
    return hashlib.blake2b(repr(identity).encode(), digest_size=16).digest()


def _sum(image: np.ndarray) -> int:
    """Returns a checksum of the pixels, which is fast to compute: their sum in words of 8 bytes."""
    words = np.frombuffer(image, np.uint64, image.size // 8)
    return (int(words.sum()) + int(image.reshape(-1)[8 * len(words) :].sum())) % 2**64
