"""Measures heat maps: does the score of a detection fall when the hottest pixels of its map are blurred?

    python -m benchmarks.heatmap weights=yolox_nano.pth images=coco_val326/images [count=50]

For the best detection in each image, the hottest 10 % of the pixels are blurred, and for comparison random areas of the same
size. Writes benchmarks/results/heatmap.md.
"""

import sys
import time
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import torch

import nets
from benchmarks.table import RESULTS, machine
from deploy.detector import Detector, Result
from nets.pretrained import COCO_CLASSES
from report.heatmap import HeatMaps, nearest
from utils.boxes import pairwise_iou
from utils.config import ConfigError, override, require
from utils.images import fit, images_under, letterbox, read_image
from utils.script import run_script

FRACTION = 0.1  # of the pixels that are blurred
SIGMA = 20.0  # pixels of the network's input: standard deviation of the blur, and of the noise that draws random areas
RANDOM = 4  # random areas per image
LOW = 0.01  # scores below count as 0
SAME_IOU = 0.5  # a detection of the class that overlaps more is the same detection
SMALL = 0.2  # fraction of the image: the blurred pixels cannot cover a box that is larger
MAPS = {  # row of the table: how its map is made
    "heat map": "heat map of the model",
    "random model": "heat map of a model with random weights, of its own best detection",
    "random weights": "heat map with random weights, of the anchor point of the detection",
    "box": "the pixels that are nearest to the center of the box, without any network",
}
PAGE = """# Heat maps

The loss of score when the hottest 10 % of the pixels of a heat map are blurred. A map passes if this loss is larger than the loss
with random areas, with 95 % confidence.

{table}

- **A random model fails**: its heat maps say nothing about the detections of the trained one.
- Most objects are smaller than 10 % of the image. There any map that lies on the object passes, and a map always lies around the
  anchor point of its detection, whatever the weights. So two more rows: the map of random weights at the anchor point of the
  trained model's detection, and the box alone. The heat map costs {weights} more than the former and {box} more than the latter
  (mean, 95 % interval).
- The {large} detections whose box covers more than a fifth of the image show what the weights add, since 10 % of the pixels
  cannot cover them: {large_weights} more than random weights, {large_box} more than the box.

## The {large} large detections

{large_table}

`python -m benchmarks.heatmap weights=yolox_nano.pth images=coco_val326/images` takes the best detection in each of the first
{count} images of the folder that have one with a score of {least} or more. It blurs the hottest 10 % of the pixels of its heat
map, detects again, and notes how much of the score is lost. Random areas of the same size (smooth areas, four draws per image)
are blurred for comparison.

{model}, images of COCO val2017, mean score before {score}, {date}, {machine}.
"""


@dataclass(frozen=True)
class Config:
    weights: str | None = None  # official weights of `model`
    model: str = "yolox_nano"
    images: str | None = None  # a folder
    count: int = 50  # images with a detection, in the order of their names
    confidence: float = 0.3  # least score of the detection


def hottest(heat: np.ndarray, fraction: float = FRACTION) -> np.ndarray:
    """The mask bool [h, w] of the pixels with the highest values."""
    mask, count = np.zeros(heat.size, bool), round(heat.size * fraction)
    mask[np.argpartition(-heat, count, axis=None)[:count]] = True
    return mask.reshape(heat.shape)


