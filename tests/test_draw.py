"""utils/draw.py: labels that can be read at any size and in any script, and files under any path."""

import itertools

import cv2
import numpy as np
import pytest

from utils.draw import colour_of, contact_sheet, draw_boxes, draw_labelled, put_text, text_width, write_image

GRAY = 128


def plain(height, width):
    return np.full((height, width, 3), GRAY, np.uint8)


def changed(image):
    return (image != GRAY).any(-1)


def test_input_is_not_changed_and_result_keeps_its_shape():
    image, boxes = plain(90, 120), np.array([[10.0, 30, 60, 70]])
    drawn = draw_boxes(image, boxes, [0], ["a"], [0.5])
    assert (image == GRAY).all() and boxes.tolist() == [[10, 30, 60, 70]]
    assert drawn.shape == image.shape and drawn.dtype == np.uint8 and changed(drawn).any()


def test_box_is_drawn_where_it_is_in_the_colour_of_its_class():
    drawn = draw_labelled(plain(200, 200), [[50, 60, 150, 160]], [""], [colour_of(3)])
    for x, y in ((50, 110), (150, 110), (100, 60), (100, 160), (50, 60), (150, 160)):
        assert tuple(drawn[y, x].tolist()) == colour_of(3)
    rows, columns = np.nonzero(changed(drawn))
    assert rows.min() >= 59 and rows.max() <= 161 and columns.min() >= 49 and columns.max() <= 151
    assert not changed(drawn)[70:150, 60:140].any()  # an empty text has no plate


def test_no_boxes_leave_the_picture_as_it_is():
    assert (draw_boxes(plain(40, 40), np.zeros((0, 4)), [], ["a"], []) == GRAY).all()


@pytest.mark.parametrize("height, width", [(1, 1), (8, 300), (300, 8), (32, 32), (2000, 3000)])
def test_any_size_of_picture_and_boxes_far_outside(height, width):
    boxes = [[-1e9, -50, 1e9, 4], [width - 1, height - 1, width + 99, height + 99], [-9, -9, -5, -5], [2, 2, 2, 2]]
    drawn = draw_boxes(
        plain(height, width), boxes, [0, 1, 2, 3], ["a", "b", "c", "a very long name" * 9], [1, 0.5, 0, 0.2]
    )
    assert drawn.shape == (height, width, 3)


@pytest.mark.parametrize("side", [100, 640, 2400])
def test_letters_grow_with_the_picture_but_never_vanish(side):
    """The plate of a label is found by its colour: its height is a fixed share of the picture, at least 11 pixels."""
    box = [[side * 0.3, side * 0.5, side * 0.9, side * 0.9]]
    drawn = draw_boxes(plain(side, side), box, [0], ["word"])
    plate = (drawn[: int(side * 0.5) - 2] == colour_of(0)).all(-1)
    height = plate.any(1).sum()
    assert height >= 11 and (side < 640 or 0.025 < height / side < 0.05)


def test_many_boxes_get_smaller_letters():
    boxes = [[10 + 60 * i, 100, 60 + 60 * i, 200] for i in range(40)]
    heights = []
    for count in (2, 40):
        drawn = draw_boxes(plain(1500, 2500), boxes[:count], [0] * count, ["a"])
        heights.append((drawn[:98] == colour_of(0)).all(-1).any(1).sum())
    assert heights[1] < heights[0]


def test_label_at_the_upper_edge_lies_inside_the_picture():
    drawn = draw_boxes(plain(300, 300), [[100, 0, 200, 100]], [0], ["name"])
    assert changed(drawn)[3:14, 104:130].mean() > 0.9
    drawn = draw_boxes(plain(300, 300), [[100, 0, 200, 299]] * 2, [0, 1], ["one", "two"])
    for label in range(2):
        assert (drawn == colour_of(label)).all(
            -1
        ).sum() > 100  # above and below are outside, there are two places inside


def test_label_at_the_right_edge_is_moved_into_the_picture():
    drawn = draw_boxes(plain(300, 300), [[290, 100, 299, 150]], [0], ["a long name"])
    assert (drawn[:98] == colour_of(0)).all(-1).any(0).sum() > 60


def test_labels_of_overlapping_boxes_do_not_hide_each_other():
    boxes = [[50, 100, 200, 200], [50, 100, 200, 205]]
    drawn = draw_boxes(plain(300, 300), boxes, [0, 1], ["aaaa", "bbbb"], [0.9, 0.8])
    for label in (0, 1):
        assert (drawn == colour_of(label)).all(-1).sum() > 600


