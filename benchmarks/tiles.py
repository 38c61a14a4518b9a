"""Tiles for small objects: AP and time with and without them, and compared with the package sahi, for the same model.

    pip install sahi
    python -m benchmarks.tiles checkpoint=runs/mine-DATE-1/best.pt data=hemocytometer/val.txt

Large images are mosaics of the images of the data, at their own resolution. sahi runs the same Detector on its slices, by the
adapter `model_of`.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.table import RESULTS, machine
from datasets.check_images import check_images
from datasets.formats.labels import resolve_labels
from datasets.formats.options import ReadOptions
from datasets.formats.read import read
from datasets.formats.source import Source
from datasets.scan import clipped_boxes
from datasets.store import Annotations
from deploy.detector import Detector, Result
from deploy.tiles import Tiles
from metrics.coco import coco_metrics
from utils.config import override
from utils.images import read_image

SLICES = {"GREEDYNMM, IoS .5 (its default)": ("GREEDYNMM", "IOS", 0.5), "NMS, IoU as nms_iou": ("NMS", "IOU", None)}


@dataclass(frozen=True)
class Config:
    checkpoint: str | None = None  # none: the newest runs/*/best.pt
    data: str | None = None  # annotation file or another data set of the same classes; none: val of the training
    trained: str = ""  # how the checkpoint was trained, for the page
    tile: int = 640
    small_tile: int = 320  # for the images of the data as they are
    overlap: float = 0.2
    confidence: float = 0.01
    nms_iou: float = 0.65
    mosaics: int = 8  # large images
    grid: int = 3  # a mosaic is grid x grid images


def mosaics_of(data: Annotations, count: int, grid: int) -> tuple[list[np.ndarray], Annotations]:
    """Composes large images, of random images of the data without repeats within one -> images, annotations."""
    rng, boxes = np.random.default_rng(0), clipped_boxes(data)
    images, source = [], Source("mosaics", names=data.classes)
    height, width = data.sizes.min(0).tolist()
    for number in range(count):
        canvas = np.zeros((grid * height, grid * width, 3), np.uint8)
        source.add_image(f"mosaic_{number}", size=canvas.shape[:2])
        for place, index in enumerate(rng.choice(len(data), grid * grid, replace=False).tolist()):
            x, y = place % grid * width, place // grid * height
            canvas[y : y + height, x : x + width] = read_image(data.path(index))[:height, :width]
            for row in range(data.starts[index], data.starts[index + 1]):
                x1, y1, x2, y2 = boxes[row].tolist()
                if x1 < width - 1 and y1 < height - 1:
                    box = x + x1, y + y1, x + min(x2, width), y + min(y2, height)
                    source.add_box(f"mosaic_{number}", *box, int(data.labels[row]), int(data.crowd[row]))
        images.append(canvas)
    return images, resolve_labels(source, ReadOptions(bad_boxes="drop"), None)


def model_of(detector: Detector, confidence: float) -> Any:
    """A Detector as a DetectionModel of sahi, which gives it RGB slices one after another."""
    from sahi.models.base import DetectionModel
    from sahi.prediction import ObjectPrediction

    class Model(DetectionModel):
        def set_model(self, model: Detector, **_: Any) -> None:
            self.model = model

        def perform_inference(self, image: np.ndarray) -> None:
            self._original_predictions = self.model(np.ascontiguousarray(image[..., ::-1]))

        def perform_batch_inference(self, images: list[np.ndarray]) -> None:
            self._original_predictions = self.model([np.ascontiguousarray(image[..., ::-1]) for image in images])

        def _create_object_prediction_list_from_original_predictions(
            self, shift_amount_list: Any = ((0, 0),), full_shape_list: Any = None
        ) -> None:
            count = len(self._original_predictions)
            shifts = shift_amount_list if isinstance(shift_amount_list[0], list) else [shift_amount_list] * count
            shapes = full_shape_list if isinstance((full_shape_list or [0])[0], list) else [full_shape_list] * count
            self._object_prediction_list_per_image = [
                [
                    ObjectPrediction(
                        bbox=box,
                        category_id=label,
                        category_name=name,
                        score=score,
                        shift_amount=shift,
                        full_shape=shape,
                    )
                    for box, score, label, name in zip(*map(np.ndarray.tolist, one[:3]), one.names, strict=True)
                ]
                for one, shift, shape in zip(self._original_predictions, shifts, shapes, strict=True)
            ]

    return Model(model=detector, device="cpu", confidence_threshold=confidence)


def by_sahi(cfg: Config, detector: Detector, tile: int, kind: str, metric: str, threshold: float | None) -> Callable:
    """A function from an image to its Result, by sahi."""
    from sahi.predict import get_sliced_prediction

    model = model_of(detector, cfg.confidence)

    def predict(image: np.ndarray) -> Result:
        found = get_sliced_prediction(
            image[..., ::-1], model, tile, tile, cfg.overlap, cfg.overlap, verbose=0, batch_size=detector.batch_size,
            postprocess_type=kind, postprocess_match_metric=metric, force_postprocess_type=True,
            postprocess_match_threshold=cfg.nms_iou if threshold is None else threshold,
        ).object_prediction_list  # fmt: skip
        found = sorted(found, key=lambda one: -one.score.value)[: detector.limits["max_detections"]]
        boxes = np.array([one.bbox.to_xyxy() for one in found], np.float32).reshape(-1, 4)
        scores = np.array([one.score.value for one in found], np.float32)
        return Result(boxes, scores, np.array([one.category.id for one in found], np.int64), ())

    return predict


def measure(predictors: dict[str, Callable], images: list[np.ndarray], data: Annotations) -> dict[str, list[float]]:
    """AP, AP50, wall and CPU seconds per image of each predictor; they take turns on every image."""
    rows: dict[str, list[dict]] = {name: [] for name in predictors}
    seconds = {name: np.zeros(2) for name in predictors}
    for predict in predictors.values():
        predict(images[0])
    for number, image in enumerate(images):
        for name, predict in predictors.items():
            wall, cpu = time.perf_counter(), time.process_time()
            result = predict(image)
            seconds[name] += time.perf_counter() - wall, time.process_time() - cpu
            corners = result.boxes.astype(float)
            sides = np.concatenate([corners[:, :2], corners[:, 2:] - corners[:, :2]], 1).tolist()
            for box, score, label in zip(sides, result.scores.tolist(), result.labels.tolist(), strict=True):
                image_id, category = int(data.image_ids[number]), int(data.category_ids[label])
                rows[name].append({"image_id": image_id, "category_id": category, "bbox": box, "score": score})
    truth, found = data.coco(), {}
    for name in predictors:
        metrics = coco_metrics(truth, rows[name])
        found[name] = [metrics["AP"], metrics["AP50"], *(seconds[name] / len(images)).tolist()]
    return found


def table(title: str, found: dict[str, list[float]]) -> str:
    """A table of the results on one kind of images."""
    lines = [
        f"\n## {title}\n",
        "| | AP | AP50 | seconds per image | CPU seconds per image |",
        "|---|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {name} | {100 * a:.2f} | {100 * b:.2f} | {wall:.2f} | {cpu:.2f} |"
        for name, (a, b, wall, cpu) in found.items()
    ]
    return "\n".join(lines) + "\n"


def predictors_of(cfg: Config, plain: Detector, tile: int) -> dict[str, Callable]:
    """Functions from an image to its Result: without tiles, with them, and by sahi if it is installed."""
    tiled = Detector(cfg.checkpoint, **limits_of(cfg), tile=tile, overlap=cfg.overlap)
    found = {"whole image": lambda image: plain(image)[0], "whole image and tiles": lambda image: tiled(image)[0]}
    if find_spec("sahi"):
        for name, options in SLICES.items():
            found[f"sahi {version('sahi')}, {name}"] = by_sahi(cfg, plain, tile, *options)
    else:
        print("pip install sahi, to compare with it")
    return found


def limits_of(cfg: Config) -> dict[str, Any]:
    """The thresholds of all predictors."""
    return {"confidence": cfg.confidence, "nms_iou": cfg.nms_iou, "device": "cpu"}


def method(cfg: Config, detector: Detector, source: str) -> str:
    """The end of the page: the command, the hardware and what was compared."""
    names = ("tile", "small_tile", "overlap", "confidence", "nms_iou", "mosaics", "grid")
    words = " ".join(f"{name}={getattr(cfg, name):g}" for name in names)
    size = f"{detector.image_size[1]}x{detector.image_size[0]}"
    return f"""
