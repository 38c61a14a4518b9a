"""Cuts the images of a data set into overlapping tiles, to train on small objects: tools/convert.py with tile=."""

import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np

from datasets.errors import DataError
from datasets.formats.labels import resolve_labels
from datasets.formats.options import ReadOptions
from datasets.formats.source import Source
from datasets.scan import clipped_boxes
from datasets.store import Annotations
from deploy.tiles import Tiles, cut
from utils.boxes import area, intersection
from utils.images import READERS, decode_deep, prefetch, read_bytes, read_image

VISIBLE, BACKGROUND = 0.3, 0.1  # the defaults of the options of the same names
JPEG_SUFFIXES = (".jpg", ".jpeg", ".jfif")
JPEG = [cv2.IMWRITE_JPEG_QUALITY, 95, cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444]


class Tile(NamedTuple):
    """An image of the new data set: a tile of an old image, or the old image itself if it fits into one tile."""

    index: int  # of the old image
    path: str
    window: np.ndarray  # int64 [4] xyxy
    is_cut: bool  # whether it is written to a new file
    boxes: np.ndarray  # float64 [n, 4] xyxy in pixels of the tile
    rows: np.ndarray  # int64 [n] of these boxes in the old annotations


@dataclass(frozen=True)
class Cutter:
    """Cuts images into tiles. `visible`: min visible fraction of a box; `background`: fraction of empty tiles that is kept."""

    tiles: Tiles
    visible: float
    background: float
    seed: int  # of the choice of tiles without boxes

    def __post_init__(self):
        for name in ("visible", "background"):
            if not 0 <= getattr(self, name) <= 1:
                raise DataError(f"{name}={getattr(self, name):g}: it must be a fraction from 0 to 1")

    @contextmanager
    def cut(
        self, parts: Mapping[Path, Annotations], target: Path
    ) -> Iterator[tuple[dict[Path, Annotations], list[str]]]:
        """Writes the tiles of all images to the folder TARGET_tiles; a context manager that removes it after an error.

        Yields the parts with the tiles as images, and one line per part to report. The sizes of the images must be known.
        Raises DataError if the folder exists, ImageError for an image that cannot be read, and OSError."""
        folder = target.with_name(f"{target.stem}_tiles")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            raise DataError(f"{folder} exists: give another name, or delete it") from None
        outputs, report, number = {}, [], 0
        try:
            for path, data in parts.items():
                tiles, line = self._choose(self._tiles_of(data, folder, number), len(data), len(data.labels))
                write_tiles(data, tiles)
                outputs[path] = annotations_of(data, tiles)
                report.append(f"{path}: {line}")
                number += len(data)
            yield outputs, report
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def _choose(self, tiles: list[Tile], images: int, boxes: int) -> tuple[list[Tile], str]:
        """Leaves out tiles without boxes, except the fraction `background` -> the tiles to keep, and a line to report."""
        empty = [n for n, tile in enumerate(tiles) if tile.is_cut and not len(tile.rows)]
        order = np.random.default_rng(self.seed).permutation(len(empty))
        gone = {empty[k] for k in order[round(self.background * len(empty)) :]}
        whole = sum(not tile.is_cut for tile in tiles)
        lost = boxes - len({row for tile in tiles for row in tile.rows.tolist()})
        line = (
            f"{images - whole} images cut, {whole} fit into one tile; tiles without boxes: {len(empty)}, kept "
            f"{len(empty) - len(gone)}; boxes that no tile shows enough of: {lost}"
        )
        return [tile for n, tile in enumerate(tiles) if n not in gone], line

    def _tiles_of(self, data: Annotations, folder: Path, number: int) -> list[Tile]:
        """Returns all tiles of all images; the names of their files count the images from `number` + 1."""
        found, clipped = [], clipped_boxes(data)
        for index in range(len(data)):
            rows = np.arange(data.starts[index], data.starts[index + 1])
            whole, *windows = self.tiles.windows(*data.sizes[index, ::-1].tolist())
            if not windows:
                found.append(Tile(index, data.path(index), whole, False, data.boxes[rows], rows))
            old = Path(data.names[index].replace("\\", "/"))
            stem = re.sub("[^A-Za-z0-9]+", "-", old.stem)[:40].strip("-")  # numbers distinguish images of the same name
            suffix = ".jpg" if old.suffix.lower() in JPEG_SUFFIXES else ".png"
            for window in windows:
                x, y = window[:2].tolist()
                boxes, kept = self._visible(clipped[rows], data.crowd[rows], window)
                path = str(folder / f"{number + index + 1:06}-{stem}-{x}-{y}{suffix}")
                found.append(Tile(index, path, window, True, boxes - [x, y, x, y], rows[kept]))
        return found

    def _visible(self, boxes: np.ndarray, crowd: np.ndarray, window: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the boxes of which a window shows enough, clipped to it, and which of the boxes [n, 4] these are, bool [n].

        Crowd regions are kept if any part of them is visible, because they only mark detections to ignore."""
        parts = intersection(boxes, window)
        shown = area(parts)
        kept = (shown > 0) & (crowd | (shown >= self.visible * area(boxes)))
        return parts[kept], kept


def cutter_of(
    tile: int | None, overlap: float | None, visible: float | None, background: float | None, seed: int
) -> Cutter:
    """Builds the Cutter from the options of tools/convert.py; None stands for a default. Raises ValueError."""
    if tile is None:
        raise DataError("overlap=, visible= and background= are for tiles: give their side too, as in tile=640")
    if visible is None:
        visible = VISIBLE
    if background is None:
        background = BACKGROUND
    return Cutter(Tiles(tile, overlap), visible, background, seed)


def write_tiles(data: Annotations, tiles: list[Tile]) -> None:
    """Writes the tiles as image files: as JPEG of quality 95 if the old image is a JPEG, otherwise lossless as PNG."""

    def write(group: tuple[int, list[Tile]]) -> None:
        index, some = group
        path = data.path(index)
        if some[0].path.endswith(".jpg"):
            image = read_image(path)
        else:
            image = decode_deep(read_bytes(path), path)
        for tile, part in zip(some, cut(image, np.array([tile.window for tile in some])), strict=True):
            options = JPEG if tile.path.endswith(".jpg") else []
            Path(tile.path).write_bytes(cv2.imencode(tile.path[-4:], part, options)[1].tobytes())

    groups = groupby((tile for tile in tiles if tile.is_cut), key=lambda tile: tile.index)
    for _ in prefetch(write, ((index, list(some)) for index, some in groups), 2 * READERS, READERS):
        pass


def annotations_of(data: Annotations, tiles: list[Tile]) -> Annotations:
    """Returns annotations whose images are the tiles, with the classes of `data`.

    A cut object has the fraction of its area that is kept of its box: its outline is not known."""
    source = Source(data.source, names=data.classes, category_ids=data.category_ids.tolist())
    for tile in tiles:
        x1, y1, x2, y2 = tile.window.tolist()
        source.add_image(tile.path, size=(y2 - y1, x2 - x1))
        areas = data.areas[tile.rows] * area(tile.boxes) / area(data.boxes[tile.rows])
        for box, row, size in zip(tile.boxes.tolist(), tile.rows.tolist(), areas.tolist(), strict=True):
            source.add_box(tile.path, *box, int(data.labels[row]), int(data.crowd[row]), size)
    return resolve_labels(source, ReadOptions(bad_boxes="error"), None)
