"""Compares an exported file with PyTorch, up to what rounding may change.

Detections of both cannot be compared: of overlapping boxes with nearly equal scores, NMS keeps those that rounding made the best,
and the boxes that it removes for them follow. After a few epochs from scratch most scores are nearly equal, also between
the classes of a box. So the detections of the file are compared with the boxes of PyTorch before NMS. They are right if each has
a partner there, if no two of them overlap by more than the threshold, and if each box without a partner overlaps a detection
whose score is as high. A box may have each class whose score is within the tolerance of its best one.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from deploy.multi_label import with_class_scores
from deploy.onnx_model import OnnxModel
from nets.model import DetectionModel
from nets.postprocess import FAR, MAX_CANDIDATES
from utils.boxes import pairwise_iou
from utils.images import letterbox
from utils.text import amount

MIN_SCORE = 0.05  # detections with at least this score are compared


class ExportError(ValueError):
    """No file was written; the message gives the reason."""


class Tolerance(NamedTuple):
    """How far apart two detections of the same object may be."""

    boxes: float  # pixels of the network's input, for every coordinate
    scores: float
    nms_iou: float  # overlaps within this distance of the NMS threshold may be on either side of it
    unpaired: float  # fraction of the detections that may have no partner


EXACT = Tolerance(boxes=0.5, scores=1e-3, nms_iou=1e-3, unpaired=0.0)
HALF = Tolerance(boxes=4.0, scores=0.02, nms_iou=0.02, unpaired=0.02)  # measured: benchmarks/decisions.md


class Limits(NamedTuple):
    """The limits of a file."""

    nms_iou: float
    detections: int  # per image and head
    candidates: int = MAX_CANDIDATES  # boxes per image and head before NMS


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
    """Compares the file in onnxruntime with the PyTorch model. Raises ExportError if they differ.

    Half precision is compared without NMS, because boxes that differ by pixels have other overlaps.
    """
    exported = OnnxModel(path, model)
    tolerance, nms_iou, without = EXACT, exported.about["nms_iou"], ""
    if exported.about["half"]:
        tolerance, nms_iou, without = HALF, 1.0, ", without NMS"
    height, width = exported.about["image_size"]
    sizes = [(height, width)]
    if exported.about["dynamic_size"]:
        sizes.append((height + 64, width + 32))
    for size in sizes:
        inputs = torch.from_numpy(np.stack([letterbox(image, size, model.letterbox)[0] for image in images]))
        result = agreement(model, exported, inputs.permute(0, 3, 1, 2), tolerance, nms_iou)
        at = f"{size[0]} x {size[1]}, confidence {MIN_SCORE} and more{without}"
        print(f"onnxruntime and PyTorch at {at}: {result.text()}")
        if not result.detections and not result.unpaired:
            nothing = f"the model detects nothing with a confidence of {MIN_SCORE} or more in these images"
            raise ExportError(f"{nothing}: train it longer, or give others to compare on, images=FOLDER")
        if not result.within(tolerance):
            some = "\n".join(result.unpaired[:10])
            raise ExportError(f"onnxruntime and PyTorch differ by more than {tolerance}; no file was written\n{some}")


@torch.no_grad()
def agreement(
    model: DetectionModel, exported: OnnxModel, images: Tensor, tolerance: Tolerance, nms_iou: float
) -> Agreement:
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
        # Boxes are not clipped: a clipped box hides its error.
        limits = {"confidence": min_score, "nms_iou": nms_iou, "max_detections": max_detections, "clip": False}
        theirs += exported.detections(exported(batch), size, transforms, **limits)
    return compare(ours, theirs, Limits(nms_iou, max_detections), tolerance)


def boxes_before_nms(model: DetectionModel, images: Tensor, min_score: float) -> list[list[tuple[Tensor, Tensor]]]:
    """Returns the finite boxes with at least this score: per image and head boxes `[n, 4]` and class scores `[n, C]`."""
    found: list[list[tuple[Tensor, Tensor]]] = [[] for _ in images]
    for part in model.parts(model(images)):
        boxes, scores = with_class_scores(part, (images.shape[2], images.shape[3]))
        chosen = (scores.amax(-1) >= min_score) & boxes.isfinite().all(-1)
        for number, rows in enumerate(chosen):
            found[number].append((boxes[number, rows], scores[number, rows]))
    return found


def compare(boxes: Sequence, detections: Sequence, limits: Limits, tolerance: Tolerance) -> Agreement:
    """Compares the boxes of PyTorch before NMS with the detections of a file.

    `boxes`: per image a list with boxes `[n, 4]` and scores of all classes `[n, C]` for each head, because the limits count for
    each head. `detections`: per image boxes, scores and labels, best first. Both go down to the score
    `MIN_SCORE - 2 * tolerance.scores`.
    """
    differences, unpaired, count = [(0.0, 0.0)], [], 0
    for number, (heads, of_file) in enumerate(zip(boxes, detections, strict=True), 1):
        columns = [np.asarray(field, np.float64) for field in of_file]
        found = np.column_stack(columns)  # [m, 6] box, score, label
        count += int((found[:, 4] >= MIN_SCORE).sum())
        first = 0  # label of the first class of the head
        for head in heads:
            ours, scores = (np.asarray(field, np.float64) for field in head)
            theirs = found[(found[:, 5] >= first) & (found[:, 5] < first + scores.shape[1])]
            paired, wrong = _compare_head(ours, scores, theirs, first, limits, tolerance)
            differences += paired
            unpaired += [f"image {number}: {text}" for text in wrong]
            first += scores.shape[1]
    max_box, max_score = np.max(differences, 0).tolist()
    return Agreement(count, max_box, max_score, tuple(unpaired))


def _compare_head(
    boxes: np.ndarray, scores: np.ndarray, detections: np.ndarray, first: int, limits: Limits, tolerance: Tolerance
) -> tuple[list[tuple[float, float]], list[str]]:
    """Compares boxes `[n, 4]` with class scores `[n, C]` and detections `[m, 6]` of a head in an image.

    `first`: the label of its first class. Returns the differences within pairs, and what is wrong.
    """
    differences, wrong = [], []
    best = scores.max(1)
    min_score = best - tolerance.scores  # of the boxes in the file, whichever class is the best one there
    own = scores[:, detections[:, 5].astype(int) - first]  # of each box for the class of each detection, [n, m]
    free = np.ones(len(boxes), bool)  # without a partner so far
    compared = detections[:, 4] >= MIN_SCORE
    for i, row in enumerate(detections):
        box, score = np.abs(boxes - row[:4]).max(1), np.abs(own[:, i] - row[4])
        near = free & (row[4] >= min_score) & (box <= tolerance.boxes) & (score <= tolerance.scores)
        if near.any():
            nearest = int(np.where(near, box, np.inf).argmin())
            free[nearest] = False
            differences.append((box[nearest], score[nearest]))
        elif compared[i]:
            wrong.append(f"only the file has {_in_words(row)}")

    too_much = min(limits.nms_iou + tolerance.nms_iou, 1.0)
    same_class = detections[:, None, 5] == detections[:, 5]
    twice = np.triu(same_class & (_overlaps(detections, detections) > too_much), 1).any(0)
    wrong += [f"NMS in the file keeps {_in_words(row)} next to a better box" for row in detections[twice & compared]]

    last = max(_last_score(best, limits.candidates), _last_score(detections[:, 4], limits.detections))
    alone = np.flatnonzero(free & (best >= max(MIN_SCORE, last + 2 * tolerance.scores)))
    enough = max(limits.nms_iou - tolerance.nms_iou, 0.0)
    possible = own[alone] >= min_score[alone, None] - tolerance.scores  # may be the best class in the file
    as_good = possible & (detections[:, 4] >= min_score[alone, None])
    is_removed = (as_good & (_overlaps(boxes[alone], detections) > enough)).any(1)
    for row in alone[~is_removed]:
        missing = np.array([*boxes[row], best[row], first + scores[row].argmax()])
        wrong.append(f"only PyTorch has {_in_words(missing)}")
    return differences, wrong


def _last_score(scores: np.ndarray, length: int) -> float:
    """Returns the score at which a list of at most `length` was cut, near which a box may be missing; -1 if it was not cut."""
    return np.sort(scores)[-length] if len(scores) >= length else -1.0


def _overlaps(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Returns the IoU of all pairs of boxes, clipped as in NMS: `[n, 4 or more]`, `[m, 4 or more]` -> `[n, m]`."""
    return pairwise_iou(a[:, :4].clip(-FAR, FAR), b[:, :4].clip(-FAR, FAR))


def _in_words(row: np.ndarray) -> str:
    """Describes a detection for a message."""
    return f"class {row[5]:.0f} at {', '.join(f'{side:.1f}' for side in row[:4])} with score {row[4]:.4f}"
