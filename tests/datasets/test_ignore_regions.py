"""Ignore regions stay at their place through letterbox, flips, affine map, mosaic, mixup, loader and store."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from files import read_annotation_file

from datasets.classes import choose_classes, join
from datasets.dataset import Batch, DetectionDataset, Key, collate
from datasets.mosaic import Augment, mixup, mosaic
from datasets.store import FAR, Annotations, Sample
from datasets.transforms import augment, regions_of

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


def ignored_pixels(regions: np.ndarray, size=SIZE) -> np.ndarray:
    """Whether the center of each pixel is in an ignore region, bool [H, W]; one region at a time."""
    rows, columns = np.mgrid[: size[0], : size[1]] + 0.5
    found = np.zeros(size, bool)
    for region in regions:
        u, v = (row[0] * columns + row[1] * rows + row[2] for row in region)
        found |= (u >= 0) & (u < 1) & (v >= 0) & (v < 1)
    return found


def painted_region(rng: np.random.Generator, level: int) -> Sample:
    """An image of random shape with a rectangle of gray `level` that is an ignore region."""
    height, width = rng.integers(60, 200, 2).tolist()
    image = np.zeros((height, width, 3), np.uint8)
    x1, y1 = rng.integers(0, width // 2), rng.integers(0, height // 2)
    x2, y2 = rng.integers(x1 + 20, width + 1), rng.integers(y1 + 20, height + 1)
    image[y1:y2, x1:x2] = level
    return Sample(image, *NO_BOXES, regions_of(np.array([[x1, y1, x2, y2]], float)))


def assert_agree(is_painted: np.ndarray, is_ignored: np.ndarray, edge: float) -> None:
    """At most the pixels at the edge of a region may differ."""
    assert (is_painted != is_ignored).sum() <= edge * (is_painted.sum() ** 0.5 + 5)


@every_move
@every_letterbox
def test_a_region_stays_on_its_pixels(moves, kind):
    seen = 0
    for seed in range(12):
        rng = np.random.default_rng((1, seed))
        drawn = augment(painted_region(rng, 250), SIZE, rng, kind, Augment(0, 0, **moves))
        found = ignored_pixels(drawn.ignore)
        assert_agree(drawn.image[..., 0] > 180, found, 4)
        seen += found.any()
    assert seen > 8


@every_move
def test_a_region_stays_on_its_pixels_in_a_mosaic_and_a_mixup(moves):
    seen = 0
    for seed in range(8):
        rng = np.random.default_rng((2, seed))
        four = [painted_region(rng, 200) for _ in range(4)]
        settings = Augment(1, 1, **moves)
        drawn = mosaic(four, SIZE, rng, "corner", settings)
        assert_agree(drawn.image[..., 0] > 157, ignored_pixels(drawn.ignore), 8)
        blank = Sample(np.zeros((*SIZE, 3), np.uint8), *NO_BOXES)
        mixed = mixup(blank, painted_region(rng, 240), rng, "corner", settings)
        assert_agree(mixed.image[..., 0] > 88, ignored_pixels(mixed.ignore), 4)
        seen += int(ignored_pixels(mixed.ignore).any()) + int(ignored_pixels(drawn.ignore).any())
    assert seen > 12


# ---- from the store to a batch


@pytest.fixture
def partly(painted) -> Annotations:
    """Twelve images: in every third one class 1 is not annotated, and the first box of image 3 is an ignore region."""
    data = read_annotation_file(str(painted(12)))
    annotated = np.ones((12, 2), bool)
    annotated[::3, 1] = False
    rows = np.zeros(len(data.labels), bool)
    rows[data.starts[3]] = True
    return replace(data, is_ignored=rows, crowd=rows).with_annotated(annotated)


def collated(data: Annotations, augment: Augment | None) -> Batch:
    """A batch of all images."""
    dataset = DetectionDataset(data, "center", augment, seed=1)
    return collate([dataset[Key(0, i, i, SIZE)] for i in range(len(data))])


def test_the_store_keeps_annotated_classes_and_regions_through_every_selection(partly):
    chosen = partly.select([5, 3, 0])
    assert chosen.annotated_mask().tolist() == [[True, True], [True, False], [True, False]]
    assert [len(chosen.ignore_regions_of(i)) for i in range(3)] == [0, 1, 0]
    assert chosen.is_ignored.sum() == 1 and chosen.is_ignored[chosen.starts[1]]
    assert partly.keep_boxes(~partly.is_ignored).is_ignored.sum() == 0
    swapped = choose_classes(partly, partly.classes[::-1], {}, select=False, complete=False)
    assert (swapped.annotated_mask() == partly.annotated_mask()[:, ::-1]).all()
    more = choose_classes(partly, (*partly.classes, "new"), {}, select=False, complete=False)
    assert not more.annotated_mask()[
        :, 2
    ].any()  # of data with annotated classes; others have all classes in all images
    merged = choose_classes(partly, None, {partly.classes[1]: partly.classes[0]}, select=False, complete=False)
    assert merged.annotated is None and len(merged.classes) == 1


def test_a_training_has_a_region_of_several_classes_once_and_none_without_end(partly):
    """Those of LVIS, of classes that are not exhaustive, are for the evaluation."""
    data = partly.select([3, 3])
    boxes = np.array([[2.0, 2, 9, 9], [12, 12, 19, 19], [12, 12, 19, 19], [-FAR, -FAR, FAR, FAR]])
    rows = {"boxes": boxes, "labels": np.array([0, 0, 1, 0], np.int32), "areas": np.ones(4), "box_lines": np.zeros(4)}
    flags = np.ones(4, bool)
    data = replace(data, **rows, crowd=flags, is_ignored=flags, starts=np.array([0, 4, 4]))
    assert data.ignore_regions_of(0).tolist() == boxes[:2].tolist() and not len(data.ignore_regions_of(1))


def test_a_class_that_is_not_annotated_is_background_in_training(partly):
    """It changes the evaluation only."""
    whole = replace(partly, annotated=None)
    augment = Augment(0.5, 0.5, **ROTATED)
    for known, unknown in zip(*(collated(data, augment) for data in (whole, partly)), strict=True):
        assert torch.equal(known, unknown)
    assert whole.coco() != partly.coco()


def test_a_region_ends_with_its_image(partly):
    """In a mosaic, a box that reaches outside its image would reach into other images."""
    boxes = partly.boxes.copy()
    boxes[partly.starts[3]] = [-900, -900, 900, 900]
    sizes = np.array([partly.image(i).shape[:2] for i in range(12)], np.int32)
    data = DetectionDataset(replace(partly, boxes=boxes, sizes=sizes), "stretch")
    drawn = mosaic([data.read(i) for i in (3, 0, 1, 2)], SIZE, np.random.default_rng(1), "stretch", STILL)
    found = ignored_pixels(drawn.ignore)
    rows, columns = found.any(1).sum(), found.any(0).sum()
    assert found[:rows, :columns].all() and found.sum() == rows * columns and 0 < found.mean() < 1


def test_joined_data_have_the_annotated_classes_and_the_regions_of_their_parts(partly):
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
def test_a_validation_image_has_the_regions_of_its_annotations(partly, kind):
    shown = DetectionDataset(replace(partly, crowd=np.zeros_like(partly.crowd)), kind)
    assert not len(shown[Key(0, 1, 1, SIZE)].ignore)
    item = shown[Key(0, 3, 3, SIZE)]
    x1, y1, x2, y2 = item.boxes[0].round().astype(int)  # the box of the region, as the network sees it
    expected = np.zeros(SIZE, bool)
    expected[y1:y2, x1:x2] = True
    assert_agree(expected, ignored_pixels(item.ignore), edge=4)


@pytest.mark.parametrize("reduction", [2, 4])
def test_a_region_is_reduced_with_its_image(partly, reduction):
    data = DetectionDataset(partly, "corner")
    whole, reduced = data.read(3), data.read(3, reduction)
    count, found = (ignored_pixels(one.ignore, one.image.shape[:2]).sum() for one in (whole, reduced))
    assert whole.image.shape[0] > reduced.image.shape[0] and count
    edge = 2 * reduction * count**0.5  # pixels of the whole image on two sides of the region
    assert abs(found * reduction**2 - count) <= edge + reduction**2


def test_a_batch_has_the_regions_of_its_images_also_from_another_process_and_on_a_device(partly):
    batch = collated(partly, None)
    found = [ignored_pixels(regions.numpy()).any() for regions in batch.ignore]
    assert found == [i == 3 for i in range(12)]  # padding is a region without pixels
    assert all(map(torch.equal, pickle.loads(pickle.dumps(batch)), batch))
    assert batch.to(torch.device("meta")).ignore.device.type == "meta"
    assert collated(partly.select([1, 2]), None).ignore.shape == (2, 0, 2, 3)


@pytest.mark.parametrize("moves", [False, True])
def test_an_own_augmentation_that_moves_boxes_leaves_no_region(partly, moves):
    def mirror(image, boxes, labels, rng):
        if moves:
            image, boxes = (
                image[:, ::-1],
                np.stack([SIZE[1] - boxes[:, 2], boxes[:, 1], SIZE[1] - boxes[:, 0], boxes[:, 3]], 1),
            )
        return image, boxes, labels

    still = Augment(0, 0, 0, 0, (1, 1), 0, 0)
    item = DetectionDataset(partly, "corner", still, extra_augment=mirror)[Key(0, 3, 3, SIZE)]
    assert len(item.boxes) and len(item.ignore) == (not moves)


@pytest.mark.parametrize("changes", [False, True])
def test_an_own_augmentation_leaves_an_image_without_boxes_as_it_is(partly, changes):
    """The function in train.py does. In an image that is changed, also in place, a region may have moved."""

    def shift(image, boxes, labels, rng):
        if changes:
            image[:] = np.roll(image, 9, 1)
        return image, boxes, labels

    rows = np.ones(len(partly.labels), bool)
    data = replace(partly, is_ignored=rows, crowd=rows)
    still = Augment(0, 0, 0, 0, (1, 1), 0, 0)
    item = DetectionDataset(data, "corner", still, extra_augment=shift)[Key(0, 3, 3, SIZE)]
    assert not len(item.boxes) and bool(len(item.ignore)) == (not changes)
