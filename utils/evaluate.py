"""Detections of a whole data set, and their figures."""

import torch
from torch import nn

from utils.boxes import xyxy_to_xywh
from utils.distributed import Ranks
from utils.interrupt import Interrupted
from utils.metrics import coco_figures


def evaluate(
    model: nn.Module,
    loader,
    ranks: Ranks,
    criterion=None,
    confidence: float = 0.001,
    nms_iou: float = 0.65,
    max_detections: int = 300,
    progress=None,
    stop=None,
) -> dict:
    """The figures of `metrics.coco_figures`, and "detections": COCO results with the data's own ids, by image id.

    Each process works on its share and all get the same answer. With a criterion that gives plain sums (its `share`
    gives ones) also "val_loss": the total loss over all pictures, divided by all positives. `progress(batches done)`
    is called after each batch. Where `stop()` is true in one process, all raise Interrupted as soon as they meet.
    """
    model.eval()
    annotations = loader.dataset.annotations
    sums = torch.zeros(2, dtype=torch.float64)  # loss, positives
    found, asked = [], False
    with torch.no_grad():
        for done, batch in enumerate(loader, 1):
            batch = batch.to(ranks.device)
            predictions = model(batch.images)
            if criterion is not None:
                losses = criterion(predictions, batch.boxes, batch.labels, batch.size)
                sums += torch.stack([losses["total"], losses["positives"]]).cpu().double()
            limits = {"confidence": confidence, "nms_iou": nms_iou, "max_detections": max_detections}
            for index, one in zip(
                batch.ids.tolist(), model.detections(predictions, batch.size, batch.frames, **limits), strict=True
            ):
                found += as_coco(one, int(annotations.image_ids[index]), annotations.category_ids)
            if progress is not None:
                progress(done)
            asked = stop is not None and stop()
            if asked:
                break
    if any(ranks.any(asked)):
        raise Interrupted
    everything = sorted((d for part in ranks.gather(found) for d in part), key=lambda d: d["image_id"])
    figures = coco_figures(loader.dataset.ground_truth(), everything)
    if criterion is not None:
        total, positives = ranks.sum(sums.to(ranks.device, torch.float32)).tolist()
        figures["val_loss"] = total / max(positives, 1)
    return {**figures, "detections": everything}


def as_coco(detections, image_id: int, category_ids) -> list[dict]:
    """Detections of one picture -> entries of a COCO results file: x, y, width, height and the data's own ids."""
    boxes = xyxy_to_xywh(detections.boxes.cpu().double()).tolist()
    scores, labels = detections.scores.cpu().tolist(), detections.labels.cpu().tolist()
    return [
        {"image_id": image_id, "category_id": int(category_ids[label]), "bbox": box, "score": score}
        for box, score, label in zip(boxes, scores, labels, strict=True)
    ]
