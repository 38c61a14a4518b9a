"""deploy/agreement.py: differences that rounding can cause are accepted, all others are reported."""

import numpy as np
import pytest
from refused import told

from deploy.agreement import EXACT, compare

BOX = (10.0, 20.0, 50.0, 60.0)


def detections(*rows):
    """(box, score, label) -> boxes, scores, labels, best first."""
    rows = sorted(rows, key=lambda row: -row[1])
    return np.array([row[0] for row in rows]).reshape(-1, 4), [r[1] for r in rows], [r[2] for r in rows]


def before_nms(rows, num_classes):
    """(box, score, label) or (box, {label: score}) -> boxes and scores of all classes."""
    boxes, scores = np.zeros((len(rows), 4)), np.full((len(rows), num_classes), -1.0)
    for number, (box, *best) in enumerate(rows):
        boxes[number] = box
        for label, score in (best[0] if isinstance(best[0], dict) else {best[1]: best[0]}).items():
            scores[number, label] = score
    return boxes, scores


def moved(by):
    return tuple(side + by for side in BOX)


def agree(ours, theirs, most=300, num_classes=(5,)):
    """Compares boxes of PyTorch with detections of a file in one image."""
    return compare([before_nms(ours, sum(num_classes))], [detections(*theirs)], num_classes, most, EXACT)


def within(result):
    return not result.unpaired


def test_equal_detections_agree_and_distances_are_reported():
    ours = (BOX, 0.9, 1), (moved(100), 0.5, 0)
    result = agree(ours, [(moved(0.25), 0.9004, 1), (moved(100), 0.5, 0)])
    assert result.detections == 2 and result.unpaired == []
    assert (result.boxes, result.scores) == pytest.approx((0.25, 0.0004))
    told(result.text(), "2 detections", 0.25, 0.0004)


@pytest.mark.parametrize(
    "theirs",
    [
        [(moved(0.6), 0.9, 1)],
        [(BOX, 0.902, 1)],
        [(BOX, 0.9, 0)],
        [],
        [(BOX, 0.9, 1), (BOX, 0.8995, 1)],
        [(BOX, 0.9, 1), (moved(200), 0.052, 0)],
    ],
    ids=["moved", "another score", "another class", "missing", "twice", "one more"],
)
def test_every_difference_is_reported(theirs):
    assert not within(agree([(BOX, 0.9, 1)], theirs))


def test_detections_below_or_near_the_confidence_need_no_partner():
    for score in (0.0496, 0.0504):
        assert within(agree([(BOX, score, 1)], [(BOX, 0.1 - score, 1)]))
    assert within(agree([(BOX, 0.0499, 1)], []))
    assert within(agree([], [(BOX, 0.0495, 1)]))
    assert not within(agree([], [(BOX, 0.0505, 1)]))


def test_a_box_may_have_any_class_whose_score_is_nearly_the_best():
    ours = [(BOX, {1: 0.8, 2: 0.7995, 3: 0.79})]
    assert within(agree(ours, [(BOX, 0.8, 1)])) and within(agree(ours, [(BOX, 0.7999, 2)]))
    assert not within(agree(ours, [(BOX, 0.79, 3)]))  # not nearly the best
    assert not within(agree(ours, [(BOX, 0.801, 2)]))  # another score than this class has
    assert not within(agree(ours, [(BOX, 0.8, 1), (BOX, 0.7995, 2)]))  # both


def test_the_last_detections_of_a_full_list_need_no_partner():
    ours = (BOX, 0.9, 1), (moved(100), 0.5, 1), (moved(200), 0.4995, 1), (moved(300), 0.4, 1)
    theirs = ours[0], (moved(200), 0.5005, 1)
    assert within(agree(ours, theirs, most=2))
    assert not within(agree(ours, theirs, most=3))
    assert not within(agree((*ours, (moved(400), 0.6, 1)), theirs, most=2))


def test_the_limit_counts_for_each_head():
    """The first head has one class and a full list; the second one has not, so its boxes must be there."""
    first = [(moved(50 * number), 0.9 - 0.1 * number, 0) for number in range(4)]
    second = (moved(50), 0.3, 1)
    assert within(agree([*first, second], [*first[:2], second], most=2, num_classes=(1, 4)))
    assert not within(agree([*first, second], first[:2], most=2, num_classes=(1, 4)))
