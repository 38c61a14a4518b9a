"""YOLO labels whose lines may be a box with key points or a track, and not a polygon: all have more than four numbers."""

from collections.abc import Sequence

ROUNDING = 0.01  # fraction of the image: boxes and key points may be rounded


class MaybeBoxes:
    """Whether all lines with more than four numbers after the class are equally long and begin with a box for the rest.

    The rest are key points in the box, as x, y or as x, y and visibility, or a confidence and a track, which is a whole number.
    In a data set of polygons, a line that does not fit comes soon."""

    def __init__(self) -> None:
        self._first = ""  # place of the first line, "" without any
        self._length = self._lines = 0
        self._fits = True

    def add(self, values: Sequence[float], place: str) -> None:
        """Adds the numbers after the class of a line."""
        if len(values) < 6 or not self._fits:
            return
        self._first, self._length = self._first or place, self._length or len(values)
        self._lines += 1
        self._fits = len(values) == self._length and _is_box_with_rest(values)

    def notes(self) -> list[str]:
        """Returns a note if the lines may be no polygons."""
        if not self._first or not self._fits:
            return []
        text = f"{self._first}: {self._length} numbers after the class are read as a polygon, in {self._lines} lines"
        fix = (
            "if they are a box with key points or a track, keep only the class and the first four numbers of each line"
        )
        return [f"{text}, but the first four are a box for the others in all of them: {fix}"]


def _is_box_with_rest(values: Sequence[float]) -> bool:
    x, y, width, height = values[:4]
    if len(values) == 6:
        return width > 0 and height > 0 and float(values[5]).is_integer()
    reach_x, reach_y = width / 2 + ROUNDING, height / 2 + ROUNDING
    sides = (
        x + ROUNDING - width / 2,
        y + ROUNDING - height / 2,
        1 + ROUNDING - x - width / 2,
        1 + ROUNDING - y - height / 2,
    )
    if width <= 0 or height <= 0 or min(sides) < 0:
        return False
    steps = [step for step in (2, 3) if (len(values) - 4) % step == 0]
    groups = [zip(values[4::step], values[5::step], strict=True) for step in steps]

    def fits(px: float, py: float) -> bool:
        return (abs(px - x) <= reach_x and abs(py - y) <= reach_y) or max(px, py) <= 0  # 0, 0: not known

    return any(all(fits(*point) for point in points) for points in groups)
