"""The data set, whose samples are pure functions of (seed, epoch, position, index), and batches of samples."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from datasets import shared_memory
from datasets.cache import ImageCache
from datasets.mosaic import MIXUP_SCALE, Augment, make_sample
from datasets.store import NO_REGIONS, Annotations, Sample
from datasets.transforms import letterbox_matrix, move_regions, regions_of
from utils.images import boxes_to_input, fit, letterbox, read_image
from utils.text import amount, brief

NO_IMAGE = -1  # index of the placeholder in a batch without images
TRIALS = 64  # samples in which extra_augment is tried before a run, if all of them lose their objects
TRIED = 16  # samples with objects in which it is tried, if a box is lost
CLEAN = 4  # samples with objects in which it is tried, if no box is lost
PARTNER_REACH = 256  # how far apart the images of a mosaic are at most in the epoch's order: a small cache holds them


class Key(NamedTuple):
    """Identifies a sample: with the seed, it determines every bit of it."""

    epoch: int
    position: int  # in the order of the epoch
    index: int  # type: ignore[assignment]  # of the image; tuple.index is not used
    size: tuple[int, int]  # height, width of the network's input


class Item(NamedTuple):
    """A sample at the size of the network's input."""

    image: np.ndarray  # uint8 [H, W, 3] BGR
    boxes: np.ndarray  # float32 [n, 4] xyxy
    labels: np.ndarray  # int64 [n]
    index: int  # type: ignore[assignment]  # of the image; tuple.index is not used
    transform: np.ndarray  # float32 [6]: a `utils.images.LetterboxTransform`; zeros for an augmented sample
    ignore: np.ndarray = NO_REGIONS  # float64 [r, 2, 3]: see Sample.ignore


class Batch(NamedTuple):
    """Images of one size with their padded boxes."""

    images: Tensor  # uint8 [B, 3, H, W] BGR
    boxes: Tensor  # float32 [B, M, 4] xyxy, pixels of the input
    labels: Tensor  # int64 [B, M], -1 where there is no box
    ids: Tensor  # int64 [B] index of the image in the data set; stays on the CPU
    transforms: Tensor  # float32 [B, 6] letterbox transforms, see Item.transform
    ignore: Tensor  # float32 [B, R, 2, 3] ignore regions; padding is a region without a point

    @property
    def size(self) -> tuple[int, int]:
        """Returns height and width of the input."""
        height, width = self.images.shape[-2:]
        return height, width

    @property
    def targets(self) -> tuple[Tensor, Tensor, tuple[int, int], Tensor]:
        """Returns the arguments of a criterion after the predictions: boxes, labels, size, and the ignore regions."""
        return self.boxes, self.labels, self.size, self.ignore

    def __reduce__(self):
        """Pickles for another process: only the images use shared memory, because every shared tensor costs a round trip."""
        packed = shared_memory.pack(self.images.permute(0, 2, 3, 1))
        arrays = self._each(Tensor.numpy)
        return _batch_of, (packed, arrays[1:])

    def pin_memory(self):
        """Returns a copy in page-locked memory, from which a GPU copies without waiting."""
        return self._each(Tensor.pin_memory)

    def clone(self):
        """Returns a copy."""
        return self._each(Tensor.clone)

    def to(self, device: torch.device):
        """Returns the batch on `device`, except the ids."""
        pinned = device.type == "cuda"  # without page-locked memory, the source could be freed before it is copied
        return self._each(lambda x: x if x is self.ids else x.to(device, non_blocking=pinned))

    def _each(self, function: Callable[[Tensor], Any]) -> "Batch":
        """Returns the batch with the result of a function for each tensor."""
        return Batch(*map(function, self))


def _batch_of(packed: tuple, others: Sequence[np.ndarray]) -> Batch:
    """Returns the batch that another process has pickled."""
    return Batch(shared_memory.unpack(*packed).permute(0, 3, 1, 2), *map(torch.from_numpy, others))


@lru_cache(maxsize=4)
def epoch_order(length: int, seed: int, epoch: int, repeats: Any = None) -> np.ndarray:
    """Returns the indices `[length]` of the images of an epoch: a permutation, or with `repeats` a weighted draw."""
    rng = np.random.default_rng((seed, epoch))
    return rng.permutation(length) if repeats is None else repeats.draw(rng)


