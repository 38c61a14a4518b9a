"""From decoded boxes to detections: confidence threshold, NMS per class, and conversion to pixels of the original image."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from utils.images import into_original

MAX_CANDIDATES = 3000  # boxes per image before NMS: without a limit an untrained model would take minutes
FAR = 1e4  # pixels: NMS clips boxes to +-FAR and moves each class by 2 * FAR, so that classes never overlap
NO_FLOAT64 = ("mps",)  # device types that do not support float64


class Detections(NamedTuple):
    """The detections in one image, best first. The tensors have length 0 if there are none."""

    boxes: Tensor  # [n, 4] float32 xyxy, pixels of the original image
    scores: Tensor  # [n] float32
    labels: Tensor  # [n] int64


def select(
    boxes: Tensor,
    scores: Tensor,
    labels: Tensor,
    transforms: Tensor,
    confidence: float | Tensor = 0.001,
    nms_iou: float = 0.65,
    max_detections: int = 300,
    max_candidates: int = MAX_CANDIDATES,
    clip: bool = False,
    class_agnostic: bool = False,
) -> list[Detections]:
    """Applies the confidence threshold and NMS per class to boxes `[B, A, 4]` xyxy, scores and labels `[B, A]`.

    `transforms [B, 6]`: letterbox transforms. `confidence` may be a tensor [C], a threshold for each class. Boxes with a
    coordinate that is not finite are left out. With `clip`, boxes end at the borders of their image. With `class_agnostic`, boxes
    of different classes suppress each other, too.
    """
    if boxes.device.type in NO_FLOAT64:
        boxes, scores, labels, transforms = (x.cpu() for x in (boxes, scores, labels, transforms))
    least = confidence.to(labels.device)[labels] if isinstance(confidence, Tensor) else confidence
    candidate = (scores >= least) & boxes.abs().amax(-1).isfinite()
    counts = candidate.sum(1).clamp(max=max_candidates).tolist()
    # Stable: an untrained model has many equal scores, and the choice among them must not depend on the other images.
    scores, order = scores.where(candidate, -1).sort(stable=True, descending=True)
    scores, order = (x[:, : max(counts, default=0)] for x in (scores, order))
    labels, boxes = labels.gather(1, order), boxes.gather(1, order[..., None].expand(-1, -1, 4))
    original = into_original(boxes, transforms[:, None]).float()
    if clip:
        original = clip_to_images(original, transforms)
    groups = torch.zeros_like(labels) if class_agnostic else labels
    # Offsets separate the groups, as in torchvision's batched_nms. In float32 they would cost digits of the coordinates.
    shifted, exact_scores = boxes.clamp(-FAR, FAR).double() + groups[..., None] * (2 * FAR), scores.double()
    detections = []
    for b, count in enumerate(counts):
        kept = nms(shifted[b, :count], exact_scores[b, :count], nms_iou, max_detections)
        detections.append(Detections(original[b][kept], scores[b][kept], labels[b][kept]))
    return detections


def joined(heads: Sequence[list[Detections]]) -> list[Detections]:
    """Joins the detections of several heads, each a list with one entry per image; best first, of equal scores the first head."""
    if len(heads) == 1:
        return heads[0]
    images = []
    for parts in zip(*heads, strict=True):
        boxes, scores, labels = (torch.cat(field) for field in zip(*parts, strict=True))
        order = scores.sort(descending=True, stable=True).indices
        images.append(Detections(boxes[order], scores[order], labels[order]))
    return images


def clip_to_images(boxes: Tensor, transforms: Tensor) -> Tensor:
    """Clips boxes `[B, n, 4]` xyxy in pixels of the original images. `transforms [B, 6]`: their letterbox transforms."""
    return boxes.clamp(min=0).minimum(transforms[:, None, :2].repeat(1, 1, 2))


def nms(boxes: Tensor, scores: Tensor, nms_iou: float, max_detections: int) -> Tensor:
    """Non-maximum suppression of boxes `[K, 4]` of one image, highest score first -> indices of those kept.

    The cost is quadratic: 15 ms for 3,000 boxes on one CPU core, 0.6 ms for 900. So only the best 3 * max_detections boxes are
    compared at first. The result is exact if enough of them are kept, since a box never depends on boxes with lower scores.
    Otherwise four times as many are compared, until all are.
    """
    if nms_iou >= 1:  # no boxes overlap more; an exported file contains NMS
        return torch.arange(len(scores), device=scores.device)[:max_detections]
    from torchvision.ops import nms as torchvision_nms  # slow to import, and training starts without it

    first = 3 * max_detections
    kept = torchvision_nms(boxes[:first], scores[:first], nms_iou)
    while len(scores) > first and len(kept) < max_detections:
        first *= 4
        kept = torchvision_nms(boxes[:first], scores[:first], nms_iou)
    return kept.sort().values[:max_detections]
