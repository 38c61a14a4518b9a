"""metrics/coco.py: the COCO metrics equal pycocotools; precision, recall, F1 and VOC AP equal values by hand."""

import copy
import json

import numpy as np
import pytest
from coco_cases import entries, evaluated, ground_truth, random_case
from files import read_annotation_file
from refused import refused

from metrics.coco import COCO_METRICS, Curve, best_confidence, coco_metrics, curves, to_coco
from metrics.comparison import analyze_errors
from metrics.matches import match_classes


def reference(ground_truth, detections):
    """The metrics of pycocotools, used as its documentation does; 12 decimals, because a precision of 1 may be 1 - 2e-16."""
    stats = evaluated(ground_truth, detections).stats.tolist()
    return {name: round(value, 12) for name, value in zip(COCO_METRICS, stats, strict=True)}


def curve_of(boxes, detections, rule="coco"):
    """The curve of the first class."""
    return curves(match_classes(ground_truth(boxes), detections), rule)["a"]


@pytest.mark.parametrize("seed", range(4))
def test_metrics_equal_pycocotools_to_twelve_decimals(seed):
    truth, detections = random_case(seed)
    result = coco_metrics(truth, detections)
    assert {key: result[key] for key in COCO_METRICS} == reference(truth, detections)


@pytest.mark.slow
def test_stored_detections_of_yolox_nano_have_the_published_ap(shared):
    folder = shared / "data/coco_val326"
    truth = json.loads((folder / "instances_val2017_core326.json").read_text())
    detections = json.loads((folder / "yolox_nano_detections.json").read_text())
    result = coco_metrics(truth, detections)
    assert {key: result[key] for key in COCO_METRICS} == reference(truth, detections)
    assert (round(result["AP"], 4), round(result["AP50"], 4)) == (0.2880, 0.4480)
    rows = result["per_class"].values()
    assert np.mean([row["AP"] for row in rows if row["AP"] > -1]) == pytest.approx(result["AP"])
    assert sum(row["boxes"] for row in rows) == 2647 - 28  # crowd regions do not count


@pytest.mark.parametrize("seed", range(4))
def test_curves_give_the_ap50_of_pycocotools(seed):
    """The mean precision of a curve at COCO's 101 recalls is the AP50 of the evaluator, which has its own matching."""
    truth, detections = random_case(seed)
    for index, detection in enumerate(detections):
        detection["score"] += index * 1e-6  # a Curve merges equal scores, COCO does not
    per_class = coco_metrics(truth, detections)["per_class"]
    for name, curve in curves(match_classes(truth, detections)).items():
        if curve.boxes:
            at = np.searchsorted(curve.recall, np.linspace(0, 1, 101), side="left")
            assert np.append(curve.envelope(), 0)[at].mean() == pytest.approx(per_class[name]["AP50"], abs=1e-9)


def test_no_detections_give_zero():
    result = coco_metrics(ground_truth([(1, 1, 0, 0, 50, 50)]), [])
    assert result["AP"] == result["AP50"] == result["AR100"] == result["VOC_AP50"] == 0.0
    assert result["AP_large"] == -1  # no large box
    row = result["per_class"]["a"]
    assert (row.pop("boxes"), row.pop("threshold")) == (1, -1) and row == dict.fromkeys(row, 0.0)
    assert result["per_class"]["b"]["AP"] == result["per_class"]["b"]["recall"] == -1


def test_no_boxes_give_minus_one():
    result = coco_metrics(ground_truth([]), entries((1, 1, 0, 0, 9, 9, 0.5)))
    assert result["AP"] == result["VOC_AP50"] == result["per_class"]["a"]["f1"] == -1


def test_a_box_with_annotation_id_zero_counts():
    truth = ground_truth([(1, 1, 0, 0, 50, 50)])
    truth["annotations"][0]["id"] = 0
    assert coco_metrics(truth, entries((1, 1, 0, 0, 50, 50, 0.9)))["AP"] == 1.0