`python -m benchmarks.tiles checkpoint=best.pt data={"/".join(Path(source).parts[-2:])} {words}`,
{time.strftime("%Y-%m-%d")}, {machine()}. {cfg.trained}

The input of the network is {size} pixels. sahi cuts the same tiles, with the same Detector, thresholds and batch size
({detector.batch_size}), and also predicts the whole image. All predictors take turns on every image; reading files is not part of
the time.
"""


def main(cfg: Config) -> None:
    """Writes benchmarks/results/tiles.md."""
    plain = Detector(cfg.checkpoint, **limits_of(cfg))
    source = cfg.data or plain.config["val"]
    data, _ = check_images(read(source, "val", ReadOptions(classes=plain.classes, bad_boxes="drop")))
    images, large = mosaics_of(data, cfg.mosaics, cfg.grid)
    originals = [read_image(data.path(i)) for i in range(len(data))]
    text = "# Tiles for small objects\n"
    for name, tile, some, truth in (
        (f"{len(data)} images as they are", cfg.tile, originals, data),
        (f"{len(data)} images as they are", cfg.small_tile, originals, data),
        (f"{cfg.mosaics} mosaics of {cfg.grid}x{cfg.grid} images", cfg.tile, images, large),
    ):
        height, width = some[0].shape[:2]
        tiles = len(Tiles(tile, cfg.overlap).windows(width, height)) - 1
        what = f"{name}, {width}x{height} pixels, tile={tile} ({tiles or 'no'} tiles), {len(truth.labels)} boxes"
        compared = predictors_of(cfg, plain, tile)
        text += table(what, measure(compared if tiles else dict(list(compared.items())[:2]), some, truth))
    text += method(cfg, plain, source)
    (RESULTS / "tiles.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main(override(Config(), sys.argv[1:]))
