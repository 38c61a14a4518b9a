from dataclasses import replace

import numpy as np
import pytest
from painted import GRAY, assert_under_its_box, picture

from datasets.annotations import Sample
from datasets.mosaic import Augment, draw_sample, mixup, mosaic
from datasets.transforms import FILL, letterbox

TURNED = {"flip": 0.5, "rotation": 10.0, "scale": (0.4, 1.6), "translate": 0.1, "shear": 2.0, "hsv": (0, 0, 0)}
UPRIGHT = TURNED | {"rotation": 0.0, "shear": 0.0}
HOW = Augment(mosaic=0.5, mixup=0.5, flip=0.5, rotation=5, scale=(0.5, 1.5), translate=0.1, shear=2)
SIZES = [(160, 160), (96, 224), (256, 128)]


def pictures(count, seed=0):
    """Noise, so that no two draws look the same, each picture with a box of its own label."""
    rng = np.random.default_rng(seed)
    shapes = rng.integers(30, 90, (count, 2))
    images = [rng.integers(0, 256, (*shape, 3), dtype=np.uint8) for shape in shapes]
    return [Sample(im, np.array([[4, 4, 25, 28]], np.float32), np.array([i])) for i, im in enumerate(images)]


def drawn(samples, index, key, how=HOW, size=(64, 96), kind="corner"):
    def partner(rng):
        return samples[rng.integers(len(samples))]

    return draw_sample(samples.__getitem__, index, partner, np.random.default_rng(key), size, kind, how)


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("moves", [UPRIGHT, TURNED], ids=["upright", "turned"])
def test_four_painted_rectangles_stay_under_their_boxes(moves):
    kept = 0
    for seed in range(250):
        rng = np.random.default_rng((1, seed))
        four = [picture(rng, label) for label in range(4)]
        sample = mosaic(four, SIZES[seed % 3], rng, **moves)
        kept += len(sample.boxes)
        assert len(set(sample.labels.tolist())) == len(sample.labels) and sample.boxes.dtype == np.float32
        for label in range(4):
            boxes = sample.boxes[sample.labels == label]
            assert_under_its_box(sample.image, boxes, label, turned=moves is TURNED)
    assert kept > 350


def test_painted_rectangles_stay_under_their_boxes_in_a_mixup():
    for seed in range(150):
        rng = np.random.default_rng((2, seed))
        size = SIZES[seed % 3]
        blank = Sample(np.full((*size, 3), GRAY, np.uint8), np.zeros((0, 4), np.float32), np.zeros(0, np.int64))
        mixed = mixup(blank, picture(rng), rng, 0.5, (0, 0, 0))
        assert_under_its_box(mixed.image, mixed.boxes, 0, turned=False, strength=0.5)


