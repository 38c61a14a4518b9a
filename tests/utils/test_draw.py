"""utils/draw.py: texts are readable at any image size and in any language; contact sheets; image files at any path."""

import itertools

import cv2
import numpy as np
import pytest
from refused import refused

from utils.draw import (
    MAX_TEXT,
    color_of,
    contact_sheet,
    draw_boxes,
    draw_labeled,
    drawable,
    put_text,
    text_width,
    write_image,
)

GRAY = 128


def gray(height, width):
    return np.full((height, width, 3), GRAY, np.uint8)


def changed(image):
    return (image != GRAY).any(-1)


def test_drawing_keeps_its_arguments_and_the_shape():
    image, boxes = gray(90, 120), np.array([[10.0, 30, 60, 70]])
    drawn = draw_boxes(image, boxes, [0], ["a"], [0.5])
    assert (image == GRAY).all() and boxes.tolist() == [[10, 30, 60, 70]]
    assert drawn.shape == image.shape and drawn.dtype == np.uint8 and changed(drawn).any()


def test_a_box_is_drawn_at_its_place_in_the_color_of_its_class():
    drawn = draw_labeled(gray(200, 200), [[50, 60, 150, 160]], [""], [color_of(3)])
    for x, y in ((50, 110), (150, 110), (100, 60), (100, 160), (50, 60), (150, 160)):
        assert tuple(drawn[y, x].tolist()) == color_of(3)
    rows, columns = np.nonzero(changed(drawn))
    assert rows.min() >= 59 and rows.max() <= 161 and columns.min() >= 49 and columns.max() <= 151
    assert not changed(drawn)[70:150, 60:140].any()  # an empty text has no plate


def test_the_plate_of_a_text_has_the_height_of_its_font():
    plain, large = (draw_labeled(gray(200, 200), [[50, 100, 150, 160]], ["a"], [(0, 0, 255)], 1, n) for n in (None, 40))
    assert not changed(plain)[:100, 50:70][:60].any()
    assert changed(large)[100 - 54 : 100, 50:70].all() and not changed(large)[: 100 - 54].any()


@pytest.mark.parametrize("height, width", [(1, 1), (8, 300), (300, 8), (900, 1200)])
def test_images_of_any_size_and_boxes_far_outside_are_drawn(height, width):
    boxes = [[-1e9, -50, 1e9, 4], [width - 1, height - 1, width + 99, height + 99], [-9, -9, -5, -5], [2, 2, 2, 2]]
    drawn = draw_boxes(
        gray(height, width), boxes, [0, 1, 2, 3], ["a", "b", "c", "a very long name" * 9], [1, 0.5, 0, 0.2]
    )
    assert drawn.shape == (height, width, 3)


@pytest.mark.parametrize("side", [100, 640, 1500])
def test_the_font_grows_with_the_image_from_a_minimum(side):
    """The plate of a text is found by its color: its height is a fixed fraction of the image, at least 11 pixels."""
    box = [[side * 0.3, side * 0.5, side * 0.9, side * 0.9]]
    drawn = draw_boxes(gray(side, side), box, [0], ["word"])
    plate = (drawn[: int(side * 0.5) - 2] == color_of(0)).all(-1)
    height = plate.any(1).sum()
    assert height >= 11 and (side < 640 or 0.025 < height / side < 0.05)


def test_a_text_at_the_upper_edge_lies_inside_the_image():
    drawn = draw_boxes(gray(300, 300), [[100, 0, 200, 100]], [0], ["name"])
    assert changed(drawn)[3:14, 104:130].mean() > 0.9


def test_a_text_at_the_right_edge_is_moved_into_the_image():
    drawn = draw_boxes(gray(300, 300), [[290, 100, 299, 150]], [0], ["a long name"])
    assert (drawn[:98] == color_of(0)).all(-1).any(0).sum() > 60


def test_the_best_box_is_drawn_on_top():
    boxes, classes = [[50, 50, 150, 150]] * 2, ["", ""]
    for scores, top in (([0.9, 0.1], 0), ([0.1, 0.9], 1)):
        drawn = draw_boxes(gray(200, 200), boxes, [0, 1], classes, scores)
        assert tuple(drawn[150, 100].tolist()) == color_of(top)


