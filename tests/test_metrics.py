"""utils/metrics.py: pycocotools' digits, and figures a class worked out by hand."""

import contextlib
import copy
import io
import json
import runpy
import sys

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from utils import metrics
from utils.metrics import FIGURES, Curve, best_confidence, coco_figures, curves, load_backend

BACKENDS = ["faster-coco-eval", "pycocotools"]


def backend(name):
    try:
        return load_backend(name)
    except ImportError:
        pytest.skip(f"{name} is not installed")


def reference(ground_truth, detections):
    """pycocotools as its own documentation uses it. Twelve decimals: its precisions of 1 may be 1 - 2e-16."""
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = copy.deepcopy(ground_truth)
        truth.createIndex()
        evaluator = COCOeval(truth, truth.loadRes(copy.deepcopy(detections)), "bbox")
        evaluator.evaluate()
        evaluator.accumulate()
        evaluator.summarize()
    return {name: round(value, 12) for name, value in zip(FIGURES, evaluator.stats.tolist(), strict=True)}


def ground_truth(boxes, classes=("a", "b"), images=(1,), ids=None):
    """boxes: (image, category id, x, y, w, h[, crowd])."""
    ids = ids or range(1, len(classes) + 1)
    return {
        "images": [{"id": i, "file_name": f"{i}.jpg", "width": 640, "height": 480} for i in images],
        "categories": [{"id": i, "name": name} for i, name in zip(ids, classes, strict=True)],
        "annotations": [
            {
                "id": n,
                "image_id": b[0],
                "category_id": b[1],
                "bbox": list(b[2:6]),
                "area": b[4] * b[5],
                "iscrowd": sum(b[6:]),
            }
            for n, b in enumerate(boxes, 1)
        ],
    }


def found(*rows):
    """rows: (image, category id, x, y, w, h, score)."""
    return [{"image_id": r[0], "category_id": r[1], "bbox": list(r[2:6]), "score": r[6]} for r in rows]


def random_case(seed):
    """Boxes of all sizes, crowd, categories 1, 3, 90 (one without boxes), pictures without boxes, equal scores."""
    rng = np.random.default_rng(seed)
    boxes, detections = [], []
    for image in range(10, 22):
        for _ in range(rng.integers(0, 9)):
            x, y, w, h = rng.integers(1, 200, 4).tolist()
            category = int(rng.choice([1, 3]))
            boxes.append((image, category, x, y, w, h, int(rng.random() < 0.15)))
            for _ in range(rng.integers(0, 4)):
                jitter = rng.normal(0, 0.1, 4) * [w, h, w, h]
                detections.append(
                    (image, category, *(np.array([x, y, w, h]) + jitter).tolist(), round(float(rng.random()), 1))
                )
        for _ in range(rng.integers(0, 5)):
            numbers = rng.integers(1, 200, 4).tolist()
            detections.append((image, int(rng.choice([1, 3, 90])), *numbers, float(rng.random())))
    truth = ground_truth(boxes, ("cat", "dog", "bird"), range(10, 24), (90, 3, 1))
    return truth, found(*detections)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("seed", range(6))
def test_figures_are_those_of_pycocotools_in_twelve_decimals(name, seed):
    truth, detections = random_case(seed)
    figures = coco_figures(truth, detections, backend(name))
    assert {key: figures[key] for key in FIGURES} == reference(truth, detections)


@pytest.mark.parametrize("name", BACKENDS)
def test_official_nano_on_coco_has_its_published_digits(shared, name):
    folder = shared / "data/coco_val326"
    truth = json.loads((folder / "instances_val2017_core326.json").read_text())
    detections = json.loads((folder / "yolox_nano_detections.json").read_text())
    figures = coco_figures(truth, detections, backend(name))
    assert (round(figures["AP"], 4), round(figures["AP50"], 4)) == (0.2880, 0.4480)
    if name != "pycocotools":
        assert {key: figures[key] for key in FIGURES} == reference(truth, detections)
    rows = figures["per_class"].values()
    assert np.mean([row["AP"] for row in rows if row["AP"] > -1]) == pytest.approx(figures["AP"])
    assert sum(row["boxes"] for row in rows) == 2647 - 28  # crowd is no box to be found


