"""Several samples -> one: mosaic and mixup, and the draw that decides between them."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import cv2
import numpy as np

from datasets.annotations import Sample
from datasets.transforms import FILL, augment, compose, fit, paint, placement, random_affine, shift_colours

CENTRE = (
    0.5,
    1.5,
)  # of the input's sides: where the four pictures of a mosaic meet on its canvas of twice the size (YOLOX)
MIXUP_SCALE = (0.5, 1.5)  # of the letterboxed size: how large the second picture of a mixup is (YOLOX)


@dataclass(frozen=True)
class Augment:
    """How the training samples of a phase are drawn. Probabilities are 0..1, angles degrees."""

    mosaic: float  # how often a sample is made of four pictures
    mixup: float  # how often a second picture is laid over it, half and half
    flip: float  # how often a picture is mirrored (each of a mosaic by itself)
    rotation: float  # to either side
    scale: tuple[float, float]  # from, to; of the letterboxed size
    translate: float  # share of the input's sides, to either side
    shear: float  # to either side
    hsv: tuple[float, float, float] = (5, 30, 30)  # see transforms.shift_colours

    def plain(self) -> "Augment":
        """The same for the plain last epochs: single pictures, letterboxed as in evaluation; flip and colours stay."""
        return replace(self, mosaic=0.0, mixup=0.0, rotation=0.0, scale=(1.0, 1.0), translate=0.0, shear=0.0)


def mosaic(
    samples: list[Sample],
    size: tuple[int, int],
    rng: np.random.Generator,
    flip: float,
    rotation: float,
    scale: tuple[float, float],
    translate: float,
    shear: float,
    hsv: tuple[float, float, float],
) -> Sample:
    """Four samples (top left, top right, bottom left, bottom right) -> one of `size` = (height, width).

    Each is fitted into `size` and laid with a corner at the common centre of a canvas twice as large, which one random
    affine then takes to the output, middle to middle. The canvas exists on paper only: each picture is resampled once,
    into the rectangle of the output where it is seen.
    """
    height, width = size
    centre_x, centre_y = rng.uniform(*CENTRE, 2) * (width, height)
    affine = random_affine(rng, (2 * height, 2 * width), size, rotation, scale, translate, shear)
    mirrored = rng.random(4) < flip
    output = np.full((height, width, 3), FILL, np.uint8)
    parts = []
    for i, sample in enumerate(samples):
        high, wide = sample.image.shape[:2]
        ratio = min(height / high, width / wide)
        left = centre_x - (wide * ratio if i % 2 == 0 else 0)
        top = centre_y - (high * ratio if i < 2 else 0)
        # what lies beyond the edge of the canvas is cut off, in pixels of the picture
        x1, x2 = max(-left / ratio, 0), min((2 * width - left) / ratio, wide)
        y1, y2 = max(-top / ratio, 0), min((2 * height - top) / ratio, high)
        if mirrored[i]:
            x1, x2 = wide - x2, wide - x1
        matrix = compose(affine, placement(ratio, left, top, wide, mirrored[i]))
        parts.append(paint(output, sample, matrix, np.array([x1, y1, x2, y2])))
    shift_colours(output, rng, hsv)
    return Sample(
        output, np.concatenate([boxes for boxes, _ in parts]), np.concatenate([labels for _, labels in parts])
    )


def mixup(
    sample: Sample, second: Sample, rng: np.random.Generator, flip: float, hsv: tuple[float, float, float]
) -> Sample:
    """Lays `second`, jittered in size, place and colour, over a finished `sample`, half and half, with its boxes."""
    height, width = size = sample.image.shape[:2]
    high, wide = second.image.shape[:2]
    scale = fit(wide, high, size, "corner")[0].scale * rng.uniform(*MIXUP_SCALE)
    # somewhere inside where it is smaller than the input, a random cut of it where it is larger
    left, top = rng.random(2) * (width - wide * scale, height - high * scale)
    over = np.full((height, width, 3), FILL, np.uint8)
    boxes, labels = paint(over, second, placement(scale, left, top, wide, bool(rng.random() < flip)))
    shift_colours(over, rng, hsv)
    image = cv2.addWeighted(sample.image, 0.5, over, 0.5, 0)
    return Sample(image, np.concatenate([sample.boxes, boxes]), np.concatenate([sample.labels, labels]))


def draw_sample(
    read: Callable[[int], Sample],
    index: int,
    partner: Callable[[np.random.Generator], Sample],
    rng: np.random.Generator,
    size: tuple[int, int],
    kind: str,
    how: Augment,
) -> Sample:
    """The training sample of picture `index`: what `rng`, that of (seed, epoch, position), makes of `how`.

    read(index) gives a picture as it is on disk; partner(rng) chooses another one with that generator and reads it.
    `kind` is the family's letterbox. The result depends on nothing else: workers and caches cannot change it.
    """
    with_mosaic, with_mixup = rng.random(2) < (how.mosaic, how.mixup)
    changes = {name: getattr(how, name) for name in ("flip", "rotation", "scale", "translate", "shear", "hsv")}
    sample = read(index)
    if with_mosaic:
        sample = mosaic([sample, *(partner(rng) for _ in range(3))], size, rng, **changes)
    else:
        sample = augment(sample, size, rng, kind, **changes)
    return mixup(sample, partner(rng), rng, how.flip, how.hsv) if with_mixup else sample
