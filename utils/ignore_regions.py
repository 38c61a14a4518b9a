"""Ignore regions per class: where a missing box does not mean that the class is absent."""

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np

T = TypeVar("T")

WHOLE_PLANE = np.array([[0, 0, 0.5], [0, 0, 0.5]])  # the region that contains every point
FAR = 1e6  # pixels, for infinity: a quarter of a mosaic has two open sides


class IgnoreRegions(NamedTuple, Generic[T]):
    """Regions, and the classes that have no loss in them.

    A region is a matrix, so that it can rotate with the image: a point is in it if the matrix maps the point to the unit square.
    Arrays for a sample, tensors `[B, ...]` for a batch.
    """

    regions: T  # float64 [r, 2, 3]; float32 in a batch
    classes: T  # bool [r, C]


Arrays = IgnoreRegions[np.ndarray]


def limited(ignore: Arrays, region: np.ndarray) -> Arrays:
    """Limits the regions that are the whole plane to `region` [2, 3]."""
    is_plane = np.logical_not(ignore.regions[:, :, :2].any(axis=(1, 2)))
    return ignore._replace(regions=np.where(is_plane[:, None, None], region, ignore.regions))


def spread(ignore: Arrays) -> Arrays:
    """Makes each region the whole image."""
    return of_image(np.asarray(ignore.classes.any(axis=0)))


def move(regions: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Returns regions [..., 2, 3] of an image after it was transformed by `matrix` [2, 3]."""
    linear = regions[..., :2] @ np.linalg.inv(matrix[:, :2])
    shift = regions[..., 2] - linear @ matrix[:, 2]
    return np.concatenate([linear, shift[..., None]], -1)


def moved(ignore: Arrays | None, matrix: np.ndarray) -> Arrays | None:
    """Returns the ignore regions of an image after it was transformed by `matrix` [2, 3]."""
    return None if ignore is None else ignore._replace(regions=move(ignore.regions, matrix))


def of_image(classes: np.ndarray) -> Arrays:
    """Returns one region for the classes, bool [C]: the whole image."""
    return IgnoreRegions(WHOLE_PLANE[None], classes[None])


def of_boxes(boxes: np.ndarray, classes: np.ndarray) -> Arrays:
    """Returns a region for each of the boxes, [r, 4] xyxy with an area; `classes`: bool [r, C]."""
    regions = np.zeros((len(boxes), 2, 3))
    sides = boxes[:, 2:] - boxes[:, :2]
    regions[:, [0, 1], [0, 1]] = 1 / sides
    regions[:, :, 2] = -boxes[:, :2] / sides
    return IgnoreRegions(regions, classes)


def quarter(x: float, y: float, right: bool, below: bool) -> np.ndarray:
    """Returns the region [2, 3] of all points on one side of x, and on one side of y."""
    across, down = (1 / FAR if after else -1 / FAR for after in (right, below))
    return np.array([[across, 0, -across * x], [0, down, -down * y]])


def joined(parts: Sequence[Arrays | None]) -> Arrays | None:
    """Returns the regions of all parts together; None if there are none."""
    present = [part for part in parts if part is not None]
    if not present:
        return None
    regions = np.concatenate([part.regions for part in present])
    return IgnoreRegions(regions, np.concatenate([part.classes for part in present]))
