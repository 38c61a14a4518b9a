"""Recognizes YOLO label files whose lines are neither boxes nor polygons: outputs of a tracker, and labels with key points.

Their lines hold a box and more numbers. A polygon also has more than four numbers, so all lines of a data set decide together.
A polygon can begin at any of its corners. If its numbers happen to fit a box with key points, then they mostly do so from
other corners, too. Numbers that fit only as they are written are a box with key points.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from datasets.errors import DataError

MARGIN = 0.01  # fraction of the image: boxes and key points may be rounded
GROWTH = 0.1  # fraction of the box: predicted key points may be outside of it
MOST = 0.9  # least fraction of the lines that fit, for an error
SOME = 0.5  # least fraction of the lines that fit, for a note
DOUBT = 0.4  # greatest mean doubt for an error
NOTED_DOUBT = 0.8  # greatest mean doubt for a note
ONE_LINE = 0.25  # doubt about all lines together, except in usual tracker files: a single line is no error
TURNS = 4  # other corners at which a polygon is begun
FEW = 5  # least lines with equally many numbers for a note, if most lines have more or fewer numbers
RARE = 0.1  # least fraction of these lines for it
DISTINCT = 3  # least count of different confidences behind polygons: the last number of one polygon can be a corner on the border
BOX_FIX = "keep only the class and the first four numbers of each line"
POLYGON_FIX = "if the lines are polygons, repeat the first corner of one polygon at its end"
TRACKED = "x, y, width, height, confidence and track"
TRACKED_FIRST = "x, y, width, height, track and confidence"
POINTS = "x, y, width, height and key points"
TRACKED_POLYGON = "a polygon, a confidence and a track"
TRACKED_POLYGON_FIX = "remove the last two numbers of each line"


@dataclass
class _Count:
    """Lines that fit one kind of label, and the sum of their doubts: from 0 to 1, if a line looks like any polygon."""

    fits: int = 0
    doubts: float = 0.0

    def add(self, doubt: float | None) -> None:
        """Adds the doubt about a line, None if it does not fit."""
        if doubt is not None:
            self.fits += 1
            self.doubts += doubt

    def is_sure(self, lines: int) -> bool:
        """Returns whether this is the kind of the lines. Few lines prove little: one with doubt and one without are added."""
        return self.fits >= MOST * lines and self.doubts + 1 <= DOUBT * (self.fits + 2)

    def is_possible(self, lines: int) -> bool:
        """Returns whether this may be the kind of the lines."""
        return self.fits >= max(1, SOME * lines) and self.doubts <= NOTED_DOUBT * self.fits


@dataclass
class _Group:
    """Lines with equally many numbers after the class."""

    place: str  # of the first line
    lines: int = 0
    counts: dict[tuple, _Count] = field(default_factory=dict)  # by kind, and by the form of the key points

    def add(self, values: Sequence[float]) -> None:
        """Adds the numbers after the class of a line."""
        self.lines += 1
        if len(values) == 6:
            *box, first, second = values
            self._count(TRACKED).add(_track_doubt(box, first, second, axis=1))
            self._count(TRACKED_FIRST).add(_track_doubt(box, second, first, axis=0))
        for step, tail in _point_forms(len(values)):
            count = self._count(POINTS, step, tail)
            count.add(_turned(values, step, tail) if _fits_points(values, step, tail) else None)

    def best(self) -> tuple[str, _Count]:
        """Returns the most certain kind."""
        kinds = [(key[0], count) for key, count in self.counts.items()]
        for kind, count in kinds:
            if count.is_sure(self.lines):
                return kind, count
        possible = [(kind, count) for kind, count in kinds if count.is_possible(self.lines)]
        return possible[0] if possible else ("", _Count())

    def _count(self, *key: str | int) -> _Count:
        return self.counts.setdefault(key, _Count(doubts=0.0 if key == (TRACKED,) else ONE_LINE))


class LabelKinds:
    """Counts which kinds of labels the lines with more than four numbers after the class can be."""

    def __init__(self) -> None:
        self._groups: dict[int, _Group] = {}  # by count of the numbers after the class
        self._lines = 0
        self._closed = False  # a polygon ends with its first corner
        self._tracked, self._confidences = _Count(), set()  # polygons of a tracker

    def add(self, values: Sequence[float], place: str) -> None:
        """Adds the numbers after the class of a line."""
        if len(values) < 6:
            return
        self._lines += 1
        group = self._groups.setdefault(len(values), _Group(place))
        if len(values) >= 8 and tuple(values[:2]) == tuple(values[-2:]):
            self._closed = True
            return
        group.add(values)
        if len(values) >= 8 and len(values) % 2 == 0 and 0 < values[-2] < 1 and _is_track(values[-1]):
            touching = values[-1] in (values[1], values[-3])
            self._tracked.add(float(touching))
            if len(self._confidences) < DISTINCT:
                self._confidences.add(values[-2])

    def check(self) -> list[str]:
        """Returns notes about lines that may be no polygons. Raises DataError about lines that certainly are none."""
        notes = []
        for length, group in self._groups.items():
            kind, count = group.best()
            is_main = group.lines > self._lines / 2
            text = f"{group.place}: {length} numbers after the class"
            shown = f"in {count.fits} of {self._lines} lines with more than four numbers"
            if is_main and not self._closed and count.is_sure(group.lines):
                raise DataError(f"{text} look like {kind}, {shown}: {BOX_FIX}; {POLYGON_FIX}")
            is_common = group.lines >= max(FEW, RARE * self._lines)
            if (is_main and count.is_possible(group.lines)) or (is_common and count.is_sure(group.lines)):
                notes.append(f"{text} are read as a polygon. They may be {kind}, {shown}: if so, {BOX_FIX}")
        is_varied = len(self._confidences) == DISTINCT
        if is_varied and self._tracked.is_sure(self._lines) and not self._closed:
            place = next(iter(self._groups.values())).place
            text = f"{place}: the lines look like {TRACKED_POLYGON}"
            raise DataError(f"{text}: {TRACKED_POLYGON_FIX}; {POLYGON_FIX}")
        return notes


def _is_inside(box: Sequence[float]) -> bool:
    """Returns whether x, y, width, height are a box in the image."""
    x, y, width, height = box
    sides = (x - width / 2, y - height / 2, 1 - x - width / 2, 1 - y - height / 2)
    return width > 0 and height > 0 and min(sides) >= -MARGIN


def _is_track(value: float) -> bool:
    """Returns whether a number can be the number of a track."""
    return value >= 0 and float(value).is_integer()


def _track_doubt(box: Sequence[float], confidence: float, track: float, axis: int) -> float | None:
    """Returns the doubt that a line is from a tracker and is no triangle. None: no tracker writes it.

    In a triangle, the track 0 or 1 is a corner on the border of the image, in x (`axis` 0) or y (1).
    Another corner often is there, too."""
    if not (0 <= confidence <= 1 and _is_track(track)):
        return None
    if track > 1:
        return 0.0
    if track in box[axis::2]:
        return 1.0
    return 0.0 if _is_inside(box) else 0.5


def _point_forms(length: int) -> Iterator[tuple[int, int]]:
    """Yields (numbers per key point, numbers after the last one) of the labels with key points that have `length` numbers.

    A key point is x, y, or x, y and visibility or confidence. The confidence of the box and the track may follow.
    One key point is not recognized: with the box it has as many numbers as a triangle or a rotated box."""
    for step in (3, 2):
        for tail in (0, 1, 2):
            points, rest = divmod(length - 4 - tail, step)
            if points >= 2 and not rest:
                yield step, tail


def _fits_points(values: Sequence[float], step: int, tail: int) -> bool:
    """Returns whether the numbers are a box that holds the key points after it. Points at 0, 0 or below are unknown."""
    end = len(values) - tail
    x, y, width, height = values[:4]
    if not _is_inside(values[:4]):
        return False
    if tail and not 0 <= values[end] <= 1:
        return False
    if tail == 2 and not _is_track(values[-1]):
        return False
    reach_x, reach_y = width * (0.5 + GROWTH) + MARGIN, height * (0.5 + GROWTH) + MARGIN
    for first in range(4, end, step):
        px, py = values[first : first + 2]
        is_unknown = px <= 0 and py <= 0
        if not is_unknown and not (abs(px - x) <= reach_x and abs(py - y) <= reach_y):
            return False
        if step == 3 and not (0 <= values[first + 2] <= 1 or values[first + 2] == 2):
            return False
    return True


def _turned(values: Sequence[float], step: int, tail: int) -> float:
    """Returns the fraction of beginnings at other corners for which the numbers still are a box with its key points."""
    corners = len(values) // 2
    count = min(TURNS, corners - 1)
    firsts = [1 + round(number * (corners - 2) / (count - 1)) for number in range(count)]
    turned = [[*values[2 * first :], *values[: 2 * first]] for first in firsts]
    return sum(_fits_points(line, step, tail) for line in turned) / count
