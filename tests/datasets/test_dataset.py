"""A sample is a pure function of (seed, epoch, position), with and without the user's own augmentation."""

import pickle
import re
from dataclasses import replace

import cv2
import numpy as np
import pytest
import torch
from files import read_annotation_file
from refused import refused

from datasets.check_images import check_images
from datasets.dataset import (
    CLEAN,
    NO_IMAGE,
    PARTNER_REACH,
    DetectionDataset,
    Item,
    Key,
    checked_sample,
    collate,
    epoch_order,
    try_augment,
)
from datasets.loader import TrainSampler, build_loader
from datasets.mosaic import Augment
from utils.images import boxes_to_input, letterbox, read_image

AUGMENT = Augment(mosaic=0.5, mixup=0.3, flip=0.5, rotation=5, scale=(0.5, 1.5), translate=0.1, shear=2)
SIZE = (64, 96)


def dataset_of(file, **options) -> DetectionDataset:
    return DetectionDataset(read_annotation_file(str(file)), "corner", **options)


def assert_same(first, second) -> None:
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


# ---- samples


def test_a_training_sample_is_a_function_of_its_key(painted):
    data = dataset_of(painted(12), augment=AUGMENT, seed=5)
    key = Key(2, 7, 4, SIZE)
    assert_same(data[key], data[key])
    assert_same(data[key], pickle.loads(pickle.dumps(data))[key])
    assert data[key].image.shape == (*SIZE, 3) and data[key].index == 4


def test_epochs_positions_and_seeds_give_different_samples(painted):
    single = replace(AUGMENT, mosaic=0.0, mixup=0.0)  # the partners of a mosaic would differ anyway
    data, other = (dataset_of(painted(5), augment=single, seed=seed) for seed in (5, 6))
    keys = [Key(2, 7, 3, SIZE), Key(3, 7, 3, SIZE), Key(2, 8, 3, SIZE)]
    images = [data[key].image for key in keys] + [other[keys[0]].image]
    assert len({image.tobytes() for image in images}) == 4


def test_partners_of_a_mosaic_are_near_in_the_order_of_the_epoch(painted):
    file, read = painted(2), []
    file.write_text(file.read_text(encoding="utf-8") * 1000, encoding="utf-8")

    class Recording(DetectionDataset):
        def read(self, index, *reduction):
            read.append(index)
            return super().read(index, *reduction)

    data = Recording(dataset_of(file).annotations, "corner", replace(AUGMENT, mosaic=1.0, mixup=0.0), seed=3)
    place = np.argsort(epoch_order(2000, 3, 1))  # position of each image in the order
    offsets = []
    for position in range(40):
        read.clear()
        data[Key(1, position, int(epoch_order(2000, 3, 1)[position]), SIZE)]
        assert len(read) == 4
        offsets += [(place[index] - position + 1000) % 2000 - 1000 for index in read[1:]]
    assert max(map(abs, offsets)) <= PARTNER_REACH and min(offsets) < -100 and max(offsets) > 100
    assert len(set(offsets)) > 80


def test_no_augmentation_epochs_have_letterboxed_single_images(painted):
    geometry_only = Augment(1.0, 1.0, 0.0, 20, (0.5, 2.0), 0.2, 5, hsv=(0, 0, 0))
    data = dataset_of(painted(6), augment=geometry_only, no_aug_from=3)
    image = letterbox(read_image(data.annotations.path(5)), SIZE, "corner")[0]
    assert not np.array_equal(data[Key(2, 0, 5, SIZE)].image, image)
    for epoch in (3, 4):
        assert np.array_equal(data[Key(epoch, 0, 5, SIZE)].image, image)


