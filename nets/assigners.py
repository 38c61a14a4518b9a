"""Label assignment: which anchor point predicts which box. Functions of padded batches, without synchronization."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import NamedTuple

import torch
from torch import Tensor

from utils.boxes import ciou, cxcywh_to_xyxy, iou, pairwise_iou

CENTER_RADIUS = 1.5  # strides
# Boxes times anchor points per chunk of images: up to fourteen tensors of 64 MiB exist at once. No result depends on it.
MAX_PAIRS = 2**24
MAX_POSITIVES = 10  # anchor points per box
ATSS_NEAREST = 9  # anchor points per box and level that ATSS considers
ATSS_SIDE = 5.0  # strides: side of the square around an anchor point, whose IoU with a box counts in ATSS
TIE = 1e-4  # costs (sums of IoUs, alignments) that differ by less tie: rounding must not decide


class Assignment(NamedTuple):
    """The matched box of each anchor point; index and score are 0 for anchor points that are not positive."""

    positive: Tensor  # [B, A] bool
    index: Tensor  # type: ignore[assignment]  # [B, A] int64: row of the matched box; tuple.index is not used
    score: Tensor  # [B, A] target of the class score: IoU of matched and predicted box, or the normalized alignment


class Alignment(NamedTuple):
    """The rule of `task_aligned`: alignment = class score ** class_power * overlap ** 6. YOLOv9 has the defaults."""

    class_power: float = 0.5
    overlap: Callable[[Tensor, Tensor], Tensor] = ciou  # element by element, as in utils/boxes.py
    max_points: int = MAX_POSITIVES  # anchor points per box
    every_box: bool = True  # every box gets an anchor point, also one without a prediction that overlaps it
    eps: float = 0.0  # added to the highest alignment of a box: target scores of tiny alignments are lower


YOLOV9_ALIGNMENT = Alignment()


def _in_chunks(assign: Callable[..., Assignment]) -> Callable[..., Assignment]:
    """Decorator that calls an assigner on a few images at a time, so that memory stays bounded for any number of boxes."""

    @wraps(assign)
    def assign_chunks(*arguments: Tensor, **options) -> Assignment:
        *predictions, centers, strides, targets, labels = arguments
        batch, num_points = predictions[0].shape[:2]
        size = max(1, MAX_PAIRS // (targets.shape[1] * num_points))
        tensors = (*predictions, centers.expand(batch, -1, 2), strides.expand(batch, -1), targets, labels)
        parts = [assign(*chunk, **options) for chunk in zip(*(x.split(size) for x in tensors), strict=True)]
        return Assignment(*map(torch.cat, zip(*parts, strict=True)))

    return assign_chunks


def _tie_order(points: Tensor) -> Tensor:
    """A number in 0..1 for each point `[..., 2]`: times TIE, it gives ties an order that rounding does not change.

    Anchor points at the same distance from a box tie where predictions are alike: in a network from scratch, and on a plain
    background. The factors (of the R2 sequence) give neighbors numbers that are far apart.
    """
    return (points[..., 0] * 0.7548776662 + points[..., 1] * 0.5698402910) % 1


@torch.no_grad()
def candidates(centers: Tensor, strides: Tensor, num_levels: int, targets: Tensor, labels: Tensor) -> Tensor:
    """Indices `[B, K]` of the anchor points that `simota` can choose: those in the center region of any box.

    They come in ascending order, followed by other anchor points up to K, the largest possible number: a center region holds
    3 x 3 anchor points per level. K depends on shapes only. The arguments are the same as for `simota`.
    """
    count = min(len(centers), 9 * num_levels * targets.shape[1])
    size = max(1, MAX_PAIRS // (targets.shape[1] * len(centers)))  # images at a time, as in `_in_chunks`
    chunks = zip(targets.split(size), labels.split(size), strict=True)
    inside = torch.cat([_in_center_region(centers, strides, *chunk).any(1) for chunk in chunks])
    return inside.byte().sort(descending=True, stable=True).indices[:, :count]


def _in_center_region(centers: Tensor, strides: Tensor, targets: Tensor, labels: Tensor) -> Tensor:
    """Mask `[B, M, A]` of the anchor points that are less than 1.5 strides away from the center of a box, in x and in y."""
    middle = (targets[..., :2] + targets[..., 2:]) / 2
    distance = (centers.unsqueeze(-3) - middle[:, :, None]).abs().amax(-1)
    return (distance < CENTER_RADIUS * strides.unsqueeze(-2)) & (labels >= 0)[..., None]


@torch.no_grad()
@_in_chunks
def simota(
    boxes: Tensor,
    objectness: Tensor,
    classes: Tensor,
    centers: Tensor,
    strides: Tensor,
    targets: Tensor,
    labels: Tensor,
) -> Assignment:
    """SimOTA label assignment (YOLOX, section 2.1 and appendix). All tensors are float32 or float64.

    `boxes [B, A, 4]`: decoded boxes, xyxy in pixels; `objectness [B, A]` and `classes [B, A, C]`: logits; `centers [A, 2]` or
    `[B, A, 2]`: anchor points in pixels, with `strides [A]` or `[B, A]`; `targets [B, M, 4]`: xyxy in pixels, M at least 1;
    `labels [B, M]`: -1 for padding.

    Candidates are the anchor points in the center region of any box. The cost of a pair is
    BCE(sqrt(class * objectness), one-hot) summed over the classes + 3 * -log(IoU + 1e-8) + 1e6 outside of the box's own center
    region. A box takes its k cheapest candidates, with k = int(sum of its ten highest IoUs), at least 1. An anchor point that
    several boxes take is matched with the box of lowest cost among all boxes. Costs that differ by less than TIE are ordered
    by the positions of the anchor points, and dynamic k is floor(sum + TIE), so that rounding does not change the assignment.
    """
    inside = _in_center_region(centers, strides, targets, labels)  # [B, M, A]
    candidate = inside.any(1, keepdim=True) & (labels >= 0)[..., None]

    overlap = pairwise_iou(targets, boxes).where(candidate, 0)
    cost = _class_cost(objectness, classes, labels, TIE * _tie_order(centers))
    cost = cost - 3 * (overlap + 1e-8).log() + 1e6 * ~inside
    cost = cost.where(candidate, torch.inf)

    count = min(MAX_POSITIVES, boxes.shape[1])
    k = overlap.topk(count, -1).values.sum(-1, keepdim=True).add(TIE).int().clamp(min=1)  # [B, M, 1]
    cheapest = cost.topk(count, -1, largest=False)
    taken = (torch.arange(count, device=boxes.device) < k) & cheapest.values.isfinite()
    matched = torch.zeros_like(candidate).scatter(2, cheapest.indices, taken)  # [B, M, A]

    num_boxes = matched.sum(1)  # [B, A]: boxes that take an anchor point
    index = torch.where(num_boxes > 1, cost.argmin(1), matched.int().argmax(1))
    positive = num_boxes > 0
    return Assignment(positive, index * positive, overlap.gather(1, index[:, None])[:, 0] * positive)


def _class_cost(objectness: Tensor, classes: Tensor, labels: Tensor, offset: Tensor) -> Tensor:
    """BCE of sqrt(class * objectness) and the one-hot label of each box, summed over the classes, + offset -> `[B, M, A]`.

    The sum splits into one term per anchor point and one per pair, which avoids a tensor `[B, M, A, C]`. Logarithms are clamped
    at -100, as in PyTorch's BCE.
    """
    p = (classes.sigmoid() * objectness.sigmoid()[..., None]).sqrt().transpose(1, 2)  # [B, C, A]
    absent = -torch.log1p(-p).clamp(min=-100)
    rows = labels.clamp(min=0)[..., None].expand(-1, -1, p.shape[2])
    present = -p.gather(1, rows).log().clamp(min=-100)
    return (absent.sum(1) + offset)[:, None] - absent.gather(1, rows) + present


@torch.no_grad()
@_in_chunks
def task_aligned(
    boxes: Tensor,
    classes: Tensor,
    centers: Tensor,
    strides: Tensor,
    targets: Tensor,
    labels: Tensor,
    rule: Alignment = YOLOV9_ALIGNMENT,
) -> Assignment:
    """Task-aligned label assignment (TOOD, Feng et al. 2021, section 3.2).

    The arguments are the same as for `simota`, without the objectness.

    alignment = (class score)^.5 * CIoU^6, with CIoU clamped at 0, as in YOLOv8 and YOLOv9, or the `rule` of another family.
    A box takes the ten (`rule.max_points`) anchor points of highest alignment among those inside it. An anchor point that several
    boxes take is matched with the box of highest overlap; see `_every_box` for YOLOv9.
    For a box, alignments that differ by less than TIE of their value are ordered by the positions of the anchor points.
    The score of an anchor point is alignment / (highest alignment of its box) * (highest overlap of its box), where "highest"
    goes over the anchor points matched with the box.
    """
    real = (labels >= 0)[..., None]  # [B, M, 1]: not padding
    distance, inside = _distances(centers, targets)
    overlap = rule.overlap(targets[:, :, None], boxes[:, None]).clamp(min=0).where(real, 0)
    rows = labels.clamp(min=0)[..., None].expand_as(overlap)
    class_score = classes.transpose(1, 2).gather(1, rows).sigmoid()
    alignment = class_score**rule.class_power * overlap**6  # [B, M, A]

    ordered = alignment * (1 + TIE * _tie_order(centers))[:, None]
    best = ordered.where(inside, 0).topk(min(rule.max_points, boxes.shape[1]))
    if rule.every_box:
        # The nearest anchor point of a level is at most .71 strides away: adding the stride makes the finest level the nearest.
        far = (distance + strides[:, None]).where(real, torch.inf)
        positive, index = _every_box(best, ordered, overlap, far, real)
    else:
        positive, index = _contested(torch.zeros_like(inside).scatter(2, best.indices, best.values > 0), overlap)
    alignment = alignment.gather(1, index[:, None])[:, 0].where(positive, 0)
    overlap = overlap.gather(1, index[:, None])[:, 0].where(positive, 0)
    score = _normalize(alignment, overlap, index, targets.shape[1], rule.eps)
    return Assignment(positive, index, score.where(positive, 0))


def _distances(centers: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Distances of anchor points from the centers of boxes, and whether they lie inside: `[B, M, A]` each."""
    middle, half = (targets[..., :2] + targets[..., 2:]) / 2, (targets[..., 2:] - targets[..., :2]) / 2
    offset = (centers[:, None] - middle[:, :, None]).abs()  # [B, M, A, 2]
    return offset.norm(dim=-1), (offset < half[:, :, None]).all(-1)


