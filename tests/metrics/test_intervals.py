"""metrics/intervals.py: resampled metrics equal the evaluator's; intervals hold the metric and shrink with the data."""

import numpy as np
import pytest
from coco_cases import entries, ground_truth, random_case

from metrics.coco import coco_metrics
from metrics.intervals import MIN_IMAGES, bootstrap, resampled_metrics
from metrics.matches import match_classes

NAMES = ("AP", "AP50", "AP75", "AR100")


def resampled(truth, detections, counts):
    """The metrics and the AP of each class where every image counts `counts` times; -1 for nothing to measure."""
    weights = np.array([counts], np.int32)
    metrics, per_class = resampled_metrics(list(match_classes(truth, detections).values()), weights)
    shown = [np.nan_to_num(np.array([metrics[name][0] for name in NAMES]), nan=-1)]
    return np.concatenate([*shown, np.nan_to_num(per_class[:, 0], nan=-1)])


def expected(truth, detections):
    """The same numbers by the evaluator."""
    metrics = coco_metrics(truth, detections)
    return [metrics[name] for name in NAMES] + [row["AP"] for row in metrics["per_class"].values()]


@pytest.mark.parametrize("seed", range(6))
def test_metrics_of_a_resample_equal_the_evaluator_on_copies_of_the_images(seed):
    """Copies of an image are images with other ids; scores differ, because the order of equal ones is arbitrary."""
    truth, detections = random_case(seed)
    rng = np.random.default_rng(seed)
    for entry, score in zip(detections, rng.permutation(len(detections)).tolist(), strict=True):
        entry["score"] = (score + 1) / (len(detections) + 1)
    counts = rng.multinomial(len(truth["images"]), np.full(len(truth["images"]), 1 / len(truth["images"]))).tolist()
    times = {image["id"]: count for image, count in zip(truth["images"], counts, strict=True)}

    def copies(rows, key):
        return [{**row, key: 100 * row[key] + n} for row in rows for n in range(times[row[key]])]

    copied = {**truth, "images": copies(truth["images"], "id"), "annotations": copies(truth["annotations"], "image_id")}
    for number, annotation in enumerate(copied["annotations"], 1):
        annotation["id"] = number
    again = expected(copied, copies(detections, "image_id"))
    np.testing.assert_allclose(resampled(truth, detections, counts), again, atol=1e-11)


def intervals_of(truth, detections):
    return bootstrap(match_classes(truth, detections), len(truth["images"]))


def test_detections_beyond_the_limit_of_coco_do_not_change_the_intervals():
    """The hundred best are false, and those after them are correct."""
    boxes = [(1, 1, x, 0, 10, 10) for x in range(0, 300, 20)]
    false = [(1, 1, 500, 400, 10, 10, 0.9)] * 100
    truth, found = ground_truth(boxes, images=(1, 2)), entries(*false, *((*box, 0.5) for box in boxes))
    np.testing.assert_allclose(resampled(truth, found, [1, 1]), expected(truth, found), atol=1e-11)


def many_images(count):
    """Images with one box, of which the detector finds two thirds, more or less."""
    rng = np.random.default_rng(0)
    truth = ground_truth([(i, 1, 10, 10, 50, 50) for i in range(1, count + 1)], images=range(1, count + 1))
    places = [10 if rng.random() < 2 / 3 else 300 for _ in range(count)]
    return truth, entries(*[(i, 1, x, 10, 50, 50, rng.random()) for i, x in enumerate(places, 1)])


def test_intervals_hold_the_metric_repeat_themselves_and_shrink_with_the_data():
    for count in (100, 400):
        truth, detections = many_images(count)
        metrics, (intervals, per_class) = coco_metrics(truth, detections), intervals_of(truth, detections)
        assert tuple(intervals) == NAMES
        for name in NAMES:
            low, high = intervals[name]
            assert 0 < low < metrics[name] < high < 1
        assert intervals_of(truth, detections) == (intervals, per_class)
        assert per_class["a"] == pytest.approx(intervals["AP"]) and per_class["b"] is None
        (low, high), found = intervals["AR100"], metrics["AR100"]  # a mean of values that are 0 or 1
        assert high - low == pytest.approx(2 * 1.96 * (found * (1 - found) / count) ** 0.5, rel=0.3)


def test_few_images_have_no_interval():
    few = many_images(MIN_IMAGES - 1)
    assert set(intervals_of(*few)[0].values()) == {None}
    assert intervals_of(*many_images(MIN_IMAGES))[0]["AP"] is not None
    assert set(intervals_of(ground_truth([], images=range(20)), [])[0].values()) == {None}
