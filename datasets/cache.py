"""Decoded pictures, kept: in files that all processes of a machine and later runs share, and in the memory of a process.

Both change how fast a sample is made and never what it is: a picture is kept under the path, size and time of its file,
its reduction and the version of OpenCV, and what does not agree is decoded again.
"""

import hashlib
import os
import shutil
import struct
import tempfile
import time
from collections import OrderedDict
from pathlib import Path

import cv2
import numpy as np
import torch

from datasets.images import file_stamp, read_reduced

KEPT = 600  # pictures in the memory of a process: more than the 513 that a mosaic's partners come from
UNUSED = 86_400.0  # seconds without use after which a file makes room for others
SHARE = 0.25  # of the memory that is free, for all processes of a machine together; as much again for the files

_HEAD = struct.Struct("<16siiiQ")  # digest of the key, height, width, reduction done, sum of the pixels


class Pictures:
    """`read(path, reduction)` as `images.read_reduced`. Picklable; what is in memory stays in its process.

    `files` and `memory`: bytes at most; None: what $THAW_CACHE_GB says of the files, and a quarter of what is free.
    """

    def __init__(self, files: float | None = None, memory: float | None = None) -> None:
        self._files, self._memory = _wanted() if files is None else files, memory
        self._folder = Path(os.environ.get("THAW_CACHE") or Path.home() / ".cache" / "thaw") / "decoded-1"
        self._kept, self._bytes, self._room = OrderedDict(), 0, None

    def __getstate__(self) -> dict:
        return self.__dict__ | {"_kept": OrderedDict(), "_bytes": 0, "_room": None}

    def read(self, path: str, reduction: int) -> tuple[np.ndarray, int]:
        """-> uint8 [h, w, 3] BGR (not to be written to), and the reduction that was done. Raises ImageError."""
        path = os.path.abspath(path)
        key = (path, reduction, *file_stamp(path))
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        found = self._load(key) if self._files != 0 else None
        if found is None:
            found = read_reduced(path, reduction)
            self._save(key, *found)
        self._keep(key, found)
        return found

    def _keep(self, key: tuple, found: tuple[np.ndarray, int]) -> None:
        if self._memory is None:
            self._memory = SHARE * free_memory() / _processes()
        found[0].flags.writeable = False
        self._kept[key], self._bytes = found, self._bytes + found[0].nbytes
        while self._bytes > self._memory or len(self._kept) > KEPT:
            self._bytes -= self._kept.popitem(last=False)[1][0].nbytes

    def _place(self, key: tuple) -> Path:
        return self._folder / hashlib.blake2b(repr(key[:2]).encode(), digest_size=16).hexdigest()

    def _load(self, key: tuple) -> tuple[np.ndarray, int] | None:
        try:
            with open(self._place(key), "rb", buffering=0) as file:
                status = os.fstat(file.fileno())
                digest, height, width, done, total = _HEAD.unpack(file.read(_HEAD.size))
                if digest != _digest(key) or status.st_size != _HEAD.size + 3 * height * width:
                    return None
                image = np.empty((height, width, 3), np.uint8)
                if file.readinto(image) != image.nbytes or _sum(image) != total:
                    return None
                if time.time() - status.st_mtime > UNUSED / 24:
                    os.utime(self._place(key))
                return image, done
        except (OSError, ValueError, struct.error):
            return None

    def _save(self, key: tuple, image: np.ndarray, done: int) -> None:
        """Writes a file beside its place, where there is room, and moves it there: others see all of it or nothing."""
        size, temporary = _HEAD.size + image.nbytes, None
        try:
            if self._room is None or 0 < self._room < size:
                self._look()
            if size > self._room:
                return
            with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as file:
                temporary = file.name
                file.write(_HEAD.pack(_digest(key), *image.shape[:2], done, _sum(image)))
                file.write(image)
            os.replace(temporary, self._place(key))
            self._room -= size
        except OSError:  # no place to write, a full disk, a file that another system holds open
            self._room = 0.0
            if temporary:
                Path(temporary).unlink(missing_ok=True)

    def _look(self) -> None:
        """Counts the files, removes what is over the limit and long unused, and takes a share of the room that is left."""
        if self._files == 0:
            self._room = 0.0
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        found = sorted((s.st_mtime, s.st_size, f.path) for f in os.scandir(self._folder) for s in [f.stat()])
        used = sum(size for _, size, _ in found)
        if self._files is None:
            self._files = SHARE * min(free_memory(), shutil.disk_usage(self._folder).free + used)
        for when, size, path in found:
            if used < self._files - self._files / 8 or time.time() - when < UNUSED:
                break
            os.unlink(path)
            used -= size
        room = self._files - used  # others may be writing too: half of it, and a look again
        self._room = room / 2 / _processes() if room > self._files / 50 else 0.0


def _wanted() -> float | None:
    """Bytes that $THAW_CACHE_GB allows for files; None: not set. Raises ValueError."""
    text = os.environ.get("THAW_CACHE_GB", "").strip()
    try:
        wanted = float(text) * 1e9 if text else None
    except ValueError:
        wanted = -1.0
    if wanted is not None and not 0 <= wanted < float("inf"):
        raise ValueError(f"THAW_CACHE_GB={text}: it must be a number of gigabytes; 0 keeps no files")
    return wanted


def _processes() -> int:
    """How many processes of this machine read pictures for this run."""
    info = torch.utils.data.get_worker_info()
    return (info.num_workers if info else 1) * max(int(os.environ.get("LOCAL_WORLD_SIZE", 1)), 1)


def free_memory() -> float:
    """Bytes that could be had without swapping, within the limit of a container; 4 GB where the system does not say."""
    found = 4e9
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        found = next(1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
        return min(found, float(Path("/sys/fs/cgroup/memory.max").read_text()))  # "max": no limit, a ValueError
    except (OSError, ValueError, StopIteration):
        return found


def _digest(key: tuple) -> bytes:
    return hashlib.blake2b(repr((cv2.__version__, *key)).encode(), digest_size=16).digest()


def _sum(image: np.ndarray) -> int:
    flat = image.reshape(-1)
    whole = flat.size // 8 * 8
    return (int(flat[:whole].view(np.uint64).sum()) + int(flat[whole:].sum())) % 2**64
