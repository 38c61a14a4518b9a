"""deploy/agreement.py: differences that rounding can cause are accepted, all others are reported."""

import itertools

import numpy as np
import pytest
from refused import told

from deploy.agreement import EXACT, Limits, compare

BOX = (10.0, 20.0, 50.0, 60.0)
MOVED_9 = 961 / 2239  # the IoU of BOX and BOX moved by 9 pixels


def detections(*rows):
    """(box, score, label) -> boxes, scores, labels, best first."""
    rows = sorted(rows, key=lambda row: -row[1])
    return np.array([row[0] for row in rows]).reshape(-1, 4), [r[1] for r in rows], [r[2] for r in rows]


def before_nms(rows, num_classes):
    """(box, score, label) or (box, {label: score}) -> boxes and class scores of each head."""
    heads, first = [], 0
    for classes in num_classes:
        boxes, scores = [], []
        for box, *best in rows:
            given = best[0] if isinstance(best[0], dict) else {best[1]: best[0]}
            if all(first <= label < first + classes for label in given):
                boxes.append(box)
                scores.append([given.get(first + number, -1.0) for number in range(classes)])
        heads.append((np.array(boxes).reshape(-1, 4), np.array(scores).reshape(-1, classes)))
        first += classes
    return heads


def moved(by):
    return tuple(side + by for side in BOX)


def agree(ours, theirs, nms_iou=0.5, most=300, candidates=3000, num_classes=(5,)):
    """Compares boxes of PyTorch before NMS with detections of a file in one image."""
    limits = Limits(nms_iou, most, candidates)
    return compare([before_nms(ours, num_classes)], [detections(*theirs)], limits, EXACT)


def test_equal_detections_agree_and_distances_are_reported():
    ours = (BOX, 0.9, 1), (moved(100), 0.5, 0)
    result = agree(ours, [(moved(0.25), 0.9004, 1), (moved(100), 0.5, 0)])
    assert result.within(EXACT) and result.detections == 2 and result.unpaired == ()
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
    result = agree([(BOX, 0.9, 1)], theirs)
    assert not result.within(EXACT) and result.unpaired
    assert result.detections == 0 or result.within(EXACT._replace(unpaired=2.0))


def test_detections_below_or_near_the_confidence_need_no_partner():
    for score in (0.0496, 0.0504):
        assert agree([(BOX, score, 1)], [(BOX, 0.1 - score, 1)]).within(EXACT)
    assert agree([(BOX, 0.0499, 1)], []).within(EXACT)
    assert agree([], [(BOX, 0.0495, 1)]).within(EXACT)
    assert not agree([], [(BOX, 0.0505, 1)]).within(EXACT)


def test_nms_may_decide_either_way_only_near_its_threshold():
    ours = (BOX, 0.9, 1), (moved(9), 0.8, 1)
    for nms_iou in (MOVED_9 - 5e-4, MOVED_9 + 5e-4):
        assert agree(ours, ours, nms_iou).within(EXACT) and agree(ours, ours[:1], nms_iou).within(EXACT)
    assert agree(ours, ours[:1], 0.4).within(EXACT) and agree(ours, ours, 0.5).within(EXACT)
    assert len(agree(ours, ours, 0.4).unpaired) == len(agree(ours, ours[:1], 0.5).unpaired) == 1
    other_class = (BOX, 0.9, 1), (moved(9), 0.8, 2)
    assert agree(other_class, other_class, 0.4).within(EXACT) and not agree(other_class, ours[:1], 0.4).within(EXACT)


def test_nms_may_keep_any_of_the_boxes_whose_scores_are_nearly_equal():
    """In a row of boxes, each of which overlaps its neighbors, every choice without a gap and without an overlap is right."""
    ours = [(moved(9 * number), 0.8 + 1e-4 * (number % 3), 1) for number in range(5)]
    right = {
        kept
        for count in range(6)
        for kept in itertools.combinations(range(5), count)
        if agree(ours, [ours[number] for number in kept], 0.4).within(EXACT)
    }
    assert right == {(0, 2, 4), (0, 3), (1, 3), (1, 4)}


def test_a_box_may_have_any_class_whose_score_is_nearly_the_best():
    ours = [(BOX, {1: 0.8, 2: 0.7995, 3: 0.79})]
    assert agree(ours, [(BOX, 0.8, 1)]).within(EXACT) and agree(ours, [(BOX, 0.7999, 2)]).within(EXACT)
    assert not agree(ours, [(BOX, 0.79, 3)]).within(EXACT)  # not nearly the best
    assert not agree(ours, [(BOX, 0.801, 2)]).within(EXACT)  # another score than this class has
    assert not agree(ours, [(BOX, 0.8, 1), (BOX, 0.7995, 2)]).within(EXACT)  # both
    for label, right in ((1, True), (2, True), (3, False)):  # NMS may remove it as a box of each of its classes
        better = (moved(9), 0.9, label)
        assert agree([*ours, better], [better], 0.4).within(EXACT) == right


def test_a_box_is_not_removed_by_one_whose_score_is_lower():
    ours = (BOX, 0.9, 1), (moved(9), 0.8, 1)
    assert not agree(ours, ours[1:], 0.4).within(EXACT)
    for score, right in ((0.9009, True), (0.9015, False)):  # in the file it is at least 0.9005
        assert agree([ours[0], (moved(9), score, 1)], ours[:1], 0.4).within(EXACT) == right


def test_the_last_detections_of_a_full_list_need_no_partner():
    ours = (BOX, 0.9, 1), (moved(100), 0.5, 1), (moved(200), 0.4995, 1), (moved(300), 0.4, 1)
    theirs = ours[0], (moved(200), 0.5005, 1)
    assert agree(ours, theirs, most=2).within(EXACT)
    assert not agree(ours, theirs, most=3).within(EXACT)
    assert not agree((*ours, (moved(400), 0.6, 1)), theirs, most=2).within(EXACT)


def test_boxes_that_do_not_reach_nms_need_no_partner():
    ours = (BOX, 0.9, 1), (moved(9), 0.8, 1), (moved(200), 0.4, 1)
    assert agree(ours, ours[:1], 0.4, candidates=2).within(EXACT)
    assert not agree(ours, ours[:1], 0.4, candidates=4).within(EXACT)


def test_the_limit_counts_for_each_head():
    """The first head has one class and a full list; the second one has not, so its boxes must be there."""
    first = [(moved(50 * number), 0.9 - 0.1 * number, 0) for number in range(4)]
    second = (moved(50), 0.3, 1)
    assert agree([*first, second], [*first[:2], second], most=2, num_classes=(1, 4)).within(EXACT)
    assert not agree([*first, second], first[:2], most=2, num_classes=(1, 4)).within(EXACT)
