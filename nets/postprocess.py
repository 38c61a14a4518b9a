"""From scored points to detections: thresholds, class-wise NMS, and back into the frame of the original picture."""

from typing import NamedTuple

import torch
from torch import Tensor
from torchvision.ops import batched_nms

MAX_CANDIDATES = 3000  # points a picture before NMS: keeps an untrained model from taking minutes
FAR = 1e4  # pixels; batched_nms shifts classes apart by the largest coordinate: an absurd box would eat all digits


class Detections(NamedTuple):
    """What was found in one picture, best first. Without any: tensors of length 0."""

    boxes: Tensor  # [n, 4] float32 xyxy, pixels of the original picture
    scores: Tensor  # [n] float32
    labels: Tensor  # [n] int64


def into_original(boxes: Tensor, frame: Tensor) -> Tensor:
    """Boxes in pixels of the network's input -> pixels of the original picture. `frame [5]`: width, height, scale, left, top."""
    offset = torch.stack([frame[3], frame[4], frame[3], frame[4]])
    return (boxes - offset) / frame[2]


def select(
    boxes: Tensor,
    scores: Tensor,
    labels: Tensor,
    frames: Tensor,
    confidence: float,
    nms_iou: float,
    max_detections: int,
) -> list[Detections]:
    """Boxes `[B, A, 4]` xyxy, scores and labels `[B, A]` -> for each picture what survives threshold and class-wise NMS."""
    count = min(MAX_CANDIDATES, scores.shape[1])
    scores, best = scores.topk(count, dim=1)
    labels = labels.gather(1, best)
    boxes = boxes.gather(1, best[..., None].expand(-1, -1, 4))
    above = (scores >= confidence) & boxes.isfinite().all(-1)
    found = []
    for b in range(len(scores)):
        keep = above[b].nonzero()[:, 0]
        s, x, c = scores[b, keep], boxes[b, keep], labels[b, keep]
        kept = batched_nms(x.clamp(-FAR, FAR), s, c, nms_iou)[:max_detections]
        found.append(Detections(into_original(x[kept], frames[b]).float(), s[kept], c[kept]))
    return found
