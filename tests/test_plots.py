"""report/plots.py: plots for any number of classes and any class name, without a warning; the matching of the error analysis."""

import time
import warnings
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from test_metrics import entries, ground_truth, random_case

from report import plots
from report.comparison import compare_images, confusion_matrix
from report.plots import draw_confusion, draw_curves, draw_precision_recall
from utils.draw import color_of
from utils.matches import match_classes
from utils.metrics import curves

FAR = (400, 400, 10, 10)
ODD_NAMES = ["红细胞", "cat\ud800", "$a_b$ $", "_hidden", "a\nb", "%s {0}", "x" * 3000, ""]


@pytest.fixture(autouse=True)
def warnings_are_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def image_of(path):
    image = cv2.imread(str(path))
    path.unlink()
    assert not list(path.parent.glob(".*"))  # the temporary file is gone
    return image


def perfect_curves(classes, misses=()):
    """One box per class, each with a detection; in classes of `misses` it is far from the box."""
    boxes = [(1, i, 20 * i, 0, 10, 10) for i in range(1, len(classes) + 1)]
    detections = entries(*[(*box[:2], 9999 if box[1] in misses else box[2], *box[3:], 0.9) for box in boxes])
    return curves(match_classes(ground_truth(boxes, classes), detections))


@pytest.mark.parametrize("names", [[], ODD_NAMES, [f"class {i}" for i in range(40)]], ids=["none", "odd", "40"])
def test_any_class_names_are_drawn(tmp_path, names):
    draw_precision_recall(perfect_curves(names), tmp_path / "a.png")
    assert min(image_of(tmp_path / "a.png").shape[:2]) > 600
    draw_confusion(np.eye(len(names) + 1, dtype=int), names, tmp_path / "b.png")
    image = image_of(tmp_path / "b.png")
    assert 500 < image.shape[0] == image.shape[1] < 2000 and image.std() > 5


def test_a_correct_class_has_a_higher_precision_recall_curve(tmp_path):
    """C0, the color of the best class, lies at the top of the axes, C1, the color of the worst, at the bottom."""
    draw_precision_recall(perfect_curves(["good", "bad"], misses=[2]), tmp_path / "a.png")
    image = image_of(tmp_path / "a.png")[:, :700].astype(int)
    best, worst = ((abs(image - color[::-1]).sum(-1) < 30).nonzero()[0] for color in ((31, 119, 180), (255, 127, 14)))
    assert best.min() < 60 and len(best) > 500
    assert worst.min() > 560 and len(worst) > 500


@pytest.mark.parametrize("classes", [1, 31])
def test_confusion_matrix_colors_the_cell_of_the_count(tmp_path, classes):
    empty = np.zeros((classes + 1, classes + 1), int)
    draw_confusion(empty, ["name"] * classes, tmp_path / "a.png")
    blank, centers = image_of(tmp_path / "a.png"), []
    for row, column in ((0, 0), (0, classes), (classes, 0)):
        matrix = empty.copy()
        matrix[row, column] = 9
        draw_confusion(matrix, ["name"] * classes, tmp_path / "a.png")
        rows, columns = np.nonzero((image_of(tmp_path / "a.png") != blank).any(-1))
        centers.append((np.median(rows), np.median(columns)))
    correct, missed, false = centers
    assert correct[0] == pytest.approx(missed[0], abs=2) and missed[1] > correct[1] + 100
    assert correct[1] == pytest.approx(false[1], abs=2) and false[0] > correct[0] + 100


def test_confusion_matrix_of_four_thousand_classes_is_fast_and_shows_single_errors(tmp_path):
    matrix, names = np.zeros((4001, 4001), np.int32), ["x" * 3000] * 4000
    draw_confusion(matrix, names, tmp_path / "blank.png")
    matrix[1234, 2345] = 1
    start = time.process_time()
    draw_confusion(matrix, names, tmp_path / "a.png")
    assert time.process_time() - start < 10
    assert (image_of(tmp_path / "a.png") != image_of(tmp_path / "blank.png")).any()


def rows_of(epochs):
    rows = [{"epoch": n + 1, "loss": 9 - n / epochs, "loss_box": 2.0, "learning_rate": 0.01} for n in range(epochs)]
    return [row | ({"AP": 0.3, "AP50": 0.5, "val_loss": float("nan")} if row["epoch"] % 2 else {}) for row in rows]


def test_training_curves_are_the_same_from_numbers_and_from_text(tmp_path):
    draw_curves(rows_of(100), tmp_path / "a.png", {"thaw": 2, "no augmentation": 500})
    image = image_of(tmp_path / "a.png")
    assert image.shape[0] > 600 and image.std() > 5
    text = [{name: str(value) for name, value in row.items()} for row in rows_of(100)]
    draw_curves(text, tmp_path / "a.png", {"thaw": 2})  # a phase beyond the last epoch is not drawn
    assert np.array_equal(image_of(tmp_path / "a.png"), image)


def test_training_curves_of_one_epoch_are_drawn(tmp_path):
    draw_curves(rows_of(1), tmp_path / "a.png")
    assert image_of(tmp_path / "a.png").std() > 5


def test_fonts_with_chinese_characters_are_used_if_installed(monkeypatch):
    from matplotlib import font_manager

    monkeypatch.setattr(font_manager, "get_font_names", lambda: ["SimHei", "Other"])
    assert plots._fonts.__wrapped__() == ["DejaVu Sans", "SimHei"]


