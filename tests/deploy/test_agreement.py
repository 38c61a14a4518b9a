"""deploy/agreement.py: differences that rounding can cause are accepted, all others are reported."""

import numpy as np
import pytest

from deploy.agreement import Tolerance, compare, nms_thresholds

EXACT = Tolerance(0.5, 1e-3, 1e-3, 0.0)
BOX = (10.0, 20.0, 50.0, 60.0)


def detections(*rows):
    """(box, score, label) -> boxes, scores, labels, best first."""
    rows = sorted(rows, key=lambda row: -row[1])
    return np.array([row[0] for row in rows]).reshape(-1, 4), [r[1] for r in rows], [r[2] for r in rows]


def moved(by):
    return tuple(side + by for side in BOX)


def agree(ours, theirs, most=300, tolerance=EXACT):
    return compare([[one] for one in (ours if isinstance(ours, list) else [ours] * 3)], [theirs], 0.05, most, tolerance)


def test_equal_detections_agree_and_distances_are_reported():
    ours = detections((BOX, 0.9, 1), (moved(100), 0.5, 0))
    result = agree(ours, detections((moved(0.25), 0.9004, 1), (moved(100), 0.5, 0)))
    assert result.within(EXACT) and result.detections == 2 and result.unpaired == ()
    assert (result.boxes, result.scores) == pytest.approx((0.25, 0.0004))
    assert "2 detections: boxes differ by at most 0.25 pixels, scores by 0.0004" in result.text()


@pytest.mark.parametrize(
    "theirs",
    [
        detections((moved(0.6), 0.9, 1)),
        detections((BOX, 0.902, 1)),
        detections((BOX, 0.9, 0)),
        detections(),
        detections((BOX, 0.9, 1), (BOX, 0.8995, 1)),
        detections((BOX, 0.9, 1), (moved(200), 0.052, 0)),
    ],
    ids=["moved", "another score", "another class", "missing", "twice", "one more"],
)
def test_every_difference_is_reported(theirs):
    result = agree(detections((BOX, 0.9, 1)), theirs)
    assert not result.within(EXACT) and result.unpaired
    assert result.within(EXACT._replace(unpaired=2.0))


def test_detections_below_or_near_the_confidence_need_no_partner():
    for score in (0.0496, 0.0504):
        ours = detections((BOX, score, 1))
        assert agree(ours, detections((BOX, 0.1 - score, 1))).within(EXACT)
    assert agree(detections((BOX, 0.0499, 1)), detections()).within(EXACT)
    assert agree(detections(), detections((BOX, 0.0495, 1))).within(EXACT)
    assert not agree(detections(), detections((BOX, 0.0505, 1))).within(EXACT)


def test_detections_that_depend_on_the_exact_nms_threshold_need_no_partner():
    one, both = detections((BOX, 0.9, 1)), detections((BOX, 0.9, 1), (moved(9), 0.8, 1))
    for usual, other in ((one, both), (both, one)):
        for theirs in (one, both):
            assert agree([usual, usual, other], theirs).within(EXACT)
    assert not agree([one, one, one], both).within(EXACT)
    assert nms_thresholds(0.5, EXACT) == (0.5, 0.499, 0.501) and nms_thresholds(1.0, EXACT)[2] == 1.0


def test_the_last_detections_of_a_full_list_need_no_partner():
    first, second = (BOX, 0.9, 1), (moved(100), 0.5, 1)
    assert agree(detections(first, second), detections(first, (moved(200), 0.5005, 1)), most=2).within(EXACT)
    assert not agree(detections(first, second), detections(first, (moved(200), 0.5005, 1)), most=3).within(EXACT)
