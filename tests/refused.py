"""What an error at the border, a note or a printed line must name. Its wording is free: no test depends on it."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


def mentions(text: str, name: object) -> bool:
    """Whether a message holds this name as a whole word: "class 2" is not in "class 20", nor "a.txt:1" in "a.txt:12"."""
    word = str(name)
    start = r"(?<!\w)" if re.match(r"\w", word) else ""
    end = r"(?!\w)" if re.search(r"\w\Z", word) else ""
    return re.search(start + re.escape(word) + end, text) is not None


def told(text: str, *expected: object) -> None:
    """Asserts that a text names all that is expected: places, values, constants, commands."""
    missing = [str(name) for name in expected if not mentions(text, name)]
    assert expected and not missing, f"{missing} not in: {text}"


@contextmanager
def refused(error: type[Exception] | tuple[type[Exception], ...], *expected: object) -> Iterator[pytest.ExceptionInfo]:
    """Asserts that the block raises the error, that its message names all that is expected, and that it can be printed.

    Expected are places (a file with its line), values (the class, the box, the number), and what to change (a constant
    as `weights=`, a command). A line that cannot be printed would move the cursor of a terminal, or stop a log.
    """
    assert expected, "name the place or the value that tells this error from others"
    with pytest.raises(error) as caught:
        yield caught
    text = str(caught.value)
    told(text, *expected)
    assert all(line.isprintable() for line in text.splitlines()), ascii(text)
