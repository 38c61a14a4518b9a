"""Damaged inputs end with a checked success or with one clean error: some hundred of each kind, and all that ever failed.

`python -m tests.fuzz minutes=60` runs as many as wanted."""

import pytest
from fuzz import harness

FUZZERS = {fuzzer.name: fuzzer for group in harness.fuzzers().values() for fuzzer in group}
SECONDS = 0.2  # for each fuzzer


@pytest.fixture(autouse=True)
def own_cache(monkeypatch):
    """The harness gives each input a cache folder of its own."""
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
