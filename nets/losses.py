"""The loss functions, one per family: assign labels, weight the terms, normalize over all processes.

Losses are dense and masked, because indexing by a mask would make the host wait for the device.

In an ignore region, the objectness and the class scores of an anchor point without a box have no loss, and so no gradient.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nets import picodet, yolox
from nets.assigners import ATSS_NEAREST, Alignment, Assignment, atss, candidates, simota, task_aligned
from nets.coder import at_least_float32, decode_dfl, decode_yolox, encode_dfl, encode_yolox, grid, level_shapes
from utils.boxes import ciou, giou, iou

BOX_WEIGHT = 5.0  # weight of the IoU loss in YOLOX
YOLOV9_WEIGHTS = {"box": 7.5, "class": 0.5, "dfl": 1.5}  # as in the code of MultimediaTechLab (MIT)
Normalizer = Callable[[Tensor], Tensor]  # local count -> divisor of the loss
PPYOLOE_WEIGHTS = {"box": 2.5, "class": 1.0, "dfl": 0.5}  # as in the released training code, also of PicoDet
VARIFOCAL_ALPHA = 0.75  # weight of the scores of other classes (VarifocalNet, Zhang et al. 2021, section 3.3)
_bce = partial(F.binary_cross_entropy_with_logits, reduction="none")


def local_normalizer(count: Tensor) -> Tensor:
    """Normalizer of a single process: the count, at least 1."""
    return count.clamp(min=1)


@dataclass
class Criterion:
    """Base class of the losses. What the settings do: see YOLOXCriterion, and PPYOLOECriterion for `static`."""

    strides: tuple[int, ...]
    normalizer: Normalizer = local_normalizer
    no_aug: bool = False
    static: bool = False


class YOLOXCriterion(Criterion):
    """YOLOX loss: 5 * (1 - IoU^2) + BCE(objectness) + BCE(class, one-hot * IoU) (+ L1 of the raw box values).

    Each term is summed and divided by the number of positive anchor points. `normalizer`: local count -> global normalizer of
    this rank, that is the count of all processes, at least 1, divided by world size; with it the averaged gradients of the
    processes equal the gradient of the whole batch. `no_aug`: adds the L1 loss, in the no-augmentation epochs. `static`
    changes nothing; see PPYOLOECriterion.
    """

    def __call__(
        self,
        predictions: yolox.Predictions,
        targets: Tensor,
        labels: Tensor,
        image_size: tuple[int, int],
        ignore: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Computes the losses of a batch from the predictions and the boxes.

        `targets [B, M, 4]`: xyxy in pixels of the input; `labels [B, M]`: -1 is padding; `image_size`: height, width; `ignore`:
        ignore regions, see `_with_loss`.
        Returns scalars: total (to minimize), box, objectness, class, l1 (if it is on), and positives per box (not a loss).
        """
        raw, objectness, classes = (at_least_float32(x) for x in predictions)
        targets, labels = _at_least_one_row(targets.to(raw.dtype), labels)
        cells, strides = grid(image_size, self.strides, raw)
        points = (cells + 0.5) * strides[:, None]  # [A, 2] centers of all anchor points
        # Most anchor points cannot be positive. Only their objectness counts, so everything else is computed for candidates.
        candidate = candidates(points, strides, len(self.strides), targets, labels)  # [B, K]
        cells, centers, strides = cells[candidate], points[candidate], strides[candidate]
        raw, classes = _take(raw, candidate), _take(classes, candidate)
        decoded = decode_yolox(raw.detach(), cells, strides)
        match = simota(decoded, objectness.gather(1, candidate), classes, centers, strides, targets, labels)

        positive, matched = match.positive, _take(targets, match.index)
        # Replaced by 0 where there is no box: an overflow of exp would make all gradients NaN, although its loss is masked.
        boxes = decode_yolox(raw.where(positive[..., None], 0.0), cells, strides)
        matched = matched.where(positive[..., None], 1.0)
        overlap = iou(boxes, matched)
        label = labels.gather(1, match.index).clamp(min=0)
        class_target = torch.zeros_like(classes).scatter(2, label[..., None], match.score[..., None])
        objectness_target = torch.zeros_like(objectness).scatter(1, candidate, positive.to(raw.dtype))
        with_loss = _with_loss(ignore, points, objectness_target > 0)
        sums = {
            "box": BOX_WEIGHT * ((1 - overlap.square()) * positive).sum(),
            "objectness": _sum_where(_bce(objectness, objectness_target), with_loss),
            "class": (_bce(classes, class_target).sum(-1) * positive).sum(),
        }
        if self.no_aug:
            sums["l1"] = ((raw - encode_yolox(matched, cells, strides)).abs().sum(-1) * positive).sum()
        return _normalized(sums, positive.sum(), labels, self.normalizer)


