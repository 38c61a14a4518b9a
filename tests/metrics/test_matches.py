"""metrics/matches.py: every match of every image, class and IoU equals pycocotools, and so do the metrics from them."""

import numpy as np
import pytest
from coco_cases import entries, evaluated, ground_truth

from metrics import matches
from metrics.coco import COCO_METRICS, coco_metrics
from metrics.intervals import resampled_metrics
from metrics.matches import COCO_LIMIT, CORRECT, IGNORED, IOUS, match_classes

CATEGORIES = (7, 3, 90, 1)  # not sorted; 1 has no boxes
SIDES = (4, 9.3, 31, 32, 33.5, 50, 96, 97, 130)  # some at the limits of the sizes


def hard_case(seed):
    """Crowd regions, equal boxes, equal scores, IoUs at the thresholds, areas that differ from the boxes, and images and
    a class without boxes, without detections, or with more detections than count."""
    rng = np.random.default_rng(seed)
    boxes, found = [], []
    for image in range(40, 15, -1):
        for _ in range(rng.integers(0, 8)):
            category = int(rng.choice(CATEGORIES[:3]))
            x, y = rng.integers(0, 200, 2).tolist()
            w, h = rng.choice(SIDES, 2).tolist()
            for _ in range(rng.integers(1, 3)):  # some twice
                boxes.append((image, category, x, y, w, h, int(rng.random() < 0.2)))
            for _ in range(rng.integers(0, 6)):
                fraction = rng.choice([0.5, 0.55, 0.6, 0.75, 0.9, 1.0])  # of the width: an IoU of exactly a threshold
                row = [x, y, w * fraction, h] if rng.random() < 0.5 else (rng.normal(0, 3, 4) + [x, y, w, h]).tolist()
                found.append((image, category, *row[:2], abs(row[2]), abs(row[3]), rng.integers(1, 8) / 8))
        for _ in range(rng.integers(0, 4)):
            place = rng.integers(1, 200, 4).tolist()
            found.append((image, int(rng.choice(CATEGORIES)), *place, rng.integers(1, 8) / 8))
        found.append((image, 3, 500, 500, *rng.choice(SIDES, 2).tolist(), rng.integers(1, 8) / 8))  # on nothing
    found += [(39, 3, 500, 500, side, side, 0.5) for side in SIDES]
    for number in range(COCO_LIMIT + 20):
        found.append((40, 3, number % 7, 0, 50, 50, rng.integers(1, 8) / 8))
    boxes += [(40, 3, 2 * number, 0, 50, 50, number % 2) for number in range(6)]
    order = rng.permutation(len(found))
    truth = ground_truth(boxes, "abcd", range(10, 45), CATEGORIES)
    for annotation in truth["annotations"]:
        if rng.random() < 0.3:
            annotation["area"] *= 0.6
    return truth, entries(*[found[n] for n in order])


@pytest.mark.parametrize("seed", range(4))
def test_every_match_equals_that_of_pycocotools(seed):
    truth, detections = hard_case(seed)
    evaluator = evaluated(truth, detections)
    images = sorted(image["id"] for image in truth["images"])
    everything = match_classes(truth, detections).values()
    made = {category: one.counted_by_coco() for category, one in zip(CATEGORIES, everything, strict=True)}
    compared = 0
    for one in filter(None, evaluator.evalImgs):
        if one["aRng"] != evaluator.params.areaRng[0]:  # boxes of one size only
            continue
        mine, image = made[one["category_id"]], images.index(one["image_id"])
        rows = np.flatnonzero(mine.images == image)
        states = mine.states[:, rows]
        assert mine.scores[rows].tolist() == one["dtScores"] and mine.ranks[rows].tolist() == list(range(len(rows)))
        assert ((states > 0) == (one["dtMatches"] > 0)).all() and ((states == IGNORED) == one["dtIgnore"]).all()
        assert (mine.box_images == image).sum() == (one["gtIgnore"] == 0).sum()
        compared += states.size
    assert compared > 2500 and all((one.states == CORRECT).any() for one in list(made.values())[:3])


def test_detections_beyond_the_limit_of_coco_are_matched_and_change_nothing_for_the_others():
    truth, detections = hard_case(0)
    everything = match_classes(truth, detections)
    assert max(one.ranks.max() for one in everything.values()) >= COCO_LIMIT
    rows = {}
    for entry in sorted(detections, key=lambda entry: -entry["score"]):
        rows.setdefault((entry["image_id"], entry["category_id"]), []).append(entry)
    first = match_classes(truth, [entry for group in rows.values() for entry in group[:COCO_LIMIT]])
    for name, one in everything.items():
        for field, values in one.counted_by_coco()._asdict().items():
            np.testing.assert_array_equal(values, getattr(first[name], field))


def test_matches_do_not_depend_on_the_number_of_pairs_that_are_compared_at_once(monkeypatch):
    expected = match_classes(*hard_case(0))
    monkeypatch.setattr(matches, "BLOCK", 1)
    for name, one in match_classes(*hard_case(0)).items():
        for field, values in one._asdict().items():
            np.testing.assert_array_equal(values, getattr(expected[name], field))


@pytest.mark.parametrize("seed", range(4))
def test_the_metrics_equal_pycocotools(seed):
    """`resampled_metrics` computes four of the twelve from the matches alone, `coco_metrics` all by an evaluator."""
    truth, detections = hard_case(seed)
    expected = dict(zip(COCO_METRICS, evaluated(truth, detections).stats, strict=True))
    once = np.ones((1, len(truth["images"])), np.int32)
    from_matches, _ = resampled_metrics(list(match_classes(truth, detections).values()), once)
    for name, (value,) in from_matches.items():
        assert value == pytest.approx(expected[name], abs=1e-11)
    by_evaluator = coco_metrics(truth, detections)
    assert {name: by_evaluator[name] for name in COCO_METRICS} == pytest.approx(expected, abs=1e-11)


def test_without_images_boxes_or_detections_there_are_no_matches():
    nothing = {"images": [], "annotations": [], "categories": []}
    assert match_classes(nothing, []) == {}
    truth, detections = hard_case(0)
    for one in match_classes({**truth, "annotations": []}, detections).values():
        assert not one.states.any() and not one.voc.any() and one.box_images.shape == (0,)
    for one in match_classes(truth, []).values():
        assert one.states.shape == (len(IOUS), 0) and len(one.scores) == 0
