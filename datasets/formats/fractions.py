"""Finds boxes that look like fractions of the image in a format whose boxes are in pixels."""

import numpy as np

from datasets.formats.source import Source

ROUNDING = 1e-3  # a rounded fraction may be so much below 0 or above 1
CENTERED = 1.5  # x + width may be so much if x, y is the center of a box in fractions; counts if no box exceeds it
FIX = "multiply it by width and height, or use a format that has fractions (YOLO)"


def find_fractions(source: Source, boxes: np.ndarray, starts: np.ndarray) -> dict[int, str]:
    """Returns {row: what is wrong with it, and the fix} of the boxes in pixels that look like fractions of their image.

    Whole numbers are pixels."""
    farthest = CENTERED if boxes.max(initial=0) <= CENTERED else 1 + ROUNDING
    are_fractions = np.repeat(np.frombuffer(source.are_fractions, bool), np.diff(starts))
    starts_inside = ((boxes[:, :2] >= -ROUNDING) & (boxes[:, :2] < 1)).all(1)
    is_tiny = starts_inside & (boxes[:, 2:] <= farthest).all(1) & (boxes[:, 2:] > boxes[:, :2]).all(1)
    found = {}
    rows = np.flatnonzero(is_tiny & ~are_fractions)
    for row in rows[(boxes[rows] % 1 > 0).any(1)].tolist():
        box = "{:g},{:g},{:g},{:g}".format(*boxes[row])
        found[row] = f"{source.places[row]}: box {box} looks like fractions, but this format is in pixels: {FIX}"
    return found


def is_whole_file(found: int, boxes: int) -> bool:
    """Returns whether boxes that look like fractions are a mistake of the whole file, by their number.

    One tiny box among others, or one in ten of many, is a bad box like one without area."""
    return found > max(1, boxes // 10) or 0 < found == boxes
