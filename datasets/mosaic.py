"""Mosaic and mixup, and the random choice among them that makes a training sample."""

from collections.abc import Callable

import cv2
import numpy as np

from datasets.store import Sample
from datasets.transforms import (
    Augment,
    Size,
    augment,
    compose,
    letterbox_matrix,
    move_regions,
    paint,
    random_affine,
    random_vertical_flips,
    shift_colors,
)
from utils.images import FILL, fit

CENTER = (0.5, 1.5)  # range of a mosaic's center on its canvas of twice the input size, in input sides (YOLOX)
MIXUP_SCALE = (0.5, 1.5)  # range of the size of a mixup's second image, relative to its letterboxed size (YOLOX)


def mosaic(samples: list[Sample], size: Size, rng: np.random.Generator, kind: str, settings: Augment) -> Sample:
    """Combines four samples (top left, top right, bottom left, bottom right) into one of `size` = (height, width).

    Each image is fitted into `size` as by a letterbox of `kind`, and placed with one corner at the center point of a canvas of
    twice that size. A random affine map takes the canvas to the output. The canvas itself is never painted: each image is
    resampled once.
    """
    height, width = size
    center_x, center_y = rng.uniform(*CENTER, 2) * (width, height)
    affine = random_affine(rng, (2 * height, 2 * width), size, settings)
    flipped = rng.random(4) < settings.flip
    flipped_vertically = random_vertical_flips(rng, 4, settings)
    output = np.full((height, width, 3), FILL, np.uint8)
    parts = []
    for i, sample in enumerate(samples):
        high, wide = sample.image.shape[:2]
        fitted, _ = fit(wide, high, size, kind)
        left = center_x - (wide * fitted.scale_x if i % 2 == 0 else 0)
        top = center_y - (high * fitted.scale_y if i < 2 else 0)
        # the part inside the canvas, in pixels of the image
        x1, x2 = max(-left / fitted.scale_x, 0), min((2 * width - left) / fitted.scale_x, wide)
        y1, y2 = max(-top / fitted.scale_y, 0), min((2 * height - top) / fitted.scale_y, high)
        if flipped[i]:
            x1, x2 = wide - x2, wide - x1
        if flipped_vertically[i]:
            y1, y2 = high - y2, high - y1
        matrix = compose(
            affine, letterbox_matrix(fitted._replace(left=left, top=top), flipped[i], flipped_vertically[i])
        )
        boxes, labels = paint(output, sample, matrix, np.array([x1, y1, x2, y2]))
        parts.append((boxes, labels, move_regions(sample.ignore, matrix)))
    shift_colors(output, rng, settings.hsv)
    boxes, labels, ignore = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return Sample(output, boxes, labels, ignore)


def mixup(sample: Sample, second: Sample, rng: np.random.Generator, kind: str, settings: Augment) -> Sample:
    """Blends `second`, with random size, position and color, into a finished `sample`, half and half; keeps all boxes.

    The ignore regions of both images are ignore regions of the result."""
    height, width = size = sample.image.shape[:2]
    high, wide = second.image.shape[:2]
    fitted, _ = fit(wide, high, size, kind)
    zoom = rng.uniform(*MIXUP_SCALE)
    scale_x, scale_y = fitted.scale_x * zoom, fitted.scale_y * zoom
    # anywhere inside the input; if it is larger than the input, a random part of it
    left, top = rng.random(2) * (width - wide * scale_x, height - high * scale_y)
    transform = fitted._replace(scale_x=scale_x, scale_y=scale_y, left=left, top=top)
    over = np.full((height, width, 3), FILL, np.uint8)
    flipped = bool(rng.random() < settings.flip)
    flipped_vertically = bool(random_vertical_flips(rng, 1, settings)[0])
    matrix = letterbox_matrix(transform, flipped, flipped_vertically)
    boxes, labels = paint(over, second, matrix)
    shift_colors(over, rng, settings.hsv)
    image = cv2.addWeighted(sample.image, 0.5, over, 0.5, 0)
    boxes, labels = np.concatenate([sample.boxes, boxes]), np.concatenate([sample.labels, labels])
    ignore = np.concatenate([sample.ignore, move_regions(second.ignore, matrix)])
    return Sample(image, boxes, labels, ignore)


def make_sample(
    sample: Sample, partner: Callable[[], Sample], rng: np.random.Generator, size: Size, kind: str, settings: Augment
) -> Sample:
    """Makes a training sample from an image as it is on disk: a mosaic or an `augment`ed image, then perhaps a mixup.

    `partner()` returns another image, which it also chooses by `rng`. `kind`: letterbox of the model.
    """
    with_mosaic, with_mixup = rng.random(2) < (settings.mosaic, settings.mixup)
    if with_mosaic:
        sample = mosaic([sample, *(partner() for _ in range(3))], size, rng, kind, settings)
    else:
        sample = augment(sample, size, rng, kind, settings)
    return mixup(sample, partner(), rng, kind, settings) if with_mixup else sample