def test_best_label_has_the_first_choice_of_place():
    for scores, top in (([0.9, 0.1], 0), ([0.1, 0.9], 1)):
        drawn = draw_boxes(plain(300, 300), [[50, 100, 200, 200]] * 2, [0, 1], ["aaaa", "bbbb"], scores)
        above, inside = drawn[85:97, 52:90], drawn[104:114, 54:90]
        for part, label in ((above, top), (inside, 1 - top)):
            assert (part == colour_of(label)).all(-1).mean() > 0.3


def test_best_box_is_drawn_on_top():
    boxes, classes = [[50, 50, 150, 150]] * 2, ["", ""]
    for scores, top in (([0.9, 0.1], 0), ([0.1, 0.9], 1)):
        drawn = draw_boxes(plain(200, 200), boxes, [0, 1], classes, scores)
        assert tuple(drawn[150, 100].tolist()) == colour_of(top)


@pytest.mark.parametrize("word", ["红细胞", "Ünïcödé", "кошка", "ねこ", "고양이"])
def test_every_script_is_drawn_and_no_two_letters_alike(word):
    """A font without a letter draws the same sign (a box, a question mark) for all of them."""
    if not hasattr(cv2, "FontFace"):
        pytest.skip("OpenCV 4: depends on the fonts of the machine")
    seen = set()
    for letter in set(word):
        image = plain(60, 80)
        put_text(image, letter, 10, 45, 36, (0, 0, 0))
        assert changed(image).sum() > 40
        seen.add(image.tobytes())
    assert len(seen) == len(set(word))
    assert text_width(word, 36) > text_width(word[:-1], 36) > 0


def test_without_the_font_of_opencv_5_pillow_writes(monkeypatch):
    monkeypatch.delattr(cv2, "FontFace", raising=False)
    assert text_width("wide", 30) > text_width("wi", 30) > 10
    image = plain(60, 120)
    put_text(image, "wide", 10, 45, 30, (255, 0, 0))
    rows, columns = np.nonzero(changed(image))
    assert 9 <= columns.min() <= 14 and abs(rows.max() - 44) <= 2 and rows.min() > 10
    assert image[..., 0].max() == 255 and image[..., 2].min() == 0  # blue: the order of the channels is kept
    assert changed(draw_boxes(plain(90, 90), [[5, 40, 60, 80]], [0], ["a"], [0.5])).any()


def test_colours_are_stable_distinct_and_visible():
    colours = [colour_of(label) for label in range(80)]
    assert colours[:3] == [(46, 58, 255), (255, 94, 46), (46, 255, 155)]  # pictures of last year look the same
    assert len(set(colours)) == 80
    for a, b in itertools.combinations(colours[:8], 2):
        assert np.abs(np.subtract(a, b)).sum() > 60


def test_contact_sheet_keeps_pictures_whole_and_in_order():
    colours = [(255, 0, 0), (0, 255, 0), (0, 0, 255)]
    images = [np.full((40, 60, 3), colour, np.uint8) for colour in colours]
    sheet = contact_sheet(images, 2)
    places = [np.nonzero((sheet == colour).all(-1)) for colour in colours]
    assert [(len(set(rows)), len(set(columns))) for rows, columns in places] == [(40, 60)] * 3
    assert places[0][0][0] == places[1][0][0] < places[2][0][0] and places[0][1][0] == places[2][1][0] < places[1][1][0]


def test_contact_sheet_shrinks_large_pictures_and_keeps_their_shape():
    sheet = contact_sheet([np.zeros((1000, 2000, 3), np.uint8), np.zeros((2000, 1000, 3), np.uint8)], 2, longest=100)
    dark = (sheet == 0).all(-1)
    left, right = dark[:, : dark.shape[1] // 2], dark[:, dark.shape[1] // 2 :]
    assert (left.any(1).sum(), left.any(0).sum()) == (50, 100) and (right.any(1).sum(), right.any(0).sum()) == (100, 50)


def test_contact_sheet_of_one_and_of_none():
    assert contact_sheet([plain(30, 30)], 4).shape == (46, 46, 3)
    with pytest.raises(ValueError, match="at least one"):
        contact_sheet([], 4)


@pytest.mark.parametrize("name", ["图片/红 细胞 (1).png", "a.JPG", "b/c/d.webp"])
def test_images_are_written_under_any_path(tmp_path, name):
    image = draw_boxes(plain(50, 60), [[5, 20, 40, 40]], [0], ["a"])
    write_image(tmp_path / name, image)
    read = cv2.imdecode(np.frombuffer((tmp_path / name).read_bytes(), np.uint8), cv2.IMREAD_COLOR)
    assert read.shape == image.shape and np.abs(read.astype(int) - image).mean() < 10


@pytest.mark.parametrize("name", ["a.xyz", "a"])
def test_unknown_endings_are_refused_with_the_cure(tmp_path, name):
    with pytest.raises(ValueError, match="use .jpg or .png"):
        write_image(tmp_path / name, plain(5, 5))
    assert not (tmp_path / name).exists()
