"""Damaged inputs end with a checked success or with one clean error: some of each kind, and all that ever failed.

`THAW_FUZZ=10000 python -m pytest tests/test_fuzz.py` tries 10,000 inputs of each kind.
"""

import json
import os

import pytest
from fuzz import documents
from fuzz.harness import CORPUS, attempt, load

INPUTS = int(os.environ.get("THAW_FUZZ", 30))


@pytest.fixture(autouse=True)
def own_cache(monkeypatch):
    """The harness gives each input a separate cache folder."""
    monkeypatch.setenv("THAW_CACHE", "")


@pytest.mark.parametrize("name", documents.FORMATS)
def test_intact_inputs_of_every_format_have_the_same_boxes(name, tmp_path):
    found = []

    def run(folder):
        found.extend(documents.boxes_of(documents.run(folder, documents.FORMATS[name][0])))

    fuzzer = documents.Fuzzer(name, lambda rng: documents.intact(name), run)
    assert attempt(fuzzer, fuzzer.case(0, 0), tmp_path / "input") == "read"
    assert found == [documents.BOX] * 2


@pytest.mark.parametrize("name", documents.FUZZERS)
def test_damaged_inputs_are_read_or_refused(name, tmp_path):
    fuzzer = documents.FUZZERS[name]
    outcomes = {attempt(fuzzer, fuzzer.case(0, n), tmp_path / str(n)) for n in range(INPUTS)}
    assert outcomes == {"read", "refused"}


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.json")), ids=lambda path: path.stem)
def test_what_failed_once_is_read_or_refused(path, tmp_path):
    """What was read wrongly must have the right boxes, if it is read."""
    name, case = load(path)
    found, fuzzer = [], documents.ALL[name]

    def run(folder):
        found.extend(documents.boxes_of(fuzzer.run(folder)))

    outcome = attempt(documents.Fuzzer(name, fuzzer.make, run), case, tmp_path / "input")
    expected = json.loads(path.read_text(encoding="ascii"))
    assert outcome == "refused" or not expected.get("refused")
    assert outcome == "refused" or list(map(list, found)) == expected.get("boxes", list(map(list, found)))
