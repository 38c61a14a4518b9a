"""The structure of JPEG files: their segments, and whether they are cut off, which decoders do not report."""

import re
from collections.abc import Iterator
from typing import NamedTuple

MARK = b"\xff\xd8\xff"
END = b"\xff\xd9"
FRAMES, SCAN = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}, 0xDA  # C0 and C1 are baseline JPEGs
BASELINE = (0xC0, 0xC1)

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
