"""From scored points to detections: thresholds, class-wise NMS, and back into the frame of the original picture."""

from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

MAX_CANDIDATES = 3000  # points a picture before NMS: keeps an untrained model from taking minutes
TOGETHER = 2**15  # points that a GPU compares at once: 128 MiB, one bit a pair
FAR = 1e4  # pixels, beyond which boxes are cut for NMS; classes are laid out 2 * FAR apart


class Detections(NamedTuple):
    """What was found in one picture, best first. Without any: tensors of length 0."""

    boxes: Tensor  # [n, 4] float32 xyxy, pixels of the original picture
    scores: Tensor  # [n] float32
    labels: Tensor  # [n] int64


def into_original(boxes: Tensor, frame: Tensor) -> Tensor:
    """Boxes in pixels of the network's input -> pixels of the original picture. `frame [..., 5]`: width, height, scale,
    left, top; its first dimensions are those of the boxes, or broadcast to them."""
    return (boxes - torch.stack([frame[..., 3], frame[..., 4]] * 2, -1)) / frame[..., 2:3]


def select(
    boxes: Tensor,
    scores: Tensor,
    labels: Tensor,
    frames: Tensor,
    confidence: float,
    nms_iou: float | None,
    max_detections: int,
) -> list[Detections]:
    """Boxes `[B, A, 4]` xyxy, scores and labels `[B, A]` -> for each picture what survives threshold and class-wise NMS
    (`nms_iou` None: the best, without NMS).

    The host waits for the device a few times a batch, whatever the number of pictures.
    """
    if boxes.device.type == "mps":  # has no float64
        boxes, scores, labels, frames = (x.cpu() for x in (boxes, scores, labels, frames))
    wanted = (scores >= confidence) & boxes.abs().amax(-1).isfinite()
    counts = wanted.sum(1).clamp(max=MAX_CANDIDATES).tolist()
    # Stable: an untrained model has many equal scores, and what is kept of them must not depend on the other pictures.
    scores, best = (x[:, : max(counts, default=0)] for x in scores.where(wanted, -1).sort(stable=True, descending=True))
    labels = labels.gather(1, best)
    boxes = boxes.gather(1, best[..., None].expand(-1, -1, 4))
    if nms_iou is None:
        kept = [torch.arange(min(n, max_detections), device=boxes.device) for n in counts]
    else:
        kept = _nms(boxes, scores, labels, counts, nms_iou, max_detections)
    flat = torch.cat([boxes.new_zeros(0, dtype=torch.int64), *(scores.shape[1] * b + k for b, k in enumerate(kept))])
    boxes = into_original(boxes, frames[:, None]).float()
    parts = [x.flatten(0, 1)[flat].split([len(k) for k in kept]) for x in (boxes, scores, labels)]
    return [Detections(*one) for one in zip(*parts, strict=True)]


def _nms(boxes: Tensor, scores: Tensor, labels: Tensor, counts: list[int], limit: float, most: int) -> list[Tensor]:
    """Boxes `[B, K, 4]`, scores and labels `[B, K]`, falling, of which the first counts[b] of a picture are meant -> for each
    picture the places, rising, of the first `most` that class-wise NMS leaves.

    What is better decides: three times as many points as are asked for are enough, or else the picture is done again with all.
    """
    few = 3 * most
    kept = _nms_of_all(boxes, scores, labels, [min(n, few) for n in counts], limit)
    again = [b for b, n in enumerate(counts) if n > few and len(kept[b]) < most]
    for b in again:
        (kept[b],) = _nms_of_all(*(x[b : b + 1] for x in (boxes, scores, labels)), counts[b : b + 1], limit)
    return [k[:most] for k in kept]


def _nms_of_all(boxes: Tensor, scores: Tensor, labels: Tensor, counts: list[int], limit: float) -> list[Tensor]:
    """As above without a bound. Classes lie beside each other and pictures below each other, so that none overlap, in
    float64: in float32 shifts eat the digits. A CPU takes the pictures one by one, since the work is quadratic."""
    from torchvision.ops import nms  # takes a while: not for a training that only starts

    pictures = torch.arange(len(counts), device=labels.device)[:, None].expand_as(labels)
    apart = torch.stack([labels, pictures] * 2, -1) * (2 * FAR)
    boxes, scores = boxes.clamp(-FAR, FAR).double() + apart, scores.double()
    together = 1 if boxes.device.type == "cpu" else max(1, TOGETHER // max(counts, default=1))
    kept = []
    for first in range(0, len(counts), together):
        some = counts[first : first + together]
        flat = [torch.cat([x[first + i, :n] for i, n in enumerate(some)]) for x in (boxes, scores)]
        places = nms(*flat, limit).sort().values
        starts = [0, *accumulate(some)]
        ends = torch.searchsorted(places, torch.tensor(starts, device=places.device)).tolist()
        kept += [places[ends[i] : ends[i + 1]] - starts[i] for i in range(len(some))]
    return kept
