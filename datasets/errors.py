"""Errors in data: what is wrong, where, and the fix."""

import re
from collections.abc import Iterable

from utils.config import check_class_names

# control characters and lone surrogates, except DC80 to DCFF, by which Python writes bytes of file names that are not UTF-8
_NOT_IN_PATHS = re.compile(r"[\x00-\x1f\x7f\ud800-\udc7f\udd00-\udfff]")


class DataError(ValueError):
    """The data are wrong; the message lists the first ten places as `file:line: problem, and the fix`."""

    def __init__(self, message: str) -> None:
        super().__init__(message.encode("utf-8", "backslashreplace").decode())  # any terminal and file can hold it


class NoArea(ValueError):
    """A box without width or height, which `bad_boxes="drop"` leaves out."""


class Problems:
    """Counts problems and keeps the text of the first ten."""

    def __init__(self) -> None:
        self.count, self.first = 0, []

    def add(self, text: str) -> None:
        self.count += 1
        if len(self.first) < 10:
            self.first.append(text)

    def __str__(self) -> str:
        more = [f"... and {self.count - len(self.first)} more"] if self.count > len(self.first) else []
        return "\n".join(f"  {text}" for text in self.first + more)

    def raise_any(self, title: str) -> None:
        """Raises DataError with the title and the first ten problems, if there are any."""
        if self.count:
            raise DataError(f"{title}\n{self}")


def check_names(names: Iterable[object], where: str) -> None:
    """Raises DataError for class names that cannot be drawn or written (see `utils.config.check_class_names`)."""
    try:
        check_class_names(names, where)
    except ValueError as error:
        raise DataError(str(error)) from error


def check_path(path: str) -> str:
    r"""Returns the path. Raises ValueError for control characters ("C:\new" in Python is C:, a newline, ew)."""
    found = _NOT_IN_PATHS.search(path)
    if found and found[0] >= "\ud800":
        raise ValueError(f"the path {path!r} holds half of a surrogate pair: rename the image")
    if found:
        raise ValueError(f'the path {path!r} holds a control character: write it with / or as r"C:\\new"')
    return path
