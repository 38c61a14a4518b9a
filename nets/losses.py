"""One criterion per family: assign, weigh, normalise over all processes. Losses are dense and masked: an index by a mask
would make the host wait for the device."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from nets import yolov9, yolox
from nets.assigners import MOST_POINTS, candidates, one_point, simota, task_aligned
from nets.coder import BINS, at_least_float32, decode_dfl, decode_yolox, encode_dfl, encode_yolox, grid
from nets.model import DetectionModel
from nets.selector import Selected
from utils.boxes import ciou, iou

LOST = 3.0  # an object for which no point speaks counts as three for which two do
BOX_WEIGHT = 5.0  # YOLOX: the IoU loss counts five times
YOLOV9_WEIGHTS = {"box": 7.5, "class": 0.5, "dfl": 1.5}  # of the released training code


def at_least_one(count: Tensor) -> Tensor:
    """The normaliser of a single process."""
    return count.clamp(min=1)


class YOLOXCriterion:
    """5 * (1 - IoU^2) + BCE(objectness) + BCE(class, one-hot * IoU) (+ L1 of the raw box values), summed, over the positives.

    `share`: count of this process -> the count of all processes, at least 1, divided by the number of processes, so
    that the average of the gradients of all processes is the gradient of the whole batch.
    `l1`: set for the plain last epochs. `by_size`: a box is learned by points of one stride only, that of its size.
    """

    def __init__(
        self,
        strides: tuple[int, ...],
        share: Callable[[Tensor], Tensor] = at_least_one,
        l1: bool = False,
        by_size: bool = False,
    ):
        self.strides, self.share, self.l1, self.by_size = strides, share, l1, by_size

    def __call__(
        self, predictions: yolox.Predictions, targets: Tensor, labels: Tensor, image_size: tuple[int, int]
    ) -> dict[str, Tensor]:
        """`targets [B, M, 4]` xyxy in pixels of the input, `labels [B, M]` with -1 as padding, `image_size` height, width.

        -> scalars: total (to be minimised), box, objectness, class, l1 where it is on, and positives a box (not a loss)."""
        raw, objectness, classes = (at_least_float32(x) for x in predictions)
        if targets.shape[1] == 0:
            targets, labels = F.pad(targets, (0, 0, 0, 1)), F.pad(labels, (0, 1), value=-1)
        targets = targets.to(raw.dtype)
        cells, strides = grid(image_size, self.strides, raw)
        centres = (cells + 0.5) * strides[:, None]
        # Most points are near no box: of them only the objectness counts, in the assignment and in the losses.
        levels = 1 if self.by_size else len(self.strides)
        near = candidates(centres, strides, levels, targets, labels, self.by_size)
        cells, centres, strides = cells[near], centres[near], strides[near]
        raw, classes = _take(raw, near), _take(classes, near)
        seen = decode_yolox(raw.detach(), cells, strides)
        match = simota(seen, objectness.gather(1, near), classes, centres, strides, targets, labels, self.by_size)

        positive, matched = match.positive, _take(targets, match.index)
        # Points without a box count as 0: one whose exp overflows would make all gradients NaN, at a loss of zero.
        boxes = decode_yolox(raw.where(positive[..., None], 0.0), cells, strides)
        overlap = iou(boxes, matched.where(positive[..., None], 1.0))
        soft = _one_hot(labels.gather(1, match.index), classes.shape[2], match.score)
        presence = torch.zeros_like(objectness).scatter(1, near, positive.to(raw.dtype))

        counted = self.share(positive.sum().to(raw.dtype))
        losses = {
            "box": BOX_WEIGHT * ((1 - overlap.square()) * positive).sum() / counted,
            "objectness": _bce(objectness, presence).sum() / counted,
            "class": (_bce(classes, soft).sum(-1) * positive).sum() / counted,
        }
        if self.l1:
            aim = encode_yolox(matched.where(positive[..., None], 1.0), cells, strides)
            losses["l1"] = ((raw - aim).abs().sum(-1) * positive).sum() / counted
        total = torch.stack(list(losses.values())).sum()
        boxes_here = self.share((labels >= 0).sum().to(raw.dtype))
        return {"total": total, **losses, "positives": positive.sum() / boxes_here}


class YOLOv9Criterion:
    """7.5 * (1 - CIoU) + .5 * BCE(class, target scores) + 1.5 * DFL, summed, over the sum of the target scores. Losses of boxes
    are weighed by the target score of their point.

    `share`: as for YOLOX, of that sum. `by_size`: as there.
    """

    def __init__(
        self, strides: tuple[int, ...], share: Callable[[Tensor], Tensor] = at_least_one, by_size: bool = False
    ):
        self.strides, self.share, self.by_size = strides, share, by_size

    def __call__(
        self, predictions: yolov9.Predictions, targets: Tensor, labels: Tensor, image_size: tuple[int, int]
    ) -> dict[str, Tensor]:
        """`targets [B, M, 4]` xyxy in pixels of the input, `labels [B, M]` with -1 as padding, `image_size` height, width.

        -> scalars: total (to be minimised), box, class, dfl, and positives a box (not a loss), each counted by its score."""
        raw, classes = (at_least_float32(x) for x in predictions)
        if targets.shape[1] == 0:
            targets, labels = F.pad(targets, (0, 0, 0, 1)), F.pad(labels, (0, 1), value=-1)
        targets = targets.to(raw.dtype)
        cells, strides = grid(image_size, self.strides, raw)
        centres, seen = (cells + 0.5) * strides[:, None], decode_dfl(raw.detach(), cells, strides)
        match = task_aligned(seen, classes, centres, strides, targets, labels, by_size=self.by_size)

        # All positive points, and others with a score of 0 up to the most there can be.
        near = match.positive.byte().sort(descending=True, stable=True).indices[:, : MOST_POINTS * targets.shape[1]]
        score, index = match.score.gather(1, near), match.index.gather(1, near)
        raw, matched, cells, strides = _take(raw, near), _take(targets, index), cells[near], strides[near]
        wanted = _take(classes, near).gather(2, labels.gather(1, index).clamp(min=0)[..., None])[..., 0] * score
        sums = {
            "box": ((1 - ciou(decode_dfl(raw, cells, strides), matched)) * score).sum(),
            "class": F.softplus(classes).sum() - wanted.sum(),  # BCE, without a target for every absent class
            "dfl": (_dfl(raw, encode_dfl(matched, cells, strides)) * score).sum(),
        }
        counted = self.share(match.score.sum())
        losses = {name: YOLOV9_WEIGHTS[name] * value / counted for name, value in sums.items()}
        boxes_here = self.share((labels >= 0).sum().to(raw.dtype))
        return {
            "total": torch.stack(list(losses.values())).sum(),
            **losses,
            "positives": match.score.sum() / boxes_here,
        }


class SelectionCriterion:
    """Of a model with a selector: the losses of its family, and the BCE of its choice, over the boxes. A point counts as much as
    it may harm: one that shall speak as LOST, any other by its score."""

    def __init__(self, family: Callable[..., dict], model: DetectionModel, share: Callable[[Tensor], Tensor]):
        self.family, self.model, self.share = family, model, share

    def __call__(
        self, predictions: Selected, targets: Tensor, labels: Tensor, image_size: tuple[int, int]
    ) -> dict[str, Tensor]:
        """Arguments and losses as of the family, and selection."""
        said, chosen = predictions.said, at_least_float32(predictions.chosen)
        losses = self.family(said, targets, labels, image_size)
        with torch.no_grad():
            boxes, scores, found = self.model.decode(said, image_size)
            claims = at_least_float32(predictions.claims)
            speaks = one_point(boxes, scores, found, claims, targets.to(boxes.dtype), labels).positive
            weight = scores.to(chosen.dtype).where(~speaks, LOST)
        counted = self.share((labels >= 0).sum().to(chosen.dtype))
        selection = (_bce(chosen, speaks.to(chosen.dtype)) * weight).sum() / counted
        return {**losses, "total": losses["total"] + selection, "selection": selection}


def _dfl(raw: Tensor, distances: Tensor) -> Tensor:
    """Logits `[..., 64]` and true distances `[..., 4]` in strides -> `[...]`: the mean over the sides of the cross-entropy with
    the two bins beside the distance, each weighed by its nearness (Generalized Focal Loss, Li et al. 2020, equation 6)."""
    distances = distances.clamp(0, BINS - 1 - 0.01)  # so that there is a bin on either side
    left = distances.floor()
    log_p = raw.unflatten(-1, (4, BINS)).log_softmax(-1)
    bins = torch.stack([left, left + 1], -1).long()
    nearness = torch.stack([left + 1 - distances, distances - left], -1)
    return -(log_p.gather(-1, bins) * nearness).sum(-1).mean(-1)


def _take(x: Tensor, index: Tensor) -> Tensor:
    """`x [B, N, D]`, `index [B, K]` -> `[B, K, D]`."""
    return x.gather(1, index[..., None].expand(-1, -1, x.shape[2]))


def _bce(logits: Tensor, target: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits, target, reduction="none")


def _one_hot(label: Tensor, num_classes: int, value: Tensor) -> Tensor:
    """`label [B, A]` (-1: none) and `value [B, A]` -> `[B, A, C]` with the value at the label."""
    return torch.zeros(*label.shape, num_classes, dtype=value.dtype, device=value.device).scatter(
        2, label.clamp(min=0)[..., None], value[..., None]
    )
