"""utils/text.py: plurals in messages, and what counts as a number in a data file."""

import pytest

from utils import text
from utils.text import amount, number_of, percent


@pytest.mark.parametrize(
    "count, noun, text",
    [(1, "image", "1 image"), (0, "box", "0 boxes"), (2, "class", "2 classes"), (1, "process", "1 process")]
    + [(1200, "image", "1,200 images"), (2, "epoch", "2 epochs"), (2, "match", "2 matches")],
)
def test_one_thing_is_singular(count, noun, text):
    assert amount(count, noun) == text


@pytest.mark.parametrize("fraction, text", [(1 / 169, "0.59 %"), (0.2, "20 %"), (0.996, "100 %"), (1, "100 %")])
def test_percentages_have_two_digits(fraction, text):
    assert percent(fraction) == text


def test_numbers_are_read():
    assert [number_of(text) for text in ("5", " .5 ", "-1e-2", "1e3")] == [5, 0.5, -0.01, 1000]


@pytest.mark.parametrize("text", ["1_0", "1_0e-2", "", "a", "1,5"])
def test_other_text_is_refused(text):
    with pytest.raises(ValueError):
        number_of(text)


def test_commands_of_pip_are_those_of_the_environment(monkeypatch):
    """An environment of uv has no pip: the one of the system would install elsewhere."""
    monkeypatch.setattr(text.importlib.util, "find_spec", lambda name: None)
    assert text.pip("install trackers") == "uv pip install trackers"
    monkeypatch.setattr(text.importlib.util, "find_spec", lambda name: object())
    assert text.pip("install trackers") == "pip install trackers"


@pytest.mark.parametrize(
    "name, near", [("A", "a"), ("stop-sign", "stop_sign"), ("stopp sign", "stop_sign"), ("bicycle", None)]
)
def test_the_nearest_looks_alike_or_is_spelled_alike(name, near):
    assert text.nearest(name, ("a", "stop_sign")) == near
