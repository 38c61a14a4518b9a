"""Videos, cameras and windows."""

import itertools
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import cv2
import numpy as np

from utils.ahead import ahead

VIDEOS = {".mp4", ".avi", ".mov", ".mkv", ".webm", ".m4v", ".mpg", ".mpeg", ".wmv", ".flv", ".ts"}
WINDOW = 1280  # pixels of the longer side at most
FRAMES = 8  # that are read ahead, and as many that wait to be written


def is_stream(source: str) -> bool:
    """Whether frames come one after another: a camera number, an address, or a video file."""
    return is_live(source) or (Path(source).suffix.lower() in VIDEOS and not Path(source).is_dir())


def is_live(source: str) -> bool:
    """Whether it goes on until somebody stops it: a camera number or an address."""
    return source.isdecimal() or "://" in source


def open_video(source: str) -> cv2.VideoCapture:
    """Raises ValueError where OpenCV cannot read it."""
    if not is_live(source) and not Path(source).is_file():
        raise ValueError(f"source={source}: there is no such file")
    video = cv2.VideoCapture(int(source) if source.isdecimal() else source)
    if not video.isOpened():
        cure = "another number?" if source.isdecimal() else "convert it: ffmpeg -i SOURCE out.mp4"
        raise ValueError(f"source={source}: OpenCV cannot open it; {cure}")
    return video


def frames_of(video: cv2.VideoCapture, most: int = FRAMES) -> Iterator[np.ndarray]:
    """uint8 [H, W, 3] BGR, until the end; a thread reads up to `most` ahead. At the end, or when it is closed, the video is
    released."""
    try:
        with closing(ahead(lambda _: video.read(), itertools.count(), most)) as reads:
            for there, frame in reads:
                if not there:
                    return
                yield frame
    finally:
        video.release()


def length(video: cv2.VideoCapture) -> int:
    """Frames in all; 0 or less where that is not known."""
    return int(video.get(cv2.CAP_PROP_FRAME_COUNT))


def rate(video: cv2.VideoCapture) -> float:
    """Frames a second; 25 where that is not known."""
    return video.get(cv2.CAP_PROP_FPS) or 25


def open_writer(path: Path, rate: float, shape: tuple[int, ...]) -> cv2.VideoWriter:
    """A video file for frames of `shape` = (height, width, ...). Raises ValueError where OpenCV cannot write one."""
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"mp4v"), rate, shape[1::-1])
    if not writer.isOpened():
        raise ValueError(f"{path}: this OpenCV cannot write videos; save=false goes without")
    return writer


def show(image: np.ndarray, wait: int) -> bool:
    """Shows an image for `wait` milliseconds, or until a key is pressed (0) -> False after q or Esc."""
    shrink = min(WINDOW / max(image.shape[:2]), 1)
    try:
        cv2.imshow("Thaw", cv2.resize(image, None, fx=shrink, fy=shrink, interpolation=cv2.INTER_AREA))
        return cv2.waitKey(wait) & 0xFF not in (ord("q"), 27)
    except cv2.error as error:
        raise ValueError("show=true: there is no screen, or OpenCV was built without windows; leave it out") from error