def _every_box(
    best: tuple[Tensor, Tensor], alignment: Tensor, overlap: Tensor, far: Tensor, real: Tensor
) -> tuple[Tensor, Tensor]:
    """Matches anchor points with the boxes that take them, so that every box keeps one -> positive, index `[B, A]`.

    `best`: alignment and index of the anchor points that a box takes. If none of them has a positive alignment, it takes the
    best anchor point anywhere, or if all alignments are 0 the nearest one of the finest level, by `far`. An anchor point that
    several boxes take is matched with the box of highest overlap. Unlike in YOLOv8 and YOLOv9, it is matched with a box whose
    first choice it is, if there is one. So a small box inside a large one keeps an anchor point. Only a box that shares its
    first choice with another box can end without any.
    """
    values, indices = best
    found = values > 0
    missing = ~found.any(-1, keepdim=True)
    highest = alignment.max(-1, keepdim=True)
    nearest = far.argmin(-1, keepdim=True)
    chosen = torch.where(missing, torch.where(highest.values > 0, highest.indices, nearest), indices)
    taken = (found | missing) & real
    matched = torch.zeros_like(overlap, dtype=torch.bool).scatter(2, chosen, taken)
    first = torch.zeros_like(overlap).scatter(2, chosen[..., :1], taken[..., :1].to(overlap.dtype))
    priority, index = (overlap + 2 * first).where(matched, -1).max(1)  # first choices take precedence
    positive = priority >= 0
    return positive, index * positive