def test_computing_metrics_prints_nothing_and_keeps_its_arguments_and_gives_json(capfd):
    truth, detections = random_case(0)
    before = copy.deepcopy((truth, detections))
    assert '"VOC_AP50"' in json.dumps(coco_metrics(truth, detections), allow_nan=False)
    assert (truth, detections) == before
    assert capfd.readouterr() == ("", "")


def test_detections_with_unknown_ids_are_refused():
    truth = ground_truth([(1, 1, 0, 0, 50, 50)])
    with refused(ValueError, "image_id", 7):
        coco_metrics(truth, entries((7, 1, 0, 0, 9, 9, 0.5)))
    with refused(ValueError, "category_id", 5):
        coco_metrics(truth, entries((1, 5, 0, 0, 9, 9, 0.5)))


def test_best_f1_threshold_by_hand():
    boxes = [(1, 1, 0, 0, 10, 10), (1, 1, 100, 0, 10, 10), (1, 1, 200, 0, 10, 10), (1, 1, 300, 0, 10, 10)]
    # correct, correct, false, correct, duplicate, false
    places = [(0, 0.9), (100, 0.8), (400, 0.7), (200, 0.6), (0, 0.5), (500, 0.4)]
    detections = entries(*[(1, 1, x, 0, 10, 10, score) for x, score in places])
    row = coco_metrics(ground_truth(boxes), detections)["per_class"]["a"]
    assert (row["precision"], row["recall"], row["f1"], row["threshold"]) == (0.75, 0.75, 0.75, 0.6)
    assert row["VOC_AP50"] == pytest.approx(0.25 + 0.25 + 0.25 * 0.75)


def test_detections_of_equal_score_are_one_point_of_the_curve():
    boxes = [(1, 1, 0, 0, 10, 10)]
    curve = curve_of(boxes, entries((1, 1, 0, 0, 10, 10, 0.5), (1, 1, 50, 50, 10, 10, 0.5)))
    assert curve.best()[:2] == (0.5, 1.0) and len(curve.scores) == 1


def test_voc_counts_a_second_detection_of_a_box_as_false_even_with_a_free_box():
    boxes = [(1, 1, 0, 0, 100, 100), (1, 1, 30, 0, 100, 100)]
    detections = entries((1, 1, 0, 0, 100, 100, 0.9), (1, 1, 10, 0, 100, 100, 0.8))  # the second overlaps both
    assert curve_of(boxes, detections).recall[-1] == 1.0 and curve_of(boxes, detections, "voc").recall[-1] == 0.5


@pytest.mark.parametrize("rule", ["coco", "voc"])
def test_detections_of_crowd_regions_are_ignored(rule):
    boxes = [(1, 1, 0, 0, 10, 10), (1, 1, 100, 100, 100, 100, 1)]
    detections = entries((1, 1, 100, 100, 90, 90, 0.9), (1, 1, 100, 100, 100, 95, 0.8), (1, 1, 0, 0, 10, 10, 0.7))
    curve = curve_of(boxes, detections, rule)
    assert curve.boxes == 1 and curve.precision.tolist() == [1.0] and curve.recall.tolist() == [1.0]


def test_a_small_detection_in_a_crowd_region_is_ignored_by_coco_and_false_for_voc():
    """COCO measures the fraction of the detection inside the region, VOC the IoU with the difficult box."""
    boxes, detections = [(1, 1, 0, 0, 10, 10), (1, 1, 100, 100, 100, 100, 1)], entries((1, 1, 150, 150, 5, 5, 0.9))
    coco, voc = (curve_of(boxes, detections, rule) for rule in ("coco", "voc"))
    assert len(coco.scores) == 0 and len(voc.scores) == 1 and voc.recall.tolist() == [0.0]


