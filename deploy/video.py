"""Video files, cameras and windows."""

import itertools
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from deploy.inputs import path_of
from utils.images import IMAGE_SUFFIXES, prefetch
from utils.remote import without_keys
from utils.text import brief

WINDOW = 1280  # pixels of the longer side of a window at most
AHEAD = 8  # frames that are read ahead of the network
TRIES = 10_000  # reads that may fail in a row: at the end of a video, a read that fails takes microseconds
MAX_CAMERA = 2**31 - 1  # OpenCV takes no larger number
MAX_BOXES = 1000  # of an MP4 file: a usual file has fewer than ten
INDEXED = {".mp4", ".m4v", ".mov"}  # reading a damaged frame of these fails: their index has the place of every frame
COUNTED = {".avi"}  # these announce the exact number of frames


@dataclass
class Frames:
    """How many frames of a video were read."""

    read: int = 0
    damaged: int = 0  # frames that cannot be read, although later ones can
    elapsed: int = 0  # frames that fit into the time up to the end of the last one that was read


def open_video(source: str) -> cv2.VideoCapture:
    """Opens a video file, a camera (its number) or the address of a stream. Raises ValueError if OpenCV cannot read it."""
    address, there = "://" in source, os.path.isfile(source)
    camera = source.isdecimal() and not there
    if not (camera or address or there):
        raise ValueError(f"source={brief(source)}: there is no such file in {os.getcwd()}: correct the path")
    if camera and int(source) > MAX_CAMERA:
        raise ValueError(f"source={brief(source)}: there is no such camera; {fix_of(source)}")
    set_log_level = cv2.setLogLevel if hasattr(cv2, "setLogLevel") else cv2.utils.logging.setLogLevel  # OpenCV 4 and 5
    level = set_log_level(0)  # silent: OpenCV prints a page about what the error below has in a line
    try:
        video = cv2.VideoCapture(int(source) if camera else source)
    finally:
        set_log_level(level)
    if not video.isOpened():
        raise ValueError(f"source={brief(without_keys(source))}: OpenCV cannot open it; {fix_of(source)}")
    return video


def fix_of(source: str) -> str:
    """Returns what to do about a source that cannot be opened, or has no frame."""
    if "://" in source:
        if path_of(source).suffix.lower() in IMAGE_SUFFIXES:
            return "download the image first, and give its file"
        return "check the address, and whether it opens in a video player"
    if source.isdecimal() and not os.path.exists(source):
        if int(source) == 0:
            return "connect a camera, end other programs that use it, or try source=1 for a second one"
        return "try another camera number, such as 0"
    if os.path.isfile(source) and is_incomplete(source):
        return "the file is incomplete: copy or download it again"
    return "convert it: ffmpeg -i SOURCE out.mp4; if it does not play elsewhere either, get another copy"


def is_incomplete(path: str) -> bool:
    """Returns whether a file is empty, or an MP4 or MOV file that ends early. Often, its index (the box "moov") is missing."""
    size, at, kinds = os.path.getsize(path), 0, []
    with open(path, "rb") as file:
        while at < size and len(kinds) < MAX_BOXES:
            file.seek(at)
            head = file.read(16)
            length, kind = struct.unpack(">I4s", head[:8].ljust(8, b"\0"))
            kinds.append(kind)
            if kinds[0] != b"ftyp":
                return False  # of another format
            if length == 1:  # the length has 64 bits
                length = int.from_bytes(head[8:], "big")
            if length < 8:  # the box ends with the file, or there are zeros in place of a box
                break
            at += length
    return at > size or b"moov" not in kinds