def test_a_mixup_is_half_and_half_and_has_the_boxes_of_both():
    rng = np.random.default_rng(3)
    first = Sample(np.full((64, 64, 3), 40, np.uint8), np.array([[1, 2, 30, 40]], np.float32), np.array([5]))
    second = Sample(np.full((32, 32, 3), 200, np.uint8), np.array([[0, 0, 32, 32]], np.float32), np.array([7]))
    mixed = mixup(first, second, rng, 0.5, (0, 0, 0))
    assert mixed.labels.tolist() == [5, 7]
    np.testing.assert_array_equal(mixed.boxes[0], first.boxes[0])
    x1, y1, x2, y2 = mixed.boxes[1].astype(int)
    assert (mixed.image[y1:y2, x1:x2] == 120).all()
    outside = mixed.image.copy()
    outside[y1:y2, x1:x2] = (40 + FILL) // 2
    assert (outside == (40 + FILL) // 2).all()


@pytest.mark.parametrize("moves", [UPRIGHT, TURNED], ids=["upright", "turned"])
def test_the_pictures_of_a_mosaic_meet_without_a_gap_and_do_not_overlap(moves):
    """Drawn without translation and never smaller than the input, the input is full where the pictures reach."""
    moves = moves | {"scale": (1, 1.6), "translate": 0.0}
    for seed in range(40):
        rng = np.random.default_rng((4, seed))
        four = [Sample(np.full((80, 80, 3), 10 + 60 * i, np.uint8), np.zeros((0, 4)), np.zeros(0)) for i in range(4)]
        image = mosaic(four, (160, 160), rng, **moves).image.astype(int)[..., 0]
        shares = [(abs(image - (10 + 60 * i)) <= 1).mean() for i in range(4)]
        seams = 1 - sum(shares)
        assert seams < (0.05 if moves["rotation"] else 1e-9)  # the blur of two edges of 160 pixels, one or two wide
        assert (image >= 10).all() and (image <= 190).all()


def test_all_of_a_mosaic_keeps_its_place():
    """Top left, top right, bottom left, bottom right, as they are passed."""
    four = [Sample(np.full((80, 80, 3), 50 * i, np.uint8), np.zeros((0, 4)), np.zeros(0)) for i in range(4)]
    still = UPRIGHT | {"scale": (0.5, 0.5), "translate": 0.0}
    for seed in range(20):
        image = mosaic(four, (128, 128), np.random.default_rng(seed), **still).image[..., 0].astype(int)
        rows, columns = (np.array([np.argwhere(image == 50 * i).mean(0) for i in range(4)])).T
        assert rows[0] < rows[2] and rows[1] < rows[3] and columns[0] < columns[1] and columns[2] < columns[3]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_one_two_or_three_pictures_are_enough(count):
    """PITFALLS 18: partners repeat."""
    how = replace(HOW, mosaic=1.0, mixup=1.0)
    for position in range(20):
        sample = drawn(pictures(count), position % count, (0, 0, position), how)
        assert sample.image.shape == (64, 96, 3) and len(sample.boxes) == len(sample.labels)


@pytest.mark.parametrize("shape", [(1, 1), (1, 50), (50, 1), (2, 3)])
@pytest.mark.parametrize("rotation", [0.0, 10.0])
def test_tiny_pictures_and_pictures_without_boxes_work(shape, rotation):
    """PITFALLS 12 on the data's side: no box at all is an empty array of the right shape and kind."""
    sample = Sample(np.full((*shape, 3), 9, np.uint8), np.zeros((0, 4), np.float32), np.zeros(0, np.int64))
    for position in range(30):
        how = replace(HOW, mosaic=1.0, mixup=1.0, rotation=rotation, shear=0.0)
        result = drawn([sample], 0, (0, 0, position), how, kind="centre")
        assert result.image.shape == (64, 96, 3)
        assert result.boxes.shape == (0, 4) and result.boxes.dtype == np.float32
        assert result.labels.shape == (0,) and result.labels.dtype == np.int64


def test_augmentations_repeat_for_the_same_key_and_differ_for_others():
    """PITFALLS 6: (seed, epoch, position) decides; the order of the draws and what was drawn before do not."""
    samples = pictures(7)
    keys = [(seed, epoch, position) for seed in range(2) for epoch in range(3) for position in range(7)]
    first = {key: drawn(samples, key[2], key) for key in keys}
    again = {key: drawn(samples, key[2], key) for key in reversed(keys)}
    assert all(same(first[key], again[key]) for key in keys)
    assert len({sample.image.tobytes() for sample in first.values()}) == len(keys)
    repeated = [drawn(samples, 0, (0, 0, position)).image.tobytes() for position in (0, 7)]
    assert repeated[0] != repeated[1]  # a picture that fills up the last batch is drawn anew


def test_draws_do_not_depend_on_what_the_pictures_are():
    """The same partners, geometry and colours are drawn for other pixels: reduced decoding keeps the stream."""
    asked = {}
    for seed in (0, 1):
        samples, asked[seed] = pictures(9, seed), []

        def partner(rng, samples=samples, log=asked[seed]):
            log.append((int(rng.integers(9)), rng.random()))
            return samples[log[-1][0]]

        for position in range(40):
            rng = np.random.default_rng((0, 0, position))
            draw_sample(samples.__getitem__, 0, partner, rng, (64, 64), "corner", HOW)
            asked[seed].append(rng.random())
    assert asked[0] == asked[1]


def test_mosaic_and_mixup_come_as_often_as_asked():
    samples = pictures(5)
    asked = []
    for position in range(400):
        fetched = []

        def partner(rng, fetched=fetched):
            fetched.append(1)
            return samples[rng.integers(5)]

        rng = np.random.default_rng((0, 0, position))
        draw_sample(samples.__getitem__, 0, partner, rng, (32, 32), "corner", replace(HOW, mosaic=0.7, mixup=0.2))
        asked.append(len(fetched))
    counts = np.bincount(asked, minlength=5) / 400  # 0: neither, 1: mixup, 3: mosaic, 4: both
    np.testing.assert_allclose(counts, [0.24, 0.06, 0, 0.56, 0.14], atol=0.08)
    assert counts[2] == 0


@pytest.mark.parametrize("how", [HOW, replace(HOW, mosaic=1.0, mixup=1.0), replace(HOW, rotation=0, shear=0)], ids=str)
def test_inputs_are_never_changed(how):
    samples = pictures(4)
    before = [[field.copy() for field in sample] for sample in samples]
    for sample in samples:
        sample.image.flags.writeable = False  # as pictures of a shared cache are
    for position in range(20):
        result = drawn(samples, position % 4, (0, 0, position), how)
        assert not any(np.shares_memory(result.image, sample.image) for sample in samples)
    for sample, old in zip(samples, before, strict=True):
        assert same(sample, old)


@pytest.mark.parametrize("kind", ["corner", "centre"])
def test_plain_samples_are_those_of_evaluation(kind):
    samples = pictures(3)
    how = replace(HOW, mosaic=1.0, mixup=1.0, flip=0.0, hsv=(0, 0, 0)).plain()
    for index in range(3):
        sample = drawn(samples, index, (0, 0, index), how, kind=kind)
        np.testing.assert_array_equal(sample.image, letterbox(samples[index].image, (64, 96), kind)[0])
        assert sample.labels.tolist() == [index]
    assert (HOW.plain().flip, HOW.plain().hsv) == (HOW.flip, HOW.hsv)


def test_nothing_is_seen_beyond_the_canvas():
    four = [Sample(np.full((80, 80, 3), 200, np.uint8), np.array([[0, 0, 80, 80]], np.float32), np.zeros(1, int))] * 4
    for seed in range(20):
        moves = UPRIGHT | {"scale": (0.25, 0.25), "translate": 0.0}  # the canvas takes half of the input's sides
        sample = mosaic(four, (160, 160), np.random.default_rng(seed), **moves)
        assert (sample.image[:40] == FILL).all() and (sample.image[:, 120:] == FILL).all()
        assert (sample.boxes >= 39.5).all() and (sample.boxes <= 120.5).all()


@pytest.mark.parametrize("flip", [0.0, 1.0])
def test_flip_is_the_share_of_mirrored_pictures(flip):
    right_half = np.array([[40, 0, 80, 80]], np.float32)
    four = [Sample(np.zeros((80, 80, 3), np.uint8), right_half, np.array([i])) for i in range(4)]
    still = UPRIGHT | {"scale": (0.5, 0.5), "translate": 0.0, "flip": flip}  # all of the canvas
    for seed in range(10):
        seam = 80 * np.random.default_rng(seed).uniform(0.5, 1.5)
        sample = mosaic(four, (160, 160), np.random.default_rng(seed), **still)
        left, right = (sample.boxes[sample.labels == i] for i in (0, 1))  # at the seam: one of them, always seen
        assert abs((right[0, 0] if flip else left[0, 2]) - seam) < 1


def test_the_second_picture_of_a_mixup_is_anywhere_and_of_any_size():
    blank = Sample(np.zeros((100, 100, 3), np.uint8), np.zeros((0, 4), np.float32), np.zeros(0, np.int64))
    second = Sample(np.zeros((50, 50, 3), np.uint8), np.array([[24, 24, 26, 26]], np.float32), np.zeros(1, np.int64))
    boxes = np.concatenate([mixup(blank, second, np.random.default_rng(s), 0.5, (0, 0, 0)).boxes for s in range(200)])
    middles, sides = (boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]
    assert (middles.std(0) > 8).all() and (abs(middles.mean(0) - 50) < 5).all()
    assert 1.9 <= sides.min() < 2.5 and 5.5 < sides.max() <= 6.5  # .5 to 1.5 of the letterboxed 4 pixels
