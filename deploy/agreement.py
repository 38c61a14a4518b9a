"""Compares an exported file with PyTorch, up to what rounding may change.

Both run without NMS: of overlapping boxes with nearly equal scores, NMS keeps those that rounding made the best. NMS in the file
is one operator, which does not depend on the model. Each detection of the file needs a partner among the boxes of PyTorch, and
each box of PyTorch one in the file. A box may have each class whose score is within the tolerance of its best one.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from deploy.onnx_model import OnnxModel
from nets import picodet
from nets.model import DetectionModel, HeadPredictions
from utils.images import letterbox
from utils.text import amount

MIN_SCORE = 0.05  # detections with at least this score are compared


class ExportError(ValueError):
    """No file was written; the message gives the reason."""


class Tolerance(NamedTuple):
    """How far apart two detections of the same object may be."""

    boxes: float  # pixels of the network's input, for every coordinate
    scores: float
    unpaired: float  # fraction of the detections that may have no partner


EXACT = Tolerance(boxes=0.5, scores=1e-3, unpaired=0.0)
HALF = Tolerance(boxes=4.0, scores=0.02, unpaired=0.02)  # measured: benchmarks/decisions.md


class Agreement(NamedTuple):
    """How far apart a file and PyTorch are."""

    detections: int  # of the file
    boxes: float  # the largest difference within a pair
    scores: float
    unpaired: tuple[str, ...]  # descriptions of the detections that only one of them has

    def within(self, tolerance: Tolerance) -> bool:
        """Whether few enough detections are without a partner. `compare` pairs only detections within the tolerance."""
        return len(self.unpaired) <= tolerance.unpaired * self.detections

    def text(self) -> str:
        """One line for the terminal."""
        distances = f"boxes differ by at most {self.boxes:.2g} pixels, scores by {self.scores:.2g}"
        return f"{amount(self.detections, 'detection')}: {distances}, {len(self.unpaired)} without a partner"


def verify(path: Path, model: DetectionModel, images: list[np.ndarray]) -> None:
    """Compares the file in onnxruntime with the PyTorch model. Raises ExportError if they differ."""
    exported = OnnxModel(path)
    tolerance = HALF if exported.about["half"] else EXACT
    height, width = exported.about["image_size"]
    sizes = [(height, width)]
    if exported.about["dynamic_size"]:
        sizes.append((height + 64, width + 32))
    for size in sizes:
        inputs = torch.from_numpy(np.stack([letterbox(image, size, model.letterbox)[0] for image in images]))
        result = agreement(model, exported, inputs.permute(0, 3, 1, 2), tolerance)
        print(f"onnxruntime and PyTorch at {size[0]} x {size[1]}, confidence {MIN_SCORE} and more: {result.text()}")
        if not result.detections and not result.unpaired:
            nothing = f"the model detects nothing with a confidence of {MIN_SCORE} or more in these images"
            raise ExportError(f"{nothing}: train it longer, or give others to compare on, images=FOLDER")
        if not result.within(tolerance):
            some = "\n".join(result.unpaired[:10])
            raise ExportError(f"onnxruntime and PyTorch differ by more than {tolerance}; no file was written\n{some}")


@torch.no_grad()
def agreement(model: DetectionModel, exported: OnnxModel, images: Tensor, tolerance: Tolerance) -> Agreement:
    """Compares a model and its file on images uint8 [B, 3, H, W], the first one alone, then in fours."""
    size, max_detections = (images.shape[2], images.shape[3]), exported.about["max_detections"]
    min_score = MIN_SCORE - 2 * tolerance.scores
    ours, theirs = [], []
    batches = [images[:1]]
    if len(images) > 1:
        batches += images[1:].split(4)
    for batch in batches:
        transforms = torch.tensor([[size[1], size[0], 1.0, 1.0, 0.0, 0.0]] * len(batch))
        ours += boxes_before_nms(model, batch, min_score)
        predictions = exported(batch)
        # Boxes are not clipped: a clipped box hides its error.
        theirs += exported.detections(predictions, size, transforms, min_score, 1.0, max_detections, clip=False)
    return compare(ours, theirs, max_detections, tolerance)


def boxes_before_nms(model: DetectionModel, images: Tensor, min_score: float) -> list[list[tuple[Tensor, Tensor]]]:
    """Returns the finite boxes with at least this score: per image and head boxes `[n, 4]` and class scores `[n, C]`."""
    found: list[list[tuple[Tensor, Tensor]]] = [[] for _ in images]
    for part in model.per_head(model(images)):
        boxes, scores = with_class_scores(part, (images.shape[2], images.shape[3]))
        chosen = (scores.amax(-1) >= min_score) & boxes.isfinite().all(-1)
        for number, rows in enumerate(chosen):
            found[number].append((boxes[number, rows], scores[number, rows]))
    return found


def with_class_scores(part: HeadPredictions, image_size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Returns boxes `[B, A, 4]` and scores of all classes `[B, A, C]` of a head.

    For a family whose scores this module does not know, the scores are -1 except for the best class.
    """
    boxes, best, labels = part.model.decode(part.predictions, image_size)
    if hasattr(part.predictions, "classes"):
        scores = class_scores(part.predictions)
        if torch.allclose(scores.amax(-1), best, atol=1e-5, equal_nan=True):
            return boxes, scores
    others = best.new_full((*best.shape, part.num_classes), -1)
    return boxes, others.scatter(2, labels[..., None], best[..., None])


