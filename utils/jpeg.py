"""JPEG files that are cut off, which decoders do not report."""

import re

MARK = b"\xff\xd8\xff"
END = b"\xff\xd9"

_SEGMENT = re.compile(rb"\xff+[^\x00\xff\xd0-\xd7]")  # FF 00 is image data, FF D0 to D7 have no contents


def is_cut_off(data: bytes) -> bool:
    """Returns whether these are the contents of a JPEG without an end marker. Previews in its head may have their own."""
    if not data.startswith(MARK) or data.endswith(END):  # the walk below takes a millisecond
        return False
    place = 2
    while found := _SEGMENT.search(data, place):
        if found[0][-1] == END[1]:
            return False
        place = found.end() + int.from_bytes(data[found.end() : found.end() + 2], "big")
    return True
