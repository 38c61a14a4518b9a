"""Predicts images and videos, and writes the results while the network predicts the next images."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from deploy import video
from deploy.detector import Detector
from deploy.inputs import is_live
from deploy.result import Result
from deploy.sources import Sources
from deploy.tracking import WEAK, Tracker, require_trackers
from deploy.video import Video
from deploy.writer import VIDEOS, Results, output_name
from utils.draw import write_image
from utils.images import READERS, ImageError, batched, prefetch
from utils.progress import progress_bar

Detect = Callable[[list[np.ndarray]], list[Result]]
Write = Callable[[str, np.ndarray], None]
BEHIND = 8  # predicted images that may wait to be drawn and written


class SourceImage(NamedTuple):
    """An image or a frame of a video to predict."""

    pixels: np.ndarray  # uint8 [H, W, 3] BGR
    name: str  # in the results
    path: str
    frame: int | None = None  # its number in a video


class Predictor:
    """Predicts sources with a Detector, and collects the detections in `results`.

    `show`: in a window; `save`: drawn images and videos. `every`: 10 predicts every tenth frame of a video. `track`: the
    objects in a video get numbers.
    """

    def __init__(
        self, detector: Detector, results: Results, show: bool, save: bool, every: int = 1, track: bool = False
    ):
        self.detector, self.results = detector, results
        self.show, self.save, self.every, self.track = show, save, every, track
        if track:
            require_trackers()
            detector.detect_weak(WEAK)

    def predict(self, sources: Sources) -> None:
        """Predicts images, then videos. What cannot be read is listed at the end, or an error if it is all."""
        self.results.unread += sources.unread
        is_alone, complete = len(sources.images) + len(sources.videos) == 1, True
        if sources.images:
            complete = self.predict_images(sources.images)
        for name, path in sources.videos.items():
            if not complete:  # the user ended it in the window
                return
            try:
                complete = self.predict_video(name, path, output_name(name, sources.videos, VIDEOS))
            except ValueError as error:
                if is_alone:
                    raise
                self.results.unread.append(str(error))
        if not self.results.images:
            between = " " if is_alone else "\n"
            raise ValueError(between.join(["no image could be read:", *self.results.unread[:10]]))

    def predict_images(self, images: dict[str, str]) -> bool:
        """Predicts all images (name -> path); those that cannot be read are listed at the end. Returns as `_run` does."""

        def read(name: str) -> SourceImage | ImageError:
            try:
                return SourceImage(self.detector.read(images[name]), name, images[name])
            except ImageError as error:
                return error

        def readable() -> Iterator[SourceImage]:
            for image in prefetch(read, images, 2 * self.detector.batch_size, READERS):
                if isinstance(image, ImageError):
                    self.results.unread.append(str(image))
                else:
                    yield image

        def write(name: str, drawn: np.ndarray) -> None:
            write_image(self.results.drawn / output_name(name, images), drawn, is_drawn=True)

        batches = batched(readable(), self.detector.batch_size)
        bar = progress_bar(None, "images", total=len(images))
        return self._run(self.detector, batches, write, 0, bar)  # 0: until a key is pressed

    def predict_video(self, name: str, source: str, file: str) -> bool:
        """Predicts the frames of a video or camera and writes them as one video `file`. Returns as `_run` does."""
        live, capture = is_live(source), Video(source)
        ahead, batch_size = video.AHEAD, self.detector.batch_size
        if live or self.show:
            batch_size = 1
        if live:
            ahead = 1
            print("Ctrl-C ends it" + (", or q in the window" if self.show else ""))
        rate, total = capture.rate / self.every, None
        if capture.length:
            total = -(-capture.length // self.every)
        bar = progress_bar(None, name, total=total)
        detect: Detect = self.detector
        if self.track:
            detect = tracking(self.detector, rate)
        with (
            video.writing(lambda: self.results.video(file), rate, is_drawn=True) as write,
            closing(capture.frames(ahead)) as frames,
        ):
            chosen = itertools.islice(enumerate(frames), 0, None, self.every)
            images = (SourceImage(frame, name, source, number) for number, frame in chosen)
            complete = self._run(detect, batched(images, batch_size), write, 1, bar)  # 1: a millisecond
        if complete and (warning := capture.check()):
            print(warning)
        return complete

    def _run(self, detect: Detect, batches: Iterable[list[SourceImage]], write: Write, wait: int, bar: tqdm) -> bool:
        """Predicts all images, collects the results, and writes the drawn images by `write(name, drawn)`.

        `wait`: milliseconds for which a window shows each image, 0: until a key. Without a window, a thread draws and writes
        meanwhile. Returns False if the user ended it in the window.
        """

        def detected() -> Iterator[tuple[SourceImage, Result]]:
            for batch in batches:
                yield from zip(batch, detect([image.pixels for image in batch]), strict=True)

        def finish(found: tuple[SourceImage, Result]) -> np.ndarray:
            image, result = found
            self.results.add(image.pixels, result, image.name, image.path, image.frame)
            if not (self.save or self.show):
                return image.pixels
            drawn = result.draw()
            if self.save:
                try:
                    write(image.name, drawn)
                except ImageError as error:  # a side is longer than the format can hold
                    self.results.unread.append(str(error))
            return drawn

        with bar, closing(prefetch(finish, detected(), 0 if self.show else BEHIND)) as finished:
            for drawn in finished:
                bar.update()
                if self.show and not video.show(drawn, wait):
                    return False
        return True


def tracking(detector: Detector, rate: float) -> Detect:
    """Returns a function that detects and tracks the objects in the frames of one video, in their order."""
    tracker = Tracker(rate, detector.confidence)
    return lambda frames: [tracker.update(result) for result in detector(frames)]
