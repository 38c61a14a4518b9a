"""Finds YOLO labels whose lines are a box with key points, not a polygon: all have more than four numbers."""

from collections.abc import Sequence

ROUNDING = 0.01  # fraction of the image: boxes and key points may be rounded
MIN_LINES = 10  # fewer polygons may be like that by chance


class KeyPoints:
    """Whether the first four numbers of all long lines are a box in the image around the points that follow."""

    def __init__(self) -> None:
        self._first = ""  # place of the first line
        self._length = self._lines = 0
        self._fits = True

    def add(self, values: Sequence[float], place: str) -> None:
        """Adds the numbers after the class of a line."""
        if len(values) > 5 and self._fits:
            self._first, self._length = self._first or place, self._length or len(values)
            self._lines += 1
            self._fits = len(values) == self._length and _is_box_of_points(values)

    def problems(self) -> list[str]:
        """Returns a problem if the lines are no polygons."""
        if not self._fits or self._lines < MIN_LINES:
            return []
        fix = "these are key points, not polygons: keep only the class and the first four numbers of each line"
        return [
            f"{self._first}: in all {self._lines} long lines, the first four numbers are a box for the others; {fix}"
        ]


def _is_box_of_points(values: Sequence[float]) -> bool:
    x, y, width, height, *rest = values
    left, right = x - width / 2 - ROUNDING, x + width / 2 + ROUNDING
    top, bottom = y - height / 2 - ROUNDING, y + height / 2 + ROUNDING
    is_box = min(width, height) > 0 and min(left, top) >= -2 * ROUNDING and max(right, bottom) <= 1 + 2 * ROUNDING
    for step in (2, 3):  # x, y or x, y, visibility; 0, 0 is not visible
        pairs = list(zip(rest[::step], rest[1::step], strict=False))
        if len(rest) % step == 0 and all(left <= a <= right and top <= b <= bottom or a == b == 0 for a, b in pairs):
            return is_box
    return False
