"""Transforms keep boxes over their objects, leave their inputs alone and equal the letterbox where nothing moves."""

from dataclasses import replace

import cv2
import numpy as np
import pytest
from painted import assert_under_its_box, painted_sample

from datasets.store import Sample
from datasets.transforms import (
    Augment,
    augment,
    move_boxes,
    random_affine,
    random_vertical_flips,
    shift_colors,
)
from utils.images import FILL, boxes_to_input, fit, letterbox

STILL = {"flip": 0.0, "rotation": 0.0, "scale": (1.0, 1.0), "translate": 0.0, "shear": 0.0, "hsv": (0, 0, 0)}
ROTATED = {"flip": 0.5, "rotation": 25.0, "scale": (0.4, 1.8), "translate": 0.2, "shear": 8.0, "hsv": (0, 0, 0)}
UPRIGHT = ROTATED | {"rotation": 0.0, "shear": 0.0}
MIRRORED = [{"flip": 1.0}, {"flip_vertical": 1.0}, {"flip": 1.0, "flip_vertical": 1.0}]
SIZES = [(160, 160), (96, 224), (256, 128)]


def augmented(sample, size, rng, kind, **moves):
    return augment(sample, size, rng, kind, Augment(mosaic=0, mixup=0, **moves))


def affine(rng, source, target, rotation=0.0, scale=(1, 1), translate=0.0, shear=0.0):
    return random_affine(rng, source, target, Augment(0, 0, 0, rotation, scale, translate, shear))


def noise(rng, height, width):
    return rng.integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize("kind", ["corner", "center"])
@pytest.mark.parametrize("moves", [UPRIGHT, ROTATED], ids=["upright", "rotated"])
def test_boxes_stay_over_their_objects(kind, moves):
    kept = 0
    for seed in range(50):
        rng = np.random.default_rng((1, seed))
        drawn = augmented(painted_sample(rng), SIZES[seed % 3], rng, kind, **moves)
        kept += len(drawn.boxes)
        assert drawn.boxes.dtype == np.float32 and len(drawn.boxes) == len(drawn.labels)
        assert_under_its_box(drawn.image, drawn.boxes, 0, rotated=moves is ROTATED)
    assert kept > 33


@pytest.mark.parametrize("flips", MIRRORED, ids=str)
@pytest.mark.parametrize("moves", [{"rotation": 10.0}, {"scale": (0.5, 1.5)}], ids=str)
def test_boxes_of_mirrored_images_stay_over_their_objects(moves, flips):
    for seed in range(20):
        rng = np.random.default_rng((2, seed))
        drawn = augmented(painted_sample(rng), (160, 160), rng, "corner", **(STILL | flips | moves))
        assert_under_its_box(drawn.image, drawn.boxes, 0, rotated="rotation" in moves)


@pytest.mark.parametrize("kind", ["corner", "center"])
def test_without_moves_a_sample_equals_the_letterboxed_image(kind):
    rng = np.random.default_rng(3)
    for shape in [(240, 320), (333, 500), (77, 31), (1, 1), (416, 416), (417, 299)]:
        boxes = np.array([[0, 0, shape[1], shape[0]]], np.float32)
        sample = Sample(noise(rng, *shape), boxes, np.array([4]))
        expected, transform = letterbox(sample.image, (224, 320), kind)
        drawn = augmented(sample, (224, 320), rng, kind, **STILL)
        np.testing.assert_array_equal(drawn.image, expected)
        np.testing.assert_allclose(drawn.boxes, boxes_to_input(boxes, transform), atol=1e-4)
        for flips in MIRRORED:
            mirrored = augmented(sample, (224, 320), rng, kind, **STILL | flips)
            axes = [axis for axis, name in enumerate(("flip_vertical", "flip")) if name in flips]
            flipped, _ = letterbox(np.ascontiguousarray(np.flip(sample.image, axes)), (224, 320), kind)
            np.testing.assert_array_equal(mirrored.image, flipped)