class YOLOv9Criterion(Criterion):
    """YOLOv9 loss: 7.5 * (1 - CIoU) + 0.5 * BCE(class, target score) + 1.5 * DFL.

    Box and DFL terms are weighted by the target score of their anchor point. Each term is summed and divided by the sum of the
    target scores. `normalizer`: as for YOLOX, of that sum. `no_aug` and `static` change nothing.

    MultimediaTechLab's code multiplies this loss by the images per step, so SGD needs 64 times its rate of .01 here. The default
    is 16 times, with gradients clipped to a norm of 10 as in that code, and no more for steps of more than 64 images. Mean loss
    of the steps 22 to 42 from scratch (YOLOv9-t, 337 images of COCO, 160 pixels), without clipping: 13.82 at .01, 13.32 at .16,
    13.14 at .64; 13.93 at .64 and clipped to 10 / 64.
    """

    weights = YOLOV9_WEIGHTS
    alignment = Alignment()
    overlap = staticmethod(ciou)
    dfl_margin = 0.01  # see `_dfl`

    def __call__(
        self,
        predictions: Any,  # Predictions of the family
        targets: Tensor,
        labels: Tensor,
        image_size: tuple[int, int],
        ignore: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Computes the losses as for YOLOX: total, box, class, dfl, and positives per box, counted by their target scores."""
        raw, classes = self.outputs(predictions)
        targets, labels = _at_least_one_row(targets.to(raw.dtype), labels)
        cells, strides = grid(image_size, self.strides, raw)
        centers, decoded = (cells + 0.5) * strides[:, None], decode_dfl(raw.detach(), cells, strides)
        match, most = self.assign((decoded, classes, centers, strides, targets, labels), image_size)

        # All positive anchor points, followed by others of score 0 up to the largest possible number of positive ones.
        chosen = match.positive.byte().sort(descending=True, stable=True).indices[:, : most * targets.shape[1]]
        positive, score, index = (x.gather(1, chosen) for x in (match.positive, match.score, match.index))
        raw, matched, cells, strides = _take(raw, chosen), _take(targets, index), cells[chosen], strides[chosen]
        label = labels.gather(1, index).clamp(min=0)
        logits = _take(classes, chosen).gather(2, label[..., None])[..., 0]  # of the matched classes
        with_loss = _with_loss(ignore, centers, match.positive)
        sums = {
            "box": ((1 - self.overlap(decode_dfl(raw, cells, strides), matched)) * score).sum(),
            "class": self.class_loss(classes, logits, score, positive, with_loss),
            "dfl": (_dfl(raw, encode_dfl(matched, cells, strides), self.dfl_margin) * score).sum(),
        }
        weighted = {name: self.weights[name] * value for name, value in sums.items()}
        return _normalized(weighted, match.score.sum(), labels, self.normalizer)

    def outputs(self, predictions: Any) -> tuple[Tensor, Tensor]:
        """Returns logits of box sides and of class scores."""
        return at_least_float32(predictions.boxes), at_least_float32(predictions.classes)

    def assign(self, inputs: tuple[Tensor, ...], image_size: tuple[int, int]) -> tuple[Assignment, int]:
        """Assigns labels -> the assignment, and the largest number of anchor points per box. `inputs`: see `task_aligned`."""
        return task_aligned(*inputs, rule=self.alignment), self.alignment.max_points

    def class_loss(
        self, classes: Tensor, logits: Tensor, score: Tensor, positive: Tensor, with_loss: Tensor | None
    ) -> Tensor:
        """Sums BCE of all logits `[B, A, C]`, without a dense tensor of targets, which are 0 but for the matched classes.

        `logits`, `score` (target) and `positive` `[B, K]`: of the matched classes; where not positive, the score is 0.
        `with_loss [B, A]`: the anchor points that count, positive ones among them; None: all.
        """
        return _sum_where(F.softplus(classes), with_loss) - (logits * score).sum()


class PPYOLOECriterion(YOLOv9Criterion):
    """PP-YOLOE loss: 2.5 * (1 - GIoU) + varifocal loss + 0.5 * DFL, weighted and normalized as for YOLOv9.

    The assignment is TAL with alignment = score * IoU^6 and 13 anchor points per box. With `static` it is ATSS, which does not
    depend on predictions. The official recipes from scratch use it in the first third of the epochs.
    """

    weights = PPYOLOE_WEIGHTS
    alignment = Alignment(class_power=1.0, overlap=iou, max_points=13, every_box=False, eps=1e-9)
    overlap = staticmethod(giou)

    def assign(self, inputs: tuple[Tensor, ...], image_size: tuple[int, int]) -> tuple[Assignment, int]:
        """Assigns labels as for YOLOv9, or with `static` by ATSS."""
        if not self.static:
            return super().assign(inputs, image_size)
        boxes, _, *others = inputs
        level_sizes = [rows * columns for rows, columns in level_shapes(image_size, self.strides)]
        return atss(boxes, *others, level_sizes=level_sizes), ATSS_NEAREST * len(self.strides)

    def class_loss(
        self, classes: Tensor, logits: Tensor, score: Tensor, positive: Tensor, with_loss: Tensor | None
    ) -> Tensor:
        """Sums the varifocal loss (VarifocalNet, equation 2): the BCE, weighted by the target score of a matched class, and by
        .75 * (predicted score)^2 everywhere else."""
        matched = (F.softplus(logits) - logits * score) * score
        negative = _sum_where(_varifocal_negative(classes), with_loss)
        return negative + ((matched - _varifocal_negative(logits)) * positive).sum()


class PicoDetCriterion(PPYOLOECriterion):
    """PicoDet loss: PP-YOLOE's, with the root of class probability times alignment probability as the score of a class."""

    dfl_margin = 0.1

    def outputs(self, predictions: Any) -> tuple[Tensor, Tensor]:
        """Returns logits of box sides, and of the joint scores of class and alignment."""
        boxes, alignment, classes = (at_least_float32(x) for x in predictions)
        return boxes, picodet.joint_logits(classes, alignment)


def _varifocal_negative(logits: Tensor) -> Tensor:
    """Varifocal loss of logits without an object."""
    return VARIFOCAL_ALPHA * logits.sigmoid().square() * F.softplus(logits)


def _with_loss(ignore: Tensor | None, centers: Tensor, positive: Tensor) -> Tensor | None:
    """Returns which anchor points have a loss, bool `[B, A]`: positive ones, and those in no ignore region. None: all of them.

    `ignore [B, R, 2, 3]`: matrices that map the points of a region to the unit square; `centers [A, 2]`; `positive [B, A]`."""
    if ignore is None or not ignore.shape[1]:
        return None
    regions = ignore.to(centers.dtype)
    mapped = centers @ regions[..., :2].transpose(-1, -2) + regions[:, :, None, :, 2]  # [B, R, A, 2]
    inside = ((mapped >= 0) & (mapped < 1)).all(-1).any(1)
    return positive | ~inside


def _sum_where(values: Tensor, with_loss: Tensor | None) -> Tensor:
    """Sums values `[B, A]` or `[B, A, C]` of anchor points, of those `with_loss [B, A]`; None: of all."""
    if with_loss is None:
        return values.sum()
    mask = with_loss if values.ndim == 2 else with_loss[..., None]
    return values.where(mask, 0).sum()


def _normalized(sums: dict[str, Tensor], positives: Tensor, labels: Tensor, normalizer: Normalizer) -> dict:
    """Divides summed losses by the normalizer -> scalars: total, losses, positives per box. Processes sum both counts at once."""
    values = torch.stack(list(sums.values()))
    counts = torch.stack([positives, (labels >= 0).sum()]).to(values.dtype)
    positive_divisor, box_divisor = normalizer(counts)
    losses = values / positive_divisor
    return {"total": losses.sum(), **dict(zip(sums, losses, strict=True)), "positives": counts[0] / box_divisor}


def _at_least_one_row(targets: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Adds a row of padding to a batch without boxes: targets `[B, M, 4]`, labels `[B, M]`."""
    if targets.shape[1]:
        return targets, labels
    return F.pad(targets, (0, 0, 0, 1)), F.pad(labels, (0, 1), value=-1)


def _dfl(raw: Tensor, distances: Tensor, margin: float) -> Tensor:
    """Distribution focal loss (Generalized Focal Loss, Li et al. 2020, equation 6), averaged over the four sides.

    Logits `[..., 4 * bins]` and true distances `[..., 4]` in strides -> `[...]`: the cross-entropy with the two bins around the
    distance, weighted by how near they are. Distances end at the last bin minus `margin`, which keeps both bins in range.
    """
    log_p = raw.unflatten(-1, (4, -1)).log_softmax(-1)
    distances = distances.clamp(0, log_p.shape[-1] - 1 - margin)
    left = distances.floor()
    bins = torch.stack([left, left + 1], -1).long()
    weights = torch.stack([left + 1 - distances, distances - left], -1)
    return -(log_p.gather(-1, bins) * weights).sum(-1).mean(-1)


def _take(x: Tensor, index: Tensor) -> Tensor:
    """Gathers rows: `x [B, N, D]`, `index [B, K]` -> `[B, K, D]`."""
    return x.gather(1, index[..., None].expand(-1, -1, x.shape[2]))
