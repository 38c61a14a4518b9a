"""Video files, cameras and windows."""

import itertools
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path

import cv2
import numpy as np

from utils.files import DRAWN_MARK, naming
from utils.images import prefetch
from utils.remote import without_keys
from utils.text import brief, pip

WINDOW = 1280  # pixels of the longer side of a window at most
TIMEOUT = 60.0  # seconds for the first window, of a slow connection
MAX_RATE = 1000  # frames per second
AHEAD = 8  # frames that are read ahead of the network


class Video:
    """An open video file, camera (its number) or stream (its address), whose frames are read once.

    `length`: the number of frames that a file announces, None if unknown, as for cameras. `rate`: frames per second, 25 if
    unknown. Raises ValueError if OpenCV cannot read the source.
    """

    def __init__(self, source: str):
        self.source, self._capture = source, _open(source)
        length = int(self._capture.get(cv2.CAP_PROP_FRAME_COUNT))
        self.length = length if length > 0 else None
        rate = self._capture.get(cv2.CAP_PROP_FPS)
        self.rate = rate if 0 < rate <= MAX_RATE else 25  # streams announce their clock, such as 90,000
        self.count = 0  # frames that were read

    def frames(self, ahead: int) -> Generator[np.ndarray]:
        """Yields the frames uint8 [H, W, 3] BGR; a thread reads up to `ahead` frames in advance.

        A frame that cannot be read ends the video. It is released at its end or when the iterator is closed.
        """
        try:
            with closing(prefetch(lambda _: self._capture.read(), itertools.count(), ahead)) as reads:
                for complete, frame in reads:
                    if not complete:
                        return
                    self.count += 1
                    yield frame
        finally:
            self._capture.release()

    def check(self) -> str:
        """Returns a warning if the file announces more frames than were read, "" otherwise.

        Raises ValueError if no frame was read, or if more than the last second is missing: the length of a container may be
        the length of the sound.
        """
        shown = brief(without_keys(self.source))
        if not self.count:
            raise ValueError(f"source={shown}: no frame could be read; {fix_of(self.source)}")
        if self.length is None or self.count >= self.length:
            return ""
        lost = f"{shown}: {self.count:,} of {self.length:,} frames were read"
        if self.length - self.count > self.rate:
            fix = "get another copy, or if it plays to its end: ffmpeg -i SOURCE out.mp4"
            raise ValueError(f"{lost}: the file is damaged or cut off. Their results are kept; {fix}")
        return f"WARNING: {lost}: its end may be damaged"


def _open(source: str) -> cv2.VideoCapture:
    """Opens a video file, a camera or a stream. Raises ValueError if OpenCV cannot read it."""
    is_address, is_file = "://" in source, os.path.isfile(source)
    is_camera = source.isdecimal() and not is_file
    if not (is_camera or is_address or is_file):
        raise ValueError(f"source={brief(source)}: there is no such file in {os.getcwd()}: correct the path")
    capture = cv2.VideoCapture(int(source) if is_camera else source)
    if not capture.isOpened():
        raise ValueError(f"source={brief(without_keys(source))}: OpenCV cannot open it; {fix_of(source)}")
    return capture


def fix_of(source: str) -> str:
    """Returns what to do about a source that cannot be opened, or has no frame."""
    if "://" in source:
        return "check the address, and whether it opens in a video player"
    if source.isdecimal() and not os.path.exists(source):
        return "connect the camera, end other programs that use it, or give the number of another one"
    return "get another copy, which may be complete, or if it plays elsewhere, convert it: ffmpeg -i SOURCE out.mp4"


def read_frames(source: str, ahead: int) -> Generator[np.ndarray]:
    """Opens a video and yields its frames uint8 [H, W, 3] BGR, up to `ahead` of which a thread reads in advance.

    Raises ValueError for a video that cannot be opened, and after its last frame for one that is damaged.
    """
    video = Video(source)
    yield from video.frames(ahead)
    if warning := video.check():
        print(warning)


@contextmanager
def writing(
    path: Callable[[], Path], rate: float, is_drawn: bool = False
) -> Iterator[Callable[[str, np.ndarray], None]]:
    """Yields a function `write(name, frame)` that appends frames to the video file `path()`, which the first frame opens.

    `is_drawn`: there are boxes in it. Raises OSError at its end if it is cut off."""
    writer, file = None, Path()

    def write(name: str, frame: np.ndarray) -> None:
        nonlocal writer, file
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
    if writer is not None and not cv2.VideoCapture(str(file)).isOpened():  # OpenCV reports no full disk
        raise OSError(f"{file}: the video could not be written to its end: is the disk full?")
    if writer is not None and is_drawn:
        with naming(file), open(file, "ab") as end:  # in a part of the file that players skip
            end.write(struct.pack(">I4s", 8 + len(DRAWN_MARK), b"free") + DRAWN_MARK)


def open_writer(path: Path, rate: float, shape: tuple[int, ...]) -> cv2.VideoWriter:
    """Opens a video file for frames of `shape` = (height, width, ...). Raises ValueError if OpenCV cannot write it."""
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), rate, shape[1::-1])
    if not writer.isOpened():
        raise ValueError(f"{path}: this OpenCV cannot write videos; use save=false")
    return writer


@cache
def require_window() -> None:
    """Raises ValueError with the fix if no window can be opened here. A child process tries: Qt ends the one that fails."""
    advice = "look at saved images instead"
    if not cv2.currentUIFramework():
        fix = f"{pip('uninstall opencv-python-headless')}, then {pip('install opencv-python')}"
        raise ValueError(f"show: this OpenCV was built without windows: {fix}; or {advice}")
    screens = [f"{name}={os.environ[name]}" for name in ("DISPLAY", "WAYLAND_DISPLAY") if os.environ.get(name)]
    if sys.platform == "linux" and not screens:
        raise ValueError(f"show: there is no screen, since DISPLAY is not set: {advice}")
    program = "import cv2, numpy; cv2.imshow('Thaw', numpy.zeros((9, 9, 3), 'uint8')); cv2.waitKey(1)"
    works = False
    with suppress(OSError, subprocess.TimeoutExpired):
        works = not subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=TIMEOUT).returncode
    if not works:
        raise ValueError(f"show: no window can be opened on the screen ({' '.join(screens)}): {advice}")


def show(image: np.ndarray, wait: int) -> bool:
    """Shows an image for `wait` milliseconds (0: until a key is pressed). Returns False after q or Esc. See `require_window`."""
    require_window()
    shrink = min(WINDOW / max(image.shape[:2]), 1)
    cv2.imshow("Thaw", cv2.resize(image, None, fx=shrink, fy=shrink, interpolation=cv2.INTER_AREA))
    return cv2.waitKey(wait) & 0xFF not in (ord("q"), 27)
