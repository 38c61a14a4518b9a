"""The structure of JPEG files: their segments, and whether they are cut off or damaged, which decoders do not report."""

import io
import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

MARK = b"\xff\xd8\xff"
END = b"\xff\xd9"
FRAMES, SCAN = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}, 0xDA  # C0 and C1 are baseline JPEGs
BASELINE = (0xC0, 0xC1)
RESTART_INTERVAL = 0xDD
SLACK = 64  # bytes by which the image data may be too long or too short: some cameras are careless

_SEGMENT = re.compile(rb"\xff+[^\x00\xff\xd0-\xd7]")  # FF 00 is image data, FF D0 to D7 have no contents


class Segment(NamedTuple):
    """A segment of a JPEG."""

    mark: int  # the byte after FF
    body: bytes
    end: int  # place of the byte after the segment


def segments(data: bytes) -> Iterator[Segment]:
    """Yields the segments of a JPEG."""
    place = 2
    while found := _SEGMENT.search(data, place):
        place = found.end() + int.from_bytes(data[found.end() : found.end() + 2], "big")
        yield Segment(found[0][-1], data[found.end() + 2 : place], place)


def is_cut_off(data: bytes) -> bool:
    """Returns whether these are the contents of a JPEG that is cut off: it has no end marker."""
    if not data.startswith(MARK) or data.endswith(END):  # the walk below takes a millisecond
        return False

    return all(segment.mark != END[1] for segment in segments(data))


class ImageData(NamedTuple):
    """Where the compressed pixels of a JPEG with one scan are."""

    start: int
    end: int  # place of the marker after them
    restarts: np.ndarray  # numbers 0 to 7 of the restart markers in them


def image_data(data: bytes) -> ImageData | None:
    """Returns where the image data of a baseline JPEG with one scan are; None for other files."""
    single, components, interval = False, b"", 0
    for segment in segments(data):
        if segment.mark in FRAMES:
            single = segment.mark in BASELINE
            components = segment.body[5:6]
        elif segment.mark == RESTART_INTERVAL:
            interval = int.from_bytes(segment.body, "big")
        elif segment.mark == SCAN:
            if single and components == segment.body[:1]:
                return _up_to_marker(data, segment.end, interval > 0)
            return None
    return None


def _up_to_marker(data: bytes, start: int, with_restarts: bool) -> ImageData | None:
    """Returns the image data from `start` on, which end before the first marker that is no restart marker."""
    values = np.frombuffer(data, np.uint8)
    places = start + np.flatnonzero(values[start:-1] == 0xFF)
    marks = values[places + 1]
    restart = (marks >= 0xD0) & (marks <= 0xD7) & with_restarts
    others = np.flatnonzero((marks != 0) & (marks != 0xFF) & ~restart)  # FF 00 is image data, FF before FF is padding
    if not len(others):
        return None
    first = others[0]
    return ImageData(start, int(places[first]), marks[:first][restart[:first]] - 0xD0)


class WatchedJpeg(io.BytesIO):
    """The contents of a JPEG, of which a decoder gets a part at a time, to find out whether the image data are damaged.

    Decoders read on only while they lack pixels. Of a sound file, they have all pixels when they know the image data up to
    the end, not before and not later. Bytes that are lost, added or changed shift the bits of all pixels after them, so that the
    pixels are complete too early, or not at the end.

    Progressive JPEGs and JPEGs of several scans are not watched. Changes after which the lengths are right by chance,
    and changes between two restart markers, are not noticed.
    """

    def __init__(self, data: bytes) -> None:
        self.found = image_data(data)
        self.stops = []
        if self.found is not None:
            start, end, _ = self.found
            last = len(data[:end].rstrip(b"\0\xff"))  # padding may follow
            self.stops = [max(start, last - SLACK), end + SLACK]
            data = data[:end] + bytes(SLACK) + data[end:]
        super().__init__(data)

    def read(self, size: int | None = -1) -> bytes:
        """Reads up to `size` bytes, but never beyond a stop."""
        place = self.tell()
        for stop in self.stops:
            if place < stop and (size is None or size < 0 or size > stop - place):
                size = stop - place
        return super().read(size)

    def is_damaged(self) -> bool:
        """Returns whether the image data are damaged, after a decoder decoded all pixels and read nothing more."""
        if self.found is None:
            return False

        restarts = self.found.restarts
        in_order = np.array_equal(restarts, np.arange(len(restarts)) % 8)
        early, late = self.tell() <= self.stops[0], self.tell() > self.stops[1]
        return early or late or not in_order
