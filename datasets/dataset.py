"""The training and validation pictures as a data set of pure functions, and batches of them."""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from datasets import slots
from datasets.annotations import Annotations, Sample
from datasets.cache import Pictures
from datasets.images import read_image
from datasets.mosaic import MIXUP_SCALE, Augment, draw_sample
from datasets.transforms import boxes_into, letterbox

NO_PICTURE = -1  # the index that stands for an empty share of a batch
PARTNER_REACH = 256  # partners of a mosaic lie so many positions away at most, so that a bounded cache is hit


class Key(NamedTuple):
    """What a sample is a pure function of, beside the seed."""

    epoch: int
    position: int  # in the order of the epoch
    index: int  # of the picture
    size: tuple[int, int]  # height, width of the network's input


class Item(NamedTuple):
    """A sample at the size of the network's input."""

    image: np.ndarray  # uint8 [H, W, 3] BGR
    boxes: np.ndarray  # float32 [n, 4] xyxy
    labels: np.ndarray  # int64 [n]
    index: int
    frame: np.ndarray  # float32 [5]: original width, height, scale, left, top; zeros for an augmented sample


class Batch(NamedTuple):
    images: Tensor  # uint8 [B, 3, H, W] BGR
    boxes: Tensor  # float32 [B, M, 4] xyxy, pixels of the input
    labels: Tensor  # int64 [B, M], -1 where there is no box
    ids: Tensor  # int64 [B] index of the picture in the data set; stays on the host
    frames: Tensor  # float32 [B, 5]

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the input."""
        return tuple(self.images.shape[-2:])

    def __reduce__(self):
        """From a worker only the pictures come through shared memory: each tensor there is a conversation of processes."""
        return _batch_of, (slots.sent(self.images.permute(0, 2, 3, 1)), *(x.numpy() for x in self[1:]))

    def pin_memory(self):
        """Page-locked, so that the copy to a GPU does not wait."""
        return Batch(*(x.pin_memory() for x in self))

    def to(self, device: torch.device):
        """On the device, but for the ids."""
        names = ("images", "boxes", "labels", "frames")
        in_passing = (
            device.type == "cuda"
        )  # from page-locked memory; elsewhere the copy could read what is freed already
        return self._replace(**{name: getattr(self, name).to(device, non_blocking=in_passing) for name in names})


def _batch_of(images: tuple, *others: np.ndarray) -> Batch:
    return Batch(slots.received(*images).permute(0, 3, 1, 2), *map(torch.from_numpy, others))


@lru_cache(maxsize=4)
def epoch_order(length: int, seed: int, epoch: int) -> np.ndarray:
    """The order of the pictures in an epoch, a function of its arguments: a permutation `[length]`."""
    return np.random.default_rng((seed, epoch)).permutation(length)


class DetectionDataset(torch.utils.data.Dataset):
    """Immutable: `dataset[Key]` -> Item depends on the key and on what is given here, on nothing else.

    `letterbox`: "corner" or "centre"; `augment`: None for validation; from epoch `plain_from` on only flip and colour.
    """

    def __init__(
        self,
        annotations: Annotations,
        letterbox: str,
        augment: Augment | None = None,
        plain_from: int | None = None,
        seed: int = 0,
        pictures: Pictures | None = None,
    ):
        self.annotations, self.letterbox, self.augment = annotations, letterbox, augment
        self.plain_from, self.seed = plain_from, seed
        self.pictures = pictures or Pictures()

    def __len__(self) -> int:
        return len(self.annotations)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names, by label."""
        return self.annotations.classes

    def read(self, index: int, reduction: int | None = None) -> Sample:
        """The picture with its boxes, clipped to it; crowd regions are left out. `reduction` None: as it is in the file,
        otherwise from what is kept, and a JPEG so many times smaller."""
        path = self.annotations.path(index)
        image, done = (read_image(path), 1) if reduction is None else self.pictures.read(path, reduction)
        boxes, labels, crowd = self.annotations.boxes_of(index)
        height, width = image.shape[:2]
        boxes = np.minimum(np.maximum(boxes / done, 0), (width, height, width, height))
        keep = ~crowd & (boxes[:, 2:] > boxes[:, :2]).all(1)
        return Sample(image, boxes[keep].astype(np.float32), labels[keep].astype(np.int64))

    def _reduction(self, index: int, size: tuple[int, int], largest: float) -> int:
        """How many times smaller a picture is decoded: as it will shrink anyway, drawn `largest` times as large as it
        fits into `size`, or smaller."""
        height, width = self.annotations.sizes[index].tolist()
        if not height or not width:  # nobody looked for its size
            return 1
        scale = largest * min(size[0] / height, size[1] / width)
        return next(reduction for reduction in (8, 4, 2, 1) if reduction == 1 or reduction * scale <= 1)

    def __getitem__(self, key: Key) -> Item:
        epoch, position, index, size = key
        if index == NO_PICTURE:
            nothing = np.zeros((0, 4), np.float32), np.zeros(0, np.int64)
            return Item(np.zeros((*size, 3), np.uint8), *nothing, index, np.zeros(5, np.float32))
        if self.augment is None:
            sample = self.read(index)
            image, frame = letterbox(sample.image, size, self.letterbox)
            boxes = boxes_into(sample.boxes, frame)
            return Item(image, boxes, sample.labels, index, np.array(frame, np.float32))
        augment = self.augment
        if self.plain_from is not None and epoch >= self.plain_from:
            augment = augment.plain()
        rng = np.random.default_rng((self.seed, epoch, position))
        largest = max(augment.scale[1], MIXUP_SCALE[1] if augment.mixup else 0)
        exact = augment == augment.plain()  # the picture of evaluation

        def read(index: int) -> Sample:
            return self.read(index, 1 if exact else self._reduction(index, size, largest))

        def partner(rng: np.random.Generator) -> Sample:
            away = int(rng.integers(-PARTNER_REACH, PARTNER_REACH + 1))
            order = epoch_order(len(self), self.seed, epoch)
            return read(int(order[(position + away) % len(self)]))

        drawn = draw_sample(read, index, partner, rng, size, self.letterbox, augment)
        return Item(*drawn, index, np.zeros(5, np.float32))

    def ground_truth(self) -> dict:
        """The boxes as written in the data, crowd included, as the contents of a COCO file."""
        return self.annotations.coco()


def collate(items: list[Item]) -> Batch:
    """Items of one size -> a batch; boxes are padded to the largest number in it, labels with -1. NO_PICTURE: B = 0."""
    height, width = items[0].image.shape[:2]
    items = [item for item in items if item.index != NO_PICTURE]
    if not items:
        return Batch(
            torch.zeros(0, 3, height, width, dtype=torch.uint8),
            *(torch.zeros(0, 1, 4), torch.zeros(0, 1, dtype=torch.int64)),
            *(torch.zeros(0, dtype=torch.int64), torch.zeros(0, 5)),
        )
    most = max(1, *(len(item.labels) for item in items))
    boxes, labels = torch.zeros(len(items), most, 4), torch.full((len(items), most), -1)
    for b, item in enumerate(items):
        boxes[b, : len(item.boxes)] = torch.from_numpy(item.boxes)
        labels[b, : len(item.labels)] = torch.from_numpy(item.labels)
    images = slots.stack([item.image for item in items]).permute(0, 3, 1, 2)
    ids = torch.tensor([item.index for item in items])
    return Batch(images, boxes, labels, ids, torch.from_numpy(np.stack([item.frame for item in items])))