def random_areas(shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """A mask bool [h, w] of as many pixels in random smooth areas."""
    return hottest(cv2.GaussianBlur(rng.standard_normal(shape).astype(np.float32), (0, 0), SIGMA))


def blurred(image: np.ndarray, masks: list[np.ndarray]) -> list[np.ndarray]:
    """For each mask the image, blurred where the mask is set."""
    soft = cv2.GaussianBlur(image, (0, 0), SIGMA)
    return [np.where(mask[..., None], soft, image) for mask in masks]


def score_of(result: Result, found: Result) -> float:
    """The highest score in `result` of the same class and place as `found`, or 0."""
    same = (result.labels == found.labels[0]) & (pairwise_iou(found.boxes, result.boxes)[0] >= SAME_IOU)
    return float(result.scores[same].max(initial=0.0))


def random_model(name: str, image: np.ndarray) -> nets.DetectionModel:
    """A model with random weights, whose batch norms have the statistics of an image, so that signals pass all layers."""
    torch.manual_seed(0)
    model = nets.build(name, len(COCO_CLASSES)).train()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = 1.0
    with torch.no_grad():
        model(torch.from_numpy(letterbox(image, nets.official_size(name), model.letterbox)[0]).permute(2, 0, 1)[None])
    return model.fuse()


def masks_of(image: np.ndarray, found: Result, trained: HeatMaps, random: HeatMaps) -> dict[str, np.ndarray]:
    """The blurred pixels of each row of MAPS."""
    height, width = image.shape[:2]
    scene, other = trained.scene(image), random.scene(image)
    point = nearest(scene, found.boxes, found.labels, found.scores, width, height)[0]
    maps = [*trained.of_points(scene.levels, [point]), *random.of_points(other.levels, [other.scores.argmax(), point])]
    heats = {name: one[:height, :width] for name, one in zip(MAPS, maps, strict=False)}
    x1, y1, x2, y2 = found.boxes[0]
    rows, columns = np.mgrid[:height, :width]
    heats["box"] = -np.hypot((columns - (x1 + x2) / 2) / (x2 - x1), (rows - (y1 + y2) / 2) / (y2 - y1))
    return {name: hottest(heat) for name, heat in heats.items()}


def measure(cfg: Config) -> list[dict[str, float]]:
    """Returns for each image what the score lost by each row of MAPS and by random areas, the score, and the size of the box."""
    detector, rng = Detector(cfg.weights, cfg.model, device="cpu", confidence=LOW), np.random.default_rng(0)
    trained, random, rows = HeatMaps(detector.model, detector.image_size, detector.classes), None, []
    for name in images_under(cfg.images):
        image = as_seen(read_image(str(Path(cfg.images) / name)), detector)
        random = random or HeatMaps(random_model(cfg.model, image), detector.image_size, detector.classes)
        found = detector(image)[0][:1]  # the best detection
        if not len(found.scores) or found.scores[0] < cfg.confidence:
            continue
        masks = list(masks_of(image, found, trained, random).values())
        masks += [random_areas(image.shape[:2], rng) for _ in range(RANDOM)]
        after = [score_of(result, found) for result in detector(blurred(image, masks))]
        score, size = float(found.scores[0]), np.prod(found.boxes[0, 2:] - found.boxes[0, :2]) / image[..., 0].size
        row = {name: score - left for name, left in zip(MAPS, after, strict=False)}
        rows.append(row | {"areas": score - float(np.mean(after[-RANDOM:])), "score": score, "size": float(size)})
        print(f"{len(rows):3} {name} " + " ".join(f"{key} {value:.3f}" for key, value in rows[-1].items()), flush=True)
        if len(rows) == cfg.count:
            break
    return rows


def as_seen(image: np.ndarray, detector: Detector) -> np.ndarray:
    """The image at the size that it has in the network's input."""
    _, (rows, columns) = fit(image.shape[1], image.shape[0], detector.image_size, detector.model.letterbox)
    return cv2.resize(image, (columns.stop - columns.start, rows.stop - rows.start))


def interval(values: np.ndarray) -> tuple[float, float]:
    """The 95 % interval of a mean, by bootstrapping the images."""
    picks = np.random.default_rng(0).integers(0, len(values), (10_000, len(values)))
    low, high = np.percentile(values[picks].mean(1), (2.5, 97.5))
    return float(low), float(high)


def table(rows: list[dict[str, float]]) -> str:
    """A line per map: the mean loss of score, what it is more than that by random areas, and whether it passes."""
    lines = [
        "| blurred | mean loss of score | more than random areas | 95 % interval | passes |",
        "|---|---:|---:|---:|---|",
    ]
    areas = np.array([row["areas"] for row in rows])
    for name, text in MAPS.items():
        lost = np.array([row[name] for row in rows])
        low, high = interval(lost - areas)
        passes = "yes" if low > 0 else "no"
        lines.append(
            f"| {text} | {lost.mean():.3f} | {(lost - areas).mean():.3f} | {low:.3f} to {high:.3f} | {passes} |"
        )
    return "\n".join([*lines, f"| random areas | {areas.mean():.3f} | | | |"])


def difference(rows: list[dict[str, float]], other: str) -> str:
    """How much more the heat map of the model costs than another map, with its interval."""
    values = np.array([row["heat map"] - row[other] for row in rows])
    low, high = interval(values)
    return f"{values.mean():.3f} ({low:.3f} to {high:.3f})"


def main(cfg: Config) -> list[dict[str, float]]:
    """Measures, writes the page and returns the rows."""
    require(cfg, {"count": 2, "confidence": LOW}, {"confidence": 1}, {})
    if cfg.weights is None or cfg.images is None:
        raise ConfigError("weights= (a file of official weights) and images= (a folder) are missing")
    rows = measure(cfg)
    large = [row for row in rows if row["size"] > SMALL]
    values = {"date": time.strftime("%Y-%m-%d"), "machine": machine(), "model": cfg.model, "count": len(rows)}
    values |= {"table": table(rows), "score": f"{np.mean([row['score'] for row in rows]):.3f}", "large": len(large)}
    values |= {"large_table": table(large), "least": f"{cfg.confidence:g}"}
    values |= {"weights": difference(rows, "random weights"), "box": difference(rows, "box")}
    values |= {"large_weights": difference(large, "random weights"), "large_box": difference(large, "box")}
    (RESULTS / "heatmap.md").write_text(PAGE.format(**values), encoding="utf-8")
    return rows


if __name__ == "__main__":
    run_script(lambda: main(override(Config(), sys.argv[1:])), "stopped", "lower count=")
