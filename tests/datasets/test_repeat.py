"""Repeat-factor sampling: images of rare classes are drawn as often as LVIS's formula says, in an epoch of the same length."""

import numpy as np
import pytest
from files import read_annotation_file

from datasets.dataset import DetectionDataset, Key, Repeats, epoch_order, repeats_of
from datasets.loader import TrainSampler, build_loader
from datasets.mosaic import Augment

SIZE = (32, 32)


def annotations(tmp_path, rows):
    """An annotation file whose image i has boxes of the classes rows[i]; a class below 0 is a crowd region."""
    lines = []
    for number, labels in enumerate(rows):
        boxes = "".join(f" 0,0,5,5,{label if label >= 0 else f'{-label},1'}" for label in labels)
        lines.append(f"{number}.jpg{boxes}\n")
    (tmp_path / "rows.txt").write_text("".join(lines))
    return read_annotation_file(str(tmp_path / "rows.txt"), ("a", "b", "c", "none"))


def rare(tmp_path):
    """100 images: class a in 80, b in 9, c in 1 (with a); images 90 to 99 are empty."""
    return annotations(tmp_path, [[0, 0, 2], *[[0]] * 79, *[[0, 1]] * 1, *[[1]] * 8, [-2], *[[]] * 10])


def test_factors_are_those_of_the_formula(tmp_path):
    """r(c) = max(1, sqrt(t / f(c))), r(i) = the largest r(c) in the image; a crowd region does not count."""
    data = rare(tmp_path)
    assert data.images_per_class().tolist() == [81, 9, 1, 0]
    factors = repeats_of(data, 0.36).factors
    assert factors[0] == pytest.approx(6) and factors[80:89] == pytest.approx(2)
    assert (factors[1:80] == 1).all() and (factors[89:] == 1).all()
    assert repeats_of(data, 0.01) is None  # each class is in at least 1 % of the images


@pytest.mark.parametrize("length", [1, 2, 7, 100])
def test_counts_are_the_expected_ones_rounded_up_or_down(length):
    rng = np.random.default_rng(length)
    for seed in range(200):
        factors = 1 + rng.exponential(2, length) * (rng.random(length) < 0.3)
        order = epoch_order(length, seed, 0, Repeats(factors))
        counts, expected = np.bincount(order, minlength=length), length * factors / factors.sum()
        assert len(order) == length
        assert (counts >= np.floor(expected - 1e-9)).all() and (counts <= np.ceil(expected + 1e-9)).all()


def test_the_order_is_a_function_of_seed_and_epoch_and_well_mixed(tmp_path):
    orders = [epoch_order.__wrapped__(100, *key, repeats_of(rare(tmp_path), 0.36)) for key in ((0, 0), (0, 0), (0, 1))]
    assert orders[0].tolist() == orders[1].tolist() != orders[2].tolist()
    repeats = repeats_of(rare(tmp_path), 0.36)
    places = [np.flatnonzero(epoch_order(100, 0, epoch, repeats) == 0).mean() for epoch in range(300)]
    assert np.mean(places) == pytest.approx(49.5, abs=5)


def test_without_repeats_the_order_is_the_permutation_of_before():
    for key in ((0, 0), (3, 7)):
        assert epoch_order(50, *key).tolist() == np.random.default_rng(key).permutation(50).tolist()


def test_any_number_of_ranks_and_any_start_draw_the_same_keys(tmp_path):
    repeats = repeats_of(rare(tmp_path), 0.36)

    def keys(rank=0, world=1, start=0, accumulate=3):
        return list(TrainSampler(100, 8, SIZE, 5, 0.0, rank, world, accumulate, repeats, epoch=2, start=start))

    whole = keys()
    assert len(whole) == 15 == len(list(TrainSampler(100, 8, SIZE, 5, accumulate=3)))  # the number of steps stays
    for step, (first, second) in enumerate(zip(keys(0, 2), keys(1, 2), strict=True)):
        assert sorted(first + second) == whole[step]
    assert keys(start=4) == whole[4:]
    assert [key.position for batch in whole for key in batch] == list(range(120))  # repeats are augmented differently


@pytest.mark.shared_memory
def test_mosaics_take_their_partners_from_the_same_order(painted):
    """Then a bounded cache has them. Workers and a second data set draw the same samples."""
    data = read_annotation_file(str(painted(9)))
    few = data.labels[0]
    data = data.keep_boxes((data.labels != few) | (np.arange(len(data.labels)) == 0))  # now a class of one image
    augment = Augment(mosaic=1, mixup=0, flip=0.5, rotation=0, scale=(0.5, 1.5), translate=0.1, shear=0)
    sets = [DetectionDataset(data, "corner", augment, repeat=repeat) for repeat in (0.5, 0.5, 0.0)]
    assert sets[0].repeats.factors.max() > 2 and sets[2].repeats is None
    assert (sets[0][Key(0, 4, 1, SIZE)].image == sets[1][Key(0, 4, 1, SIZE)].image).all()
    assert (sets[0][Key(0, 4, 1, SIZE)].image != sets[2][Key(0, 4, 1, SIZE)].image).any()
    loaded = [
        build_loader(sets[0], TrainSampler(9, 3, SIZE, 0, repeats=sets[0].repeats), workers) for workers in (0, 2)
    ]
    for alone, worker in zip(*loaded, strict=True):
        assert alone.ids.tolist() == worker.ids.tolist() and (alone.images == worker.images).all()
