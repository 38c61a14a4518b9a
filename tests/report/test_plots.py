"""report/plots.py: plots for any number of classes and any class name, without a warning."""

import time
import warnings

import cv2
import numpy as np
import pytest
from coco_cases import entries, ground_truth

from metrics.coco import curves
from metrics.matches import match_classes
from report import plots
from report.plots import draw_confusion, draw_curves, draw_precision_recall

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


@pytest.mark.parametrize("classes", [1, pytest.param(31, marks=pytest.mark.slow)])
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
