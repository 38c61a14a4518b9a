"""Tiled inference for small objects: detects in the whole image and in its overlapping tiles, and merges the detections.

A large image is shrunk to the size of the network's input, where small objects vanish. A tile is a part of the image; it is
scaled to the same input, so its objects stay larger. `Detector(..., tile=640)`, predict.py and evaluate.py use this module.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from nets.detector import Detector, Result
from nets.merge import merge
from nets.postprocess import Detections
from utils.images import batched, letterbox

OVERLAP = 0.2  # the default: objects up to a fifth of a tile lie entirely within a tile
MIN_TILE, MIN_OVERLAP, MAX_OVERLAP = (
    32,
    0.05,
    0.9,
)  # with less overlap, the halves of an object show too little in common
MAX_TILES = 4096  # per image


@dataclass(frozen=True)
class Tiles:
    """The layout of tiles: squares of `tile` x `tile` pixels, whose neighbors overlap by at least the fraction `overlap`."""

    tile: int | None
    overlap: float | None = None  # None: OVERLAP

    def __post_init__(self):
        if self.tile is None:
            raise ValueError(f"overlap={self.overlap} is for tiles: give their side in pixels too, as in tile=640")
        if not (isinstance(self.tile, int | np.integer) and self.tile >= MIN_TILE):
            raise ValueError(f"tile={self.tile}: it must be a whole number of pixels, at least {MIN_TILE}")
        if self.overlap is not None and not 0 <= self.overlap <= MAX_OVERLAP:
            raise ValueError(f"overlap={self.overlap}: it must be a fraction of the tile from 0 to {MAX_OVERLAP}")

    def windows(self, width: int, height: int) -> np.ndarray:
        """Returns windows int64 [n, 4] xyxy: the whole image, then its tiles row by row; none if it fits into one."""
        columns, rows = self._starts(width), self._starts(height)
        if len(columns) * len(rows) > MAX_TILES:
            raise ValueError(
                f"tile={self.tile}: an image of {width}x{height} pixels has {len(columns) * len(rows):,} tiles, at most "
                f"{MAX_TILES:,} are possible: take larger tiles, or less overlap"
            )
        starts = [(x, y) for y in rows for x in columns]
        tiles = [(x, y, min(x + self.tile, width), min(y + self.tile, height)) for x, y in starts]
        return np.array([(0, 0, width, height), *(tiles if len(tiles) > 1 else [])], np.int64)

    def _starts(self, side: int) -> list[int]:
        """Returns the first pixel of each tile along a side of the image: evenly spaced, from 0 to `side - tile`."""
        overlap = OVERLAP if self.overlap is None else self.overlap
        gaps = -(-max(side - self.tile, 0) // round(self.tile * (1 - overlap)))
        return [k * (side - self.tile) // gaps for k in range(gaps + 1)] if gaps else [0]

    def detect(self, detector: Detector, images: Iterable[np.ndarray]) -> list[Result]:
        """Detects objects in images uint8 [H, W, 3] BGR, in batches of windows -> one Result per image."""
        results: list[Result] = []
        found: list[Result] = []  # of windows whose image is not finished
        waiting: deque[np.ndarray] = deque()  # the windows of each of these images

        def crops() -> Iterator[np.ndarray]:
            for image in images:
                height, width = (*getattr(image, "shape", ()), 0, 0)[:2]
                windows = self.windows(width, height)
                waiting.append(windows)
                yield image  # `prepare` checks it before the tiles are cut
                yield from cut(image, windows[1:])

        for batch in batched(crops(), detector.batch_size):
            inputs, transforms = detector.prepare(batch)
            found += detector.select(detector.network(inputs), transforms)
            while waiting and len(found) >= len(waiting[0]):
                count = len(waiting[0])
                fields = merged([one[:3] for one in found[:count]], waiting.popleft(), detector.limits)
                results.append(Result(*fields, tuple(detector.classes[label] for label in fields[2])))
                del found[:count]
        return results


def for_detection(tile: int | None, overlap: float | None) -> Tiles:
    """Returns a layout of tiles whose detections can be merged. Raises ValueError for too little overlap."""
    if overlap is not None and overlap < MIN_OVERLAP:
        raise ValueError(
            f"overlap={overlap}: the halves of an object that a tile border cuts could not be merged: at least "
            f"{MIN_OVERLAP}, better {OVERLAP}"
        )
    return Tiles(tile, overlap)


def cut(image: np.ndarray, windows: np.ndarray) -> Iterator[np.ndarray]:
    """Yields the crops of an image [H, W, 3] at windows [n, 4] xyxy, as views."""
    return (image[y1:y2, x1:x2] for x1, y1, x2, y2 in windows.tolist())


def merged(parts: Sequence[Sequence[np.ndarray]], windows: np.ndarray, limits: dict[str, Any]) -> Sequence[np.ndarray]:
    """Merges the detections (boxes, scores, labels) of all windows of an image -> those of the image, highest score first."""
    if len(parts) == 1:
        return parts[0]
    counts = [len(scores) for _, scores, _ in parts]
    boxes, scores, labels = map(np.concatenate, zip(*parts, strict=True))
    tiles = np.repeat(np.arange(len(windows)), counts)
    boxes = boxes + windows[tiles][:, [0, 1, 0, 1]]
    return merge(boxes, scores, labels, tiles, windows, limits["nms_iou"], limits["max_detections"])


class TiledModel(nn.Module):
    """Wraps a model for `evaluate`: takes batches of the windows of images, and returns the merged detections per image."""

    def __init__(self, model: Any, tiles: Tiles, batch_size: int):
        super().__init__()
        self.model, self.tiles, self.batch_size = model, tiles, batch_size

    def forward(self, images: Tensor) -> Tensor:
        """Returns the images unchanged: `detections` runs the network, in smaller batches, since predictions take much memory."""
        return images

    def detections(
        self, images: Tensor, image_size: tuple[int, int], transforms: Tensor, **limits: Any
    ) -> list[Detections]:
        """Detects objects in windows -> Detections per window: all of an image in its first window, none in the others."""
        found: list[Detections] = []
        for batch, transform in zip(images.split(self.batch_size), transforms.split(self.batch_size), strict=True):
            found += on_cpu(self.model.detections(self.model(batch), image_size, transform, **limits))
        first, sizes = 0, transforms[:, :2].int().tolist()
        while first < len(found):
            windows = self.tiles.windows(*sizes[first])
            parts = [[x.numpy() for x in one] for one in found[first : first + len(windows)]]
            found[first] = Detections(*map(torch.from_numpy, merged(parts, windows, limits)))
            rest = range(first + 1, first + len(windows))
            for row in rest:
                found[row] = Detections(*(x[:0] for x in found[row]))
            first = rest.stop
        return found


def on_cpu(detections: list[Detections]) -> list[Detections]:
    """Copies detections to the CPU, with one transfer per field instead of one per window."""
    counts = [len(one.scores) for one in detections]
    fields = (torch.cat(field).cpu().split(counts) for field in zip(*detections, strict=True))
    return [Detections(*one) for one in zip(*fields, strict=True)]


class Window(NamedTuple):
    """A window of an image at the size of the network's input, with the fields of a sample that `collate` needs."""

    image: np.ndarray  # uint8 [H, W, 3] BGR
    boxes: np.ndarray  # [0, 4], empty: metrics take the boxes from the annotations
    labels: np.ndarray  # [0]
    index: int  # of the image
    transform: np.ndarray  # float32 [5]: letterbox transform of the window


