"""utils/trace.py: a trace is written, and the batches are what they were."""

import gzip
import json

import torch

from utils.trace import WARM_UP, traced


def work_on(batches):
    return [float((torch.ones(8) * batch).sum()) for batch in batches]


def test_the_batches_are_the_same_and_the_trace_holds_the_steps_asked_for(tmp_path):
    path, said = tmp_path / "profile_epoch_0001.json.gz", []
    assert work_on(traced(range(12), 3, path, said.append)) == work_on(range(12))
    events = json.loads(gzip.open(path).read())["traceEvents"]
    assert sum(event.get("name") == "wait for data" for event in events if event.get("ph") == "X") == 3
    assert sum(event.get("name") == "aten::ones" for event in events) == 3
    assert "aten::" in (tmp_path / "profile_epoch_0001.txt").read_text() and "3 steps" in said[0]


def test_an_epoch_that_ends_before_has_a_shorter_trace_or_none(tmp_path):
    said = []
    assert list(traced(range(WARM_UP + 1), 5, tmp_path / "a.json.gz", said.append)) == list(range(WARM_UP + 1))
    assert list(traced(range(WARM_UP), 5, tmp_path / "b.json.gz", said.append)) == list(range(WARM_UP))
    assert "1 steps" in said[0] and "no trace" in said[1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json.gz", "a.txt"]


def test_training_that_stops_in_between_leaves_no_profiler_behind(tmp_path):
    batches = traced(range(20), 10, tmp_path / "a.json.gz")
    for _ in range(WARM_UP + 2):
        next(batches)
    batches.close()
    assert work_on(traced(range(12), 3, tmp_path / "b.json.gz")) == work_on(range(12))
