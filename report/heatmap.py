"""Heat maps: which pixels the score of a detection depends on, drawn over the image."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from datasets.store import evenly_spaced
from nets.model import DetectionModel
from report.drawn_images import CONFIDENCE, SHOWN
from utils.boxes import clip, pairwise_iou, xywh_to_xyxy
from utils.draw import contact_sheet, draw_boxes, resized, write_image
from utils.images import IMAGE_SUFFIXES, fit, into_original, letterbox

BLUR = 0.05  # standard deviation of the blurred copy that the image is compared with, a fraction of the longer side of the input
STEPS = 4  # points between the blurred copy and the image at which gradients are computed
MAX = 12  # detections of an image that are drawn, those with the highest scores
COLUMNS = 4  # of the contact sheet of an image
LONGEST = 640  # largest side of a heat map, in pixels
OPACITY = 0.6  # of the color where the map is 1
SHEETS = 10  # that a training draws at most, evenly spaced over its epochs


class Scene(NamedTuple):
    """The predictions of the network for an image: boxes [A, 4] xyxy in pixels of the image, scores and labels [A]."""

    levels: list[Tensor]  # [2, C, h, w] outputs of the backbone for the image and for the blurred image, one per stride
    boxes: np.ndarray
    scores: np.ndarray
    labels: np.ndarray


class HeatMaps:
    """Computes and draws heat maps for the detections of a model with an input of `image_size` = (height, width).

    Raises ValueError for an exported model.

    Images are uint8 [H, W, 3] BGR. Detections are arrays: boxes [n, 4] xyxy in pixels of the image, labels and scores [n].
    """

    def __init__(self, model: DetectionModel, image_size: tuple[int, int], classes: Sequence[str]):
        if not isinstance(model, DetectionModel):
            raise ValueError(
                "heat maps need the gradients of a checkpoint: give checkpoint=FILE.pt, not an exported file"
            )
        self.model, self.image_size, self.classes = model, image_size, classes
        self.left_out = 0  # detections that are not drawn

    def maps(self, image: np.ndarray, boxes: np.ndarray, labels: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Returns a heat map per detection, float32 [n, h, w] from 0 to 1, in the image's size in the input, without padding."""
        scene = self.scene(image)
        points = nearest(scene, boxes, labels, scores, image.shape[1], image.shape[0])
        _, (rows, columns) = fit(image.shape[1], image.shape[0], self.image_size, self.model.letterbox)
        maps = self.of_points(scene.levels, points)[:, rows, columns]
        return maps / maps.max((1, 2), keepdims=True, initial=np.finfo(np.float32).tiny)

    @torch.no_grad()
    def scene(self, image: np.ndarray) -> Scene:
        """Runs the network on an image, and the backbone on its blurred copy, too."""
        fitted, transform = letterbox(image, self.image_size, self.model.letterbox)
        pair = np.stack([fitted, cv2.GaussianBlur(fitted, (0, 0), BLUR * max(self.image_size))])
        inputs = torch.from_numpy(pair).permute(0, 3, 1, 2).to(next(self.model.parameters()).device)
        levels = list(self.model.backbone(self.model.prepare(inputs)))
        boxes, scores, labels = (x[0].cpu() for x in self.decode([x[:1] for x in levels]))
        return Scene(levels, into_original(boxes, torch.tensor(transform)).numpy(), scores.numpy(), labels.numpy())

    def decode(self, features: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Runs neck and head on outputs of the backbone -> boxes `[1, A, 4]`, scores and labels `[1, A]`."""
        return self.model.decode(self.model.flatten(self.model.levels(features)), self.image_size)

    def of_points(self, levels: list[Tensor], points: Sequence[int]) -> np.ndarray:
        """Computes integrated gradients (Sundararajan 2017) of the score of each anchor point, per pixel: float32 [n, H, W]."""
        changes = [x[:1] - x[1:] for x in levels]
        means = [[torch.zeros_like(x) for x in changes] for _ in points]  # of the gradients
        for step in range(STEPS):
            features = [x[1:].lerp(x[:1], (step + 0.5) / STEPS).requires_grad_() for x in levels]
            with torch.enable_grad():
                scores = self.decode(features)[1][0]
            for point, mean in zip(points, means, strict=True):
                gradients = torch.autograd.grad(scores[point], features, retain_graph=True, allow_unused=True)
                for total, gradient in zip(mean, gradients, strict=True):
                    total += 0 if gradient is None else gradient / STEPS
        maps = [spread([x * y for x, y in zip(changes, mean, strict=True)], self.image_size) for mean in means]
        return np.stack(maps) if maps else np.zeros((0, *self.image_size), np.float32)

    def draw(self, image: np.ndarray, boxes: np.ndarray, labels: np.ndarray, scores: np.ndarray) -> list[np.ndarray]:
        """Draws the heat map of each detection over the image, with its box, class and score; one image per detection."""
        shrink = min(LONGEST / max(image.shape[:2]), 1)
        small = resized(image, shrink)
        rows = zip(self.maps(image, boxes, labels, scores), boxes * shrink, labels, scores, strict=True)
        return [draw_boxes(overlay(small, one), [box], [label], self.classes, [s]) for one, box, label, s in rows]

    def add(self, folder: Path, name: str, _: str, boxes, labels, scores, image: np.ndarray) -> None:
        """Writes a contact sheet of heat maps to `folder`, highest score first; writes nothing if there are no detections."""
        best = np.argsort(-np.asarray(scores), kind="stable")[:MAX]
        self.left_out += len(boxes) - len(best)
        if len(best):
            sheet = contact_sheet(self.draw(image, boxes[best], labels[best], scores[best]), COLUMNS)
            stem, suffix = os.path.splitext(name.lower())
            of_other = stem.endswith(IMAGE_SUFFIXES)  # a.png.jpg is the heat map of a.png
            is_own = suffix in (".jpg", ".jpeg") and not of_other
            write_image(folder / (name if is_own else f"{name}.jpg"), sheet)

    def finish(self, folder: Path) -> None:
        """Prints the number of detections without a heat map."""
        if self.left_out:
            print(f"{folder}: only the {MAX} best detections of each image, {self.left_out} others have no heat map")

    def log(self, run, dataset, detections: Iterable[dict], epoch: int, epochs: int) -> None:
        """Writes `sheet` as val_heatmaps to a `engine.run_folder.Run`, about every tenth of `epochs` epochs."""
        if (epochs - epoch) % -(-epochs // SHEETS) == 0:
            try:
                run.image("val_heatmaps", self.sheet(dataset, detections), epoch)
            except torch.cuda.OutOfMemoryError:  # the step of a training may fill the memory
                print("no heat maps of the validation images: CUDA out of memory")

    def sheet(self, dataset, detections: Iterable[dict]) -> np.ndarray:
        """Returns a contact sheet of the images of val_predictions with the heat map of the best detection (of COCO results)."""
        best = {one["image_id"]: one for one in sorted(detections, key=lambda one: one["score"])}
        data, drawn = dataset.annotations, []
        labels = {int(category): label for label, category in enumerate(data.category_ids)}
        for index in evenly_spaced(len(data.image_ids), SHOWN):
            image, one = dataset.read(index).image, best.get(int(data.image_ids[index]))
            if one is not None and one["score"] >= CONFIDENCE:
                box = xywh_to_xyxy(np.array([one["bbox"]], np.float64))
                (image,) = self.draw(image, box, np.array([labels[one["category_id"]]]), np.array([one["score"]]))
            drawn.append(image)
        return contact_sheet(drawn, COLUMNS)


def nearest(scene: Scene, boxes, labels, scores, width: int, height: int) -> np.ndarray:
    """Returns the index of the anchor point of each detection: the one of its class with the most similar box and score."""
    overlap = pairwise_iou(clip(np.asarray(boxes, np.float64), width, height), clip(scene.boxes, width, height))
    quality = overlap - np.abs(np.asarray(scores)[:, None] - scene.scores)
    quality[np.asarray(labels)[:, None] != scene.labels] = -2.0
    return np.nan_to_num(quality, nan=-3.0).argmax(1)


def spread(parts: Sequence[Tensor], size: tuple[int, int]) -> np.ndarray:
    """Sums contributions to a score `[1, C, h, w]`, one tensor per stride, per pixel and smooths them -> float32 [H, W], >= 0."""
    total = np.zeros(size, np.float32)
    for part in parts:
        cells = part.sum(1, keepdim=True).float() * part[0, 0].numel()  # per pixel, not per cell
        total += interpolate(cells, size, mode="bilinear")[0, 0].cpu().numpy()
    cell = max(size[0] / part.shape[-2] for part in parts)
    return cv2.GaussianBlur(total, (0, 0), cell / 2).clip(0)  # neighbors with opposite signs cancel out


def overlay(image: np.ndarray, heat: np.ndarray) -> np.ndarray:
    """Blends a heat map [h, w] from 0 to 1 over an image [H, W, 3]: transparent where it is 0, red where it is 1."""
    heat = cv2.resize(heat, image.shape[1::-1], interpolation=cv2.INTER_LINEAR)
    color = cv2.applyColorMap((heat * 255).astype(np.uint8), cv2.COLORMAP_TURBO)
    return (image + (color - image.astype(np.float32)) * OPACITY * heat[..., None]).round().astype(np.uint8)
