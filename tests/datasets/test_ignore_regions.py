"""What is not known about an image stays at its place through letterbox, mirror, affine map, mosaic, mixup, loader and store."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from files import read_annotation_file

from datasets.classes import choose_classes, join
from datasets.dataset import DetectionDataset, Key, collate
from datasets.mosaic import Augment, mixup, mosaic
from datasets.store import Annotations, Sample
from datasets.transforms import augment
from utils.ignore_regions import IgnoreRegions, joined, of_boxes, of_image, spread

NO_BOXES = np.zeros((0, 4), np.float32), np.zeros(0, np.int64)
UPRIGHT = {"flip": 0.5, "rotation": 0, "scale": (0.5, 1.5), "translate": 0.1, "shear": 0, "hsv": (0, 0, 0)}
ROTATED = UPRIGHT | {"rotation": 30, "shear": 10}
UPSIDE_DOWN = UPRIGHT | {"flip_vertical": 0.7}
LETTERBOXED = UPRIGHT | {"scale": (1, 1), "translate": 0}
SIZE = (128, 160)

STILL = Augment(mosaic=1, mixup=0, flip=0, rotation=0, scale=(1, 1), translate=0, shear=0)

MOVES = {"upright": UPRIGHT, "upside down": UPSIDE_DOWN, "rotated": ROTATED, "letterboxed": LETTERBOXED}
every_move = pytest.mark.parametrize("moves", MOVES.values(), ids=MOVES)
every_letterbox = pytest.mark.parametrize("kind", ["corner", "center", "stretch"])


def unknown_pixels(unknown: IgnoreRegions, size=SIZE) -> np.ndarray:
    """Which classes are unknown at the center of each pixel, bool [H, W, C]; one place and pixel at a time."""
    rows, columns = np.mgrid[: size[0], : size[1]] + 0.5
    found = np.zeros((*size, unknown.classes.shape[1]), bool)
    for place, classes in zip(unknown.regions, unknown.classes, strict=True):
        u, v = (row[0] * columns + row[1] * rows + row[2] for row in place)
        found[(u >= 0) & (u < 1) & (v >= 0) & (v < 1)] |= classes
    return found


def painted_region(rng: np.random.Generator, level: int, classes: tuple[bool, ...]) -> Sample:
    """An image of random shape with a rectangle of gray `level` in which the classes are unknown."""
    height, width = rng.integers(60, 200, 2).tolist()
    image = np.zeros((height, width, 3), np.uint8)
    x1, y1 = rng.integers(0, width // 2), rng.integers(0, height // 2)
    x2, y2 = rng.integers(x1 + 20, width + 1), rng.integers(y1 + 20, height + 1)
    image[y1:y2, x1:x2] = level
    return Sample(image, *NO_BOXES, of_boxes(np.array([[x1, y1, x2, y2]], float), np.array([classes])))


def assert_agree(is_painted: np.ndarray, is_unknown: np.ndarray, edge: float) -> None:
    """At most the pixels at the edge of a region may differ."""
    assert (is_painted != is_unknown).sum() <= edge * (is_painted.sum() ** 0.5 + 5)


@every_move
@every_letterbox
def test_an_open_region_stays_on_its_pixels(moves, kind):
    seen = 0
    for seed in range(12):
        rng = np.random.default_rng((1, seed))
        drawn = augment(painted_region(rng, 250, (False, True)), SIZE, rng, kind, Augment(0, 0, **moves))
        found = unknown_pixels(drawn.ignore)
        assert not found[..., 0].any()
        assert_agree(drawn.image[..., 0] > 180, found[..., 1], 4)
        seen += found.any()
    assert seen > 8


@every_move
def test_an_open_region_stays_on_its_pixels_in_a_mosaic_and_a_mixup(moves):
    seen = 0
    for seed in range(8):
        rng = np.random.default_rng((2, seed))
        four = [painted_region(rng, 200, (True, False)) for _ in range(4)]
        settings = Augment(1, 1, **moves)
        drawn = mosaic(four, SIZE, rng, "corner", settings)
        assert_agree(drawn.image[..., 0] > 157, unknown_pixels(drawn.ignore)[..., 0], 8)
        blank = Sample(np.zeros((*SIZE, 3), np.uint8), *NO_BOXES)
        mixed = mixup(blank, painted_region(rng, 240, (True, False)), rng, "corner", settings)
        assert_agree(mixed.image[..., 0] > 88, unknown_pixels(mixed.ignore)[..., 0], 4)
        seen += int(unknown_pixels(mixed.ignore).any()) + int(unknown_pixels(drawn.ignore).any())
    assert seen > 12


@every_move
def test_a_class_that_was_not_looked_for_is_unknown_in_the_whole_sample(moves):
    for seed in range(4):
        rng = np.random.default_rng((3, seed))
        sample = Sample(np.zeros((50, 90, 3), np.uint8), *NO_BOXES, of_image(np.array([True, False])))
        drawn = augment(sample, SIZE, rng, "center", Augment(0, 0, **moves))
        assert unknown_pixels(drawn.ignore)[..., 0].all() and not unknown_pixels(drawn.ignore)[..., 1].any()


@every_move
def test_each_image_of_a_mosaic_has_its_own_classes(moves):
    """A pixel of an image has exactly the unknown classes of this image, and each pixel belongs to one image."""
    for seed in range(6):
        rng = np.random.default_rng((4, seed))
        levels, masks = [60, 110, 160, 210], np.eye(4, dtype=bool)
        four = [
            Sample(np.full((*rng.integers(60, 200, 2), 3), level, np.uint8), *NO_BOXES, of_image(mask))
            for level, mask in zip(levels, masks, strict=True)
        ]
        drawn = mosaic(four, SIZE, rng, "center", Augment(1, 0, **moves))
        found = unknown_pixels(drawn.ignore)
        assert (found.sum(-1) == 1).all()
        for i, level in enumerate(levels):
            own = drawn.image[..., 0] == level
            other = own & (found[..., i] == 0)
            assert other.sum() <= 3 * own.sum() ** 0.5  # only at a seam, which an image may cross by rounding


def test_a_mixup_does_not_know_what_one_of_its_images_does_not_know():
    rng, settings = np.random.default_rng(6), Augment(0, 1, **UPRIGHT)
    first = Sample(np.zeros((*SIZE, 3), np.uint8), *NO_BOXES, of_image(np.array([True, False, False])))
    second = Sample(np.zeros((40, 30, 3), np.uint8), *NO_BOXES, of_image(np.array([False, True, False])))
    assert (unknown_pixels(mixup(first, second, rng, "corner", settings).ignore) == [True, True, False]).all()
    assert mixup(first._replace(ignore=None), second._replace(ignore=None), rng, "corner", settings).ignore is None


# ---- from the store to a batch


@pytest.fixture
def partly(painted) -> Annotations:
    """Twelve images: in every third one class 1 was not looked for, and the first box of image 3 is an open region."""
    data = read_annotation_file(str(painted(12)))
    annotated = np.ones((12, 2), bool)
    annotated[::3, 1] = False
    rows = np.zeros(len(data.labels), bool)
    rows[data.starts[3]] = True
    return replace(data, is_ignored=rows, crowd=rows).with_annotated(annotated)


def test_the_store_keeps_masks_and_regions_through_every_selection(partly):
    chosen = partly.select([5, 3, 0])
    assert chosen.annotated_mask().tolist() == [[True, True], [True, False], [True, False]]
    assert chosen.ignore_regions_of(0) is None and chosen.ignore_regions_of(1).classes.shape == (2, 2)
    assert chosen.is_ignored.sum() == 1 and chosen.is_ignored[chosen.starts[1]]
    assert partly.keep_boxes(~partly.is_ignored).is_ignored.sum() == 0
    swapped = choose_classes(partly, partly.classes[::-1], {}, select=False, complete=False)
    assert (swapped.annotated_mask() == partly.annotated_mask()[:, ::-1]).all()
    more = choose_classes(partly, (*partly.classes, "new"), {}, select=False, complete=False)
    assert not more.annotated_mask()[:, 2].any()  # of data with masks; others have all classes in all images
    merged = choose_classes(partly, None, {partly.classes[1]: partly.classes[0]}, select=False, complete=False)
    assert merged.annotated is None and len(merged.classes) == 1


def test_each_open_region_is_for_its_own_classes(partly):
    """Three open boxes in an image, two of them at one place."""
    data = replace(partly, annotated=None).select([3, 3])
    boxes = np.array([[2.0, 2, 9, 9], [12, 12, 19, 19], [12, 12, 19, 19]])
    rows = {"boxes": boxes, "labels": np.array([0, 0, 1], np.int32), "areas": np.ones(3), "box_lines": np.zeros(3)}
    flags = np.ones(3, bool)
    data = replace(data, **rows, crowd=flags, is_ignored=flags, starts=np.array([0, 3, 3]))
    found = unknown_pixels(data.ignore_regions_of(0), (24, 24))
    assert found[5, 5].tolist() == [True, False] and found[15, 15].all() and not found[10, 10].any()
    assert data.ignore_regions_of(1) is None


def test_an_open_region_ends_with_its_image(partly):
    """In a mosaic, a box that reaches outside its image would reach into other images."""
    boxes = partly.boxes.copy()
    boxes[partly.starts[3]] = [-900, -900, 900, 900]
    sizes = np.array([partly.image(i).shape[:2] for i in range(12)], np.int32)
    data = DetectionDataset(replace(partly, boxes=boxes, annotated=None, sizes=sizes), "stretch")
    drawn = mosaic([data.read(i) for i in (3, 0, 1, 2)], SIZE, np.random.default_rng(1), "stretch", STILL)
    found = unknown_pixels(drawn.ignore)[..., partly.labels[partly.starts[3]]]
    rows, columns = found.any(1).sum(), found.any(0).sum()
    assert found[:rows, :columns].all() and found.sum() == rows * columns and 0 < found.mean() < 1


def test_joined_data_have_the_masks_of_their_parts(partly):
    whole = replace(partly, annotated=None, is_ignored=None)
    both = join([whole, partly], "both")
    assert (both.annotated_mask() == np.concatenate([np.ones((12, 2)), partly.annotated_mask()])).all()
    assert both.is_ignored.sum() == 1 and both.is_ignored[len(whole.labels) :].sum() == 1
    assert join([whole, whole], "both").annotated is None
    other = replace(whole, classes=("1", "9"))
    federated = join([whole, other], "both", federated=True)
    assert federated.classes == ("0", "1", "9")
    assert federated.annotated_mask()[[0, 12]].tolist() == [[True, True, False], [False, True, True]]


@every_letterbox
def test_a_validation_image_knows_what_its_annotations_know(partly, kind):
    data = DetectionDataset(partly, kind)
    assert unknown_pixels(data[Key(0, 3, 3, SIZE)].ignore)[..., 1].all()
    assert data[Key(0, 1, 1, SIZE)].ignore is None
    row = partly.starts[3]
    shown = DetectionDataset(replace(partly, annotated=None, crowd=np.zeros_like(partly.crowd)), kind)
    item = shown[Key(0, 3, 3, SIZE)]
    x1, y1, x2, y2 = item.boxes[0].round().astype(int)  # the box of the region, as the network sees it
    expected = np.zeros(SIZE, bool)
    expected[y1:y2, x1:x2] = True
    assert_agree(expected, unknown_pixels(item.ignore)[..., partly.labels[row]], edge=4)


@pytest.mark.parametrize("reduction", [2, 4])
def test_an_open_region_is_reduced_with_its_image(partly, reduction):
    data = DetectionDataset(replace(partly, annotated=None), "corner")
    whole, reduced = data.read(3), data.read(3, reduction)
    counts, found = (unknown_pixels(one.ignore, one.image.shape[:2]).sum((0, 1)) for one in (whole, reduced))
    assert whole.image.shape[0] > reduced.image.shape[0] and counts.any() and not counts.all()
    edge = 2 * reduction * counts**0.5  # pixels of the whole image on two sides of the region
    assert (np.abs(found * reduction**2 - counts) <= edge + reduction**2).all()


def test_a_batch_without_anything_unknown_has_the_arguments_that_it_always_had(partly):
    data = DetectionDataset(partly, "center")
    known = collate([data[Key(0, i, i, SIZE)] for i in (1, 2)])
    assert known.ignore is None and known.targets[3] is None
    mixed = collate([data[Key(0, i, i, SIZE)] for i in (0, 1, 3)])
    assert len(mixed.targets) == 4 and mixed.ignore.regions.shape == (3, 2, 2, 3)
    assert mixed.ignore.classes.any((1, 2)).tolist() == [True, False, True]
    again = pickle.loads(pickle.dumps(mixed))
    assert all(map(torch.equal, again.ignore, mixed.ignore)) and torch.equal(again.boxes, mixed.boxes)
    moved = mixed.to(torch.device("meta"))
    assert moved.ignore.regions.device.type == moved.ignore.classes.device.type == "meta"


@pytest.mark.parametrize("moves", [False, True])
def test_an_own_augmentation_that_moves_boxes_leaves_nothing_known_there(partly, moves):
    def mirror(image, boxes, labels, rng):
        if moves:
            image, boxes = (
                image[:, ::-1],
                np.stack([SIZE[1] - boxes[:, 2], boxes[:, 1], SIZE[1] - boxes[:, 0], boxes[:, 3]], 1),
            )
        return image, boxes, labels

    still = Augment(0, 0, 0, 0, (1, 1), 0, 0)
    data = DetectionDataset(replace(partly, annotated=None), "corner", still, extra_augment=mirror)
    found = unknown_pixels(data[Key(0, 3, 3, SIZE)].ignore)[..., partly.labels[partly.starts[3]]]
    assert len(data[Key(0, 3, 3, SIZE)].boxes) and found.any() and found.all() == moves


@pytest.mark.parametrize("changes", [False, True])
def test_an_own_augmentation_leaves_an_image_without_boxes_as_it_is(partly, changes):
    """The function in train.py does. In an image that is changed, also in place, it is not known what moved."""

    def shift(image, boxes, labels, rng):
        if changes:
            image[:] = np.roll(image, 9, 1)
        return image, boxes, labels

    rows = np.ones(len(partly.labels), bool)
    data = replace(partly, annotated=None, is_ignored=rows, crowd=rows)
    still = Augment(0, 0, 0, 0, (1, 1), 0, 0)
    item = DetectionDataset(data, "corner", still, extra_augment=shift)[Key(0, 3, 3, SIZE)]
    found = unknown_pixels(item.ignore)[..., partly.labels[partly.starts[3]]]
    assert not len(item.boxes) and found.any() and found.all() == changes


def test_what_is_unknown_somewhere_is_unknown_everywhere_after_spread():
    first = of_boxes(np.array([[10.0, 10, 20, 30]]), np.array([[True, False, False]]))
    both = joined([first, of_boxes(np.array([[40.0, 50, 60, 70]]), np.array([[False, True, False]]))])
    assert not unknown_pixels(both).all((0, 1)).any() and (unknown_pixels(spread(both)) == [True, True, False]).all()
