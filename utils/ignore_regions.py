"""What is not known about an image: regions in which no box of a class does not mean that there is no object of it."""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

Values: TypeAlias = "torch.Tensor | np.ndarray"  # noqa: F821  as in utils/boxes.py

EVERYWHERE = np.array([[0, 0, 0.5], [0, 0, 0.5]])  # the place that contains every point
FAR = 1e6  # pixels, for infinity: a quarter of a mosaic has two open sides


class IgnoreRegions(NamedTuple):
    """Places and the classes that are not known there. A point is in a place if the place's matrix maps it to the unit square.

    A place is a matrix, so that it can rotate with the image. Arrays for a sample, tensors `[B, ...]` for a batch.
    """

    regions: Values  # float64 [r, 2, 3]; float32 in a batch
    classes: Values  # bool [r, C]

    def within(self, place: np.ndarray) -> "IgnoreRegions":
        """Limits what is everywhere to `place` [2, 3]."""
        everywhere = ~self.regions[:, :, :2].any((1, 2))
        return self._replace(regions=np.where(everywhere[:, None, None], place, self.regions))

    def spread(self) -> "IgnoreRegions":
        """Extends all regions to the whole image."""
        return of_image(self.classes.any(0))


def move(regions: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """Returns regions [..., 2, 3] of an image after it was transformed by `matrix` [2, 3]."""
    linear = regions[..., :2] @ np.linalg.inv(matrix[:, :2])
    shift = regions[..., 2] - linear @ matrix[:, 2]
    return np.concatenate([linear, shift[..., None]], -1)


def moved(ignore: IgnoreRegions | None, matrix: np.ndarray) -> IgnoreRegions | None:
    """Returns what is ignored about an image after it was moved by `matrix` [2, 3]."""
    return None if ignore is None else ignore._replace(regions=move(ignore.regions, matrix))


def of_image(classes: np.ndarray) -> IgnoreRegions:
    """Returns the classes, bool [C], as ignored everywhere in an image."""
    return IgnoreRegions(EVERYWHERE[None], classes[None])


def of_boxes(boxes: np.ndarray, classes: np.ndarray) -> IgnoreRegions:
    """Returns the classes, bool [r, C], as ignored in the boxes, [r, 4] xyxy with an area."""
    regions = np.zeros((len(boxes), 2, 3))
    sides = boxes[:, 2:] - boxes[:, :2]
    regions[:, [0, 1], [0, 1]] = 1 / sides
    regions[:, :, 2] = -boxes[:, :2] / sides
    return IgnoreRegions(regions, classes)


def quarter(x: float, y: float, right: bool, below: bool) -> np.ndarray:
    """Returns the place [2, 3] of all points on one side of x, and on one side of y."""
    across, down = (1 / FAR if after else -1 / FAR for after in (right, below))
    return np.array([[across, 0, -across * x], [0, down, -down * y]])


def joined(parts: Sequence[IgnoreRegions | None]) -> IgnoreRegions | None:
    """Returns all regions of all parts; None without any."""
    present = [part for part in parts if part is not None]
    if not present:
        return None
    return IgnoreRegions(*map(np.concatenate, zip(*present, strict=True)))
