"""Ground truth and detections in the form of COCO, and what pycocotools says of them."""

import contextlib
import copy
import io

import numpy as np
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval


def ground_truth(boxes, classes=("a", "b"), images=(1,), ids=None):
    """boxes: (image, category id, x, y, w, h[, crowd])."""
    ids = ids or range(1, len(classes) + 1)
    return {
        "images": [{"id": i, "file_name": f"{i}.jpg", "width": 640, "height": 480} for i in images],
        "categories": [{"id": i, "name": name} for i, name in zip(ids, classes, strict=True)],
        "annotations": [
            {
                "id": n,
                "image_id": b[0],
                "category_id": b[1],
                "bbox": list(b[2:6]),
                "area": b[4] * b[5],
                "iscrowd": sum(b[6:]),
            }
            for n, b in enumerate(boxes, 1)
        ],
    }


def entries(*rows):
    """rows: (image, category id, x, y, w, h, score)."""
    return [{"image_id": r[0], "category_id": r[1], "bbox": list(r[2:6]), "score": r[6]} for r in rows]


def random_case(seed):
    """Boxes of all sizes, crowd, categories 1, 3, 90 (one without boxes), images without boxes, equal scores."""
    rng = np.random.default_rng(seed)
    boxes, detections = [], []
    for image in range(10, 22):
        for _ in range(rng.integers(0, 9)):
            x, y, w, h = rng.integers(1, 200, 4).tolist()
            category = int(rng.choice([1, 3]))
            boxes.append((image, category, x, y, w, h, int(rng.random() < 0.15)))
            for _ in range(rng.integers(0, 4)):
                jitter = rng.normal(0, 0.1, 4) * [w, h, w, h]
                detections.append(
                    (image, category, *(np.array([x, y, w, h]) + jitter).tolist(), round(float(rng.random()), 1))
                )
        for _ in range(rng.integers(0, 5)):
            numbers = rng.integers(1, 200, 4).tolist()
            detections.append((image, int(rng.choice([1, 3, 90])), *numbers, float(rng.random())))
    truth = ground_truth(boxes, ("cat", "dog", "bird"), range(10, 24), (90, 3, 1))
    return truth, entries(*detections)


def evaluated(truth, detections):
    """The evaluator of pycocotools with its `evalImgs` and `stats`."""
    with contextlib.redirect_stdout(io.StringIO()):
        data = COCO()
        data.dataset = copy.deepcopy(truth)
        data.createIndex()
        evaluator = COCOeval(data, data.loadRes(copy.deepcopy(detections)), "bbox")
        evaluator.evaluate()
        evaluator.accumulate()
        evaluator.summarize()
    return evaluator
