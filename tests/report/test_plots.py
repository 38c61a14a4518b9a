"""report/plots.py: the curves of a run, without a warning."""

import warnings

import cv2
import numpy as np
import pytest

from report.plots import draw_curves


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