def _contested(matched: Tensor, overlap: Tensor) -> tuple[Tensor, Tensor]:
    """Matches each anchor point with one of the boxes that take it (mask `[B, M, A]`) -> positive, index `[B, A]`.

    If there are several, it is the box of highest overlap among all boxes of the image, as in the code of PaddleDetection.
    """
    count = matched.sum(1)
    index = torch.where(count > 1, overlap.argmax(1), matched.int().argmax(1))
    return count > 0, index * (count > 0)


@torch.no_grad()
@_in_chunks
def atss(
    boxes: Tensor, centers: Tensor, strides: Tensor, targets: Tensor, labels: Tensor, level_sizes: Sequence[int]
) -> Assignment:
    """Adaptive training sample selection (ATSS, Zhang et al. 2020, algorithm 1), for the first epochs from scratch.

    The arguments are the same as for `simota`, without classes; `level_sizes`: anchor points per level.

    Around each anchor point lies a square of five strides. The candidates of a box are the nine nearest anchor points of each
    level. It takes those inside it whose square has an IoU with the box above mean + standard deviation of its candidates. An
    anchor point that several boxes take is matched with the box of highest IoU. Its score is the IoU of the predicted box.
    """
    squares = cxcywh_to_xyxy(torch.cat([centers, (ATSS_SIDE * strides)[..., None].expand_as(centers)], -1))
    overlap = pairwise_iou(targets, squares).where((labels >= 0)[..., None], 0)  # [B, M, A]
    distance, inside = _distances(centers, targets)
    levels = distance.split(tuple(level_sizes), -1)
    starts = (sum(level_sizes[:i]) for i in range(len(levels)))
    nearest = [d.topk(min(ATSS_NEAREST, d.shape[-1]), largest=False).indices for d in levels]
    candidate = torch.cat([start + indices for start, indices in zip(starts, nearest, strict=True)], -1)  # [B, M, K]
    values = overlap.gather(2, candidate)
    taken = values > values.mean(-1, keepdim=True) + values.std(-1, keepdim=True)
    matched = torch.zeros_like(inside).scatter(2, candidate, taken) & inside
    positive, index = _contested(matched, overlap)
    score = iou(targets.gather(1, index[..., None].expand(-1, -1, 4)), boxes)
    return Assignment(positive, index, score.where(positive, 0))


def _normalize(alignment: Tensor, overlap: Tensor, index: Tensor, num_boxes: int, eps: float) -> Tensor:
    """Scales alignments `[B, A]`, so that the highest one of each box becomes the highest overlap of the box."""
    zeros, tiny = alignment.new_zeros(len(index), num_boxes), torch.finfo(alignment.dtype).tiny
    highest_alignment, highest_overlap = (
        zeros.scatter_reduce(1, index, values, "amax").gather(1, index) for values in (alignment, overlap)
    )
    return (alignment + tiny) / (highest_alignment + tiny + eps) * highest_overlap
