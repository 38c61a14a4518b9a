"""utils/mistakes.py and utils/plots.py: what is confused with what, by hand and in total."""

import numpy as np
import pytest
from test_metrics import found, ground_truth, random_case

from utils.metrics import curves
from utils.mistakes import compare, confusion_matrix
from utils.plots import confusion, precision_recall

FAR = (400, 400, 10, 10)


def matrix_of(truth, detections, confidence=0.5):
    return confusion_matrix(compare(truth, detections, confidence), len(truth["categories"])).tolist()


def test_right_confused_missed_and_false():
    truth = ground_truth([(1, 1, 0, 0, 10, 10), (1, 1, 50, 0, 10, 10), (1, 2, 100, 0, 10, 10)])
    detections = found((1, 1, 0, 0, 10, 10, 0.9), (1, 2, 50, 0, 10, 10, 0.8), (1, 2, *FAR, 0.7), (1, 1, *FAR, 0.4))
    assert matrix_of(truth, detections) == [[1, 1, 0], [0, 0, 1], [0, 1, 0]]
    (one,) = compare(truth, detections, 0.5)
    assert one.right.tolist() == [True, False, False] and one.false.tolist() == [False, True, True]
    assert one.mistakes == 4 and one.image_id == 1


def test_a_box_is_confused_only_if_no_detection_of_its_class_has_it():
    truth = ground_truth([(1, 1, 0, 0, 10, 10)])
    detections = found((1, 2, 0, 0, 10, 10, 0.9), (1, 1, 1, 0, 10, 10, 0.6))
    assert matrix_of(truth, detections) == [[1, 0, 0], [0, 0, 0], [0, 1, 0]]


def test_two_detections_of_one_box_are_one_right_and_one_false():
    truth = ground_truth([(1, 1, 0, 0, 10, 10)])
    detections = found((1, 1, 0, 0, 10, 10, 0.9), (1, 1, 0, 0, 10, 9, 0.9))
    assert matrix_of(truth, detections) == [[1, 0, 0], [0, 0, 0], [1, 0, 0]]


def test_detections_in_a_crowd_of_their_class_are_no_mistakes():
    truth = ground_truth([(1, 1, 0, 0, 100, 100, 1), (1, 1, 5, 5, 10, 10)])
    inside = found((1, 1, 50, 50, 10, 10, 0.9), (1, 1, 5, 5, 10, 10, 0.9), (1, 1, 70, 50, 10, 10, 0.9))
    assert matrix_of(truth, inside) == [[1, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert compare(truth, inside, 0.5)[0].mistakes == 0
    assert matrix_of(truth, found((1, 2, 50, 50, 10, 10, 0.9))) == [[0, 0, 1], [0, 0, 0], [0, 1, 0]]


def test_pictures_without_boxes_or_detections_are_there_too():
    truth = ground_truth([(2, 1, 0, 0, 10, 10)], images=(1, 2, 7))
    compared = compare(truth, found((7, 1, *FAR, 0.9)), 0.5)
    assert [(one.image_id, one.mistakes) for one in compared] == [(1, 0), (2, 1), (7, 1)]
    assert compare(truth, [], 0.5)[0].false.shape == (0,)


@pytest.mark.parametrize("seed", range(5))
def test_rows_add_up_to_boxes_and_columns_to_detections(seed):
    truth, detections = random_case(seed)
    compared = compare(truth, detections, 0.5)
    matrix = confusion_matrix(compared, 3)
    labels = [category["id"] for category in truth["categories"]]
    boxes = [a["category_id"] for a in truth["annotations"] if not a["iscrowd"]]
    assert matrix[:3].sum(1).tolist() == [boxes.count(i) for i in labels]
    counted = np.concatenate([one.found_labels for one in compared])
    assert matrix[:, :3].sum(0).tolist() == [int((counted == n).sum()) for n in range(3)] and matrix[3, 3] == 0
    assert sum(one.mistakes for one in compared) == matrix.sum() - np.trace(matrix) + matrix[:3, :3].sum() - np.trace(
        matrix[:3, :3]
    )


@pytest.mark.parametrize("classes", [1, 5, 90])
def test_confusion_picture_shows_the_diagonal_in_green_and_the_rest_in_red(classes):
    names = [f"类别 {i}" for i in range(classes)]
    empty = confusion(np.zeros((classes + 1, classes + 1), int), names)
    for place, strongest in ((0, 1), (classes, 2)):
        matrix = np.zeros((classes + 1, classes + 1), int)
        matrix[0, place] = 9
        picture = confusion(matrix, names)
        cell = picture[(picture != empty).any(-1)].astype(int)
        assert picture.shape == empty.shape and len(cell) > 50
        assert (np.median(cell, 0)[strongest] > np.median(cell, 0)[[c for c in range(3) if c != strongest]]).all()


def test_better_curves_lie_higher():
    truth = ground_truth([(1, 1, 0, 0, 10, 10), (1, 2, 50, 0, 10, 10)], classes=("好", "坏"))
    picture = precision_recall(curves(truth, found((1, 1, 0, 0, 10, 10, 0.9), (1, 2, *FAR, 0.9))))
    assert picture.dtype == np.uint8 and picture.ndim == 3
    from utils.draw import colour_of

    good, bad = ((picture[:, :700] == colour_of(label)).all(-1).nonzero()[0] for label in (0, 1))
    assert good.max() < 100 < 700 < bad.min()


@pytest.mark.parametrize("count", [0, 1, 60])
def test_curves_of_any_number_of_classes_are_drawn(count):
    boxes = [(1, i, 20 * i, 0, 10, 10) for i in range(1, count + 1)]
    truth = ground_truth(boxes, [f"c{i}" for i in range(max(count, 1))])
    assert precision_recall(curves(truth, [])).shape[0] > 640
