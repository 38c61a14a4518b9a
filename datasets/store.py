"""Annotations of a whole data set in flat arrays."""

import hashlib
import os
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from utils.boxes import clip, xyxy_to_xywh
from utils.images import read_image
from utils.text import amount, first_names, nearest
from utils.value_range import FULL, ValueRange, are_outside, outside_text

Classes = tuple[str, ...] | None  # class names; None: the classes of the data
Split = tuple[str, ...]  # names of a split, such as ("val", "valid"): the first one that exists counts; (): all splits
FAR = 1e6  # pixels: the end of a region without end
NO_REGIONS = np.zeros((0, 2, 3))
MAX_UNNAMED = 10_000  # classes; without a list of names a larger id is a mistake, not a class


class Strings:
    """A list of texts in one buffer. Workers share it: reading a Python list changes reference counts, which copies it."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._buffer, self._ends = bytearray(), array("q", [0])
        for text in texts:
            self.append(text)

    def append(self, text: str) -> None:
        self._buffer += text.encode("utf-8", "surrogateescape")
        self._ends.append(len(self._buffer))

    def __getitem__(self, index: int) -> str:
        start, end = self._ends[index], self._ends[index + 1]
        return self._buffer[start:end].decode("utf-8", "surrogateescape")


class Sample(NamedTuple):
    """An image with its boxes."""

    image: np.ndarray  # uint8 [H, W, 3] BGR
    boxes: np.ndarray  # float32 [n, 4] xyxy, pixels of the image
    labels: np.ndarray  # int64 [n]
    ignore: np.ndarray = NO_REGIONS  # float64 [r, 2, 3] ignore regions, see transforms.regions_of


@dataclass(frozen=True, eq=False)
class Annotations:
    """N images with K boxes of C classes in flat arrays, which are cheap to pickle and which workers share."""

    source: str  # the file or folder that was read
    classes: tuple[str, ...]
    category_ids: np.ndarray  # int64 [C] the data's own ids; 0..C-1 for data without
    image_ids: np.ndarray  # int64 [N] COCO: own ids; otherwise 1..N
    sizes: np.ndarray  # int32 [N, 2] height, width after EXIF rotation; 0, 0: not known yet
    starts: np.ndarray  # int64 [N + 1] image i has the boxes starts[i]:starts[i + 1]
    boxes: np.ndarray  # float64 [K, 4] xyxy in pixels, as written: they may reach outside
    labels: np.ndarray  # int32 [K]
    crowd: np.ndarray  # bool [K] crowd or difficult: no target in training; detections there do not count in evaluation
    areas: np.ndarray  # float64 [K] the file's area where it has one, otherwise the area of the box
    root: str  # folder of relative names
    names: Strings  # [N] paths as written
    lines: np.ndarray  # int32 [N] line in `source`, 0 where there is none
    files: Strings  # [N] the file with the boxes, "" where it is `source`
    box_lines: np.ndarray  # int32 [K] line in `files` or `source` of a box that has its own line, 0 for others
    notes: tuple[str, ...] = ()  # what was left out while reading
    digests: np.ndarray | None = None  # int64 [N] of the contents of the image files; None: not scanned yet
    hashes: np.ndarray | None = None  # uint64 [N, 4] perceptual hashes of the images; None: not scanned yet
    limits: np.ndarray | None = (
        None  # int32 [N, 2] least and largest value of 16-bit images, -1 for others; None: not scanned
    )
    value_range: ValueRange | None = None  # the values of 16-bit images that become 0 and 255
    is_coco: bool = False  # ids and areas come from a COCO JSON
    other_splits: tuple[str, ...] = ()  # of the source, which were not read: "train", "val", "test"
    annotated: np.ndarray | None = None  # [N, C] packed by `np.packbits`: annotated classes of each image; None: all
    is_ignored: np.ndarray | None = None  # bool [K] crowd regions that are ignore regions; None: none

    def __len__(self) -> int:
        return len(self.image_ids)

    def path(self, index: int) -> str:
        """Returns the path of an image file."""
        return os.path.join(self.root, self.names[index])

    def image(self, index: int) -> np.ndarray:
        """Reads an image -> uint8 [H, W, 3] BGR. Raises ImageError."""
        return read_image(self.path(index), value_range=self.value_range)

    def where(self, index: int) -> str:
        """Returns the place of an image's boxes for messages: `train.txt:12`, `a.xml`, `coco.json: a.jpg`."""
        if self.lines[index]:
            return f"{self.files[index] or self.source}:{self.lines[index]}"
        return self.files[index] or f"{self.source}: {self.names[index]}"

    def where_box(self, row: int) -> str:
        """Returns the place of a box for messages: its own line in the file, or the place of its image."""
        image = int(np.searchsorted(self.starts, row, "right")) - 1
        return f"{self.files[image] or self.source}:{line}" if (line := self.box_lines[row]) else self.where(image)

    def digest(self) -> str:
        """Returns a digest of images and boxes. It shows whether a resumed run has the same data. Folders do not count."""
        digest = hashlib.blake2b(digest_size=6)
        for name in ("sizes", "starts", "boxes", "labels", "crowd", "category_ids", "image_ids"):
            digest.update(getattr(self, name).tobytes())
        for column in (self.annotated, self.is_ignored):
            if column is not None:
                digest.update(column.tobytes())
        for index in range(len(self)):
            digest.update(os.path.basename(self.names[index]).encode("utf-8", "surrogateescape"))
        return f"{len(self)} images, {len(self.labels)} boxes, {digest.hexdigest()}"

    def image_digest(self) -> str | None:
        """Returns a digest of the contents of the image files in their order, None before they were scanned."""
        return None if self.digests is None else hashlib.blake2b(self.digests.tobytes(), digest_size=6).hexdigest()

    def with_range(self, value_range: ValueRange | None) -> "tuple[Annotations, list[str]]":
        """Returns the same images with the range of the training data or of a model, and a line about those outside of it."""
        found = replace(self, value_range=value_range)
        outside = np.zeros(0, int) if self.limits is None else np.flatnonzero(are_outside(self.limits, value_range))
        if self.limits is None or not len(outside):
            return found, []
        text = outside_text(self.limits[outside[0]].tolist(), value_range)
        return found, [f"{self.source}: images with other values: {len(outside)}; {self.path(outside[0])}: {text}"]

    def value_text(self) -> str:
        """Describes the values of the 16-bit images and what becomes of them; "" without such images."""
        if self.limits is None or not (self.limits[:, 1] >= 0).any():
            return ""
        deep = self.limits[self.limits[:, 1] >= 0]
        held = f"16-bit images: {len(deep)}, with values {deep[:, 0].min():,} to {deep[:, 1].max():,}"
        if self.value_range is None or self.value_range == FULL:
            return f"{held}: the upper eight bits are used"
        return f"{held}: {self.value_range[0]:,} to {self.value_range[1]:,} become 0 to 255"

    def boxes_of(self, index: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns boxes float64 [n, 4] xyxy as written, labels int32 [n], crowd bool [n] (views, not copies)."""
        rows = slice(self.starts[index], self.starts[index + 1])
        return self.boxes[rows], self.labels[rows], self.crowd[rows]

    def annotated_mask(self) -> np.ndarray:
        """Returns which classes are annotated in each image, bool [N, C]."""
        if self.annotated is None:
            return np.ones((len(self), len(self.classes)), bool)
        return np.unpackbits(self.annotated, axis=1, count=len(self.classes)).astype(bool)

    def verified_negatives(self) -> np.ndarray:
        """Returns which classes are annotated in each image, and have no box in it, bool [N, C]."""
        absent = self.annotated_mask()
        absent[self.image_of_boxes(), self.labels] = False
        return absent

    @property
    def is_partly_annotated(self) -> bool:
        """Whether the labels are incomplete. Of the formats that the program writes, only COCO JSON can store that."""
        return self.annotated is not None or self.is_ignored is not None

    def with_annotated(self, annotated_mask: np.ndarray) -> "Annotations":
        """Returns the same images with the classes that are annotated in each of them, bool [N, C]."""
        return replace(self, annotated=None if annotated_mask.all() else np.packbits(annotated_mask, axis=1))

    def ignore_regions_of(self, index: int) -> np.ndarray:
        """Returns the regions of an image that have no loss in training, float64 [r, 4] xyxy, clipped to the image.

        Those without end are for the evaluation only (LVIS: classes that are not exhaustive)."""
        if self.is_ignored is None:
            return np.zeros((0, 4))
        rows, (height, width) = slice(self.starts[index], self.starts[index + 1]), self.sizes[index]
        boxes = self.boxes[rows][self.is_ignored[rows] & (self.boxes[rows, 0] > -FAR)]
        boxes = np.unique(boxes, axis=0)  # a region may have a row for each class
        return clip(boxes, width or FAR, height or FAR)  # in a mosaic, what is outside belongs to other images

    def image_of_boxes(self) -> np.ndarray:
        """Returns the image index of each box, int64 [K]."""
        return np.repeat(np.arange(len(self)), np.diff(self.starts))

    @property
    def max_boxes(self) -> int:
        """The largest number of boxes in an image, without crowd regions, which are not trained on."""
        return int(np.bincount(self.image_of_boxes()[~self.crowd], minlength=1).max())

    def boxes_per_class(self) -> np.ndarray:
        """Returns the number of boxes of each class without crowd regions, int64 [C]."""
        return np.bincount(self.labels[~self.crowd], minlength=len(self.classes))

    def images_per_class(self) -> np.ndarray:
        """Returns the number of images with a box of each class without crowd regions, int64 [C]."""
        pairs = (self.image_of_boxes() * len(self.classes) + self.labels)[~self.crowd]
        return np.bincount(np.unique(pairs) % max(len(self.classes), 1), minlength=len(self.classes))

    def select(self, indices: np.ndarray) -> "Annotations":
        """Returns the images `indices [n]` in that order."""
        indices = np.asarray(indices, np.int64)
        counts = np.diff(self.starts)[indices]
        starts = np.concatenate([[0], np.cumsum(counts)])
        rows = np.repeat(self.starts[indices] - starts[:-1], counts) + np.arange(starts[-1])
        return replace(
            self.with_rows(rows, starts),
            image_ids=self.image_ids[indices],
            sizes=self.sizes[indices],
            names=Strings(self.names[i] for i in indices),
            lines=self.lines[indices],
            files=Strings(self.files[i] for i in indices),
            digests=None if self.digests is None else self.digests[indices],
            hashes=None if self.hashes is None else self.hashes[indices],
            limits=None if self.limits is None else self.limits[indices],
            annotated=None if self.annotated is None else self.annotated[indices],
        )

    def keep_boxes(self, keep: np.ndarray) -> "Annotations":
        """Returns the same images with only the boxes where `keep` (bool [K]) is true."""
        return self.with_rows(keep, np.concatenate([[0], np.cumsum(keep)])[self.starts])

    def with_rows(self, rows: np.ndarray, starts: np.ndarray) -> "Annotations":
        """Returns the same images with the boxes `rows`, of which image i has starts[i]:starts[i + 1]."""
        columns = {name: getattr(self, name)[rows] for name in ("boxes", "labels", "crowd", "areas", "box_lines")}
        is_ignored = None if self.is_ignored is None else self.is_ignored[rows]
        return replace(self, starts=starts, is_ignored=is_ignored, **columns)

    def coco(self) -> dict[str, Any]:
        """Returns a COCO ground truth: images, annotations (boxes as written, xywh) and categories with the data's own ids."""
        image_ids, category_ids = self.image_ids[self.image_of_boxes()], self.category_ids[self.labels]
        columns = [image_ids, category_ids, xyxy_to_xywh(self.boxes), self.areas, self.crowd.astype(int)]
        keys = ["id", "image_id", "category_id", "bbox", "area", "iscrowd"]
        if self.is_ignored is not None:
            columns.append(self.is_ignored.astype(int))
            keys.append("open")
        rows = zip(range(1, len(self.labels) + 1), *(column.tolist() for column in columns), strict=True)
        images = [
            {"id": int(self.image_ids[i]), "file_name": self.names[i], "height": height, "width": width}
            for i, (height, width) in enumerate(self.sizes.tolist())
        ]
        if self.annotated is not None:
            for image, absent in zip(images, self.verified_negatives(), strict=True):
                image["neg_category_ids"] = self.category_ids[absent].tolist()
        categories = zip(self.category_ids.tolist(), self.classes, strict=True)
        return {
            "images": images,
            "annotations": [dict(zip(keys, row, strict=True)) for row in rows],
            "categories": [{"id": i, "name": name} for i, name in categories],
        }


def evenly_spaced(number: int, most: int) -> list[int]:
    """Returns the indices of up to `most` of `number` images, evenly spaced: neighbors often show the same scene."""
    count = min(number, most)
    return [index * number // count for index in range(count)]


def no_such_class(number: float, names_from: str, count: int) -> str:
    """Returns the problem of a class number that a list of `count` names, counted from 0, does not have."""
    fix = "; if the label files count classes from 1, subtract 1 from each" if number == count else ""
    return f"class {number:g}, but {names_from} has {amount(count, 'name')} (0-{count - 1}){fix}"


def unknown_class(name: str, classes: tuple[str, ...]) -> str:
    """Returns the message for a class that is not in `classes`, with the nearest name."""
    near = nearest(name, classes)
    fix = f"did you mean {near!r}? Rename it in the data" if near else "rename it in the data"
    leave_out = "leave it out: python -m tools.convert SRC DST.txt classes=CLASSES_TO_KEEP"
    what = f"class {name!r} is not in the list of classes {first_names(classes)}"
    return f"{what}; {fix}, add it to the file of classes=, or {leave_out}"