@pytest.mark.parametrize("seed", range(4))
def test_own_matching_agrees_with_the_evaluator(seed):
    """The curves come from matching written here; COCO's 101 points read off them must be its AP50."""
    truth, detections = random_case(seed)
    for index, detection in enumerate(detections):
        detection["score"] += index * 1e-6  # points of equal score are merged in a Curve, not in COCO's
    per_class = coco_figures(truth, detections)["per_class"]
    for name, curve in curves(truth, detections).items():
        if curve.boxes:
            envelope = np.append(np.maximum.accumulate(curve.precision[::-1])[::-1], 0)
            at = np.searchsorted(curve.recall, np.linspace(0, 1, 101), side="left")
            assert envelope[at].mean() == pytest.approx(per_class[name]["AP50"], abs=1e-9)


@pytest.mark.parametrize("name", BACKENDS)
def test_eval_without_detections_gives_zero(name):
    figures = coco_figures(ground_truth([(1, 1, 0, 0, 50, 50)]), [], backend(name))
    assert figures["AP"] == figures["AP50"] == figures["AR100"] == figures["VOC_AP50"] == 0.0
    assert figures["AP_large"] == -1  # no large box
    row = figures["per_class"]["a"]
    assert row.pop("boxes") == 1 and row == dict.fromkeys(row, 0.0)
    assert figures["per_class"]["b"]["AP"] == figures["per_class"]["b"]["recall"] == -1


@pytest.mark.parametrize("name", BACKENDS)
def test_no_boxes_at_all_leaves_nothing_to_measure(name):
    figures = coco_figures(ground_truth([]), found((1, 1, 0, 0, 9, 9, 0.5)), backend(name))
    assert figures["AP"] == figures["VOC_AP50"] == figures["per_class"]["a"]["f1"] == -1


def test_annotation_id_zero_is_a_box_like_any_other():
    truth = ground_truth([(1, 1, 0, 0, 50, 50)])
    truth["annotations"][0]["id"] = 0
    assert coco_figures(truth, found((1, 1, 0, 0, 50, 50, 0.9)))["AP"] == 1.0


def test_nothing_is_printed_nothing_changed_and_all_is_json(capfd):
    truth, detections = random_case(0)
    before = copy.deepcopy((truth, detections))
    for name in BACKENDS:
        text = json.dumps(coco_figures(truth, detections, backend(name)), allow_nan=False)
        assert '"VOC_AP50"' in text
    assert (truth, detections) == before
    assert capfd.readouterr() == ("", "")


def test_without_the_fast_backend_the_reference_is_used_and_named(monkeypatch):
    """Pitfall 9: no silent fallback."""
    assert metrics.BACKEND.name.split()[0] in BACKENDS
    monkeypatch.setitem(sys.modules, "faster_coco_eval", None)
    alone = runpy.run_path(metrics.__file__)
    assert alone["BACKEND"].name.startswith("pycocotools ")
    truth, detections = random_case(0)
    assert alone["coco_figures"](truth, detections) == coco_figures(truth, detections)


def test_detections_of_other_data_are_refused():
    truth = ground_truth([(1, 1, 0, 0, 50, 50)])
    with pytest.raises(ValueError, match="image_id .* such as 7"):
        coco_figures(truth, found((7, 1, 0, 0, 9, 9, 0.5)))
    with pytest.raises(ValueError, match="category_id .* such as 5"):
        coco_figures(truth, found((1, 5, 0, 0, 9, 9, 0.5)))


def test_best_f1_threshold_by_hand():
    boxes = [(1, 1, 0, 0, 10, 10), (1, 1, 100, 0, 10, 10), (1, 1, 200, 0, 10, 10), (1, 1, 300, 0, 10, 10)]
    # right, right, false, right, a repetition, false
    places = [(0, 0.9), (100, 0.8), (400, 0.7), (200, 0.6), (0, 0.5), (500, 0.4)]
    detections = found(*[(1, 1, x, 0, 10, 10, score) for x, score in places])
    row = coco_figures(ground_truth(boxes), detections)["per_class"]["a"]
    assert (row["precision"], row["recall"], row["f1"], row["threshold"]) == (0.75, 0.75, 0.75, 0.6)
    assert row["VOC_AP50"] == pytest.approx(0.25 + 0.25 + 0.25 * 0.75)