def frames_of(video: cv2.VideoCapture, most: int, count: Frames | None = None) -> Iterator[np.ndarray]:
    """Yields the frames uint8 [H, W, 3] BGR; a thread reads up to `most` frames ahead, and `count` counts the frames.

    Damaged frames of a file are left out. The video is released at its end or when the iterator is closed.
    """
    announced, per_second, failed = length(video) or 0, rate(video), 0
    count = Frames() if count is None else count

    def read(_) -> tuple[bool, np.ndarray | None, float]:
        return *video.read(), video.get(cv2.CAP_PROP_POS_MSEC) / 1000

    try:
        with closing(prefetch(read, itertools.count(), most)) as reads:
            for complete, frame, seconds in reads:
                if complete:
                    count.read, count.damaged, failed = count.read + 1, count.damaged + failed, 0
                    count.elapsed = round(seconds * per_second) + 1
                    yield frame
                    continue
                failed += 1
                if failed > TRIES or count.read + count.damaged + failed > announced:
                    return
    finally:
        video.release()


def read_frames(source: str, most: int) -> Iterator[np.ndarray]:
    """Opens a video and yields its frames uint8 [H, W, 3] BGR, up to `most` of which a thread reads ahead.

    Raises ValueError for a video that cannot be opened, and after its last frame for one that is damaged.
    """
    capture, count = open_video(source), Frames()
    announced, per_second = length(capture), rate(capture)
    yield from frames_of(capture, most, count)
    if warning := require_frames(source, count, announced, per_second):
        print(warning)


def require_frames(source: str, count: Frames, announced: int | None, rate: float) -> str:
    """Returns a warning if a video has fewer frames than its file announces, "" otherwise.

    Raises ValueError for a video without frames, with lost ones, or without more than its last second: the length of a
    container may be the length of the sound.
    """
    if not count.read:
        raise ValueError(f"source={brief(without_keys(source))}: no frame could be read; {fix_of(source)}")
    if not announced or count.read >= announced:
        return ""
    lost = f"{without_keys(source)}: {count.read:,} of {announced:,} frames were read"
    suffix = Path(source).suffix.lower()
    gap = suffix not in INDEXED and count.elapsed - count.read > 1  # one frame more or less is rounding
    if count.damaged or gap or suffix in COUNTED or announced - count.read > rate:
        fix = "get another copy, or if it plays to its end: ffmpeg -i SOURCE out.mp4"
        raise ValueError(f"{lost}: the file is damaged or cut off. The results have the frames that were read; {fix}")
    return f"WARNING: {lost}: its end may be damaged"


def length(video: cv2.VideoCapture) -> int | None:
    """Number of frames; None if unknown, as for cameras."""
    count = int(video.get(cv2.CAP_PROP_FRAME_COUNT))
    return count if count > 0 else None


def rate(video: cv2.VideoCapture) -> float:
    """Frames per second; 25 if unknown."""
    return video.get(cv2.CAP_PROP_FPS) or 25


@contextmanager
def writing(path: Callable[[], Path], rate: float) -> Iterator[Callable[[str, np.ndarray], None]]:
    """Yields a function `write(name, frame)` that appends frames to the video file `path()`, which the first frame opens."""
    writer = None

    def write(name: str, frame: np.ndarray) -> None:
        nonlocal writer
        if writer is None:
            file = path()
            file.parent.mkdir(parents=True, exist_ok=True)
            writer = open_writer(file, rate, frame.shape)
        writer.write(frame)

    try:
        yield write
    finally:
        if writer is not None:
            writer.release()


def open_writer(path: Path, rate: float, shape: tuple[int, ...]) -> cv2.VideoWriter:
    """Opens a video file for frames of `shape` = (height, width, ...). Raises ValueError if OpenCV cannot write it."""
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"mp4v"), rate, shape[1::-1])
    if not writer.isOpened():
        raise ValueError(f"{path}: this OpenCV cannot write videos; use save=false")
    return writer


def show(image: np.ndarray, wait: int) -> bool:
    """Shows an image for `wait` milliseconds (0: until a key is pressed). Returns False after q or Esc."""
    shrink = min(WINDOW / max(image.shape[:2]), 1)
    try:
        cv2.imshow("Thaw", cv2.resize(image, None, fx=shrink, fy=shrink, interpolation=cv2.INTER_AREA))
        return cv2.waitKey(wait) & 0xFF not in (ord("q"), 27)
    except cv2.error as error:
        raise ValueError(
            "show=true: there is no screen, or OpenCV was built without windows: save the images instead"
        ) from error
