"""Images for property tests: a colored rectangle on gray, and where it is found after a transform; small data sets."""

import cv2
import numpy as np

from datasets import demo
from datasets.store import Sample

GRAY = 90
COLORS = np.array([(0, 255, 0), (255, 0, 0), (0, 0, 255), (255, 255, 255)], np.uint8)


def painted_sample(rng: np.random.Generator, label: int = 0, sides: tuple[int, int] = (40, 300)) -> Sample:
    """A gray image of random shape with a rectangle of color `label`, read-only like the images of a cache."""
    height, width = (int(v) for v in rng.integers(*sides, 2))
    image = np.full((height, width, 3), GRAY, np.uint8)
    (x1, x2), (y1, y2) = (np.sort(rng.choice(np.arange(0, side + 1, 10), 2, replace=False)) for side in (width, height))
    image[y1:y2, x1:x2] = COLORS[label]
    image.flags.writeable = False
    return Sample(image, np.array([[x1, y1, x2, y2]], np.float32), np.array([label]))


def extent(image: np.ndarray, label: int, strength: float = 1.0) -> np.ndarray | None:
    """The bounding box xyxy of the pixels nearer to color `label`, at this `strength`, than to gray; None without any."""
    full = COLORS[label].astype(float) - GRAY
    nearness = (image.astype(float) - GRAY) @ full / (full @ full)
    rows, columns = np.nonzero(nearness > 0.5 * strength)
    if len(rows) == 0:
        return None
    return np.array([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1], float)


def assert_under_its_box(
    image: np.ndarray, boxes: np.ndarray, label: int, rotated: bool, strength: float = 1.0
) -> None:
    """Asserts that the color of `label` and its box ([0 or 1, 4]) are at the same place; without a box the color is hardly
    visible."""
    seen = extent(image, label, strength)
    height, width = image.shape[:2]
    if len(boxes) == 0:
        assert seen is None or (seen[2:] - seen[:2]).min() <= 3 or (seen[2:] - seen[:2]).prod() < 0.2 * height * width
        return
    (box,) = boxes
    assert 0 <= box[0] < box[2] <= width and 0 <= box[1] < box[3] <= height
    if (box[2:] - box[:2]).min() < 4:  # thinner than the blur of its edges
        return
    cut = np.array([box[0] <= 0 or box[2] >= width, box[1] <= 0 or box[3] >= height])
    if seen is None:  # the bounding box of a rotated rectangle may reach into a corner of the output, the rectangle not
        assert rotated and cut.all()
        return
    near = 2.0 if rotated else 1.5  # versions of OpenCV differ at the edges of a part that is enlarged several times
    assert (seen[:2] >= box[:2] - near).all() and (seen[2:] <= box[2:] + near).all()
    if not (rotated and cut.any()):  # a rotated and cut rectangle has the larger bounding box of its corners
        np.testing.assert_allclose(seen, box, atol=2.5 if rotated else 1.5)


def drawn(folder, parts):
    """Writes demo images with these numbers (part -> range), an annotation file for each part, and classes.txt."""
    for part, numbers in parts.items():
        lines = []
        for number in numbers:
            image, boxes, labels = demo.draw_image(number)
            assert cv2.imwrite(str(folder / f"{number}.png"), image)
            rows = [",".join(map(str, [*box, label])) for box, label in zip(boxes.tolist(), labels, strict=True)]
            lines.append(" ".join([f"{number}.png", *rows]))
        (folder / f"{part}.txt").write_text("\n".join(lines))
    (folder / "classes.txt").write_text("\n".join(demo.CLASSES))
    return folder
