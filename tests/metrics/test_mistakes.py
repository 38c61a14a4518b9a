"""metrics/mistakes.py: the kind of each mistake."""

import numpy as np
import pytest
from coco_cases import entries, ground_truth, random_case

from metrics import mistakes
from metrics.comparison import compare_images
from metrics.mistakes import Example, by_kind, choose

FAR = (400, 400, 20, 20)


def kinds_of(boxes, *detections):
    """The kinds of mistakes in one image -> lists of (box, detection)."""
    found = by_kind(compare_images(ground_truth(boxes), entries(*detections), 0.3))
    return {kind: [(one.box, one.detection) for one in examples] for kind, examples in found.items() if examples}


def test_each_kind_of_mistake_is_recognized():
    box = (1, 1, 0, 0, 100, 100)
    assert kinds_of([box], (*box, 0.9)) == {}
    assert kinds_of([box]) == {"missed": [(0, -1)]}
    assert kinds_of([box], (*box, 0.9), (1, 1, *FAR, 0.8)) == {"background": [(-1, 1)]}
    assert kinds_of([box], (1, 2, 0, 0, 100, 90, 0.9)) == {"wrong class": [(0, 0)]}
    assert kinds_of([box], (1, 1, 60, 0, 100, 100, 0.9)) == {"loose": [(0, 0)]}  # IoU .25; not also missed
    assert kinds_of([box], (*box, 0.5), (1, 1, 60, 0, 100, 100, 0.9)) == {"background": [(-1, 1)]}  # the box is found
    assert kinds_of([box], (1, 2, 60, 0, 100, 100, 0.9)) == {"missed": [(0, -1)], "background": [(-1, 0)]}
    assert kinds_of([box], (*box, 0.9), (1, 1, 0, 0, 100, 80, 0.8)) == {"double": [(0, 1)]}
    assert kinds_of([box], (*box, 0.5), (1, 2, 0, 0, 100, 80, 0.8)) == {"double": [(0, 1)]}


def test_crowd_regions_before_a_box_do_not_shift_its_number():
    crowd, box = (1, 2, 200, 200, 90, 90, 1), (1, 1, 0, 0, 100, 100)
    assert kinds_of([crowd, box], (1, 2, 0, 0, 100, 90, 0.9), (1, 2, 210, 210, 30, 30, 0.8)) == {
        "wrong class": [(0, 0)]
    }


@pytest.mark.parametrize("seed", range(4))
def test_every_false_detection_has_one_kind(seed):
    truth, detections = random_case(seed)
    comparisons = compare_images(truth, detections, 0.4)
    found = by_kind(comparisons)
    false = [(one.image, one.detection) for kind in mistakes.KINDS[1:] for one in found[kind]]
    assert sorted(false) == [(i, d) for i, one in enumerate(comparisons) for d in np.flatnonzero(one.false).tolist()]
    explained = {(one.image, one.box) for kind in ("missed", "wrong class", "loose") for one in found[kind]}
    missed = {(i, b) for i, one in enumerate(comparisons) for b in np.flatnonzero(one.missed).tolist()}
    assert missed <= explained and len(found["missed"]) <= len(missed)
    for examples in found.values():
        assert [one.rank for one in examples] == sorted((one.rank for one in examples), reverse=True)


def test_examples_are_chosen_from_many_images():
    bad = [Example(0, -1, d, 1) for d in range(50)] + [Example(1, -1, 0, 0.5)]
    chosen, images = choose({"loose": bad, "missed": [Example(2, 0, -1, 1)], "double": []})
    assert [one.image for one in chosen["loose"]] == [0] * mistakes.PER_IMAGE + [1]
    assert images == [0, 2, 1] and chosen["double"] == []
