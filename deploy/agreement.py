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
import torch.nn.functional as F
from torch import Tensor

from deploy.exported_model import ExportedModel
from deploy.formats import ExportError
from nets import picodet
from nets.model import DetectionModel
from nets.postprocess import Detections
from utils.images import batched, letterbox
from utils.text import amount, brief

MIN_SCORE = 0.05  # detections with at least this score are compared


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
    unpaired: list[str]  # descriptions of the detections that only one of them has

    def text(self) -> str:
        """One line for the terminal."""
        distances = f"boxes differ by at most {self.boxes:.2g} pixels, scores by {self.scores:.2g}"
        return f"{amount(self.detections, 'detection')}: {distances}, {len(self.unpaired)} without a partner"


def verify(path: Path, model: DetectionModel, images: list[np.ndarray], classes: Sequence[str] | None = None) -> None:
    """Compares an exported file with the PyTorch model on images uint8 [H, W, 3] of any size, which each of them letterboxes.

    `classes`: the names that it must have. Raises ExportError if they differ.
    """
    exported = ExportedModel(path)
    if exported.about.get("int8", False):
        fix = f"measure its mAP: python evaluate.py checkpoint={path} data=DATA"
        raise ExportError(f"{path.name} has 8 bits, so its boxes differ from those of PyTorch: {fix}")
    tolerance = HALF if exported.about["half"] else EXACT
    if classes is not None and (names := exported.about["classes"]) != list(classes):
        raise ExportError(
            f"{path.name} has the classes {brief(', '.join(names))}, the model {brief(', '.join(classes))}"
        )
    height, width = exported.about["image_size"]
    models = {(height, width): exported}
    if exported.about["dynamic_size"]:
        larger = (height + 64, width + 32)
        models[larger] = ExportedModel(path, larger)
    for size, of_size in models.items():
        result = agreement(model, of_size, size, images, tolerance)
        print(f"{path.name} and PyTorch at {size[0]} x {size[1]}, confidence {MIN_SCORE} and more: {result.text()}")
        if not result.detections and not result.unpaired:
            nothing = f"the model detects nothing with a confidence of {MIN_SCORE} or more in these images"
            raise ExportError(f"{nothing}: train it longer, or give others to compare on, images=FOLDER")
        if len(result.unpaired) > tolerance.unpaired * result.detections:
            some = "\n".join(result.unpaired[:10])
            raise ExportError(f"{path.name} and PyTorch differ by more than {tolerance}\n{some}")


@torch.no_grad()
def agreement(
    model: DetectionModel,
    exported: ExportedModel,
    size: tuple[int, int],
    images: list[np.ndarray],
    tolerance: Tolerance,
) -> Agreement:
    """Compares a model and its file with inputs (height, width), on images uint8 [H, W, 3]: the first alone, then in fours."""
    max_detections = exported.about["max_detections"]
    min_score = MIN_SCORE - 2 * tolerance.scores
    ours, theirs = [], []
    for batch in (images[:1], *batched(images[1:], 4)):
        fitted = torch.from_numpy(np.stack([letterbox(image, size, model.letterbox)[0] for image in batch]))
        transforms = torch.tensor([[size[1], size[0], 1.0, 1.0, 0.0, 0.0]] * len(batch))
        ours += boxes_before_nms(model, fitted.permute(0, 3, 1, 2), min_score)
        # Boxes are not clipped: a clipped box hides its error.
        theirs += exported.detections(batch, size, transforms, min_score, 1.0, max_detections, clip=False)
    return compare(ours, theirs, exported.counts, max_detections, tolerance)


