"""Contact sheets: what the network sees, and what it finds."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from utils import draw
from utils.boxes import xywh_to_xyxy

COLUMNS = 4


def shown(batches: Iterable, classes: Sequence[str], show: Callable, begun: int = 0, count: int = 3) -> Iterator:
    """The batches, unchanged. Of the first `count` of the run, of which `begun` were before, 16 samples are drawn with their
    boxes for `show(name, sheet)`; a sheet is uint8 [H, W, 3] BGR."""
    for number, batch in enumerate(batches, begun + 1):
        if number <= count:
            images = batch.images[:16].permute(0, 2, 3, 1).numpy()
            of_images = zip(images, batch.boxes.numpy(), batch.labels.numpy(), strict=False)
            drawn = [
                draw.draw_boxes(i, boxes[labels >= 0], labels[labels >= 0], classes) for i, boxes, labels in of_images
            ]
            show(f"train_batch_{number}", draw.contact_sheet(drawn, COLUMNS))
        yield batch


def prediction_sheet(dataset, detections: Iterable[dict], count: int = 8, confidence: float = 0.3) -> np.ndarray:
    """The first pictures of a data set with what was found in them (COCO results), uint8 [H, W, 3] BGR."""
    data = dataset.annotations
    shown = {int(data.image_ids[index]): index for index in range(min(count, len(data)))}
    label_of = {int(c): label for label, c in enumerate(data.category_ids)}
    found: dict[int, list[dict]] = {index: [] for index in shown.values()}
    for one in detections:
        if one["image_id"] in shown and one["score"] >= confidence:
            found[shown[one["image_id"]]].append(one)
    drawn = []
    for index, some in found.items():
        boxes = xywh_to_xyxy(np.array([one["bbox"] for one in some]).reshape(-1, 4))
        labels, scores = [label_of[one["category_id"]] for one in some], [one["score"] for one in some]
        drawn.append(draw.draw_boxes(dataset.read(index).image, boxes, labels, data.classes, scores))
    return draw.contact_sheet(drawn, COLUMNS)


def show_sheet(run, name: str, sheet: np.ndarray, step: int) -> None:
    """Puts a sheet into the run folder as NAME.jpg, and into TensorBoard."""
    draw.write_image(run.folder / f"{name}.jpg", sheet)
    run.picture(name, sheet, step)
