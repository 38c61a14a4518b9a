"""utils/agreement.py: what rounding may change and what it may not."""

import numpy as np
import pytest

from utils.agreement import Tolerance, around, compare

EXACT = Tolerance(0.5, 1e-3, 1e-3, 0.0)
BOX = (10.0, 20.0, 50.0, 60.0)


def found(*rows):
    """(box, score, label) -> boxes, scores, labels, best first."""
    rows = sorted(rows, key=lambda row: -row[1])
    return np.array([row[0] for row in rows]).reshape(-1, 4), [r[1] for r in rows], [r[2] for r in rows]


def moved(by):
    return tuple(side + by for side in BOX)


def agree(ours, theirs, most=300, tolerance=EXACT):
    return compare([[one] for one in (ours if isinstance(ours, list) else [ours] * 3)], [theirs], 0.05, most, tolerance)


def test_the_same_agrees_and_distances_are_told():
    ours = found((BOX, 0.9, 1), (moved(100), 0.5, 0))
    answer = agree(ours, found((moved(0.25), 0.9004, 1), (moved(100), 0.5, 0)))
    assert answer.within(EXACT) and answer.detections == 2 and answer.unpaired == ()
    assert (answer.boxes, answer.scores) == pytest.approx((0.25, 0.0004))
    assert "2 detections: boxes differ by at most 0.25 pixels, scores by 0.0004" in answer.text()


@pytest.mark.parametrize(
    "theirs",
    [
        found((moved(0.6), 0.9, 1)),
        found((BOX, 0.902, 1)),
        found((BOX, 0.9, 0)),
        found(),
        found((BOX, 0.9, 1), (BOX, 0.8995, 1)),
        found((BOX, 0.9, 1), (moved(200), 0.052, 0)),
    ],
    ids=["moved", "another score", "another class", "missing", "twice", "one more"],
)
def test_what_differs_is_named(theirs):
    answer = agree(found((BOX, 0.9, 1)), theirs)
    assert not answer.within(EXACT) and answer.unpaired
    assert answer.within(EXACT._replace(unpaired=2.0))


def test_below_the_confidence_nothing_counts_and_at_it_either_side_will_do():
    for score in (0.0496, 0.0504):
        ours = found((BOX, score, 1))
        assert agree(ours, found((BOX, 0.1 - score, 1))).within(EXACT)
    assert agree(found((BOX, 0.0499, 1)), found()).within(EXACT)
    assert agree(found(), found((BOX, 0.0495, 1))).within(EXACT)
    assert not agree(found(), found((BOX, 0.0505, 1))).within(EXACT)


def test_what_hangs_on_the_limit_of_nms_may_be_there_or_not():
    one, both = found((BOX, 0.9, 1)), found((BOX, 0.9, 1), (moved(9), 0.8, 1))
    for usual, other in ((one, both), (both, one)):
        for theirs in (one, both):
            assert agree([usual, usual, other], theirs).within(EXACT)
    assert not agree([one, one, one], both).within(EXACT)
    assert around(0.5, EXACT) == (0.5, 0.499, 0.501) and around(1.0, EXACT)[2] == 1.0


def test_the_last_of_a_full_list_are_not_compared():
    first, second = (BOX, 0.9, 1), (moved(100), 0.5, 1)
    assert agree(found(first, second), found(first, (moved(200), 0.5005, 1)), most=2).within(EXACT)
    assert not agree(found(first, second), found(first, (moved(200), 0.5005, 1)), most=3).within(EXACT)
