"""Finds boxes that look like fractions or percents of the image in a format whose boxes are in pixels."""

import os

import numpy as np

from datasets.formats.source import Source
from datasets.scan import scan
from datasets.store import Annotations, evenly_spaced

ROUNDING = 1e-3  # a rounded fraction may be so much below 0 or above 1
CENTERED = 1.5  # x + width may be so much if x, y is the center of a box in fractions; counts if no box exceeds it
MIN_IMAGES, OPENED = 5, 20  # labeled images from which boxes may be percents, and images of which the size is read
TINY_IMAGE = 2  # pixels; in an image with such a side these boxes may be in pixels
FIX = "multiply it by width and height, or use a format that has fractions (YOLO)"


def find_fractions(source: Source, boxes: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> dict[int, str]:
    """Returns {row: what is wrong with it, and the fix} of the boxes that look like fractions of their image.

    Whole numbers are pixels. Images whose size is not in `sizes` (int32 [N, 2]) are opened, but only those with such boxes."""
    farthest = CENTERED if boxes.max(initial=0) <= CENTERED else 1 + ROUNDING
    rows = np.flatnonzero((boxes[:, 2] <= farthest) & (boxes[:, 3] <= farthest))
    near = boxes[rows]
    has_area = (near[:, 2] > near[:, 0]) & (near[:, 3] > near[:, 1])
    rows = rows[has_area & ((near[:, :2] >= -ROUNDING) & (near[:, :2] < 1)).all(1)]
    rows = rows[(boxes[rows] % 1 > 0).any(1)]
    owners = np.searchsorted(starts, rows, side="right") - 1
    in_pixels = ~np.frombuffer(source.are_fractions, bool)[owners]
    rows, owners = rows[in_pixels], owners[in_pixels]
    of_owner = _sizes_of(source, owners, sizes)
    found = {}
    for row, owner in zip(rows.tolist(), owners.tolist(), strict=True):
        height, width = of_owner[owner]
        if 0 < min(height, width) <= TINY_IMAGE:
            continue
        box = "{:g},{:g},{:g},{:g}".format(*boxes[row])
        image = f"the image size {width}x{height}" if width else "the image size"
        found[row] = (
            f"{source.places[row]}: box {box} looks like fractions of {image}, but this format is in pixels: {FIX}"
        )
    return found


def percent_note(source: Source, found: Annotations) -> list[str]:
    """Returns a note if the boxes of larger images all lie in the first 100 pixels, up to their end, and are no whole numbers."""
    labeled, boxes = np.flatnonzero(np.diff(found.starts)), found.boxes
    if len(labeled) < MIN_IMAGES or any(source.are_fractions) or not (0 <= boxes.min() and 50 < boxes.max() <= 100):
        return []
    if (boxes % 1 > 0).mean() < 0.5:
        return []
    sizes = scan([found.path(labeled[i]) for i in evenly_spaced(len(labeled), OPENED)]).sizes
    if sizes.min() <= 2 * 100:
        return []
    fix = "if they are percents, multiply x by width / 100 and y by height / 100, or use a format that has fractions (YOLO)"
    return [f"{source.path}: all boxes are in the first 100 pixels of larger images: {fix}"]


def is_whole_file(found: int, boxes: int) -> bool:
    """Returns whether boxes that look like fractions are a mistake of the whole file, by their number.

    One tiny box among others, or one in ten of many, is a bad box like one without area."""
    return found > max(1, boxes // 10) or 0 < found == boxes


def _sizes_of(source: Source, owners: np.ndarray, sizes: np.ndarray) -> dict[int, tuple[int, int]]:
    """Returns {image: height, width} of the images `owners`; 0, 0 where the image cannot be read."""
    found = {owner: tuple(sizes[owner].tolist()) for owner in np.unique(owners).tolist()}
    unknown = [owner for owner, size in found.items() if not all(size)]
    scanned = scan([os.path.join(source.root, source.images[owner]) for owner in unknown]).sizes if unknown else ()
    return found | {owner: tuple(size.tolist()) for owner, size in zip(unknown, scanned, strict=True)}
