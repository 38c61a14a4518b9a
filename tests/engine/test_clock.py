"""engine/clock.py: the account of a run's time has no rest, and costs nothing to speak of."""

import json
import re
import time

import pytest
from small import config, train_quietly

import report.plots  # noqa: F401  loads Matplotlib before a run is timed
import train
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
    assert clock.text(50, 1).split(": ")[1] == "75 % steps, 10 % evaluation, 8 % data, 5 % imports, 2 % log"


@pytest.mark.parametrize(("epochs", "every", "evaluation"), [(50, 1, 20), (50, 1, 60), (50, 2, 60), (10, 2, 60)])
def test_the_account_advises_rarer_evaluations_if_they_take_more_than_a_quarter(epochs, every, evaluation):
    """Those that it advises take a tenth of the time, and the run has enough epochs for them."""
    now = 0.0
    clock = Clock(now=lambda: now)
    for part, seconds in {"steps": 100 - evaluation, "evaluation": evaluation}.items():
        clock.enter(part)
        now += seconds
    advised = re.search(r"evaluate_every=(\d+)", clock.text(epochs, every))
    assert (advised is not None) == (evaluation > 25 and epochs > 10)
    if advised:
        rarer = evaluation * every / int(advised[1])
        assert 0.09 < rarer / (rarer + 100 - evaluation) <= 0.1


def test_a_run_accounts_for_its_whole_time(demo_images, tmp_path):
    """In the last line of the run, and for each of its starts in environment.json, also for one that fails."""
    parts_of_run = train.Parts(clock=time.process_time)  # other programs take none of its time
    began = time.process_time()
    folder, _, text = train_quietly(config(demo_images, tmp_path, epochs=2), parts=parts_of_run)
    took = time.process_time() - began
    start = json.loads((folder / "environment.json").read_text())
    parts = {"steps", "loading", "evaluation", "saving", "log", "data", "model", "end"}
    rounding = 0.0005 * len(start["seconds"])
    assert parts <= start["seconds"].keys() and 0.9 * took - rounding < sum(start["seconds"].values()) < took + rounding
    assert "\ntime " in text
    with pytest.raises(ZeroDivisionError):
        train_quietly(config(demo_images, tmp_path, epochs=4, resume=True), parts=parts_of_run, on_row=lambda *_: 1 / 0)
    again = json.loads((folder / "environment.json").read_text())
    assert again["seconds"]["steps"] > 0 and again["earlier_starts"][0]["seconds"] == start["seconds"]
