"""Errors in data: what is wrong, where, and the fix."""

import os
import re
import stat
from collections.abc import Iterable
from typing import BinaryIO

from utils.remote_cache import shown
from utils.text import control_fix, first_of, printable

# control characters and lone surrogates, except DC80 to DCFF, by which Python writes bytes of file names that are not UTF-8
_NOT_IN_PATHS = re.compile(r"[\x00-\x1f\x7f\ud800-\udc7f\udd00-\udfff]")

MAX_KINDS = 10  # of problems in one message
MUCH = 0.1  # of the images or boxes: a problem of so many is damage of the whole data set
WARNING = "WARNING: "
_VALUES = re.compile(r"'[^']*'|\([^)]*\)|-?\d[\d.,e+-]*\S*|[^\s]*[/\\]\S*")


class DataError(ValueError):
    """The data are wrong; the message lists the first ten places as `file:line: problem, and the fix`."""

    def __init__(self, message: str) -> None:
        super().__init__(shown(printable(message)))


def first_ten(problems: list[str]) -> str:
    """Returns the first ten problems of each kind, one per line, and the number of the others."""
    groups: dict[str, list[str]] = {}
    for text in problems:  # the kind is the message without place, names, numbers and the rest after a semicolon
        kind = _VALUES.sub("...", text[-500:].rpartition(": ")[2].partition(";")[0])
        groups.setdefault(kind if kind in groups or len(groups) < MAX_KINDS else "other problems", []).append(text)
    lines = []
    for kind, group in groups.items():
        lines += [f"{len(group)} x {kind}"] if len(groups) > 1 < len(group) else []
        lines += map(one_line, first_of(group, 10))
    return printable("\n".join(f"  {line}" for line in lines))


def one_line(text: str) -> str:
    """Returns text for one line of a message: a line end, which a file name may hold, becomes an escape."""
    return text.replace("\n", "\\n")


def raise_any(title: str, problems: list[str]) -> None:
    """Raises DataError with the title and the first ten problems, if there are any."""
    if problems:
        raise DataError(f"{title}\n{first_ten(problems)}")


def together(errors: Iterable[DataError]) -> DataError:
    """Returns one error of several, in which a problem that they share, such as that of a label file of two splits, is once."""
    lines: list[str] = []
    for text in dict.fromkeys(map(str, errors)):
        lines += [line for line in text.split("\n") if not line.startswith("  ") or line not in lines]
    return DataError("\n".join(lines))


def graded(note: str, count: int, total: int) -> str:
    """Returns a note about `count` of `total` images or boxes, as a warning if they are a large part of the data set."""
    return WARNING + note if count > 1 and count >= MUCH * total else note


def logged(note: str) -> str:
    """Returns a note about the data as a program prints it."""
    return note if note.startswith(WARNING) else f"note: {note}"


def note_dropped(title: str, problems: list[str], total: int, bad_boxes: str) -> list[str]:
    """Returns a note about the boxes of `total` that are left out, if any. Raises DataError if `bad_boxes` is "error"."""
    if bad_boxes == "error":
        raise_any(f"{title}: {len(problems)}; bad_boxes=drop leaves them out", problems)
    if not problems:
        return []
    note = f"{title}, left out: {len(problems)} of {total}\n{first_ten(problems)}"
    return [graded(note, len(problems), total)]


def check_path(path: str) -> str:
    r"""Returns the path. Raises DataError for control characters ("C:\new" in Python is C:, a newline, ew)."""
    found = _NOT_IN_PATHS.search(path)
    if found and found[0] >= "\ud800":
        raise DataError(f"the path {path!r} holds half of a surrogate pair: rename the image")
    if found:
        raise DataError(f"the path {path!r} holds a control character: {control_fix(path)}")
    return path


def open_file(path: str | os.PathLike) -> BinaryIO:
    """Opens a file of labels to read its bytes. Raises DataError for a folder, and for a device or a pipe, which may never end.

    Raises OSError for a file that is missing or cannot be opened."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise DataError(f"{path}: is a folder, a device or a pipe, not a file: remove it")
    return open(path, "rb")