def test_equal_scores_cannot_be_told_apart():
    boxes = [(1, 1, 0, 0, 10, 10)]
    curve = curves(ground_truth(boxes), found((1, 1, 0, 0, 10, 10, 0.5), (1, 1, 50, 50, 10, 10, 0.5)))["a"]
    assert curve.best()[:2] == (0.5, 1.0) and len(curve.scores) == 1


def test_voc_counts_a_second_detection_of_a_box_as_false_even_beside_a_free_one():
    boxes = [(1, 1, 0, 0, 100, 100), (1, 1, 30, 0, 100, 100)]
    detections = found((1, 1, 0, 0, 100, 100, 0.9), (1, 1, 10, 0, 100, 100, 0.8))  # the second overlaps both
    truth = ground_truth(boxes)
    assert curves(truth, detections, "coco")["a"].recall[-1] == 1.0
    assert curves(truth, detections, "voc")["a"].recall[-1] == 0.5


@pytest.mark.parametrize("rule", ["coco", "voc"])
def test_crowd_is_neither_right_nor_wrong(rule):
    truth = ground_truth([(1, 1, 0, 0, 10, 10), (1, 1, 100, 100, 100, 100, 1)])
    detections = found((1, 1, 100, 100, 90, 90, 0.9), (1, 1, 100, 100, 100, 95, 0.8), (1, 1, 0, 0, 10, 10, 0.7))
    curve = curves(truth, detections, rule)["a"]
    assert curve.boxes == 1 and curve.precision.tolist() == [1.0] and curve.recall.tolist() == [1.0]


def test_detection_inside_a_crowd_is_ignored_however_small():
    truth = ground_truth([(1, 1, 0, 0, 10, 10), (1, 1, 100, 100, 100, 100, 1)])
    curve = curves(truth, found((1, 1, 150, 150, 5, 5, 0.9)), "coco")["a"]
    assert len(curve.scores) == 0


def test_voc_measures_a_difficult_object_by_its_overlap():
    truth = ground_truth([(1, 1, 0, 0, 10, 10), (1, 1, 100, 100, 100, 100, 1)])
    curve = curves(truth, found((1, 1, 150, 150, 5, 5, 0.9)), "voc")["a"]
    assert len(curve.scores) == 1 and curve.recall.tolist() == [0.0]


def test_voc_precision_never_rises_with_recall():
    boxes = [(1, 1, 0, 0, 10, 10), (1, 1, 100, 0, 10, 10)]
    detections = found((1, 1, 300, 0, 9, 9, 0.9), (1, 1, 0, 0, 10, 10, 0.8), (1, 1, 100, 0, 10, 10, 0.7))
    assert coco_figures(ground_truth(boxes), detections)["per_class"]["a"]["VOC_AP50"] == pytest.approx(2 / 3)


def test_only_the_best_hundred_of_a_picture_and_class_count():
    rows = [(1, 1, 300, 300, 10, 10, 0.9)] * 100 + [(1, 1, 0, 0, 10, 10, 0.1)]
    row = coco_figures(ground_truth([(1, 1, 0, 0, 10, 10)]), found(*rows))["per_class"]["a"]
    assert row["recall"] == row["AP50"] == row["VOC_AP50"] == 0.0


def test_overlap_of_exactly_one_half_is_a_match():
    row = coco_figures(ground_truth([(1, 1, 0, 0, 30, 30)]), found((1, 1, 0, 0, 30, 15, 0.9)))["per_class"]["a"]
    assert row["AP50"] == row["recall"] == row["VOC_AP50"] == 1.0


def test_two_categories_of_one_name_keep_their_figures_apart():
    truth = ground_truth([(1, 4, 0, 0, 30, 30)], ("a", "a"), ids=(4, 9))
    assert list(coco_figures(truth, [])["per_class"]) == ["a (4)", "a (9)"]


def test_curve_without_detections():
    assert Curve(np.zeros(0), np.zeros(0), np.zeros(0), 3).average_precision() == 0.0


def test_the_best_confidence_is_where_the_mean_f1_of_the_classes_is_best():
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


def test_without_anything_found_there_is_no_best_confidence():
    nothing = Curve(*np.zeros((3, 0)), 5)
    wrong = Curve(np.zeros(2), np.zeros(2), np.array([0.9, 0.8]), 5)
    assert best_confidence([]) == best_confidence([nothing]) == best_confidence([wrong]) == -1.0