class TiledDataset(torch.utils.data.Dataset):
    """A validation data set whose items are the windows of its images."""

    def __init__(self, dataset: Any, tiles: Tiles):
        self.dataset, self.tiles, self.annotations = dataset, tiles, dataset.annotations

    def __getitems__(self, keys: Sequence[Any]) -> list[Window]:
        """Returns the windows of the images of a batch of keys, one image after another."""
        return [window for key in keys for window in self._windows(key)]

    def _windows(self, key: Any) -> Iterator[Window]:
        image = self.dataset.read(key.index).image
        for part in cut(image, self.tiles.windows(image.shape[1], image.shape[0])):
            fitted, transform = letterbox(part, key.size, self.dataset.letterbox)
            no_boxes = np.zeros((0, 4), np.float32), np.zeros(0, np.int64)
            yield Window(fitted, *no_boxes, key.index, np.array(transform, np.float32))


def tiled(model: Any, loader: Any, tile: int | None, overlap: float | None) -> tuple[TiledModel, Any]:
    """Returns the model and the loader of an evaluation with tiles, made from those of an evaluation without.

    A batch holds at most as many windows as it held images, or all windows of one image. If no image has tiles, the batches
    stay as they were.
    """
    tiles, most = for_detection(tile, overlap), loader.batch_sampler.batch_size
    batches, room = [], 0
    for key in (key for batch in loader.batch_sampler for key in batch):
        height, width = loader.dataset.annotations.sizes[key.index].tolist()
        count = len(tiles.windows(width, height))
        if count > room:
            batches.append([])
            room = most
        batches[-1].append(key)
        room -= count
    options = ("num_workers", "collate_fn", "pin_memory", "persistent_workers", "worker_init_fn")
    kept = {name: getattr(loader, name) for name in options}
    return TiledModel(model, tiles, most), type(loader)(
        TiledDataset(loader.dataset, tiles), batch_sampler=batches, **kept
    )
