"""Contact sheets: what the network sees, and what it finds."""

import itertools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from utils import draw
from utils.boxes import xywh_to_xyxy

COLUMNS = 4


def training_sheets(dataset, batches: Iterable[Sequence], count: int = 3) -> Iterator[np.ndarray]:
    """The first 16 samples of the first `count` batches of keys, drawn with their boxes: uint8 [H, W, 3] BGR each."""
    for keys in itertools.islice(batches, count):
        items = [dataset[key] for key in keys[:16]]
        drawn = [draw.draw_boxes(item.image, item.boxes, item.labels, dataset.classes) for item in items]
        yield draw.contact_sheet(drawn, COLUMNS)


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


def show(run, name: str, sheet: np.ndarray, step: int) -> None:
    """Puts a sheet into the run folder as NAME.jpg, and into TensorBoard."""
    draw.write_image(run.folder / f"{name}.jpg", sheet)
    run.picture(name, sheet, step)