def class_scores(predictions: Any) -> Tensor:
    """Scores `[B, A, C]` of all classes: sigmoid of their logits, times the sigmoid of the objectness if there is one.

    The scores of PicoDet are `picodet.joint_scores`.
    """
    if isinstance(predictions, picodet.Predictions):
        return picodet.joint_scores(predictions.classes.float(), predictions.alignment.float())
    scores = predictions.classes.float().sigmoid()
    objectness = getattr(predictions, "objectness", None)
    return scores if objectness is None else objectness.float().sigmoid()[..., None] * scores


def compare(boxes: Sequence, detections: Sequence, max_detections: int, tolerance: Tolerance) -> Agreement:
    """Compares the boxes of PyTorch before NMS with the detections of a file that ran without NMS.

    `boxes`: per image a list with boxes `[n, 4]` and scores of all classes `[n, C]` for each head, because the limit of the
    detections counts for each head. `detections`: per image boxes, scores and labels, best first. Both go down to the score
    `MIN_SCORE - 2 * tolerance.scores`.
    """
    differences, unpaired, count = [(0.0, 0.0)], [], 0
    for number, (heads, of_file) in enumerate(zip(boxes, detections, strict=True), 1):
        found = np.column_stack([np.asarray(field, np.float64) for field in of_file])  # [m, 6] box, score, label
        count += int((found[:, 4] >= MIN_SCORE).sum())
        first = 0  # label of the first class of the head
        for head in heads:
            ours, scores = (np.asarray(field, np.float64) for field in head)
            theirs = found[(found[:, 5] >= first) & (found[:, 5] < first + scores.shape[1])]
            paired, wrong = _compare_head(ours, scores, theirs, first, max_detections, tolerance)
            differences += paired
            unpaired += [f"image {number}: {text}" for text in wrong]
            first += scores.shape[1]
    max_box, max_score = np.max(differences, 0).tolist()
    return Agreement(count, max_box, max_score, tuple(unpaired))


def _compare_head(
    boxes: np.ndarray, scores: np.ndarray, detections: np.ndarray, first: int, max_detections: int, tolerance: Tolerance
) -> tuple[list[tuple[float, float]], list[str]]:
    """Compares boxes `[n, 4]` with class scores `[n, C]` and detections `[m, 6]` of a head in an image.

    `first`: the label of its first class. Returns the differences within pairs, and what is wrong.
    """
    differences, wrong = [], []
    best = scores.max(1)
    free = np.ones(len(boxes), bool)  # without a partner so far
    for row in detections:
        of_class = scores[:, int(row[5]) - first]
        box, score = np.abs(boxes - row[:4]).max(1), np.abs(of_class - row[4])
        may_be_best = row[4] >= best - tolerance.scores
        near = free & may_be_best & (box <= tolerance.boxes) & (score <= tolerance.scores)
        if near.any():
            nearest = int(np.where(near, box, np.inf).argmin())
            free[nearest] = False
            differences.append((box[nearest], score[nearest]))
        elif row[4] >= MIN_SCORE:
            wrong.append(f"only the file has {_in_words(row)}")
    min_score = MIN_SCORE
    if len(detections) >= max_detections:  # near the end of a full list, a box may be missing
        min_score = max(min_score, detections[:, 4].min() + 2 * tolerance.scores)
    for i in np.flatnonzero(free & (best >= min_score)):
        wrong.append(f"only PyTorch has {_in_words(np.array([*boxes[i], best[i], first + scores[i].argmax()]))}")
    return differences, wrong


def _in_words(row: np.ndarray) -> str:
    """Describes a detection for a message."""
    return f"class {row[5]:.0f} at {', '.join(f'{side:.1f}' for side in row[:4])} with score {row[4]:.4f}"
