"""Recognizes YOLO label files whose lines are neither boxes nor polygons: outputs of a tracker, and labels with key points.

A polygon also has more than four numbers after the class. So all lines of a data set decide together.
"""

from collections.abc import Sequence

from datasets.errors import DataError

MARGIN = 0.01  # fraction of the image: boxes and key points may be rounded
MOST = 0.95  # least fraction of the lines whose key points are in their box: a few are labeled outside of it
SPIKED = 0.1  # least fraction of the lines in which width, height cannot be a corner of a polygon
FIX = "keep only the class and the first four numbers of each line. If they are polygons, end one of them with its first point"


class LabelKinds:
    """Counts which kinds of labels the lines with more than four numbers after the class can be."""

    def __init__(self) -> None:
        self._place = ""  # of the first line
        self._length = 0  # numbers in every line; -1: it differs, as in polygons
        self._lines = self._tracks = self._pairs = self._triples = self._spikes = 0

    def add(self, line: str, place: str) -> None:
        """Adds a line of a label file."""
        words = line.split()[1:]
        if len(words) < 6 or self._length < 0:
            return
        if self._length not in (0, len(words)):
            self._length = -1
            return
        try:
            values = [float(word) for word in words]
        except ValueError:  # the reader reports it
            return
        self._place = self._place or place
        self._length = len(values)
        self._lines += 1
        if _is_inside(values[:4]):
            self._tracks += len(values) == 6 and 0 <= values[4] <= 1 and values[5] >= 0 and values[5].is_integer()
            self._pairs += _holds_points(values, 2)
            self._triples += _holds_points(values, 3)
            self._spikes += _is_spike(values)

    def refuse(self) -> None:
        """Raises DataError if the lines are outputs of a tracker or have key points."""
        if not self._lines or self._length < 0:
            return
        text = f"{self._place}: {self._length} numbers after the class"
        if self._tracks == self._lines:
            raise DataError(f"{text} are x, y, width, height, confidence and track, as trackers write them: {FIX}")
        enough = MOST * self._lines
        if self._triples >= enough or (self._pairs >= enough and self._spikes >= SPIKED * self._lines):
            raise DataError(f"{text} are x, y, width, height and key points: {FIX}")


def _is_inside(box: Sequence[float]) -> bool:
    """Returns whether x, y, width, height are a box in the image."""
    x, y, width, height = box
    sides = (x - width / 2, y - height / 2, 1 - x - width / 2, 1 - y - height / 2)
    return width > 0 and height > 0 and min(sides) >= -MARGIN


def _holds_points(values: Sequence[float], step: int) -> bool:
    """Returns whether the box holds the points after it, of x, y (`step` 2) or x, y, visibility (3). Points at 0, 0 are unknown.

    Two points without visibility are not checked: with the box they have as many numbers as a quadrilateral."""
    x, y, width, height, *rest = values
    if len(rest) % step or (step == 2 and len(rest) < 6):
        return False
    if any(visible not in (0, 1, 2) for visible in rest[2::3] if step == 3):
        return False
    return all(
        (px, py) == (0, 0) or (abs(px - x) <= width / 2 + MARGIN and abs(py - y) <= height / 2 + MARGIN)
        for px, py in zip(rest[::step], rest[1::step], strict=True)
    )


def _is_spike(values: Sequence[float]) -> bool:
    """Returns whether the second point of a polygon is farther from all others than these are from one another."""
    first, (x, y), *rest = zip(values[::2], values[1::2], strict=False)
    known = [point for point in rest if point != (0, 0)]
    xs, ys = zip(first, *known, strict=True)
    extent = max(max(xs) - min(xs), max(ys) - min(ys))
    return max(min(xs) - x, x - max(xs), min(ys) - y, y - max(ys)) > extent