def test_nothing_is_drawn_for_mirroring_top_to_bottom_if_it_is_off():
    rng = np.random.default_rng(9)
    before = rng.bit_generator.state
    settings = Augment(mosaic=0, mixup=0, **UPRIGHT)
    assert not random_vertical_flips(rng, 4, settings).any() and rng.bit_generator.state == before
    drawn = random_vertical_flips(rng, 4000, replace(settings, flip_vertical=0.25))
    assert abs(drawn.mean() - 0.25) < 0.03 and rng.bit_generator.state != before


@pytest.mark.parametrize("moves", [{"flip": 1.0}, {"rotation": 20.0}], ids=["mirrored", "rotated"])
@pytest.mark.parametrize("zoom", [0.12, 0.3])
def test_augmentation_also_averages_images_that_shrink_to_less_than_a_half(moves, zoom):
    sample = Sample(
        noise(np.random.default_rng(7), 501, 333), np.array([[0, 0, 333, 501]], np.float32), np.zeros(1, int)
    )
    moves = STILL | {"scale": (zoom, zoom)} | moves
    drawn = augmented(sample, (501, 333), np.random.default_rng(8), "corner", **moves)
    x1, y1, x2, y2 = drawn.boxes[0].astype(int)
    middle = drawn.image[(3 * y1 + y2) // 4 : (y1 + 3 * y2) // 4, (3 * x1 + x2) // 4 : (x1 + 3 * x2) // 4].astype(float)
    assert 127.5 * (x2 - x1) / 333 < 160 and abs(middle.mean() - 127.5) < 6
    assert middle.std() < 80 * zoom + 4  # 74 * zoom for averages


@pytest.mark.parametrize("kind", ["corner", "center"])
def test_color_shifts_do_not_change_the_padding_of_a_letterboxed_image(kind):
    sample = Sample(np.full((50, 100, 3), (40, 80, 120), np.uint8), np.zeros((0, 4), np.float32), np.zeros(0, np.int64))
    inside = fit(100, 50, (128, 128), kind)[1]
    changed = 0
    for seed in range(20):
        image = augmented(sample, (128, 128), np.random.default_rng(seed), kind, **STILL | {"hsv": (5, 30, 30)}).image
        changed += bool((image[inside] != (40, 80, 120)).any())
        image[inside] = FILL
        assert (image == FILL).all()
    assert 10 <= changed < 20  # 7 of 8


@pytest.mark.parametrize("moves", [STILL, UPRIGHT, ROTATED], ids=["still", "upright", "rotated"])
@pytest.mark.parametrize("shape", [(1, 1), (1, 40), (40, 1), (3, 2), (64, 64)])
def test_tiny_images_and_images_without_boxes_work(moves, shape):
    for seed in range(8):
        image = np.full((*shape, 3), 200, np.uint8)
        for boxes in (np.zeros((0, 4), np.float32), np.array([[0, 0, shape[1], shape[0]]], np.float32)):
            rng = np.random.default_rng((4, seed))
            drawn = augmented(Sample(image, boxes, np.zeros(len(boxes), np.int64)), (96, 64), rng, "center", **moves)
            assert drawn.image.shape == (96, 64, 3) and drawn.image.dtype == np.uint8
            assert drawn.boxes.shape == (len(drawn.labels), 4) and drawn.boxes.dtype == np.float32
            assert drawn.labels.dtype == np.int64
            if shape == (1, 1) and moves is STILL:
                assert len(drawn.boxes) == len(boxes) and (drawn.image == 200).all(2).any()


@pytest.mark.parametrize("moves", [STILL | {"flip": 1.0}, UPRIGHT, ROTATED], ids=["still", "upright", "rotated"])
def test_inputs_are_not_changed(moves):
    moves = moves | {"hsv": (5, 30, 30)}
    for seed in range(10):
        rng = np.random.default_rng((5, seed))
        sample = Sample(noise(rng, 90, 70), np.array([[5, 5, 60, 80]], np.float32), np.array([1]))
        before = [field.copy() for field in sample[:3]]
        drawn = augmented(sample, (64, 64), rng, "corner", **moves)
        for field, old, new in zip(sample[:3], before, drawn[:3], strict=True):
            np.testing.assert_array_equal(field, old)
            assert not np.shares_memory(field, new)


def test_boxes_that_are_hardly_visible_are_dropped():
    boxes = np.array([[10, 10, 10, 40], [10, 10, 30, 30], [0, 0, 100, 100], [92, 0, 192, 50], [80, 0, 180, 50]], float)
    matrix, window = np.eye(2, 3), np.array([0, 0, 200, 100])
    kept, labels = move_boxes(Sample(None, boxes.astype(np.float32), np.arange(5)), matrix, window, (100, 100))
    assert labels.tolist() == [1, 2, 4]  # 3 has 8 % left, 4 has 20 %
    np.testing.assert_array_equal(kept, [[10, 10, 30, 30], [0, 0, 100, 100], [80, 0, 100, 50]])
    tilted = affine(np.random.default_rng(0), (100, 100), (100, 100), 45, (1, 1), 0, 0)
    _, labels = move_boxes(
        Sample(None, boxes.astype(np.float32), np.arange(5)), tilted, np.array([0, 0, 9, 9]), (100, 100)
    )
    assert labels.tolist() == []  # nothing outside of the window is visible, even if rotation gives a line an area
    _, labels = move_boxes(Sample(None, boxes[1:2].astype(np.float32), np.arange(1)), 0.05 * matrix, window, (100, 100))
    assert labels.tolist() == []  # one pixel


def test_a_rotated_box_becomes_the_bounding_box_of_its_corners():
    rng = np.random.default_rng(6)
    for _ in range(50):
        matrix = affine(rng, (80, 120), (400, 400), 180, (0.5, 2), 0.1, 20)
        x1, y1 = rng.uniform(0, 60, 2)
        box = np.array([[x1, y1, x1 + 50, y1 + 15]])
        corners = box[0][[0, 1, 2, 1, 0, 3, 2, 3]].reshape(4, 2) @ matrix[:, :2].T + matrix[:, 2]
        moved, _ = move_boxes(Sample(None, box, np.zeros(1, int)), matrix, np.array([0, 0, 120, 80]), (400, 400))
        np.testing.assert_allclose(moved[0], np.concatenate([corners.min(0), corners.max(0)]).clip(0, 400), atol=1e-3)


def test_random_affine_maps_center_to_center_within_its_ranges():
    rng = np.random.default_rng(7)
    for _ in range(200):
        matrix = affine(rng, (100, 300), (60, 80), 10, (0.5, 2), 0.1, 0)
        middle = matrix[:, :2] @ (150, 50) + matrix[:, 2]
        assert (abs(middle - (40, 30)) <= (8, 6)).all()
        zoom = np.sqrt(np.linalg.det(matrix[:, :2]))
        assert 0.5 <= zoom <= 2 and abs(np.degrees(np.arcsin(matrix[1, 0] / zoom))) <= 10.001
    np.testing.assert_array_equal(affine(rng, (96, 64), (96, 64), 0, (1, 1), 0, 0), np.eye(2, 3))


def test_color_shifts_wrap_the_hue_and_clip_the_rest():
    every = np.stack(np.meshgrid(np.arange(0, 180, 5), np.arange(0, 256, 15), np.arange(0, 256, 15)), -1)
    image = cv2.cvtColor(every.reshape(1, -1, 3).astype(np.uint8), cv2.COLOR_HSV2BGR)
    hsv = cv2.cvtColor(image, cv2.COLOR_BGR2HSV).astype(int)
    seen = set()
    for seed in range(60):
        rng = np.random.default_rng(seed)
        drawn = np.rint(rng.uniform(-1, 1, 3) * (9, 40, 40)).astype(int) * (rng.random(3) < 0.5)
        shifted = image.copy()
        shift_colors(shifted, np.random.default_rng(seed), (9, 40, 40))
        expected = hsv + drawn
        expected = np.stack([expected[..., 0] % 180, *expected[..., 1:].clip(0, 255).transpose(2, 0, 1)], -1)
        back = cv2.cvtColor(expected.astype(np.uint8), cv2.COLOR_HSV2BGR)
        np.testing.assert_array_equal(shifted, back if drawn.any() else image)
        seen.add(tuple(drawn != 0))
    assert len(seen) == 8  # each of the three independently