@pytest.mark.parametrize("word", ["红细胞", "Ünïcödé", "кошка", "ねこ", "고양이"])
def test_characters_of_every_language_look_different(word):
    """A font draws the same box or question mark for all characters that it does not have."""
    if not hasattr(cv2, "FontFace"):
        pytest.skip("OpenCV 4: depends on the installed fonts")
    seen = set()
    for character in set(word):
        image = gray(60, 80)
        put_text(image, character, 10, 45, 36, (0, 0, 0))
        assert changed(image).sum() > 40
        seen.add(image.tobytes())
    assert len(seen) == len(set(word))
    assert text_width(word, 36) > text_width(word[:-1], 36) > 0


def test_pillow_writes_text_with_opencv_4(monkeypatch):
    monkeypatch.delattr(cv2, "FontFace", raising=False)
    assert text_width("wide", 30) > text_width("wi", 30) > 10
    image = gray(60, 120)
    put_text(image, "wide", 10, 45, 30, (255, 0, 0))
    rows, columns = np.nonzero(changed(image))
    assert 9 <= columns.min() <= 14 and abs(rows.max() - 44) <= 2 and rows.min() > 10
    assert image[..., 0].max() == 255 and image[..., 2].min() == 0  # blue: the channel order is BGR
    assert changed(draw_boxes(gray(90, 90), [[5, 40, 60, 80]], [0], ["a"], [0.5])).any()


@pytest.mark.parametrize("name", ["cat\ud800", "a\nb\0c", "\x1b[0m", "", "👩‍👩‍👧", "ﷺ" * 3000, "\U0010ffff"])
def test_no_class_name_crashes_drawing(name):
    """A lone surrogate would end the process with a segmentation fault."""
    assert draw_boxes(gray(60, 80), [[5, 20, 60, 50]], [0], [name], [0.5]).shape == (60, 80, 3)
    assert len(drawable(name)) <= MAX_TEXT and drawable(drawable(name)) == drawable(name)


def test_colors_of_classes_are_stable_and_distinct():
    colors = [color_of(label) for label in range(80)]
    assert colors[:3] == [
        (46, 58, 255),
        (255, 94, 46),
        (46, 255, 155),
    ]  # images drawn by an earlier version have the same colors
    assert len(set(colors)) == 80
    for a, b in itertools.combinations(colors[:8], 2):
        assert np.abs(np.subtract(a, b)).sum() > 60


def test_a_contact_sheet_shows_whole_images_in_order():
    colors = [(255, 0, 0), (0, 255, 0), (0, 0, 255)]
    images = [np.full((40, 60, 3), color, np.uint8) for color in colors]
    sheet = contact_sheet(images, 2)
    places = [np.nonzero((sheet == color).all(-1)) for color in colors]
    assert [(len(set(rows)), len(set(columns))) for rows, columns in places] == [(40, 60)] * 3
    assert places[0][0][0] == places[1][0][0] < places[2][0][0] and places[0][1][0] == places[2][1][0] < places[1][1][0]


def test_a_contact_sheet_shrinks_large_images_and_keeps_their_aspect_ratio():
    sheet = contact_sheet([np.zeros((1000, 2000, 3), np.uint8), np.zeros((2000, 1000, 3), np.uint8)], 2, longest=100)
    dark = (sheet == 0).all(-1)
    left, right = dark[:, : dark.shape[1] // 2], dark[:, dark.shape[1] // 2 :]
    assert (left.any(1).sum(), left.any(0).sum()) == (50, 100) and (right.any(1).sum(), right.any(0).sum()) == (100, 50)


@pytest.mark.parametrize("name", ["图片/红 细胞 (1).png", "a.JPG", "b/c/d.webp"])
def test_images_are_written_at_any_path(tmp_path, name):
    image = draw_boxes(gray(50, 60), [[5, 20, 40, 40]], [0], ["a"])
    write_image(tmp_path / name, image)
    read = cv2.imdecode(np.frombuffer((tmp_path / name).read_bytes(), np.uint8), cv2.IMREAD_COLOR)
    assert read.shape == image.shape and np.abs(read.astype(int) - image).mean() < 10


@pytest.mark.parametrize("name", ["a.xyz", "a"])
def test_unknown_image_formats_are_refused_with_a_hint(tmp_path, name):
    with refused(ValueError, tmp_path / name, ".png"):
        write_image(tmp_path / name, gray(5, 5))
    assert not (tmp_path / name).exists()