def test_only_the_metrics_of_coco_leave_out_what_is_beyond_a_hundred_detections_of_an_image_and_class():
    rows = [(1, 1, 300, 300, 10, 10, 0.9)] * 100 + [(1, 1, 0, 0, 10, 10, 0.1)]
    row = coco_metrics(ground_truth([(1, 1, 0, 0, 10, 10)]), entries(*rows))["per_class"]["a"]
    assert row["AP50"] == 0.0
    assert row["recall"] == 1.0 and row["threshold"] == 0.1 and row["precision"] == pytest.approx(1 / 101)


def dense_case(objects, false_alarms):
    """Four images in which each object is found with a score above .6, and false alarms with scores below .4."""
    rng, boxes, found = np.random.default_rng(0), [], []
    for image in range(1, 5):
        for k in range(objects):
            box = image, 1, k % 25 * 40, k // 25 * 40, 20, 20
            boxes.append(box)
            found.append((*box, 0.61 + 0.3 * rng.random()))
        found += [
            (image, 1, k % 25 * 40 + 22, k // 25 * 40 + 800, 12, 12, 0.39 * rng.random()) for k in range(false_alarms)
        ]
    return ground_truth(boxes, images=range(1, 5)), entries(*found)


@pytest.mark.parametrize("objects", [60, 99, 101, 150, 300])
def test_more_than_a_hundred_objects_in_an_image_change_nothing_but_the_metrics_of_coco(objects):
    truth, detections = dense_case(objects, 80)
    metrics = coco_metrics(truth, detections)
    row = metrics["per_class"]["a"]
    assert row["precision"] == row["recall"] == row["f1"] == row["VOC_AP50"] == metrics["recall"] == 1.0
    assert 0.38 < metrics["confidence"] <= 0.61 < row["threshold"] < 0.63
    assert {key: metrics[key] for key in COCO_METRICS} == reference(truth, detections)
    assert (metrics["AP50"] == 1.0) == (objects <= 100)
    curve = curves(match_classes(truth, detections))["a"]  # of the report and its slider
    assert curve.found[-1] == 4 * (objects + 80) and curve.recall[-1] == 1.0
    matrix = analyze_errors(truth, detections, 0.5).matrix
    assert matrix[0, 0] == matrix.sum() == 4 * objects


def test_an_iou_of_exactly_one_half_is_a_match():
    row = coco_metrics(ground_truth([(1, 1, 0, 0, 30, 30)]), entries((1, 1, 0, 0, 30, 15, 0.9)))["per_class"]["a"]
    assert row["AP50"] == row["recall"] == row["VOC_AP50"] == 1.0


def test_two_categories_of_the_same_name_have_separate_rows():
    truth = ground_truth([(1, 4, 0, 0, 30, 30)], ("a", "a"), ids=(4, 9))
    assert list(coco_metrics(truth, [])["per_class"]) == ["a (4)", "a (9)"]


def test_best_confidence_maximizes_the_mean_f1_of_the_classes():
    rng = np.random.default_rng(0)
    for _ in range(20):
        made = []
        for boxes in rng.integers(3, 30, 3):
            scores = np.sort(rng.choice(np.arange(1, 1000), 40, replace=False) / 1000)[::-1]
            hits = np.minimum(np.cumsum(rng.random(40) < 0.5), boxes)
            made.append(Curve(hits / np.arange(1, 41), hits / boxes, scores, int(boxes)))

        def mean_f1(threshold, made=made):
            return np.mean([np.append(0, c.f1())[(c.scores >= threshold).sum()] for c in made])

        best = best_confidence(made)
        assert mean_f1(best) == pytest.approx(max(mean_f1(n / 100) for n in range(1, 100)))
        assert round(best, 2) == best


def test_without_a_correct_detection_there_is_no_best_confidence():
    nothing = Curve(*np.zeros((3, 0)), 5)
    wrong = Curve(np.zeros(2), np.zeros(2), np.array([0.9, 0.8]), 5)
    assert best_confidence([]) == best_confidence([nothing]) == best_confidence([wrong]) == -1.0


def test_detections_become_entries_of_a_coco_results_file():
    class Ids:
        image_ids, category_ids, annotated = np.array([17, 5]), np.array([4, 8]), None

    def part(x1, score, label, index):
        return np.array([[x1, 2, 11, 22]], np.float32), np.float32([score]), np.array([label]), np.array([index])

    entries = to_coco([part(1, 0.25, 1, 0), part(3, 0.5, 0, 1)], Ids)
    assert entries == [
        {"image_id": 5, "category_id": 4, "bbox": [3.0, 2.0, 8.0, 20.0], "score": 0.5},
        {"image_id": 17, "category_id": 8, "bbox": [1.0, 2.0, 10.0, 20.0], "score": 0.25},
    ]
    assert {type(v) for entry in entries for v in entry.values()} == {int, list, float} and to_coco([], Ids) == []


def test_detections_count_only_in_images_in_which_their_class_is_annotated(painted):
    """The metrics of each class equal its metrics on the images in which it is annotated."""
    data = read_annotation_file(str(painted(24)))
    rng = np.random.default_rng(5)
    masked = data.with_annotated(rng.random((24, 2)) < 0.6)
    present = masked.annotated_mask()[masked.image_of_boxes(), masked.labels]
    masked = masked.keep_boxes(present)  # what is not annotated has no boxes
    images = np.repeat(np.arange(24), 6)
    boxes = np.concatenate([np.resize(data.boxes[data.labels == n % 2], (72, 4)) for n in range(2)]).astype(np.float32)
    boxes = boxes[rng.permutation(144)] + rng.normal(size=(144, 4)).astype(np.float32)
    rows = masked.image_of_boxes()
    own = masked.boxes.astype(np.float32) + 1, rng.random(len(rows)).astype(np.float32), masked.labels, rows
    noise = boxes, rng.random(144).astype(np.float32), rng.integers(0, 2, 144), images
    detections = to_coco([own, noise], masked)
    assert 0 < len(detections) < len(rows) + 144
    whole = coco_metrics(masked.coco(), detections)
    for label, name in enumerate(masked.classes):
        kept = np.flatnonzero(masked.annotated_mask()[:, label])
        subset, ids = masked.select(kept), set(masked.image_ids[kept].tolist())
        alone = coco_metrics(subset.coco(), [one for one in to_coco([own, noise], data) if one["image_id"] in ids])
        assert whole["per_class"][name] == alone["per_class"][name] and whole["per_class"][name]["AP"] > 0
    assert {key: whole[key] for key in COCO_METRICS} == reference(masked.coco(), detections)


def test_voc_precision_never_rises_with_recall():
    boxes = [(1, 1, 0, 0, 10, 10), (1, 1, 100, 0, 10, 10)]
    detections = entries((1, 1, 300, 0, 9, 9, 0.9), (1, 1, 0, 0, 10, 10, 0.8), (1, 1, 100, 0, 10, 10, 0.7))
    assert coco_metrics(ground_truth(boxes), detections)["per_class"]["a"]["VOC_AP50"] == pytest.approx(2 / 3)


def test_a_class_without_a_correct_detection_has_no_threshold():
    truth = {
        "images": [{"id": 1, "file_name": "a", "height": 100, "width": 100}],
        "annotations": [{"image_id": 1, "category_id": 1, "bbox": [0, 0, 10, 10], "area": 100, "iscrowd": 0}],
        "categories": [{"id": 1, "name": "cat"}],
    }
    wrong = [{"image_id": 1, "category_id": 1, "bbox": [50, 50, 10, 10], "score": 0.0018}]
    row = coco_metrics(truth, wrong)["per_class"]["cat"]
    assert (row["precision"], row["recall"], row["f1"], row["threshold"]) == (0, 0, 0, -1)