@pytest.mark.parametrize("kind", ["corner", "center"])
def test_a_validation_sample_is_the_letterboxed_image(painted, kind):
    data = DetectionDataset(read_annotation_file(str(painted(4))), kind)
    item = data[Key(0, 3, 3, (64, 128))]
    image, transform = letterbox(read_image(data.annotations.path(3)), (64, 128), kind)
    assert np.array_equal(item.image, image) and item.transform.tolist() == pytest.approx(list(transform))
    boxes, labels, _ = data.annotations.boxes_of(3)
    assert len(boxes) == 3 and item.labels.tolist() == labels.tolist()
    assert np.allclose(item.boxes, boxes_to_input(boxes, transform))
    item = data[Key(0, 0, 1, (64, 128))]  # one box: its color is inside, gray is around it
    ((x1, y1, x2, y2),) = item.boxes.astype(int).tolist()
    color = item.image[..., 2 if item.labels[0] == 0 else 0]
    assert color[(y1 + y2) // 2, (x1 + x2) // 2] > 250 and (color > 250).sum() < 1.3 * (x2 - x1) * (y2 - y1)


def detail(image) -> float:
    """The standard deviation of the Laplacian: noise from skipped pixels raises it."""
    return cv2.Laplacian(cv2.cvtColor(image, cv2.COLOR_BGR2GRAY), cv2.CV_64F).std()


@pytest.mark.parametrize("suffix", ["jpg", "png"])
def test_training_shows_large_images_as_the_evaluation_does(tmp_path, suffix):
    """Training reads them smaller: a JPEG is decoded at a quarter of its size here."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (45, 67, 3), dtype=np.uint8)
    image = cv2.resize(coarse, (2000, 1333), interpolation=cv2.INTER_CUBIC) // 2
    image += rng.integers(0, 128, image.shape, dtype=np.uint8)  # grain
    cv2.imwrite(str(tmp_path / f"a.{suffix}"), image)
    (tmp_path / "train.txt").write_text(f"a.{suffix} 0,0,2000,1333,0\n", encoding="utf-8")
    (tmp_path / "classes.txt").write_text("x\n", encoding="utf-8")
    still = Augment(0.0, 0.0, 0.0, 0, (1.0, 1.5), 0.0, 0, hsv=(0, 0, 0))
    data, _ = check_images(read_annotation_file(str(tmp_path / "train.txt")))
    trained = DetectionDataset(data, "corner", still)
    assert trained._reduction(0, (224, 224), 1.5) == 4
    shown = letterbox(trained.read(0, 4).image, (224, 224), "corner")[0][:149].astype(int)
    evaluated = DetectionDataset(data, "corner")[Key(0, 0, 0, (224, 224))].image[:149]
    assert np.abs(shown - evaluated).mean() < 3
    assert detail(shown.astype(np.uint8)) == pytest.approx(detail(evaluated), rel=0.15)


def test_boxes_are_clipped_and_crowd_regions_left_out(painted):
    file = painted(2)
    file.write_text("train_1.png -9,-9,20,20,0 50,30,99,99,1 1,1,9,9,0,1\n", encoding="utf-8")  # 64 x 48
    sample = dataset_of(file).read(0)
    assert sample.boxes.tolist() == [[0, 0, 20, 20], [50, 30, 64, 48]] and sample.labels.tolist() == [0, 1]
    assert len(dataset_of(file).annotations.coco()["annotations"]) == 3


def test_one_image_is_enough(painted):
    count = 1
    data = dataset_of(painted(count + 1), augment=Augment(1.0, 1.0, 0.5, 5, (0.5, 1.5), 0.1, 2))
    data = DetectionDataset(data.annotations.select(range(1, count + 1)), "corner", data.augment)  # with boxes
    (batch,) = build_loader(data, TrainSampler(count, 4, SIZE, seed=3), 0)
    assert batch.images.shape == (4, 3, *SIZE) and (batch.labels >= 0).any()
    boxes = batch.boxes[batch.labels >= 0]
    assert (boxes[:, 2:] > boxes[:, :2]).all() and boxes.min() >= 0 and boxes[:, 2].max() <= SIZE[1]


# ---- the user's own augmentation


def unchanged(image, boxes, labels, rng):
    return image, boxes, labels


def invert(image, boxes, labels, rng):
    """Inverts a random part of the samples and adds a box at a random place."""
    x, y = rng.uniform(0, 50, 2)
    image = 255 - image if rng.random() < 0.5 else image
    return image, np.vstack([boxes, [[x, y, x + 30, y + 90]]]), np.append(labels, 1)


def keys(epoch: int, count: int = 8) -> list[Key]:
    return [Key(epoch, position, position, SIZE) for position in range(count)]


def test_extra_augment_is_applied_to_training_samples_only(painted):
    data = {
        f: dataset_of(painted(8), augment=AUGMENT, no_aug_from=3, extra_augment=f) for f in (None, unchanged, invert)
    }
    for epoch in range(5):
        for key in keys(epoch):
            without, same, changed = (data[f][key] for f in (None, unchanged, invert))
            assert_same(without, same)
            assert all(a.dtype == b.dtype for a, b in zip(without[:3], same[:3], strict=True))
            if epoch >= 3:
                assert_same(without, changed)
                continue
            assert len(changed.labels) == len(without.labels) + 1 and changed.labels[-1] == 1
            assert np.array_equal(changed.boxes[:-1], without.boxes)
            assert changed.boxes[-1, 3] <= SIZE[0]  # clipped
            assert np.array_equal(changed.image, without.image) or np.array_equal(changed.image, 255 - without.image)
    val = dataset_of(painted(8), extra_augment=invert)
    assert_same(val[Key(0, 1, 1, SIZE)], dataset_of(painted(8))[Key(0, 1, 1, SIZE)])


@pytest.mark.shared_memory
def test_samples_with_extra_augment_are_pure_functions_and_the_same_in_workers(painted):
    data = dataset_of(painted(8), augment=AUGMENT, seed=4, extra_augment=invert)
    first = [data[key] for key in keys(1)]
    for key, item in list(zip(keys(1), first, strict=True))[::-1]:  # in another order
        assert_same(data[key], item)
    sampler = TrainSampler(8, 4, SIZE, seed=4)
    alone, workers = (list(build_loader(data, sampler, count)) for count in (0, 2))
    for a, b in zip(alone, workers, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a[:5], b[:5], strict=True))
    plain = list(build_loader(dataset_of(painted(8), augment=AUGMENT, seed=4), sampler, 0))
    assert not torch.equal(plain[0].labels, alone[0].labels)  # it did reach the workers


IMAGE, BOXES, LABELS = (
    np.zeros((*SIZE, 3), np.uint8),
    np.zeros((1, 4), np.float32) + (1, 2, 3, 4),
    np.zeros(1, np.int64),
)


@pytest.mark.parametrize(
    ("result", "named"),
    [
        (None, "boxes [n, 4]"),
        ((IMAGE, BOXES, ["cat"]), "['cat']"),
        ((IMAGE, BOXES, [0.7]), "[0.7]"),
        ((IMAGE, BOXES, [True]), "[True]"),
        ((IMAGE, BOXES, [2]), "label 2"),
        ((IMAGE[:32], BOXES, LABELS), "uint8 [32, 96, 3]"),
        ((torch.zeros(3, *SIZE), BOXES, LABELS), "Tensor"),
        ((IMAGE, BOXES, [0, 1]), "2 labels"),
        ((IMAGE, BOXES * np.nan, LABELS), "[[nan, nan, nan, nan]]"),
    ],
)
def test_wrong_results_of_extra_augment_are_errors_that_name_it(result, named):
    with refused(ValueError, "extra_augment", named):
        checked_sample(result, SIZE, 2)


def test_results_of_extra_augment_are_clipped_and_boxes_without_area_dropped():
    boxes = [[-5, -5, 10, 10], [90, 60, 200, 200], [5, 5, 5, 9], [100, 0, 120, 9]]
    sample = checked_sample((IMAGE[:, ::-1], boxes, [3.0, 4.0, 5.0, 6.0]), SIZE, 7)
    assert sample.boxes.tolist() == [[0, 0, 10, 10], [90, 60, 96, 64]] and sample.labels.tolist() == [3, 4]
    assert sample.image.flags.c_contiguous and sample.boxes.dtype == np.float32 and sample.labels.dtype == np.int64


def test_an_error_of_extra_augment_names_the_image(painted):
    """Of labels that begin at 1 only the last class is wrong: it could otherwise train to the end."""

    def from_one(image, boxes, labels, rng):
        return image, boxes, labels + 1

    data = dataset_of(painted(8), augment=AUGMENT, extra_augment=from_one)
    index = next(i for i in range(8) if 1 in data.annotations.boxes_of(i)[1])
    with refused(ValueError, f"train_{index}.png", "extra_augment", "label 2"):
        [data[Key(epoch, position, index, SIZE)] for epoch in range(3) for position in range(8)]


def without_objects(image, boxes, labels, rng):
    return image, boxes[:0], labels[:0]


def as_fractions(image, boxes, labels, rng):
    return image, boxes / (SIZE[::-1] * 2), labels


def mostly_empty(image, boxes, labels, rng):
    keep = rng.random() < 0.2
    return image, boxes[: len(boxes) * keep], labels[: len(boxes) * keep]


def test_an_extra_augment_that_removes_all_objects_is_an_error(painted):
    data = dataset_of(painted(20), augment=AUGMENT)
    for lossy in (without_objects, as_fractions):
        with pytest.raises(ValueError, match="extra_augment"):
            try_augment(replace(data, extra_augment=lossy), SIZE)
    for kept in (unchanged, mostly_empty, None):
        try_augment(replace(data, extra_augment=kept), SIZE)


def as_xywh(image, boxes, labels, rng):
    return image, np.hstack([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]]), labels


def as_centers(image, boxes, labels, rng):
    return image, np.hstack([(boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]]), labels


def mirrored_as_xywh(image, boxes, labels, rng):
    left = image.shape[1] - boxes[:, 2:3]
    return image[:, ::-1], np.hstack([left, boxes[:, 1:2], boxes[:, 2:] - boxes[:, :2]]), labels


@pytest.mark.parametrize(("augment", "named"), [(as_xywh, "x,y,width,height"), (as_centers, "center x,center y")])
def test_boxes_that_extra_augment_returns_in_another_form_are_an_error(painted, augment, named):
    with refused(ValueError, "extra_augment", named):
        try_augment(dataset_of(painted(20), augment=AUGMENT, extra_augment=augment), SIZE)


def test_an_extra_augment_that_loses_most_boxes_is_a_warning_with_numbers(painted):
    data = dataset_of(painted(40), augment=AUGMENT.without_geometry())
    for lossy in (mirrored_as_xywh, mostly_empty):
        lost, all_boxes = re.search(
            r"loses (\d+) of (\d+) boxes", try_augment(replace(data, extra_augment=lossy), SIZE)
        ).groups()
        assert int(all_boxes) / 2 < int(lost) < int(all_boxes)
    for kept in (unchanged, invert, None):
        assert try_augment(replace(data, extra_augment=kept), SIZE) == ""


def test_an_extra_augment_is_tried_only_if_there_is_something_to_lose(painted):
    images = dataset_of(painted(5), augment=AUGMENT).annotations
    tried = []

    def count(image, boxes, labels, rng):
        tried.append(len(boxes))
        return image, boxes, labels

    data = DetectionDataset(images, "corner", AUGMENT, extra_augment=count)
    try_augment(data, SIZE)
    assert len(tried) >= CLEAN > sum(boxes > 0 for boxes in tried[:-1])
    try_augment(replace(data, no_aug_from=0, extra_augment=without_objects), SIZE)  # it is never applied
    small = replace(data, extra_augment=unchanged)
    try_augment(small, (1, 1))  # objects that are smaller than a pixel anyway
    backgrounds = painted(1, "backgrounds")
    try_augment(dataset_of(backgrounds, augment=AUGMENT, extra_augment=without_objects), SIZE)


# ---- batches


def item(count: int, index: int) -> Item:
    boxes = np.arange(4 * count, dtype=np.float32).reshape(-1, 4)
    image = np.full((32, 64, 3), index % 256, np.uint8)
    return Item(image, boxes, np.arange(count), index, np.full(6, index, np.float32))


def test_collate_pads_boxes_and_labels():
    batch = collate([item(2, 7), item(0, 8), item(3, 9)])
    assert batch.images.shape == (3, 3, 32, 64) and batch.images.dtype == torch.uint8 and batch.size == (32, 64)
    assert batch.labels.tolist() == [[0, 1, -1], [-1, -1, -1], [0, 1, 2]] and batch.ids.tolist() == [7, 8, 9]
    assert batch.boxes.shape == (3, 3, 4) and batch.boxes[0, :2].flatten().tolist() == list(range(8))
    assert batch.boxes.dtype == batch.transforms.dtype == torch.float32 and not batch.boxes[1].any()
    assert batch.images[:, 0, 0, 0].tolist() == [7, 8, 9] and batch.transforms[:, 0].tolist() == [7, 8, 9]
    assert collate([item(0, 1)]).boxes.shape == (1, 1, 4)


def test_a_rank_without_images_gets_an_empty_batch():
    batch = collate([item(0, NO_IMAGE)])
    assert [len(x) for x in batch[:5]] == [0] * 5 and batch.size == (32, 64)
    assert [x.dtype for x in batch[:5]] == [x.dtype for x in collate([item(1, 0)])[:5]]
