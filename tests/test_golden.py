"""The golden runs of tests/golden: ten training steps of each family have the stored losses."""

import pytest
from golden import runs


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
