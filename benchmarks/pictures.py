"""Writes the pictures of the README and of docs/augmentation.md into docs/images.

python -m benchmarks.pictures                            augment*.jpg: 16 training samples of each kind, with their boxes
python -m benchmarks.pictures runs/demo-.../best.pt      also demo.jpg: what that checkpoint finds in its validation pictures
"""

import sys
from pathlib import Path

import numpy as np

from datasets import demo
from datasets.annotations import Sample
from datasets.mosaic import Augment, draw_sample
from utils.detector import Detector
from utils.draw import contact_sheet, draw_boxes, write_image

FOLDER = Path(__file__).parents[1] / "docs" / "images"
SIDE = 192  # pixels of a sample: with 16 of them a page stays under 300 KB
MOVED = {"rotation": 10, "scale": (0.5, 1.5), "translate": 0.1, "shear": 4}  # as train.py has it, turned further
SHEETS = {  # file: how its samples are drawn
    "augment": Augment(mosaic=1.0, mixup=0.0, flip=0.5, **MOVED),
    "augment_single": Augment(mosaic=0.0, mixup=0.0, flip=0.5, **MOVED),
    "augment_mixup": Augment(mosaic=0.5, mixup=1.0, flip=0.5, **MOVED),
    "augment_plain": Augment(mosaic=0.5, mixup=1.0, flip=0.5, **MOVED).plain(),
}


def demo_samples(count: int) -> list[Sample]:
    """The first pictures of the demo, as they are drawn (no file is read or written)."""
    pictures = (demo.picture(number) for number in range(count))
    return [Sample(image, boxes.astype(np.float32), labels) for image, boxes, labels in pictures]


def augmented(samples: list[Sample], how: Augment, size: tuple[int, int], count: int) -> list[np.ndarray]:
    """The first `count` training samples of `how`, with their boxes drawn."""
    images = []
    for position in range(count):
        rng = np.random.default_rng((0, 0, position))
        index = position % len(samples)
        sample = draw_sample(
            samples.__getitem__, index, lambda rng: samples[rng.integers(len(samples))], rng, size, "corner", how
        )
        images.append(draw_boxes(sample.image, sample.boxes, sample.labels, demo.CLASSES))
    return images


def predictions(checkpoint: str, count: int) -> list[np.ndarray]:
    """The first validation pictures of the demo with what a checkpoint finds in them."""
    detector = Detector(checkpoint, confidence=0.5)
    images = [demo.picture(demo.PICTURES["train"] + number)[0] for number in range(count)]
    found = zip(images, detector(images), strict=True)
    return [draw_boxes(image, one.boxes, one.labels, detector.classes, one.scores) for image, one in found]


def main() -> None:
    for checkpoint in sys.argv[1:]:
        write_image(FOLDER / "demo.jpg", contact_sheet(predictions(checkpoint, 8), 4, 320))
    samples = demo_samples(48)
    for name, how in SHEETS.items():
        path = FOLDER / f"{name}.jpg"  # a tenth of the PNG, whose bytes would be grain
        write_image(path, contact_sheet(augmented(samples, how, (SIDE, SIDE), 16), 4))
        print(path)


if __name__ == "__main__":
    main()
