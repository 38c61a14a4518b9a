"""Text for messages: short, printable, in columns, and names of classes that can be drawn and written."""

import csv
import difflib
import errno
import importlib.util
import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from html import unescape

MAX_NAME = 200  # characters of a class name; longer ones are a slip in a data file
MAX_WORD = 200  # characters of a word of the command line that a message repeats
MAX_LINE = 1000  # characters of a line of a message
# what is typed on another keyboard
_TWINS = str.maketrans("\u0430\u0435\u0456\u043e\u0440\u0441\u0443\u0445\u0131", "aeiopcyxi", "'`")
_NAME_ENDS = re.compile("^[\\s\ufeff]+|[\\s\ufeff]+$")


def brief(text: str, max_length: int = MAX_WORD) -> str:
    """Returns text for a message, in one line of at most `max_length` characters: its beginning and its end."""
    text = printable(text.replace("\n", "\\n"))
    cut = max_length // 2 - 3
    return text if len(text) <= max_length else f"{text[:cut]} ... {text[-cut:]}"


def first_names(names: Sequence[str]) -> str:
    """Returns the first ten names for a message, and the number of all: (cat, dog, ... 80 in all)."""
    shown = [repr(name) if "," in name else name for name in names[:10]]
    return "(" + ", ".join(shown) + (f", ... {len(names)} in all)" if len(names) > 10 else ")")


def first_of(texts: Sequence[str], count: int) -> list[str]:
    """Returns the first `count` texts, and after them how many others there are."""
    if len(texts) <= count:
        return list(texts)
    return [*texts[:count], f"... and {len(texts) - count} more"]


def amount(count: int, noun: str) -> str:
    """Returns a number and its noun: 1 image, 1,200 images, 0 boxes, 2 classes, 2 processes."""
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {noun}{'es' if noun.endswith(('s', 'x', 'tch', 'sh')) else 's'}"


def percent(fraction: float) -> str:
    """Returns a fraction in percent with at least two digits: 0.59 %, 3.1 %, 20 %, 100 %."""
    return f"{100 * fraction:.2g} %" if fraction < 0.995 else f"{100 * fraction:.0f} %"


def printable(text: str) -> str:
    """Returns text that any terminal can show: control characters and lone surrogates become escapes, long lines are cut."""
    cut = MAX_LINE // 2
    text = "\n".join(s if len(s) <= MAX_LINE else f"{s[:cut]} ... {s[-cut:]}" for s in text.split("\n"))
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


def display_width(text: str) -> int:
    """Returns the number of terminal columns of a text: two for each Chinese character."""
    return sum(1 + (ord(character) >= 0x1100) for character in text)


def aligned(table: Iterable[Iterable[object]], left: Collection[str]) -> list[str]:
    """Returns the rows of a table, of which the first is its head, as lines; the columns `left` are aligned to the left."""
    rows = [[str(cell) for cell in row] for row in table]
    widths = [max(map(display_width, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        blanks = [" " * (width - display_width(cell)) for cell, width in zip(row, widths, strict=True)]
        cells = zip(rows[0], row, blanks, strict=True)
        lines.append("  ".join(cell + blank if name in left else blank + cell for name, cell, blank in cells))
    return lines


def check_class_names(names: Iterable[object], where: str, error: type[ValueError] = ValueError) -> None:
    """Raises an error for a class name with a problem; the message starts with `where`."""
    for name in names:
        if problem := class_name_problem(name):
            raise error(f"{where}: {problem}")


def clean_name(name: str) -> str:
    """Returns a class name in its canonical form: composed (NFC), without blanks and byte order marks at its ends."""
    name = unicodedata.normalize("NFC", name)
    return _NAME_ENDS.sub("", name) if "\ufeff" in name else name.strip()


def as_spelled(names: Iterable[str], known: Iterable[str]) -> list[str]:
    """Returns class names as `known` spells them: a checkpoint keeps the names that it has, composed or not."""
    spelling = {form: name for name in known for form in (clean_name(name), name)}
    return [spelling.get(name, spelling.get(clean_name(name), name)) for name in names]


def look_of(name: str) -> str:
    """Returns what names that look or read alike have in common: without case, blanks, hyphens, underscores, quotes, width,
    escapes of HTML, and characters that are not seen, such as a soft hyphen. Cyrillic letters are their Latin twins."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", unescape(name)).casefold())
    shown = (c for c in folded if unicodedata.category(c) not in ("Cf", "Pd", "Pc", "Pi", "Pf") and not c.isspace())
    return "".join(shown).translate(_TWINS) or folded  # of a sign such as --, all of it


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Returns the one of `names` that looks like a class name or is spelled most like it; None if none is near."""
    looks = {look_of(other): other for other in names}
    near = difflib.get_close_matches(look_of(name), looks, n=1)
    return looks[near[0]] if near else None


def split_names(text: str) -> list[str]:
    """Returns the names in text such as cat,dog. A name with a comma is in double quotes, as in "cat, big",dog."""
    return [clean_name(name) for name in next(csv.reader([text], skipinitialspace=True), [""])]


def class_name_problem(name: object) -> str:
    """Returns why a class name cannot be drawn or written to a file, "" for a good one.

    A name is text of at most MAX_NAME characters, not blank, without control characters and lone surrogates (which a JSON
    file can hold as "\\ud800", and which end the process in OpenCV)."""
    if not isinstance(name, str):
        return f"class name {name!r} is not text: put it in quotes"
    if not clean_name(name):
        return f"class name {name!r} is blank: give the class a name"
    if len(name) > MAX_NAME:
        return f"class name {name[:40]!r} ... has {len(name)} characters: use at most {MAX_NAME}"
    if any(ord(c) < 32 or 127 <= ord(c) < 160 or 0xD800 <= ord(c) < 0xE000 for c in name):
        return f"class name {name!r} has a control character or half of a surrogate pair: rename the class in the data"
    return ""


def control_fix(path: str) -> str:
    """Returns the fix for a path with a control character, which Python makes of the backslash in "C:\\new"."""
    is_windows = re.match("[A-Za-z]:", path) or "\\" in path
    return 'write it with / or as r"C:\\new"' if is_windows else "rename the file, or write the path with /"


def number_of(text: str) -> float:
    """Returns the number that text stands for. Raises ValueError, also for 1_000, which only Python takes for a number."""
    if "_" in text:
        raise ValueError(f"{text!r} is not a number")
    return float(text)


def error_text(error: Exception) -> str:
    """Returns the message of an error that a user can fix, in brief if it has a name that is too long for the disk."""
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return f"{brief(str(error.filename))}: {error.strerror}; use a shorter name"
    return str(error) or type(error).__name__


def pip(words: str) -> str:
    """Returns a command of pip for this environment. Those of uv have no pip, and the pip of the system does not reach them."""
    return f"{'pip' if importlib.util.find_spec('pip') else 'uv pip'} {words}"


def first_line(error: Exception) -> str:
    """Returns the first line of an error of a library, at most 300 characters that can be printed."""
    return brief(str(error).partition("\n")[0], 300)


def in_points(value: float) -> str:
    """Returns a mAP in points, which are percent: 28.79; - for -1, which means that there was nothing to measure."""
    return f"{100 * value:.2f}" if value >= 0 else "-"


def metric(name: str, value: float) -> str:
    """Returns a metric as people read it: AP in points, all others with four decimals."""
    return in_points(value) if "AP" in name else four_decimals(value)


def four_decimals(value: float) -> str:
    """Returns a metric with four decimals; - for -1, which means that there was nothing to measure."""
    return f"{value:.4f}" if value >= 0 else "-"
