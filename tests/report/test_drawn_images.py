"""report/drawn_images.py: the first batches, and the contact sheet of boxes and detections."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from datasets.dataset import Item, collate
from datasets.store import evenly_spaced
from report import drawn_images
from report.drawn_images import draw_batches
from utils.draw import color_of
from utils.images import ImageError


class TwoImages:
    """A data set of a small and a large gray image, of the ids 70 and 9, with one box each."""

    image_ids, category_ids, classes = np.array([70, 9, 30]), np.array([5, 2]), ("a", "b")
    annotations = property(lambda self: self)

    def read(self, index):
        return SimpleNamespace(image=np.full(((100, 200), (900, 600))[index] + (3,), 90, np.uint8))

    def boxes_of(self, index):
        return np.array([[20, 40, 60, 90]]) * (1 + 5 * index), np.array([index]), np.zeros(1, bool)


def test_the_prediction_sheet_has_truth_and_detections_of_each_image_side_by_side_at_one_size():
    """The third image is left out: two of three, evenly spaced, are the first and the second."""
    high = {"image_id": 9, "category_id": 5, "score": 0.8, "bbox": [60, 60, 300, 300]}
    low = {"image_id": 70, "category_id": 2, "score": 0.2, "bbox": [20, 40, 60, 50]}
    sheet = drawn_images.prediction_sheet(TwoImages(), [high, low, {**high, "image_id": 30}], count=2)()
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


def test_an_image_that_has_gone_is_drawn_as_an_empty_one():
    """A drawing may not end a run whose validation images are in memory."""

    class OneGone(TwoImages):
        sizes = np.array([(100, 200), (900, 600)])

        def read(self, index):
            if index:
                raise ImageError("9.png: there is no such file")
            return super().read(index)

    assert drawn_images.prediction_sheet(OneGone(), [], count=2)().shape == (442, 8 + 4 * 408, 3)


def test_the_images_of_the_sheets_are_evenly_spaced_over_the_data_set():
    assert evenly_spaced(800, 8) == [0, 100, 200, 300, 400, 500, 600, 700]
    assert evenly_spaced(5, 8) == [0, 1, 2, 3, 4] and evenly_spaced(0, 8) == []
    for number in range(1, 40):
        gaps = np.diff([*evenly_spaced(number, 8), number])
        assert len(gaps) == min(number, 8) and gaps.min() >= 1 and np.ptp(gaps) <= 1


def batches(count):
    boxes, labels = np.array([[4, 4, 20, 20]], np.float32), np.array([0])
    images = [np.full((32, 32, 3), 10 * i, np.uint8) for i in range(count)]
    return [collate([Item(image, boxes, labels, i, np.zeros(6))] * 2) for i, image in enumerate(images)]


@pytest.mark.parametrize("stop", range(5))
def test_a_resumed_run_has_the_contact_sheets_of_an_uninterrupted_one(stop):
    """The sheet of a batch is there before its training step, so no checkpoint can lie between them."""
    whole, parts = {}, {}
    passed = list(draw_batches(batches(5), ["a"], lambda name, sheet: whole.update({name: sheet})))
    assert list(whole) == ["train_batch_1", "train_batch_2", "train_batch_3"] and len(passed) == 5
    assert all(torch.equal(a.images, b.images) for a, b in zip(passed, batches(5), strict=True))
    assert not np.array_equal(whole["train_batch_1"], whole["train_batch_2"])

    def show(name, sheet):
        parts[name] = sheet

    first = draw_batches(batches(5), ["a"], show)
    for number in range(1, stop + 1):
        next(first)
        assert len(parts) == min(number, 3)
    list(draw_batches(batches(5)[stop:], ["a"], show, begun=stop))
    assert parts.keys() == whole.keys() and all(np.array_equal(parts[name], whole[name]) for name in whole)
