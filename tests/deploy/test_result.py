"""Result: its arrays, rows and drawing belong together, and the image is there without holding it in memory."""

import gc
import weakref

import cv2
import numpy as np
import pytest
from files import noise
from lively import lively_checkpoint
from refused import refused

from deploy.detector import Detector, Result
from utils.draw import draw_boxes
from utils.images import ImageError

LOW = {"confidence": 0.3, "device": "cpu"}
NAMES = ("red", "blue", "red")


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return lively_checkpoint(tmp_path_factory.mktemp("weights") / "best.pt")


def three(**more) -> Result:
    boxes = np.array([[1, 2, 30, 40], [5.5, 6, 50, 44], [60, 10, 80, 50]], np.float32)
    return Result(boxes, np.array([0.9, 0.75, 0.5], np.float32), np.array([0, 1, 0]), NAMES, **more)


def test_rows_hold_plain_numbers_and_names_that_json_and_tables_take():
    rows = three().rows()
    assert [list(row) for row in rows] == [["x1", "y1", "x2", "y2", "score", "class"]] * 3
    assert rows[1] == {"x1": 5.5, "y1": 6.0, "x2": 50.0, "y2": 44.0, "score": 0.75, "class": "blue"}
    assert {type(value) for row in rows for value in row.values()} == {float, str}
    assert three()[:0].rows() == []


@pytest.mark.parametrize(
    "index, kept",
    [
        (1, [1]),
        (-1, [2]),
        (slice(2), [0, 1]),
        (np.array([True, False, True]), [0, 2]),
        ([2, 0], [2, 0]),
        (slice(0), []),
    ],
)
def test_a_chosen_part_keeps_the_fields_of_each_detection_together(index, kept):
    every, some = three(pixels=noise()), three(pixels=noise())[index]
    assert len(some) == len(kept) and some.boxes.shape == (len(kept), 4) and some.boxes.dtype == np.float32
    assert some.rows() == [every.rows()[i] for i in kept]
    assert some.labels.tolist() == every.labels[kept].tolist() and some.image is not None


def test_the_drawing_is_that_of_all_other_programs_and_leaves_the_image_as_it_was():
    image, result = noise(), three()
    before, result.pixels = image.copy(), image
    drawn = result.draw()
    assert np.array_equal(drawn, draw_boxes(image, result.boxes, result.labels, ("red", "blue"), result.scores))
    assert np.array_equal(image, before) and not np.array_equal(drawn, image)


def test_results_of_files_do_not_hold_their_images(weights, tmp_path, monkeypatch):
    """A list of the results of a million files stays small."""
    read, images = Detector.read, []

    def watched(self, path):
        image = read(self, path)
        images.append(weakref.ref(image))
        return image

    monkeypatch.setattr(Detector, "read", watched)
    for number in range(4):
        cv2.imwrite(str(tmp_path / f"{number}.png"), noise(number))
    results = Detector(weights, **LOW)([tmp_path / f"{number}.png" for number in range(4)])
    gc.collect()
    assert len(images) == len(results) == 4 and not any(image() is not None for image in images)


def test_an_image_that_is_gone_is_named(weights, tmp_path):
    cv2.imwrite(str(tmp_path / "a.png"), noise())
    (result,) = Detector(weights, **LOW)(tmp_path / "a.png")
    (tmp_path / "a.png").unlink()
    with refused(ImageError, tmp_path / "a.png"):
        result.draw()
    with refused(ValueError, "result.pixels"):
        three().draw()


def test_a_notebook_shows_the_drawing_and_only_numbers_if_there_is_no_image():
    result = three(pixels=np.full((60, 90, 3), 114, np.uint8))
    shown = cv2.imdecode(np.frombuffer(result._repr_jpeg_(), np.uint8), cv2.IMREAD_COLOR)
    assert np.abs(shown.astype(int) - result.draw()).mean() < 20  # JPEG
    assert three()._repr_jpeg_() is None
    assert "0.75" in repr(result) and "pixels" not in repr(result)


def test_a_notebook_shows_an_image_that_is_too_wide_for_a_jpeg():
    shown = three(pixels=np.full((8, 66_000, 3), 114, np.uint8))._repr_jpeg_()
    assert cv2.imdecode(np.frombuffer(shown, np.uint8), cv2.IMREAD_COLOR).shape == (1, 4096, 3)


def test_supervision_gets_equal_boxes_scores_and_class_ids():
    pytest.importorskip("supervision", reason="pip install supervision")
    for result in (three(), three()[:0]):
        found = result.to_supervision()
        assert len(found) == len(result)
        np.testing.assert_array_equal(found.xyxy, result.boxes)
        np.testing.assert_array_equal(found.confidence, result.scores)
        np.testing.assert_array_equal(found.class_id, result.labels)
        assert tuple(found.data["class_name"]) == result.names
