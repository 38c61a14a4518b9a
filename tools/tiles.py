"""Cuts the images of a data set into overlapping tiles, to train on small objects: tools/convert.py with tile=."""

import re
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np

from datasets.formats.labels import resolve_labels
from datasets.formats.options import ReadOptions
from datasets.formats.source import Source
from datasets.scan import clipped_boxes
from datasets.store import Annotations
from deploy.tiles import Tiles, cut
from utils.boxes import area, intersection
from utils.files import naming
from utils.images import READERS, decode_deep, prefetch, read_bytes, read_image

VISIBLE = 0.3  # a tile keeps a box if it shows at least this fraction of it
BACKGROUND = 0.1  # fraction of the tiles without boxes that are kept
JPEG_SUFFIXES = (".jpg", ".jpeg", ".jfif")
JPEG = [cv2.IMWRITE_JPEG_QUALITY, 95, cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444]


class Tile(NamedTuple):
    """An image of the new data set: a tile of an old image, or the old image itself if it fits into one tile."""

    image: int  # number of the old image
    path: str
    window: np.ndarray  # int64 [4] xyxy
    is_cut: bool  # whether it is written to a new file
    boxes: np.ndarray  # float64 [n, 4] xyxy in pixels of the tile
    rows: np.ndarray  # int64 [n] of these boxes in the old annotations


def cut_tiles(
    parts: Mapping[Path, Annotations], folder: Path, layout: Tiles, seed: int
) -> tuple[dict[Path, Annotations], list[str]]:
    """Writes the tiles of all images to `folder` -> the parts with the tiles as images, and a line to report about each.

    The sizes of the images must be known. `seed`: of the choice of tiles without boxes. Raises ImageError and OSError."""
    folder.mkdir(parents=True)
    outputs, report, number = {}, [], 0
    for path, data in parts.items():
        tiles = _tiles_of(data, layout, folder, number)
        kept = _without_most_backgrounds(tiles, seed)
        write_tiles(data, kept)
        outputs[path] = annotations_of(data, kept)
        whole = sum(not tile.is_cut for tile in tiles)
        lost = len(data.labels) - len({row for tile in tiles for row in tile.rows.tolist()})
        report.append(
            f"{path}: {len(data) - whole} images cut, {whole} fit into one tile; tiles without boxes left out: "
            f"{len(tiles) - len(kept)}; boxes that no tile shows enough of: {lost}"
        )
        number += len(data)
    return outputs, report


def _without_most_backgrounds(tiles: list[Tile], seed: int) -> list[Tile]:
    """Returns the tiles without those that have no boxes, except the fraction BACKGROUND of these."""
    empty = [n for n, tile in enumerate(tiles) if tile.is_cut and not len(tile.rows)]
    order = np.random.default_rng(seed).permutation(len(empty))
    gone = {empty[place] for place in order[round(BACKGROUND * len(empty)) :]}
    return [tile for n, tile in enumerate(tiles) if n not in gone]


def _tiles_of(data: Annotations, layout: Tiles, folder: Path, number: int) -> list[Tile]:
    """Returns all tiles of all images; the names of their files count the images from `number` + 1."""
    found, clipped = [], clipped_boxes(data)
    for index in range(len(data)):
        rows = np.arange(data.starts[index], data.starts[index + 1])
        whole, *windows = layout.windows(*data.sizes[index, ::-1].tolist())
        if not windows:
            found.append(Tile(index, data.path(index), whole, False, data.boxes[rows], rows))
        old = Path(data.names[index].replace("\\", "/"))
        stem = re.sub("[^A-Za-z0-9]+", "-", old.stem)[:40].strip("-")  # numbers distinguish images of the same name
        suffix = ".jpg" if old.suffix.lower() in JPEG_SUFFIXES else ".png"
        for window in windows:
            x, y = window[:2].tolist()
            boxes, kept = _visible(clipped[rows], data.crowd[rows], window)
            path = str(folder / f"{number + index + 1:06}-{stem}-{x}-{y}{suffix}")
            found.append(Tile(index, path, window, True, boxes - [x, y, x, y], rows[kept]))
    return found


def _visible(boxes: np.ndarray, crowd: np.ndarray, window: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the boxes of which a window shows enough, clipped to it, and which of the boxes [n, 4] these are, bool [n].

    Crowd regions are kept if any part of them is visible, because they only mark detections to ignore."""
    clipped = intersection(boxes, window)
    shown = area(clipped)
    kept = (shown > 0) & (crowd | (shown >= VISIBLE * area(boxes)))
    return clipped[kept], kept


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
            with naming(tile.path):
                Path(tile.path).write_bytes(cv2.imencode(tile.path[-4:], part, options)[1].tobytes())

    groups = groupby((tile for tile in tiles if tile.is_cut), key=lambda tile: tile.image)
    for _ in prefetch(write, ((index, list(some)) for index, some in groups), 2 * READERS, READERS):
        pass


def annotations_of(data: Annotations, tiles: list[Tile]) -> Annotations:
    """Returns annotations whose images are the tiles, with the classes of `data`.

    A cut object has the fraction of its area that is kept of its box: its outline is not known."""
    source = Source(data.source, names=data.classes, category_ids=data.category_ids.tolist())
    for tile in tiles:
        width, height = (tile.window[2:] - tile.window[:2]).tolist()
        source.add_image(tile.path, size=(height, width))
        areas = data.areas[tile.rows] * area(tile.boxes) / area(data.boxes[tile.rows])
        for (x1, y1, x2, y2), row, size in zip(tile.boxes.tolist(), tile.rows.tolist(), areas.tolist(), strict=True):
            source.add_box(tile.path, x1, y1, x2, y2, int(data.labels[row]), int(data.crowd[row]), size)
    return resolve_labels(source, ReadOptions(bad_boxes="error"), None)
