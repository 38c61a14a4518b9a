"""Evaluation with tiles: the windows of each image as a data set, and a model that merges their detections."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from deploy.tiles import Tiles, cut, for_detection, merged
from nets.postprocess import Detections
from utils.images import letterbox


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
            parts = [[x.numpy() for x in window] for window in found[first : first + len(windows)]]
            found[first] = Detections(*map(torch.from_numpy, merged(parts, windows, limits)))
            rest = range(first + 1, first + len(windows))
            for row in rest:
                found[row] = Detections(*(x[:0] for x in found[row]))
            first = rest.stop
        return found


def on_cpu(detections: list[Detections]) -> list[Detections]:
    """Copies detections to the CPU, with one transfer per field instead of one per window."""
    counts = [len(window.scores) for window in detections]
    fields = (torch.cat(field).cpu().split(counts) for field in zip(*detections, strict=True))
    return [Detections(*window) for window in zip(*fields, strict=True)]


class Window(NamedTuple):
    """A window of an image at the size of the network's input, with the fields of a sample that `collate` needs."""

    image: np.ndarray  # uint8 [H, W, 3] BGR
    boxes: np.ndarray  # [0, 4], empty: metrics take the boxes from the annotations
    labels: np.ndarray  # [0]
    index: int  # of the image
    transform: np.ndarray  # float32 [6]: letterbox transform of the window
    ignore: None = None  # metrics take it from the annotations


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
            boxes, labels = np.zeros((0, 4), np.float32), np.zeros(0, np.int64)
            yield Window(fitted, boxes, labels, key.index, np.array(transform, np.float32))


def tiled(model: Any, loader: Any, tile: int | None, overlap: float | None) -> tuple[TiledModel, Any]:
    """Returns the model and the loader of an evaluation with tiles, made from the model and the loader without tiles.

    A batch holds at most as many windows as it held images, or all windows of one image. If no image has tiles, the batches
    stay as they were.
    """
    tiles, batch_size = for_detection(tile, overlap), loader.batch_sampler.batch_size
    batches: list[list[Any]] = []
    room = 0
    for key in (key for batch in loader.batch_sampler for key in batch):
        height, width = loader.dataset.annotations.sizes[key.index].tolist()
        count = len(tiles.windows(width, height))
        if count > room:
            batches.append([])
            room = batch_size
        batches[-1].append(key)
        room -= count
    options = ("num_workers", "collate_fn", "pin_memory", "persistent_workers", "worker_init_fn")
    kept = {name: getattr(loader, name) for name in options}
    windows = type(loader)(TiledDataset(loader.dataset, tiles), batch_sampler=batches, **kept)
    return TiledModel(model, tiles, batch_size), windows
