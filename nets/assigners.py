"""Which point answers for which box: pure functions over padded batches, without a loop over pictures or a synchronisation."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from nets.coder import octaves_of
from utils.boxes import ciou, pairwise_iou

CENTRE_RADIUS = 1.5  # strides
MOST_PAIRS = 2**24  # of boxes and points at a time: 64 MiB a tensor, of which ten to fourteen are alive
MOST_POINTS = 10  # of a box: as many as its ten best IoUs add up to (SimOTA), its ten best aligned ones (task-aligned)


class Assignment(NamedTuple):
    positive: Tensor  # [B, A] bool
    index: Tensor  # [B, A] int64: the box that a positive point answers for (0 elsewhere)
    score: Tensor  # [B, A] what its class should score: the IoU of that box and the predicted one, or the alignment (0 elsewhere)


@torch.no_grad()
def candidates(
    centres: Tensor, strides: Tensor, levels: int, targets: Tensor, labels: Tensor, by_size: bool = False
) -> Tensor:
    """`[B, K]`, int64: the points of each picture that `simota` can choose, in their order, then others up to the most there
    can be: a centre region holds 3 x 3 points of a level. All else as in `simota`. K depends on nothing but shapes.
    """
    most = min(len(centres), 9 * levels * targets.shape[1])
    inside = _in_centre_region(centres, strides, targets, labels, by_size).any(1)
    return inside.byte().sort(descending=True, stable=True).indices[:, :most]


def _in_centre_region(centres: Tensor, strides: Tensor, targets: Tensor, labels: Tensor, by_size: bool) -> Tensor:
    """`centres [..., A, 2]`, `strides [..., A]` -> `[B, M, A]`: whether a point is nearer than 1.5 strides to a box's centre,
    `by_size` also of the box's stride."""
    middle = (targets[..., :2] + targets[..., 2:]) / 2
    distance = (centres.unsqueeze(-3) - middle[:, :, None]).abs().amax(-1)
    inside = (distance < CENTRE_RADIUS * strides.unsqueeze(-2)) & (labels >= 0)[..., None]
    return inside & _of_its_size(targets, strides) if by_size else inside


def _of_its_size(targets: Tensor, strides: Tensor) -> Tensor:
    """`[B, M, A]`: whether the box is as large as those of the point's stride. Every box has one stride."""
    log2_size = (targets[..., 2:] - targets[..., :2]).clamp(min=1e-3).log2().mean(-1, keepdim=True)
    low, high = octaves_of(strides.unsqueeze(-2))
    return (low <= log2_size) & (log2_size < high)


@torch.no_grad()
def simota(
    boxes: Tensor,
    objectness: Tensor,
    classes: Tensor,
    centres: Tensor,
    strides: Tensor,
    targets: Tensor,
    labels: Tensor,
    by_size: bool = False,
) -> Assignment:
    """SimOTA (YOLOX, section 2.1 and its appendix). All of it in float32 or better.

    `boxes [B, A, 4]` predicted xyxy pixels; `objectness [B, A]` and `classes [B, A, C]` logits; `centres [A, 2]` of the cells
    in pixels and `strides [A]`, or with a batch before; `targets [B, M, 4]` xyxy pixels; `labels [B, M]`, -1 for padding.

    cost = BCE(sqrt(class * objectness), one-hot) summed over the classes + 3 * -log(IoU + 1e-8) + 1e6 outside of the centre
    region. A box takes its k cheapest candidates, k = int(sum of its ten best IoUs), at least 1. A candidate is a point in the
    centre region of any box; a point that several boxes want goes to the box, of all, with the lowest cost.
    `by_size`: only points of one stride are candidates for a box, that of its size.

    Pictures are independent, and taken so many at a time that memory stays bounded however many boxes they have.
    """
    assign = partial(_simota, by_size=by_size)
    return _a_few_at_once(assign, boxes, objectness, classes, *_of_each(boxes, centres, strides), targets, labels)


def _of_each(boxes: Tensor, centres: Tensor, strides: Tensor) -> tuple[Tensor, Tensor]:
    """With a batch before, if they have none."""
    return centres.expand(len(boxes), -1, 2), strides.expand(len(boxes), -1)