@dataclass(eq=False, repr=False)
class DetectionDataset(torch.utils.data.Dataset):
    """Immutable data set: `dataset[Key]` -> Item is a function of the key and of these fields."""

    annotations: Annotations
    letterbox: str  # of the model, see utils.images.fit
    augment: Augment | None = None  # None: for validation
    no_aug_from: int | Tensor | None = None  # first epoch of letterboxed single images: only flips and color shifts
    seed: int = 0
    extra_augment: Callable | None = None  # (image, boxes, labels, rng): the user's own, before epoch `no_aug_from`
    repeat: float = 0.0  # images of classes in less than this fraction of the images are drawn more often
    cache: ImageCache = field(default_factory=ImageCache)  # changes the speed only

    def __len__(self) -> int:
        return len(self.annotations)

    @cached_property
    def repeats(self):
        """Returns the `datasets.dataset.Repeats` of the images, or None if all are drawn equally often."""
        return repeats_of(self.annotations, self.repeat) if self.repeat else None

    def read(self, index: int, reduction: int | None = None) -> Sample:
        """Reads an image with its boxes, clipped to the image and without crowd regions.

        With a `reduction` (1, 2, 4, 8) the image comes from the cache, and its sides are divided by this factor."""
        path = self.annotations.path(index)
        value_range = self.annotations.value_range
        if reduction is None:
            image = read_image(path, value_range=value_range)
        else:
            image = self.cache.read(path, reduction, value_range)
        boxes, labels, crowd = self.annotations.boxes_of(index)
        height, width = image.shape[:2]
        boxes = np.minimum(np.maximum(boxes / (reduction or 1), 0), (width, height, width, height))
        keep = ~crowd & (boxes[:, 2:] > boxes[:, :2]).all(1)
        ignore = regions_of(self.annotations.ignore_regions_of(index) / (reduction or 1))
        return Sample(image, boxes[keep].astype(np.float32), labels[keep].astype(np.int64), ignore)

    def _reduction(self, index: int, size: tuple[int, int], largest: float) -> int:
        """Returns by how much to reduce an image that a sample shows at up to `largest` times its letterboxed size."""
        height, width = self.annotations.sizes[index].tolist()
        if not height or not width:  # the size is not known
            return 1
        transform, _ = fit(width, height, size, self.letterbox)
        scale = largest * max(transform.scale_x, transform.scale_y)
        return next(reduction for reduction in (8, 4, 2, 1) if reduction == 1 or reduction * scale <= 1)

    def __getitem__(self, key: Key) -> Item:
        if key.index == NO_IMAGE:
            image = np.zeros((*key.size, 3), np.uint8)
            boxes, labels = np.zeros((0, 4), np.float32), np.zeros(0, np.int64)
            return Item(image, boxes, labels, key.index, np.zeros(6, np.float32))
        if self.augment is not None:
            image, boxes, labels, ignore = self._training_sample(key, self.augment)
            return Item(image, boxes, labels, key.index, np.zeros(6, np.float32), ignore)
        sample = self.read(key.index)
        image, transform = letterbox(sample.image, key.size, self.letterbox)
        boxes = boxes_to_input(sample.boxes, transform)
        ignore = move_regions(sample.ignore, letterbox_matrix(transform, flipped=False))
        return Item(image, boxes, sample.labels, key.index, np.array(transform, np.float32), ignore)

    def _training_sample(self, key: Key, augment: Augment) -> Sample:
        epoch, position, index, size = key
        no_aug = self.no_aug_from is not None and epoch >= self.no_aug_from
        if no_aug:
            augment = augment.without_geometry()
        rng = np.random.default_rng((self.seed, epoch, position))
        largest = augment.scale[1]
        if augment.mixup:
            largest = max(largest, MIXUP_SCALE[1])
        exact = augment == augment.without_geometry()  # images are read in full size, as in an evaluation

        def read(index: int) -> Sample:
            reduction = 1 if exact else self._reduction(index, size, largest)
            return self.read(index, reduction)

        def partner() -> Sample:
            offset = int(rng.integers(-PARTNER_REACH, PARTNER_REACH + 1))
            order = epoch_order(len(self), self.seed, epoch, self.repeats)
            return read(int(order[(position + offset) % len(self)]))

        sample = make_sample(read(index), partner, rng, size, self.letterbox, augment)
        if self.extra_augment is not None and not no_aug:
            image, boxes, labels, ignore = sample
            before = Sample(image.copy(), boxes.copy(), labels, ignore) if len(ignore) else sample
            result = self.extra_augment(image, boxes, labels, rng)
            try:
                sample = checked_sample(result, size, len(self.annotations.classes))
            except ValueError as error:
                raise ValueError(f"{self.annotations.path(index)}: {error}") from error
            if len(ignore) and stayed(before, sample):
                sample = sample._replace(ignore=ignore)
        return sample


