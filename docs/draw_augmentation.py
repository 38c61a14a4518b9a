"""Draws 16 training samples of each kind of augmentation, for docs/augmentation.md."""

from pathlib import Path

import numpy as np

from datasets import demo
from datasets.mosaic import Augment, make_sample
from datasets.store import Sample
from docs.jpeg import write_jpeg
from utils.draw import contact_sheet, draw_boxes

SIDE = 192  # pixels of a sample
GEOMETRY = {
    "rotation": 10,
    "scale": (0.5, 1.5),
    "translate": 0.1,
    "shear": 4,
}  # as in train.py, but with rotation
SHEETS = {  # file: augmentation
    "augment": Augment(mosaic=1.0, mixup=0.0, flip=0.5, **GEOMETRY),
    "augment_single": Augment(mosaic=0.0, mixup=0.0, flip=0.5, **GEOMETRY),
    "augment_mixup": Augment(mosaic=0.5, mixup=1.0, flip=0.5, **GEOMETRY),
    "augment_no_aug": Augment(mosaic=0.5, mixup=1.0, flip=0.5, **GEOMETRY).without_geometry(),
}


def demo_samples(count: int) -> list[Sample]:
    """The first images of the demo, drawn in memory."""
    images = (demo.draw_image(number) for number in range(count))
    return [Sample(image, boxes.astype(np.float32), labels) for image, boxes, labels in images]


def augmented(samples: list[Sample], augment: Augment, size: tuple[int, int], count: int) -> list[np.ndarray]:
    """The first `count` training samples with this augmentation, with their boxes drawn."""
    images = []
    for position in range(count):
        rng = np.random.default_rng((0, 0, position))
        sample = samples[position % len(samples)]
        sample = make_sample(sample, lambda rng=rng: samples[rng.integers(len(samples))], rng, size, "corner", augment)
        images.append(draw_boxes(sample.image, sample.boxes, sample.labels, demo.CLASSES))
    return images


def main(name: str, output: Path) -> None:
    """Writes the contact sheet of one of `SHEETS`."""
    images = augmented(demo_samples(48), SHEETS[name], (SIDE, SIDE), 16)
    write_jpeg(output, contact_sheet(images, 4))  # a tenth of the size of PNG, which would store the noise