def boxes_before_nms(model: DetectionModel, images: Tensor, min_score: float) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns the finite boxes with at least this score: per image boxes `[n, 4]` and scores of all classes `[n, C]`.

    The scores are -1 for the classes of other heads, and of a family whose scores are not known here, except for the best."""
    boxes, scores = [], []
    for head in model.per_head(model(images)):
        of_head, best, labels = head.model.decode(head.predictions, (images.shape[2], images.shape[3]))
        of_classes = best.new_full((*best.shape, head.num_classes), -1).scatter(2, labels[..., None], best[..., None])
        if hasattr(head.predictions, "classes"):
            known = class_scores(head.predictions)
            if torch.allclose(known.amax(-1), best, atol=1e-5, equal_nan=True):
                of_classes = known
        boxes.append(of_head)
        others = model.num_classes - head.first_class - head.num_classes
        scores.append(F.pad(of_classes, (head.first_class, others), value=-1))
    found = []
    for of_image, of_classes in zip(torch.cat(boxes, 1).double(), torch.cat(scores, 1).double(), strict=True):
        chosen = (of_classes.amax(-1) >= min_score) & of_image.isfinite().all(-1)
        found.append((of_image[chosen].numpy(), of_classes[chosen].numpy()))
    return found


def class_scores(predictions: Any) -> Tensor:
    """Scores `[B, A, C]` of all classes: sigmoid of their logits, times the sigmoid of the objectness if there is one.

    The scores of PicoDet are `picodet.joint_scores`.
    """
    if isinstance(predictions, picodet.Predictions):
        return picodet.joint_scores(predictions.classes.float(), predictions.alignment.float())
    scores = predictions.classes.float().sigmoid()
    objectness = getattr(predictions, "objectness", None)
    return scores if objectness is None else objectness.float().sigmoid()[..., None] * scores


def compare(
    ours: Sequence[tuple[np.ndarray, np.ndarray]],
    theirs: Sequence[Detections],
    counts: Sequence[int],
    max_detections: int,
    tolerance: Tolerance,
) -> Agreement:
    """Compares the boxes of PyTorch before NMS with the detections of a file that ran without NMS.

    `ours`: per image boxes `[n, 4]` and scores of all classes `[n, C]`; `theirs`: boxes, scores and labels. Both go down to the
    score `MIN_SCORE - 2 * tolerance.scores`. `counts`: classes of each head, for which the limit of the detections counts."""
    differences, unpaired, detections = [(0.0, 0.0)], [], 0
    for number, ((boxes, scores), of_file) in enumerate(zip(ours, theirs, strict=True), 1):
        best, free = scores.max(1, initial=-1), np.ones(len(boxes), bool)  # free: without a partner so far
        rows = [np.asarray(field, np.float64) for field in of_file]
        labels = rows[2].astype(int)
        for place, score, label in zip(rows[0], rows[1], labels, strict=True):
            detections += score >= MIN_SCORE
            box_error, score_error = np.abs(boxes - place).max(1, initial=0), np.abs(scores[:, label] - score)
            may_be_best = score >= best - tolerance.scores
            near = free & may_be_best & (box_error <= tolerance.boxes) & (score_error <= tolerance.scores)
            if near.any():
                nearest = int(np.where(near, box_error, np.inf).argmin())
                free[nearest] = False
                differences.append((box_error[nearest], score_error[nearest]))
            elif score >= MIN_SCORE:
                unpaired.append(f"image {number}: only the file has {_in_words(place, score, label)}")
        least = np.full(scores.shape[1], MIN_SCORE)
        for head in np.split(np.arange(len(least)), np.cumsum(counts)[:-1]):
            of_head = rows[1][np.isin(labels, head)]
            if len(of_head) >= max_detections:  # near the end of a full list, a box may be missing
                least[head] = max(MIN_SCORE, of_head.min() + 2 * tolerance.scores)
        for i in np.flatnonzero(free):
            if best[i] >= least[label := int(scores[i].argmax())]:
                unpaired.append(f"image {number}: only PyTorch has {_in_words(boxes[i], best[i], label)}")
    max_box, max_score = np.max(differences, 0).tolist()
    return Agreement(int(detections), max_box, max_score, unpaired)


def _in_words(box: np.ndarray, score: float, label: int) -> str:
    """Describes a detection for a message."""
    return f"class {label} at {', '.join(f'{side:.1f}' for side in box)} with score {score:.4f}"
