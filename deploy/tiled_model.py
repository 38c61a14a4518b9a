"""Evaluation with tiles: the windows of each image as a data set, and a model that merges their detections."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from datasets.dataset import Item
from deploy.tiles import Tiles, cut, for_detection, merged
from nets.postprocess import Detections
from utils.images import letterbox


class TiledModel(nn.Module):
    """Wraps a model for `evaluate`: takes all windows of an image as a batch, and merges their detections."""

    def __init__(self, model: Any, tiles: Tiles, batch_size: int):
        super().__init__()
        self.model, self.tiles, self.batch_size = model, tiles, batch_size

    def forward(self, images: Tensor) -> Tensor:
        """Returns the images unchanged: `detections` runs the network, in smaller batches, since predictions take much memory."""
        return images

    def detections(
        self, images: Tensor, image_size: tuple[int, int], transforms: Tensor, **limits: Any
    ) -> list[Detections]:
        """Detects objects in the windows of an image -> Detections per window: all in the first window, none in the others."""
        found: list[list[np.ndarray]] = []
        for batch, transform in zip(images.split(self.batch_size), transforms.split(self.batch_size), strict=True):
            windows = self.model.detections(self.model(batch), image_size, transform, **limits)
            found += [[field.cpu().numpy() for field in window] for window in windows]
        width, height = transforms[0, :2].int().tolist()
        boxes, scores, labels = map(torch.from_numpy, merged(found, self.tiles.windows(width, height), limits))
        nothing = Detections(boxes[:0], scores[:0], labels[:0])
        return [Detections(boxes, scores, labels), *[nothing] * (len(found) - 1)]


class TiledDataset(torch.utils.data.Dataset):
    """A validation data set whose items are the windows of its images."""

    def __init__(self, dataset: Any, tiles: Tiles):
        self.dataset, self.tiles, self.annotations = dataset, tiles, dataset.annotations

    def __getitems__(self, keys: Sequence[Any]) -> list[Item]:
        """Returns the windows of the images of a batch of keys, one image after another."""
        return [window for key in keys for window in self._windows(key)]

    def _windows(self, key: Any) -> Iterator[Item]:
        image = self.dataset.read(key.index).image
        for part in cut(image, self.tiles.windows(image.shape[1], image.shape[0])):
            fitted, transform = letterbox(part, key.size, self.dataset.letterbox)
            # Metrics take the boxes from the annotations.
            boxes, labels = np.zeros((0, 4), np.float32), np.zeros(0, np.int64)
            yield Item(fitted, boxes, labels, key.index, np.array(transform, np.float32))


def tiled(model: Any, loader: Any, tile: int | None, overlap: float | None) -> tuple[TiledModel, Any]:
    """Returns the model and the loader of an evaluation with tiles, made from the model and the loader without tiles.

    A batch holds all windows of an image.
    """
    tiles, batch_size = for_detection(tile, overlap), loader.batch_sampler.batch_size
    batches = [[key] for batch in loader.batch_sampler for key in batch]
    options = ("num_workers", "collate_fn", "pin_memory", "persistent_workers", "worker_init_fn")
    kept = {name: getattr(loader, name) for name in options}
    windows = type(loader)(TiledDataset(loader.dataset, tiles), batch_sampler=batches, **kept)
    return TiledModel(model, tiles, batch_size), windows
