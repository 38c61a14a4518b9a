"""Finds boxes that look like fractions of the image in a format whose boxes are in pixels."""

import numpy as np

from datasets.formats.source import Source

MAX_FRACTION = 1.5  # x + width of a box whose x is its center
FIX = "multiply it by width and height, or use a format that has fractions (YOLO)"


def find_fractions(source: Source, boxes: np.ndarray, starts: np.ndarray) -> dict[int, str]:
    """Returns {row: what is wrong with it, and the fix} of the boxes in pixels that look like fractions of their image.

    They are in its first pixel, or little more, and are no whole numbers."""
    are_fractions = np.repeat(np.frombuffer(source.are_fractions, bool), np.diff(starts))
    with np.errstate(invalid="ignore"):  # infinite values
        is_tiny = ((boxes >= 0) & (boxes <= MAX_FRACTION)).all(1) & (boxes % 1 > 0).any(1)
    has_area = (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
    found = {}
    for row in np.flatnonzero(is_tiny & has_area & ~are_fractions).tolist():
        box = "{:g},{:g},{:g},{:g}".format(*boxes[row])
        found[row] = f"{source.places[row]}: box {box} looks like fractions, but this format is in pixels: {FIX}"
    return found


def is_whole_file(found: int, boxes: int) -> bool:
    """Returns whether boxes that look like fractions are a mistake of the whole file, by their number.

    One tiny box among others, or one in ten of many, is a bad box like one without area."""
    return found > max(1, boxes // 10) or 0 < found == boxes
