"""Repeat-factor sampling: the images of rare classes are drawn more often, in an epoch of the same length."""

from dataclasses import dataclass

import numpy as np

from datasets.store import Annotations


@dataclass(frozen=True, eq=False)  # hashed by identity, for the cache of dataset.epoch_order
class Repeats:
    """Repeat-factor sampling (Gupta et al. 2019, LVIS, section 4.2) with the length of an epoch unchanged."""

    factors: np.ndarray  # float64 [N] of each image, at least 1

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        """Draws N images: image i is there `N * factors[i] / sum(factors)` times, rounded up or down at random.

        Systematic sampling: the expected counts, in random order, divide a line of length N, and the N points
        u, u + 1, ... fall on it. So every count has exactly its expectation, and no image repeats without need.
        """
        images = rng.permutation(len(self.factors))
        ends = np.cumsum(self.factors[images])
        ends *= len(ends) / ends[-1]
        ends[-1] = len(ends)  # exactly, so that there are N points
        counts = np.diff(np.floor(ends + rng.random()), prepend=0).astype(np.int64)
        return rng.permutation(np.repeat(images, counts))


def repeats_of(data: Annotations, threshold: float) -> Repeats | None:
    """Returns the repeat factors of the images: the largest `max(1, sqrt(threshold / f))` of the classes in an image.

    `f` is the fraction of images with a box of the class. Without boxes the factor is 1. None if all factors are 1."""
    frequency = data.images_per_class().clip(1) / len(data)
    of_class = np.sqrt(threshold / frequency).clip(1)
    factors = np.ones(len(data))
    np.maximum.at(factors, data.image_of_boxes()[~data.crowd], of_class[data.labels[~data.crowd]])
    return Repeats(factors) if factors.max() > 1 else None
