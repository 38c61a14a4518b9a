"""utils/text.py: what counts as a number in a data file."""

import pytest

from utils.text import number_of


def test_numbers_are_read():
    assert [number_of(text) for text in ("5", " .5 ", "-1e-2", "1e3")] == [5, 0.5, -0.01, 1000]


@pytest.mark.parametrize("text", ["1_0", "1_0e-2", "", "a", "1,5"])
def test_other_text_is_refused(text):
    with pytest.raises(ValueError):
        number_of(text)
