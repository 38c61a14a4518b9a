"""utils/old_checkpoints.py: a checkpoint of format 1 says in format 2 what it said before; tests/golden resumes one."""

import torch
from golden import kept

from utils import checkpoint
from utils.old_checkpoints import upgraded


def renamed(constants: dict) -> dict:
    """These constants of format 1 by their names in format 2."""
    assert "repeat" in constants
    return {"repeat_rare" if name == "repeat" else name: value for name, value in constants.items()}


def test_every_value_of_format_1_has_its_place_in_format_2():
    old, new = torch.load(kept.LAST, weights_only=True), checkpoint.load(kept.LAST, "resuming")
    before, now = old["resume"], new["resume"]
    assert (old["format"], new["format"]) == (1, checkpoint.FORMAT)
    assert now["state"] == before["state"] and now["meter"] == before["meter"]
    assert now["rates"] == {"power": before["rate_power"], "max_images": before["max_images"], "clip": before["clip"]}
    assert now["course"]["warmup_epochs"] == before["warmup_epochs"]
    origin = now["origin"]
    assert origin["facts"].items() <= before["constants"].items()
    assert origin["written"] | origin["facts"] == renamed(old["config"] | before["constants"])
    assert new["config"] == renamed(old["config"])  # as chosen
    assert upgraded({"format": 1, "config": old["config"]})["config"] == new["config"]  # of best.pt


def test_what_a_damaged_file_lacks_stays_missing():
    assert upgraded({"format": 1, "model": {}}) == {"format": 2, "model": {}}
    assert "origin" not in upgraded({"format": 1, "resume": {"constants": 5}})["resume"]
