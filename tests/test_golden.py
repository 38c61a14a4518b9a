"""tests/golden: ten steps of each family have the stored losses, and a run that was stopped in an epoch still works."""

import json
import shutil

import pytest
from golden import kept, runs
from small import log_of, train_quietly

from utils import checkpoint


@pytest.mark.parametrize("name", runs.RUNS)
def test_ten_steps_have_the_stored_losses(name):
    """To the bit on the computer that stored them, to 1e-5 elsewhere. If a change is meant: python -m tests.golden"""
    computer, stored = runs.read(name)
    rows = runs.run(*runs.RUNS[name])
    assert len(rows) == runs.STEPS
    for step, (ours, theirs) in enumerate(zip(rows, stored, strict=True)):
        assert ours == pytest.approx(theirs, rel=1e-5), step
    if computer == runs.computer():
        assert rows == stored


def test_the_kept_checkpoint_detects_what_it_detected(tmp_path):
    """evaluate.py and the detector read a last.pt of an earlier version."""
    expected, found = json.loads(kept.EXPECTED.read_text(encoding="utf-8")), kept.found(tmp_path)
    assert found["AP"] == pytest.approx(expected["AP"], abs=0.01)
    for ours, theirs in zip(found["best"], expected["best"], strict=True):
        assert ours == pytest.approx(theirs, abs=0.01)


def test_the_kept_run_is_resumed_in_the_middle_of_its_epoch(tmp_path):
    """The rows of its log stay, the epoch that it had begun gets its other batches, and the last epoch follows."""
    folder = tmp_path / "kept-2026-01-01-1"
    folder.mkdir()
    shutil.copy(kept.LAST, folder)
    before = checkpoint.load(kept.LAST)
    done = before["resume"]["state"]["rows"]
    assert [row["epoch"] for row in done] == [0, 1] and before["resume"]["meter"]["batches"] == 1
    resumed, best, _ = train_quietly(kept.config(tmp_path), extra_augment=kept.unchanged)
    rows, after = log_of(resumed), checkpoint.load(resumed / "last.pt")
    assert resumed == folder and [row["epoch"] for row in rows] == ["0", "1", "2", "3"]
    for row, kept_row in zip(rows, done, strict=False):
        assert float(row["AP"]) == pytest.approx(kept_row["AP"]) and best >= kept_row["AP"]
    assert (before["step"], after["step"]) == (3, 8)  # 2 frozen steps, 3 in each of the other epochs
    assert all(0 < float(row["loss"]) < 20 for row in rows[1:]) and 0 < best < 1
