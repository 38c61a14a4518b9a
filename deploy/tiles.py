"""Tiled inference for small objects: the layout of overlapping tiles, and how their detections become detections of the image.

A large image is shrunk to the size of the network's input, where small objects vanish. A tile is a part of the image; it is
scaled to the same input, so its objects stay larger. `Detector(..., tile=640)`, predict.py and evaluate.py use this module.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from deploy.tile_merge import merge

OVERLAP = 0.2  # the default: objects up to a fifth of a tile lie entirely within a tile
MIN_TILE = 32  # pixels
MIN_OVERLAP, MAX_OVERLAP = 0.05, 0.9  # with less overlap, the halves of an object show too little in common
MAX_TILES = 4096  # per image


@dataclass(frozen=True)
class Tiles:
    """The layout of tiles: squares of `tile` x `tile` pixels, whose neighbors overlap by at least the fraction `overlap`."""

    tile: int
    overlap: float | None = None  # None: OVERLAP

    def __post_init__(self):
        if not (isinstance(self.tile, int | np.integer) and self.tile >= MIN_TILE):
            raise ValueError(f"tile={self.tile}: it must be a whole number of pixels, at least {MIN_TILE}")
        if self.overlap is not None and not MIN_OVERLAP <= self.overlap <= MAX_OVERLAP:
            raise ValueError(f"overlap={self.overlap}: give a fraction of the tile from {MIN_OVERLAP} to {MAX_OVERLAP}")

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
        if len(tiles) == 1:
            tiles = []
        return np.array([(0, 0, width, height), *tiles], np.int64)

    def _starts(self, side: int) -> list[int]:
        """Returns the first pixel of each tile along a side of the image: evenly spaced, from 0 to `side - tile`."""
        overlap = OVERLAP if self.overlap is None else self.overlap
        gaps = -(-max(side - self.tile, 0) // round(self.tile * (1 - overlap)))
        return [k * (side - self.tile) // gaps for k in range(gaps + 1)] if gaps else [0]


def for_detection(tile: int | None, overlap: float | None) -> Tiles:
    """Returns a layout of tiles. Raises ValueError for an overlap without a side."""
    if tile is None:
        raise ValueError(f"overlap={overlap} is for tiles: give their side in pixels too, as in tile=640")
    return Tiles(tile, overlap)


def cut(image: np.ndarray, windows: np.ndarray) -> Iterator[np.ndarray]:
    """Yields the crops of an image [H, W, 3] at windows [n, 4] xyxy, as views."""
    return (image[y1:y2, x1:x2] for x1, y1, x2, y2 in windows.tolist())


def merged(parts: Sequence[Sequence[np.ndarray]], windows: np.ndarray, limits: dict[str, Any]) -> Sequence[np.ndarray]:
    """Merges the detections (boxes, scores, labels) of all windows of an image -> of the image, highest score first."""
    if len(parts) == 1:
        return parts[0]
    counts = [len(scores) for _, scores, _ in parts]
    boxes, scores, labels = map(np.concatenate, zip(*parts, strict=True))
    tiles = np.repeat(np.arange(len(windows)), counts)
    boxes = boxes + windows[tiles][:, [0, 1, 0, 1]]
    class_agnostic = limits.get("class_agnostic", False)
    return merge(boxes, scores, labels, tiles, windows, limits["nms_iou"], limits["max_detections"], class_agnostic)