def _a_few_at_once(assign: Callable[..., Assignment], boxes: Tensor, *others: Tensor) -> Assignment:
    """`assign` of so many pictures at a time that memory stays bounded. The last two arguments are targets and labels; a batch
    without targets gets a row of padding."""
    *points, targets, labels = others
    if targets.shape[1] == 0:
        targets, labels = F.pad(targets, (0, 0, 0, 1)), F.pad(labels, (0, 1), value=-1)
    at_once = max(1, MOST_PAIRS // (targets.shape[1] * boxes.shape[1]))
    scenes = (boxes, *points, targets, labels)
    parts = [assign(*part) for part in zip(*(x.split(at_once) for x in scenes), strict=True)]
    return parts[0] if len(parts) == 1 else Assignment(*map(torch.cat, zip(*parts, strict=True)))


def _simota(boxes, objectness, classes, centres, strides, targets, labels, by_size: bool) -> Assignment:
    inside = _in_centre_region(centres, strides, targets, labels, by_size)  # [B, M, A]
    candidate = inside.any(1, keepdim=True) & (labels >= 0)[..., None]
    candidate = candidate & _of_its_size(targets, strides) if by_size else candidate

    overlap = pairwise_iou(targets, boxes).where(candidate, 0)
    cost = _class_cost(objectness, classes, labels) - 3 * (overlap + 1e-8).log() + 1e6 * ~inside
    cost = cost.where(candidate, torch.inf)

    most = min(MOST_POINTS, boxes.shape[1])
    wanted = overlap.topk(most, -1).values.sum(-1, keepdim=True).int().clamp(min=1)  # [B, M, 1]
    cheapest = cost.topk(most, -1, largest=False)
    taken = (torch.arange(most, device=boxes.device) < wanted) & cheapest.values.isfinite()
    matched = torch.zeros_like(candidate).scatter(2, cheapest.indices, taken)  # [B, M, A]

    claims = matched.sum(1)  # [B, A]
    index = torch.where(claims > 1, cost.argmin(1), matched.int().argmax(1))
    positive = claims > 0
    return Assignment(positive, index * positive, overlap.gather(1, index[:, None])[:, 0] * positive)


def _class_cost(objectness: Tensor, classes: Tensor, labels: Tensor) -> Tensor:
    """BCE of sqrt(class * objectness) against the one-hot label of each box, summed over classes -> `[B, M, A]`.

    The sum splits into one term a point and one a pair, so that no `[B, M, A, C]` is needed. Logs stop at -100, as in PyTorch's.
    """
    p = (classes.sigmoid() * objectness.sigmoid()[..., None]).sqrt().transpose(1, 2)  # [B, C, A]
    absent = -torch.log1p(-p).clamp(min=-100)
    rows = labels.clamp(min=0)[..., None].expand(-1, -1, p.shape[2])
    present = -p.gather(1, rows).log().clamp(min=-100)
    return absent.sum(1, keepdim=True) - absent.gather(1, rows) + present


@torch.no_grad()
def task_aligned(
    boxes: Tensor,
    classes: Tensor,
    centres: Tensor,
    strides: Tensor,
    targets: Tensor,
    labels: Tensor,
    most: int = MOST_POINTS,
    least_side: float = 0.0,
    by_size: bool = False,
) -> Assignment:
    """Task-aligned assignment (TOOD, Feng et al. 2021, section 3.2, with the exponents and the CIoU of YOLOv8 and YOLOv9).

    `boxes [B, A, 4]` predicted xyxy pixels; `classes [B, A, C]` logits; `centres [A, 2]` of the cells in pixels and
    `strides [A]`; `targets [B, M, 4]` xyxy pixels; `labels [B, M]`, -1 for padding.

    alignment = score of the class^.5 * CIoU^6, CIoU at least 0. A box takes the `most` points of the highest alignment
    among those inside it; where none has any the best of all, or the nearest of the finest level. A point that several take
    goes to the one with the highest CIoU, as in YOLOv8 and YOLOv9. Other than there, a box whose first choice it is goes
    before the others: a small box inside a large one keeps a point, every box does unless two have the same first choice.
    `least_side`: where it is asked which points are inside, shorter sides count as so many pixels (YOLO26: 16).
    `by_size`: a box asks the points of one stride only, that of its size.
    The score of a point is alignment / highest alignment of its box's points * highest CIoU of them.

    Pictures are independent, and taken so many at a time that memory stays bounded however many boxes they have.
    """
    assign = partial(_task_aligned, most=most, least_side=least_side, by_size=by_size)
    return _a_few_at_once(assign, boxes, classes, *_of_each(boxes, centres, strides), targets, labels)


def _task_aligned(
    boxes, classes, centres, strides, targets, labels, most: int, least_side: float, by_size: bool
) -> Assignment:
    real = (labels >= 0)[..., None]  # [B, M, 1]
    distance = (centres[:, None] - ((targets[..., :2] + targets[..., 2:]) / 2)[:, :, None]).abs()  # [B, M, A, 2]
    reach = (targets[..., 2:] - targets[..., :2]).clamp(min=least_side) / 2
    asked = _of_its_size(targets, strides) if by_size else real  # [B, M, A], or 1
    inside = (distance < reach[:, :, None]).all(-1) & real & asked
    fit = ciou(targets[:, :, None], boxes[:, None]).clamp(min=0)
    rows = labels.clamp(min=0)[..., None].expand_as(fit)
    alignment = classes.transpose(1, 2).gather(1, rows).sigmoid().sqrt() * fit**6  # [B, M, A]

    best = alignment.where(inside, 0).topk(min(most, boxes.shape[1]))
    found = best.values > 0
    alone = ~found.any(-1, keepdim=True)
    # Within the picture some point is .71 strides away at most, so with the stride added the finest level is the nearest.
    nearest = (distance.norm(dim=-1) + strides[:, None]).where(asked, torch.inf).argmin(-1, keepdim=True)
    highest = alignment.where(asked, 0).max(-1, keepdim=True)
    points = torch.where(alone, torch.where(highest.values > 0, highest.indices, nearest), best.indices)
    taken = (found | alone) & real

    claimed = torch.zeros_like(inside).scatter(2, points, taken)
    first = torch.zeros_like(fit).scatter(2, points[..., :1], taken[..., :1].to(fit.dtype))
    strongest, index = (fit + 2 * first).where(claimed, -1).max(1)  # a first choice goes before all others
    positive = strongest >= 0
    index = index * positive
    alignment = alignment.gather(1, index[:, None])[:, 0].where(positive, 0)
    overlap = fit.gather(1, index[:, None])[:, 0].where(positive, 0)
    return Assignment(positive, index, _normalised(alignment, overlap, index, targets.shape[1]).where(positive, 0))


def _normalised(alignment: Tensor, overlap: Tensor, index: Tensor, most: int) -> Tensor:
    """`[B, A]` each: of every box the highest alignment becomes its highest IoU, the others in proportion."""
    nothing, smallest = alignment.new_zeros(len(index), most), torch.finfo(alignment.dtype).tiny
    highest, widest = (
        nothing.scatter_reduce(1, index, values, "amax").gather(1, index) for values in (alignment, overlap)
    )
    return (alignment + smallest) / (highest + smallest) * widest


@torch.no_grad()
def one_point(
    boxes: Tensor, scores: Tensor, found: Tensor, claims: Tensor, targets: Tensor, labels: Tensor
) -> Assignment:
    """For each box the one point that shall speak for it, where there is no NMS.

    `boxes [B, A, 4]` predicted xyxy pixels; `scores [B, A]` of their best classes and `found [B, A]` these classes; `claims
    [B, A]` logits, see Selector; the others as in `simota`.

    The point with the highest score * sigmoid(claim) among those of the right class whose IoU is above .5. A point that several
    boxes want goes to the one with the highest IoU, and the others stay without.
    """
    return _a_few_at_once(_one_point, boxes, scores, found, claims, targets, labels)


def _one_point(boxes, scores, found, claims, targets, labels) -> Assignment:
    overlap = pairwise_iou(targets, boxes)  # [B, M, A]
    voice = (scores * claims.sigmoid())[:, None].where(found[:, None] == labels[..., None], 0)
    loudest = voice.where(overlap > 0.5, 0).max(-1, keepdim=True)
    wanted = torch.zeros_like(overlap, dtype=torch.bool).scatter(2, loudest.indices, loudest.values > 0)
    widest, index = overlap.where(wanted, 0).max(1)
    positive = widest > 0
    return Assignment(positive, index * positive, widest)