def stayed(before: Sample, after: Sample) -> bool:
    """Returns whether `extra_augment` left all boxes where they were; without boxes, whether it left the image as it was.

    Only then the sample keeps its ignore regions, which the function does not move."""
    if not len(before.boxes):
        return np.array_equal(before.image, after.image)
    return before.boxes.shape == after.boxes.shape and bool(np.abs(before.boxes - after.boxes).max() <= 1)


def checked_sample(result: Any, size: tuple[int, int], num_classes: int) -> Sample:
    """Returns the result of `extra_augment` as a sample with clipped boxes.

    Raises ValueError for a wrong type or shape, and for labels that are no class.
    """
    try:
        image, boxes, labels = result
        boxes, labels = np.asarray(boxes, np.float32).reshape(-1, 4), np.asarray(labels).reshape(-1)
    except (TypeError, ValueError) as error:
        raise ValueError(f"extra_augment must return image, boxes [n, 4] and labels [n]: {error}") from error
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.shape != (*size, 3):
        what = f"{image.dtype} {list(image.shape)}" if isinstance(image, np.ndarray) else type(image).__name__
        raise ValueError(f"extra_augment must return an image uint8 {[*size, 3]}, not {what}")
    if len(boxes) != len(labels):
        raise ValueError(f"extra_augment returned {amount(len(boxes), 'box')}, but {amount(len(labels), 'label')}")
    if not np.isfinite(boxes).all():
        raise ValueError(f"extra_augment returned boxes that are not finite: {boxes.tolist()}")
    if labels.dtype.kind not in "iuf" or (labels != labels.round()).any():  # some libraries return 2.0 for 2
        raise ValueError(f"extra_augment must return labels that are whole numbers, not {brief(str(labels.tolist()))}")
    if len(wrong := labels[(labels < 0) | (labels >= num_classes)]):
        fix = f"the classes count from 0 to {num_classes - 1}; leave an object that is gone out, with its box"
        raise ValueError(f"extra_augment returned the label {wrong[0]:.0f}: {fix}")
    boxes = boxes.clip(0, np.array(size[::-1] * 2, np.float32))
    keep = (boxes[:, 2:] > boxes[:, :2]).all(1)
    return Sample(np.ascontiguousarray(image), boxes[keep], labels[keep].astype(np.int64))


def try_augment(data: DetectionDataset, size: tuple[int, int]) -> str:
    """Tries `extra_augment` in the first samples and returns a warning if it loses most of their boxes, "" otherwise.

    Raises ValueError if it loses all boxes of all samples, as with boxes in other units, or returns the boxes in another form.
    The trial ends after CLEAN samples without a lost box, and after TRIED samples if a box is kept: a crop that empties 8 samples
    of 10 never fails in practice. Boxes that are wrong in another way, but lie inside the image, are not noticed.
    """
    augment = data.extra_augment
    if augment is None:
        return ""
    labeled = np.flatnonzero(np.diff(data.annotations.starts))
    if not len(labeled):
        return ""
    given: list[np.ndarray] = []  # boxes before the augmentation, by sample

    def noted(image: np.ndarray, boxes: np.ndarray, labels: np.ndarray, rng: np.random.Generator):
        before = boxes.copy()
        given.append(before)
        result = augment(image, boxes, labels, rng)
        if form := _other_form(before, result):
            raise ValueError(f"extra_augment returns boxes as {form}: return x1,y1,x2,y2 in pixels")
        return result

    cache = ImageCache(files=0, memory=0)  # forked workers would inherit the state of the other one
    trial = replace(data, extra_augment=noted, cache=cache)
    before, lost, had_boxes = 0, 0, 0
    for position in range(TRIALS):
        given.clear()
        item = trial[Key(0, position, int(labeled[position % len(labeled)]), size)]
        count = sum(map(_count_boxes, given))
        before, had_boxes = before + count, had_boxes + (count > 0)
        lost += max(count - _count_boxes(item.boxes), 0)
        if lost < before and had_boxes >= (TRIED if lost else CLEAN):
            break
    form = f"boxes [n, 4] x1,y1,x2,y2 in pixels of the returned image, which has {size[0]}x{size[1]} (height x width)"
    if lost == before and had_boxes > TRIALS / 2:  # with fewer, it is the geometry that leaves no object in the samples
        raise ValueError(f"extra_augment lost all boxes of {had_boxes} samples: return {form}")
    if lost > before / 2 and had_boxes >= CLEAN:
        return f"extra_augment loses {lost} of {before} boxes in the first {had_boxes} samples: are they {form}?"
    return ""


