"""engine/clock.py: the account of a run's time has no rest, and costs nothing to speak of."""

import json
import time

import pytest
from small import config, train_quietly

import report.plots  # noqa: F401  loads Matplotlib before a run is timed
from engine.clock import Clock


def test_every_second_belongs_to_one_part():
    now = 0.0
    clock = Clock(2.0, lambda: now)
    now = 3.0
    clock.enter("steps")
    with pytest.raises(KeyError), clock.during("evaluation"):
        now = 7.0
        with clock.during("log"):
            now = 8.0
        raise KeyError
    for wait in clock.each("loading", [1, 2]):
        now += 10 * wait  # a step
    assert clock.seconds == {"imports": 2, "data": 3, "steps": 30, "evaluation": 4, "log": 1, "loading": 0}
    assert clock.text().split(": ")[1] == "75 % steps, 10 % evaluation, 8 % data, 5 % imports, 2 % log"


def test_a_run_accounts_for_its_whole_time(demo_images, tmp_path):
    """In the last line of the run, and for each of its starts in environment.json, also for one that fails."""
    began = time.monotonic()
    folder, _, text = train_quietly(config(demo_images, tmp_path, epochs=2))
    took = time.monotonic() - began
    start = json.loads((folder / "environment.json").read_text())
    parts = {"steps", "loading", "evaluation", "saving", "log", "data", "model", "end"}
    assert parts <= start["seconds"].keys() and 0.9 * took < sum(start["seconds"].values()) < took
    assert "\ntime " in text
    with pytest.raises(ZeroDivisionError):
        train_quietly(config(demo_images, tmp_path, epochs=4, resume=True), on_row=lambda *_: 1 / 0)
    again = json.loads((folder / "environment.json").read_text())
    assert again["seconds"]["steps"] > 0 and again["earlier_starts"][0]["seconds"] == start["seconds"]
