"""Video files, cameras and windows."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import cv2
import numpy as np

from utils.images import prefetch

WINDOW = 1280  # pixels of the longer side of a window at most
AHEAD = 8  # frames that are read ahead of the network


def open_video(source: str) -> cv2.VideoCapture:
    """Opens a video file, a camera (its number) or the address of a stream. Raises ValueError if OpenCV cannot read it."""
    address, there = "://" in source, Path(source).is_file()
    camera = source.isdecimal() and not there
    if not (camera or address or there):
        raise ValueError(f"source={source}: there is no such file")
    video = cv2.VideoCapture(int(source) if camera else source)
    if not video.isOpened():
        fix = "try another camera number" if camera else "convert it: ffmpeg -i SOURCE out.mp4"
        raise ValueError(f"source={source}: OpenCV cannot open it; {fix}")
    return video


def frames_of(video: cv2.VideoCapture, most: int) -> Iterator[np.ndarray]:
    """Yields the frames uint8 [H, W, 3] BGR; a thread reads up to `most` frames ahead.

    The video is released at its end or when the iterator is closed.
    """
    try:
        with closing(prefetch(lambda _: video.read(), itertools.count(), most)) as reads:
            for complete, frame in reads:
                if not complete:
                    return
                yield frame
    finally:
        video.release()


def length(video: cv2.VideoCapture) -> int | None:
    """Number of frames; None if unknown, as for cameras."""
    count = int(video.get(cv2.CAP_PROP_FRAME_COUNT))
    return count if count > 0 else None


def rate(video: cv2.VideoCapture) -> float:
    """Frames per second; 25 if unknown."""
    return video.get(cv2.CAP_PROP_FPS) or 25


@contextmanager
def writing(path: Path, rate: float) -> Iterator[Callable[[str, np.ndarray], None]]:
    """Yields a function `write(name, frame)` that appends frames to a video file, which the first frame opens."""
    writer = None

    def write(name: str, frame: np.ndarray) -> None:
        nonlocal writer
        if writer is None:
            writer = open_writer(path, rate, frame.shape)
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
        raise ValueError("show=true: there is no screen, or OpenCV was built without windows; leave it out") from error
