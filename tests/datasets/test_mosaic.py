"""Mosaic and mixup keep boxes over their objects, and samples are functions of their random generator."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from painted import GRAY, assert_under_its_box, painted_sample

from datasets.mosaic import Augment, make_sample, mixup, mosaic
from datasets.store import Sample
from utils.images import FILL, letterbox

ROTATED = {"flip": 0.5, "rotation": 10.0, "scale": (0.4, 1.6), "translate": 0.1, "shear": 2.0, "hsv": (0, 0, 0)}
UPRIGHT = ROTATED | {"rotation": 0.0, "shear": 0.0}
HOW = Augment(mosaic=0.5, mixup=0.5, flip=0.5, rotation=5, scale=(0.5, 1.5), translate=0.1, shear=2)
SIZES = [(160, 160), (96, 224), (256, 128)]


def noise_samples(count, seed=0):
    """Images of noise, so that no two samples are equal, each with a box of another label."""
    rng = np.random.default_rng(seed)
    shapes = rng.integers(30, 90, (count, 2))
    images = [rng.integers(0, 256, (*shape, 3), dtype=np.uint8) for shape in shapes]
    return [Sample(im, np.array([[4, 4, 25, 28]], np.float32), np.array([i])) for i, im in enumerate(images)]


def draw(samples, index, key, how=HOW, size=(64, 96), kind="corner"):
    rng = np.random.default_rng(key)
    return make_sample(samples[index], lambda: samples[rng.integers(len(samples))], rng, size, kind, how)


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("kind", ["corner", "stretch"])
@pytest.mark.parametrize("vertical", [0.0, 0.5], ids=["upright", "also upside down"])
@pytest.mark.parametrize("moves", [UPRIGHT, ROTATED], ids=["upright", "rotated"])
def test_boxes_of_a_mosaic_stay_over_their_objects(moves, kind, vertical):
    kept = 0
    sides = (90, 300)  # OpenCV 4 leaves out half a pixel at the edges of an image: 2.3 pixels if it grows 4.6 times
    for seed in range(35):
        rng = np.random.default_rng((1, seed))
        four = [painted_sample(rng, label, sides) for label in range(4)]
        sample = mosaic(four, SIZES[seed % 3], rng, kind, Augment(0, 0, **moves, flip_vertical=vertical))
        kept += len(sample.boxes)
        assert len(set(sample.labels.tolist())) == len(sample.labels) and sample.boxes.dtype == np.float32
        for label in range(4):
            boxes = sample.boxes[sample.labels == label]
            assert_under_its_box(sample.image, boxes, label, rotated=moves is ROTATED)
    assert kept > 45


@pytest.mark.parametrize("kind", ["corner", "stretch"])
def test_boxes_of_a_mixup_stay_over_their_objects(kind):
    for seed in range(30):
        rng = np.random.default_rng((2, seed))
        size = SIZES[seed % 3]
        blank = Sample(np.full((*size, 3), GRAY, np.uint8), np.zeros((0, 4), np.float32), np.zeros(0, np.int64))
        mixed = mixup(blank, painted_sample(rng), rng, kind, Augment(0, 1, **UPRIGHT, flip_vertical=0.5))
        assert_under_its_box(mixed.image, mixed.boxes, 0, rotated=False, strength=0.5)


def test_a_mixup_averages_two_images_and_keeps_all_boxes():
    rng = np.random.default_rng(3)
    first = Sample(np.full((64, 64, 3), 40, np.uint8), np.array([[1, 2, 30, 40]], np.float32), np.array([5]))
    second = Sample(np.full((32, 32, 3), 200, np.uint8), np.array([[0, 0, 32, 32]], np.float32), np.array([7]))
    mixed = mixup(first, second, rng, "corner", Augment(0, 1, **UPRIGHT))
    assert mixed.labels.tolist() == [5, 7]
    np.testing.assert_array_equal(mixed.boxes[0], first.boxes[0])
    x1, y1, x2, y2 = mixed.boxes[1].astype(int)
    assert (mixed.image[y1:y2, x1:x2] == 120).all()
    outside = mixed.image.copy()
    outside[y1:y2, x1:x2] = (40 + FILL) // 2
    assert (outside == (40 + FILL) // 2).all()


@pytest.mark.parametrize("moves", [UPRIGHT, ROTATED], ids=["upright", "rotated"])
def test_the_images_of_a_mosaic_meet_without_gap_or_overlap(moves):
    """Without translation and at a scale of at least 1, the four images cover the input."""
    moves = moves | {"scale": (1, 1.6), "translate": 0.0}
    for seed in range(15):
        rng = np.random.default_rng((4, seed))
        four = [Sample(np.full((80, 80, 3), 10 + 60 * i, np.uint8), np.zeros((0, 4)), np.zeros(0)) for i in range(4)]
        image = mosaic(four, (160, 160), rng, "corner", Augment(0, 0, **moves)).image.astype(int)[..., 0]
        covered = [(abs(image - (10 + 60 * i)) <= 1).mean() for i in range(4)]
        seams = 1 - sum(covered)
        assert seams < (0.05 if moves["rotation"] else 1e-9)  # the blur of two edges of 160 pixels, one or two wide
        assert (image >= 10).all() and (image <= 190).all()


def test_stretched_images_have_the_aspect_ratio_of_the_input():
    """Objects of a training have the shape that they have in an evaluation."""
    boxes, size = np.array([[10, 10, 30, 30]], np.float32), (64, 128)
    square = Sample(np.zeros((40, 40, 3), np.uint8), boxes, np.zeros(1, np.int64))
    still = UPRIGHT | {"scale": (1, 1), "translate": 0.0}
    samples = [
        mosaic([square] * 4, size, np.random.default_rng(s), "stretch", Augment(0, 0, **still)) for s in range(9)
    ]
    blank = Sample(np.zeros((*size, 3), np.uint8), np.zeros((0, 4), np.float32), np.zeros(0, np.int64))
    samples += [mixup(blank, square, np.random.default_rng(s), "stretch", Augment(0, 1, **still)) for s in range(9)]
    found = np.concatenate([sample.boxes for sample in samples])
    whole = found[(found[:, :2] > 0).all(1) & (found[:, 2:] < size[::-1]).all(1)]
    sides = whole[:, 2:] - whole[:, :2]
    assert len(whole) > 8 and (abs(sides[:, 0] - 2 * sides[:, 1]) < 2.1).all()


@pytest.mark.parametrize("shape", [(1, 1), (1, 50), (50, 1), (2, 3)])
@pytest.mark.parametrize("rotation", [0.0, 10.0])
def test_tiny_images_and_images_without_boxes_work(shape, rotation):
    """Without boxes, arrays are empty with the right shape and type."""
    sample = Sample(np.full((*shape, 3), 9, np.uint8), np.zeros((0, 4), np.float32), np.zeros(0, np.int64))
    for position in range(30):
        how = replace(HOW, mosaic=1.0, mixup=1.0, rotation=rotation, shear=0.0)
        result = draw([sample], 0, (0, 0, position), how, kind="center")
        assert result.image.shape == (64, 96, 3)
        assert result.boxes.shape == (0, 4) and result.boxes.dtype == np.float32
        assert result.labels.shape == (0,) and result.labels.dtype == np.int64


def test_random_draws_do_not_depend_on_the_pixels():
    """Images that are decoded smaller get the same partners, geometry and colors."""
    drawn = {}
    for seed in (0, 1):
        samples, drawn[seed] = noise_samples(9, seed), []

        def partner(rng, samples=samples, log=drawn[seed]):
            log.append((int(rng.integers(9)), rng.random()))
            return samples[log[-1][0]]

        for position in range(40):
            rng = np.random.default_rng((0, 0, position))
            make_sample(samples[0], partial(partner, rng), rng, (64, 64), "corner", HOW)
            drawn[seed].append(rng.random())
    assert drawn[0] == drawn[1]


def test_mosaic_and_mixup_have_their_probabilities():
    samples = noise_samples(5)
    drawn = []
    for position in range(400):
        fetched, rng = [], np.random.default_rng((0, 0, position))

        def partner(rng=rng, fetched=fetched):
            fetched.append(1)
            return samples[rng.integers(5)]

        make_sample(samples[0], partner, rng, (32, 32), "corner", replace(HOW, mosaic=0.7, mixup=0.2))
        drawn.append(len(fetched))
    counts = np.bincount(drawn, minlength=5) / 400  # 0: neither, 1: mixup, 3: mosaic, 4: both
    np.testing.assert_allclose(counts, [0.24, 0.06, 0, 0.56, 0.14], atol=0.08)
    assert counts[2] == 0


@pytest.mark.parametrize("kind", ["corner", "center"])
def test_samples_without_geometry_equal_those_of_evaluation(kind):
    samples = noise_samples(3)
    how = replace(HOW, mosaic=1.0, mixup=1.0, flip=0.0, hsv=(0, 0, 0)).without_geometry()
    for index in range(3):
        sample = draw(samples, index, (0, 0, index), how, kind=kind)
        np.testing.assert_array_equal(sample.image, letterbox(samples[index].image, (64, 96), kind)[0])
        assert sample.labels.tolist() == [index]
    assert (HOW.without_geometry().flip, HOW.without_geometry().hsv) == (HOW.flip, HOW.hsv)


def test_nothing_outside_of_the_canvas_is_visible():
    four = [Sample(np.full((80, 80, 3), 200, np.uint8), np.array([[0, 0, 80, 80]], np.float32), np.zeros(1, int))] * 4
    for seed in range(20):
        # the canvas takes half of the input's sides
        moves = UPRIGHT | {"scale": (0.25, 0.25), "translate": 0.0, "flip_vertical": 0.5}
        sample = mosaic(four, (160, 160), np.random.default_rng(seed), "corner", Augment(0, 0, **moves))
        assert (sample.image[:40] == FILL).all() and (sample.image[:, 120:] == FILL).all()
        assert (sample.boxes >= 39.5).all() and (sample.boxes <= 120.5).all()


@pytest.mark.parametrize("flip", [0.0, 1.0])
def test_flip_is_the_probability_of_mirrored_images(flip):
    right_half = np.array([[40, 0, 80, 80]], np.float32)
    four = [Sample(np.zeros((80, 80, 3), np.uint8), right_half, np.array([i])) for i in range(4)]
    still = UPRIGHT | {"scale": (0.5, 0.5), "translate": 0.0, "flip": flip}  # all of the canvas
    for seed in range(10):
        seam = 80 * np.random.default_rng(seed).uniform(0.5, 1.5)
        sample = mosaic(four, (160, 160), np.random.default_rng(seed), "corner", Augment(0, 0, **still))
        left, right = (sample.boxes[sample.labels == i] for i in (0, 1))  # at the seam: one of them, always seen
        assert abs((right[0, 0] if flip else left[0, 2]) - seam) < 1
