"""Which point answers for which box: pure functions over padded batches, without a loop over pictures or a synchronisation."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from utils.boxes import pairwise_iou

CENTRE_RADIUS = 1.5  # strides
MOST_PAIRS = 2**24  # of boxes and points at a time: 64 MiB a tensor, of which about ten are alive
MOST_POINTS = 10  # a box gets at most as many points as its ten best IoUs add up to


class Assignment(NamedTuple):
    positive: Tensor  # [B, A] bool
    index: Tensor  # [B, A] int64: the box that a positive point answers for (0 elsewhere)
    iou: Tensor  # [B, A] IoU of the predicted with that box (0 elsewhere)


@torch.no_grad()
def candidates(centres: Tensor, strides: Tensor, levels: int, targets: Tensor, labels: Tensor) -> Tensor:
    """`[B, K]`, int64: the points of each picture that `simota` can choose, in their order, then others up to the most there
    can be: a centre region holds 3 x 3 points of a level. All else as in `simota`. K depends on nothing but shapes.
    """
    most = min(len(centres), 9 * levels * targets.shape[1])
    inside = _in_centre_region(centres, strides, targets, labels).any(1)
    return inside.byte().sort(descending=True, stable=True).indices[:, :most]


def _in_centre_region(centres: Tensor, strides: Tensor, targets: Tensor, labels: Tensor) -> Tensor:
    """`centres [..., A, 2]`, `strides [..., A]` -> `[B, M, A]`: whether a point is nearer than 1.5 strides to a box's centre."""
    middle = (targets[..., :2] + targets[..., 2:]) / 2
    distance = (centres.unsqueeze(-3) - middle[:, :, None]).abs().amax(-1)
    return (distance < CENTRE_RADIUS * strides.unsqueeze(-2)) & (labels >= 0)[..., None]


@torch.no_grad()
def simota(
    boxes: Tensor,
    objectness: Tensor,
    classes: Tensor,
    centres: Tensor,
    strides: Tensor,
    targets: Tensor,
    labels: Tensor,
) -> Assignment:
    """SimOTA (YOLOX, section 2.1 and its appendix). All of it in float32 or better.

    `boxes [B, A, 4]` predicted xyxy pixels; `objectness [B, A]` and `classes [B, A, C]` logits; `centres [A, 2]` of the cells
    in pixels and `strides [A]`, or with a batch before; `targets [B, M, 4]` xyxy pixels; `labels [B, M]`, -1 for padding.

    cost = BCE(sqrt(class * objectness), one-hot) summed over the classes + 3 * -log(IoU + 1e-8) + 1e6 outside of the centre
    region. A box takes its k cheapest candidates, k = int(sum of its ten best IoUs), at least 1. A candidate is a point in the
    centre region of any box; a point that several boxes want goes to the box, of all, with the lowest cost.

    Pictures are independent, and taken so many at a time that memory stays bounded however many boxes they have.
    """
    at_once = max(1, MOST_PAIRS // max(1, targets.shape[1] * boxes.shape[1]))
    centres, strides = centres.expand(len(boxes), -1, 2), strides.expand(len(boxes), -1)
    scenes = (boxes, objectness, classes, centres, strides, targets, labels)
    parts = [_simota(*part) for part in zip(*(x.split(at_once) for x in scenes), strict=True)]
    return parts[0] if len(parts) == 1 else Assignment(*map(torch.cat, zip(*parts, strict=True)))


def _simota(boxes, objectness, classes, centres, strides, targets, labels) -> Assignment:
    if targets.shape[1] == 0:
        targets, labels = F.pad(targets, (0, 0, 0, 1)), F.pad(labels, (0, 1), value=-1)
    inside = _in_centre_region(centres, strides, targets, labels)  # [B, M, A]
    candidate = inside.any(1, keepdim=True) & (labels >= 0)[..., None]

    iou = pairwise_iou(targets, boxes).where(candidate, 0)
    cost = _class_cost(objectness, classes, labels) - 3 * (iou + 1e-8).log() + 1e6 * ~inside
    cost = cost.where(candidate, torch.inf)

    most = min(MOST_POINTS, boxes.shape[1])
    wanted = iou.topk(most, -1).values.sum(-1, keepdim=True).int().clamp(min=1)  # [B, M, 1]
    cheapest = cost.topk(most, -1, largest=False)
    taken = (torch.arange(most, device=boxes.device) < wanted) & cheapest.values.isfinite()
    matched = torch.zeros_like(candidate).scatter(2, cheapest.indices, taken)  # [B, M, A]

    claims = matched.sum(1)  # [B, A]
    index = torch.where(claims > 1, cost.argmin(1), matched.int().argmax(1))
    positive = claims > 0
    return Assignment(positive, index * positive, iou.gather(1, index[:, None])[:, 0] * positive)


def _class_cost(objectness: Tensor, classes: Tensor, labels: Tensor) -> Tensor:
    """BCE of sqrt(class * objectness) against the one-hot label of each box, summed over classes -> `[B, M, A]`.

    The sum splits into one term a point and one a pair, so that no `[B, M, A, C]` is needed. Logs stop at -100, as in PyTorch's.
    """
    p = (classes.sigmoid() * objectness.sigmoid()[..., None]).sqrt().transpose(1, 2)  # [B, C, A]
    absent = -torch.log1p(-p).clamp(min=-100)
    rows = labels.clamp(min=0)[..., None].expand(-1, -1, p.shape[2])
    present = -p.gather(1, rows).log().clamp(min=-100)
    return absent.sum(1, keepdim=True) - absent.gather(1, rows) + present