def _other_form(given: np.ndarray, result: Any) -> str:
    """Returns the form of the boxes in a result of `extra_augment` if they are the `given` boxes in another form, or ""."""
    try:
        returned = np.asarray(result[1], np.float32).reshape(-1, 4)
    except (IndexError, TypeError, ValueError):  # `checked_sample` reports it
        return ""
    if returned.shape != given.shape or not len(given) or np.abs(returned - given).max() <= 1:
        return ""
    sizes = given[:, 2:] - given[:, :2]
    forms = {
        "x,y,width,height": np.hstack([given[:, :2], sizes]),
        "center x,center y,width,height": np.hstack([given[:, :2] + sizes / 2, sizes]),
    }
    return next((name for name, boxes in forms.items() if np.abs(returned - boxes).max() <= 1), "")


def _count_boxes(boxes: np.ndarray) -> int:
    """Returns the number of boxes with a pixel or more on each side. Boxes as fractions of the image have less."""
    return int((boxes[:, 2:] - boxes[:, :2] >= 1).all(1).sum())


def collate(items: list[Item]) -> Batch:
    """Collates items of one size into a batch; boxes are padded to the largest number per image, labels with -1."""
    height, width = items[0].image.shape[:2]
    items = [item for item in items if item.index != NO_IMAGE]
    most = max([1, *(len(item.labels) for item in items)])
    boxes, labels = torch.zeros(len(items), most, 4), torch.full((len(items), most), -1)
    max_regions = max([0, *(len(item.ignore) for item in items)])
    ignore = torch.full((len(items), max_regions, 2, 3), -1.0)  # a region of -1 is left of and above each image
    for b, item in enumerate(items):
        boxes[b, : len(item.boxes)] = torch.from_numpy(item.boxes)
        labels[b, : len(item.labels)] = torch.from_numpy(item.labels)
        ignore[b, : len(item.ignore)] = torch.from_numpy(item.ignore)
    images = shared_memory.stack([item.image for item in items]) if items else torch.zeros(0, height, width, 3).byte()
    ids = torch.tensor([item.index for item in items], dtype=torch.int64)
    transforms = torch.from_numpy(np.array([item.transform for item in items], np.float32).reshape(-1, 6))
    return Batch(images.permute(0, 3, 1, 2), boxes, labels, ids, transforms, ignore)


@dataclass(frozen=True, eq=False)  # hashed by identity, for the cache of dataset.epoch_order
class Repeats:
    """Repeat-factor sampling (Gupta et al. 2019, LVIS, section 4.2) with the length of an epoch unchanged."""

    factors: np.ndarray  # float64 [N] of each image, at least 1

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        """Draws N images: image i is there `N * factors[i] / sum(factors)` times, rounded up or down at random.

        Systematic sampling: the expected counts, in random order, divide a line of length N, and the N points
        u, u + 1, ... fall on it. So every count has exactly its expectation, and no image repeats without need.
        """
        images = rng.permutation(len(self.factors))
        ends = np.cumsum(self.factors[images])
        ends *= len(ends) / ends[-1]
        ends[-1] = len(ends)  # exactly, so that there are N points
        counts = np.diff(np.floor(ends + rng.random()), prepend=0).astype(np.int64)
        return rng.permutation(np.repeat(images, counts))


def repeats_of(data: Annotations, threshold: float) -> Repeats | None:
    """Returns the repeat factors of the images: the largest `max(1, sqrt(threshold / f))` of the classes in an image.

    `f` is the fraction of images with a box of the class. Without boxes the factor is 1. None if all factors are 1."""
    frequency = data.images_per_class().clip(1) / len(data)
    of_class = np.sqrt(threshold / frequency).clip(1)
    factors = np.ones(len(data))
    np.maximum.at(factors, data.image_of_boxes()[~data.crowd], of_class[data.labels[~data.crowd]])
    return Repeats(factors) if factors.max() > 1 else None
