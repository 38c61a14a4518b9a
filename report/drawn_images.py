"""Images drawn with their boxes: the first training batches, and validation images with what was detected."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from datasets.store import Annotations, evenly_spaced
from utils.boxes import xywh_to_xyxy
from utils.draw import PAPER, contact_sheet, draw_boxes, put_text, resized
from utils.images import ImageError

COLUMNS = 4  # of the contact sheets
SHEET_SIDE = 400  # pixels of the longer side of each image in the contact sheet of a validation
SHOWN, CONFIDENCE = 8, 0.3  # images of the sheets of a validation, and min score of a detection


def draw_labels(image: np.ndarray, scale: float, data: Annotations, index: int) -> np.ndarray:
    """Draws the labels of an image of a data set over `image`, which was resized by `scale`. Crowd regions are named "crowd"."""
    boxes, labels, crowd = data.boxes_of(index)
    return draw_boxes(image, boxes * scale, np.where(crowd, len(data.classes), labels), (*data.classes, "crowd"))


def draw_batches(batches: Iterable, classes: Sequence[str], show: Callable, begun: int = 0, count: int = 3) -> Iterator:
    """Yields training batches unchanged, and draws a contact sheet of each of the first `count` of a run.

    `show(name, sheet)` gets 16 samples with their boxes. `begun` batches were done by an earlier start of the run.
    """
    for number, batch in enumerate(batches, begun + 1):
        if number <= count:
            images = batch.images[:16].permute(0, 2, 3, 1).numpy()
            samples = zip(images, batch.boxes.numpy(), batch.labels.numpy(), strict=False)
            drawn = [draw_boxes(i, boxes[labels >= 0], labels[labels >= 0], classes) for i, boxes, labels in samples]
            show(f"train_batch_{number}", contact_sheet(drawn, COLUMNS))
        yield batch


def prediction_sheet(dataset, detections: Iterable[dict], count: int = SHOWN) -> Callable[[], np.ndarray]:
    """Returns a function that draws a contact sheet of `count` images, evenly spaced over a data set, at one size, each with its
    boxes, then its detections. It keeps only what it draws."""
    data = dataset.annotations
    chosen = evenly_spaced(len(data.image_ids), count)
    labels = {int(category): label for label, category in enumerate(data.category_ids)}
    of_image: dict[int, list[tuple[float, ...]]] = {int(data.image_ids[index]): [] for index in chosen}
    for entry in detections:  # entries of a COCO results file
        if entry["image_id"] in of_image and entry["score"] >= CONFIDENCE:
            of_image[entry["image_id"]].append((*entry["bbox"], labels[entry["category_id"]], entry["score"]))
    return partial(_draw_sheet, dataset, dict(zip(chosen, of_image.values(), strict=True)))


def _draw_sheet(dataset, detected: Mapping[int, list[tuple[float, ...]]]) -> np.ndarray:
    """Draws a contact sheet of images, index -> x, y, width, height, label and score of each detection."""
    data, drawn = dataset.annotations, []
    for index, found in detected.items():
        rows = np.array(found, np.float64).reshape(-1, 6)
        try:
            image = dataset.read(index).image
        except ImageError:  # it has gone since the evaluation read it; a drawing may not end a run
            image = np.full((*data.sizes[index], 3), PAPER, np.uint8)
        scale = SHEET_SIDE / max(image.shape[:2])  # before drawing, so that the text stays readable
        image = resized(image, scale)
        truth = draw_labels(image, scale, data, index)
        boxes = draw_boxes(image, xywh_to_xyxy(rows[:, :4]) * scale, rows[:, 4], data.classes, rows[:, 5])
        drawn += [_titled(truth, "ground truth"), _titled(boxes, f"prediction, score at least {CONFIDENCE:g}")]
    return contact_sheet(drawn, COLUMNS)


def _titled(image: np.ndarray, title: str) -> np.ndarray:
    """An image with a line of text above it."""
    line = np.full((26, image.shape[1], 3), PAPER, np.uint8)
    put_text(line, title, 6, 18, 15, (60, 56, 51))
    return np.concatenate([line, image])
