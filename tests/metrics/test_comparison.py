"""metrics/comparison.py: boxes and detections of all classes are matched one to one, and the confusion matrix counts them."""

import numpy as np
import pytest
from coco_cases import entries, ground_truth, random_case

from metrics.comparison import compare_images, confusion_matrix

FAR = (400, 400, 10, 10)


def errors(one):
    """The number of missed boxes and false detections."""
    return int(one.missed.sum() + one.false.sum())


def compared(truth, detections, confidence=0.5):
    """The comparison of the first image, and the confusion matrix."""
    comparisons = compare_images(truth, detections, confidence)
    return comparisons[0], confusion_matrix(comparisons, len(truth["categories"])).tolist()


def test_correct_misclassified_missed_and_false_detections_are_counted():
    truth = ground_truth([(1, 1, 0, 0, 10, 10), (1, 1, 50, 0, 10, 10), (1, 2, 100, 0, 10, 10)])
    detections = entries((1, 1, 0, 0, 10, 10, 0.9), (1, 2, 50, 0, 10, 10, 0.8), (1, 2, *FAR, 0.7), (1, 1, *FAR, 0.4))
    one, matrix = compared(truth, detections)
    assert matrix == [[1, 1, 0], [0, 0, 1], [0, 1, 0]] and errors(one) == 4
    assert one.missed.tolist() == [False, True, True] and one.false.tolist() == [False, True, True]


def test_a_box_is_misclassified_only_without_a_detection_of_its_class():
    detections = entries((1, 2, 0, 0, 10, 10, 0.9), (1, 1, 1, 0, 10, 10, 0.6))
    _, matrix = compared(ground_truth([(1, 1, 0, 0, 10, 10)]), detections)
    assert matrix == [[1, 0, 0], [0, 0, 0], [0, 1, 0]]


def test_the_second_detection_of_a_box_is_false():
    detections = entries((1, 1, 0, 0, 10, 10, 0.9), (1, 1, 0, 0, 10, 9, 0.9))
    assert compared(ground_truth([(1, 1, 0, 0, 10, 10)]), detections)[1] == [[1, 0, 0], [0, 0, 0], [1, 0, 0]]


def test_a_detection_that_covers_two_boxes_finds_one_of_them():
    truth = ground_truth([(1, 1, 0, 0, 10, 10), (1, 1, 2, 0, 10, 10)])
    one, matrix = compared(truth, entries((1, 1, 0.5, 0, 10, 10, 0.9)))
    assert matrix == [[1, 0, 1], [0, 0, 0], [0, 0, 0]] and one.matched.tolist() == [0]


def test_detections_in_a_crowd_region_of_their_class_are_no_errors():
    truth = ground_truth([(1, 1, 0, 0, 100, 100, 1), (1, 1, 5, 5, 10, 10)])
    inside = entries((1, 1, 50, 50, 10, 10, 0.9), (1, 1, 5, 5, 10, 10, 0.9), (1, 1, 70, 50, 10, 10, 0.9))
    one, matrix = compared(truth, inside)
    assert matrix == [[1, 0, 0], [0, 0, 0], [0, 0, 0]] and errors(one) == 0
    assert compared(truth, entries((1, 2, 50, 50, 10, 10, 0.9)))[1] == [[0, 0, 1], [0, 0, 0], [0, 1, 0]]


def test_images_without_boxes_or_detections_are_compared_too():
    truth = ground_truth([(2, 1, 0, 0, 10, 10)], images=(1, 2, 7))
    comparisons = compare_images(truth, entries((7, 1, *FAR, 0.9)), 0.5)
    assert [errors(one) for one in comparisons] == [0, 1, 1]


@pytest.mark.parametrize("seed", range(3))
def test_rows_of_the_confusion_matrix_sum_to_boxes_and_columns_to_detections(seed):
    truth, detections = random_case(seed)
    comparisons = compare_images(truth, detections, 0.5)
    matrix, ids = confusion_matrix(comparisons, 3), [category["id"] for category in truth["categories"]]
    boxes = [a["category_id"] for a in truth["annotations"] if not a["iscrowd"]]
    assert matrix[:3].sum(1).tolist() == [boxes.count(i) for i in ids]
    labels = np.concatenate([one.detected_labels for one in comparisons])
    assert matrix[:, :3].sum(0).tolist() == [int((labels == n).sum()) for n in range(3)] and matrix[3, 3] == 0
    off_diagonal = matrix.sum() - np.trace(matrix)
    misclassified = matrix[:3, :3].sum() - np.trace(matrix[:3, :3])  # one missed box and one false detection
    assert sum(errors(one) for one in comparisons) == off_diagonal + misclassified
