"""Damaged inputs end with a checked success or with one clean error: some hundred of each kind, and all that ever failed.

`python -m tests.fuzz minutes=60` runs as many as wanted."""

import random
import xml.etree.ElementTree as ElementTree

import pytest
from fuzz import harness, mutate

FUZZERS = {fuzzer.name: fuzzer for group in harness.fuzzers().values() for fuzzer in group}
SECONDS = 0.2  # for each fuzzer


@pytest.fixture(autouse=True)
def own_cache(monkeypatch):
    """The harness gives each input a separate cache folder."""
    monkeypatch.setenv("THAW_CACHE", "")


@pytest.mark.parametrize("name", FUZZERS)
def test_damaged_inputs_are_read_or_refused(name, tmp_path):
    fuzzer, spent, number = FUZZERS[name], 0.0, 0
    while (spent < SECONDS or number < 5) and number < 300:
        result = harness.attempt(fuzzer, fuzzer.case(0, number), tmp_path / str(number))
        assert result.outcome in ("read", "refused"), (number, result.text)
        spent, number = spent + result.seconds, number + 1


@pytest.mark.parametrize("path", sorted(harness.CORPUS.glob("*.json")), ids=lambda path: path.stem)
def test_what_failed_once_is_read_or_refused(path, tmp_path):
    name, case = harness.load(path)
    result = harness.attempt(FUZZERS[name], case, tmp_path / "input")
    assert result.outcome in ("read", "refused"), result.text


class Greedy(random.Random):
    """Damages in as many places as possible, half of the time by copying; takes the largest of several numbers."""

    def choice(self, values):
        numbers = all(isinstance(value, int) for value in values)
        return max(values) if numbers else super().choice(values)

    def randrange(self, start, stop=None, step=1):
        copying = stop is None and start < 10 and self.random() < 0.5
        return 1 if copying else super().randrange(start, stop, step)


@pytest.mark.parametrize("seed", range(30))
def test_damaged_inputs_stay_small(seed):
    """Copies of copies once made an input of 3 GB, and lists within lists were too deep to be copied."""
    value = {"a": [[{"a": [1]}], 2], "b": [mutate.nested(200)]}
    assert len(mutate.spoil_json(Greedy(seed), value, ("a", "b"))) < 20e6
    root = ElementTree.fromstring("<a><b><c><d>1</d></c></b></a>")
    assert len(mutate.spoil_xml(Greedy(seed), root)) < 20e6
