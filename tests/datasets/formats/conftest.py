"""What the tests of messages share."""

import shlex
from collections.abc import Callable

import pytest


@pytest.fixture
def shell() -> Callable[[str], dict[str, str]]:
    """Returns {name: value} of the last merge= in a message, as a shell reads it."""

    def options(message: str) -> dict[str, str]:
        line = message.replace(" makes them one", "")
        start = max(line.rfind(" merge="), line.rfind(" 'merge="))
        words = [word.partition("=") for word in shlex.split(line[start:])]
        return {name: value for name, equals, value in words if equals}

    return options