def compared(truth, detections, confidence=0.5):
    """The comparison of the first image, and the confusion matrix."""
    comparisons = compare_images(truth, detections, confidence)
    return comparisons[0], confusion_matrix(comparisons, len(truth["categories"])).tolist()


def test_correct_misclassified_missed_and_false_detections_are_counted():
    truth = ground_truth([(1, 1, 0, 0, 10, 10), (1, 1, 50, 0, 10, 10), (1, 2, 100, 0, 10, 10)])
    detections = entries((1, 1, 0, 0, 10, 10, 0.9), (1, 2, 50, 0, 10, 10, 0.8), (1, 2, *FAR, 0.7), (1, 1, *FAR, 0.4))
    one, matrix = compared(truth, detections)
    assert matrix == [[1, 1, 0], [0, 0, 1], [0, 1, 0]] and one.errors == 4
    assert one.missed.tolist() == [False, True, True] and one.false.tolist() == [False, True, True]


def test_a_box_is_misclassified_only_without_a_detection_of_its_class():
    detections = entries((1, 2, 0, 0, 10, 10, 0.9), (1, 1, 1, 0, 10, 10, 0.6))
    _, matrix = compared(ground_truth([(1, 1, 0, 0, 10, 10)]), detections)
    assert matrix == [[1, 0, 0], [0, 0, 0], [0, 1, 0]]


def test_the_second_detection_of_a_box_is_false():
    detections = entries((1, 1, 0, 0, 10, 10, 0.9), (1, 1, 0, 0, 10, 9, 0.9))
    assert compared(ground_truth([(1, 1, 0, 0, 10, 10)]), detections)[1] == [[1, 0, 0], [0, 0, 0], [1, 0, 0]]


def test_detections_in_a_crowd_region_of_their_class_are_no_errors():
    truth = ground_truth([(1, 1, 0, 0, 100, 100, 1), (1, 1, 5, 5, 10, 10)])
    inside = entries((1, 1, 50, 50, 10, 10, 0.9), (1, 1, 5, 5, 10, 10, 0.9), (1, 1, 70, 50, 10, 10, 0.9))
    one, matrix = compared(truth, inside)
    assert matrix == [[1, 0, 0], [0, 0, 0], [0, 0, 0]] and one.errors == 0
    assert compared(truth, entries((1, 2, 50, 50, 10, 10, 0.9)))[1] == [[0, 0, 1], [0, 0, 0], [0, 1, 0]]


def test_images_without_boxes_or_detections_are_compared_too():
    truth = ground_truth([(2, 1, 0, 0, 10, 10)], images=(1, 2, 7))
    comparisons = compare_images(truth, entries((7, 1, *FAR, 0.9)), 0.5)
    assert [one.errors for one in comparisons] == [0, 1, 1]


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
    assert sum(one.errors for one in comparisons) == off_diagonal + misclassified


def test_correct_missed_and_false_boxes_have_their_colors():
    truth = ground_truth([(1, 1, 20, 40, 60, 60), (1, 1, 120, 40, 60, 60)], classes=("a",))
    one, _ = compared(truth, entries((1, 1, 20, 40, 60, 60, 0.9), (1, 1, 220, 40, 60, 60, 0.9)))
    drawn = plots.draw_errors(np.zeros((140, 300, 3), np.uint8), one, ("a",))
    colors = [tuple(drawn[100, x].tolist()) for x in (50, 150, 250)]
    assert colors == [plots.CORRECT, plots.MISSED, plots.FALSE]


class TwoImages:
    """A data set of a small and a large gray image, of the ids 70 and 9, with one box each."""

    image_ids, category_ids, classes = np.array([70, 9, 30]), np.array([5, 2]), ("a", "b")
    annotations = property(lambda self: self)

    def read(self, index):
        return SimpleNamespace(image=np.full(((100, 200), (900, 600))[index] + (3,), 90, np.uint8))

    def boxes_of(self, index):
        return np.array([[20, 40, 60, 90]]) * (1 + 5 * index), np.array([index]), np.zeros(1, bool)


def test_the_prediction_sheet_has_truth_and_detections_of_each_image_side_by_side_at_one_size():
    high = {"image_id": 9, "category_id": 5, "score": 0.8, "bbox": [60, 60, 300, 300]}
    low = {"image_id": 70, "category_id": 2, "score": 0.2, "bbox": [20, 40, 60, 50]}
    sheet = plots.prediction_sheet(TwoImages(), [high, low, {**high, "image_id": 30}], count=2)
    cells = [sheet[8:434, 8 + n * 408 :][:, :400] for n in range(4)]
    assert sheet.shape == (442, 8 + 4 * 408, 3)
    flat = [(abs(cell.astype(int) - 90) < 12).all(-1) for cell in cells]  # the images without boxes and titles
    sides = [max((one.sum(axis) > 50).sum() for axis in (0, 1)) for one in flat]
    np.testing.assert_allclose(sides, 400, atol=2)  # both images have the same longer side
    areas = [int(one.sum()) for one in flat]
    assert areas[1] == pytest.approx(400 * 200, rel=0.01)  # the low score is not drawn
    assert areas[0] < areas[1] - 100 and areas[2] < areas[1] * 4 / 3 - 100 > areas[3]
    colors = [set(map(tuple, cell.reshape(-1, 3).tolist())) for cell in cells]
    assert [[color_of(label) in one for label in (0, 1)] for one in colors] == [
        [True, False],
        [False, False],
        [False, True],
        [True, False],
    ]
