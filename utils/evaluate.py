"""Detections of a whole data set, and their figures."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

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
    exact = torch.float32 if ranks.device.type == "mps" else torch.float64
    sums = torch.zeros(2, dtype=exact, device=ranks.device)  # loss, positives
    found, asked = [], False
    limits = {"confidence": confidence, "nms_iou": nms_iou, "max_detections": max_detections}
    with torch.no_grad():
        for done, batch in enumerate(loader, 1):
            batch = batch.to(ranks.device)
            predictions = model(batch.images)
            if criterion is not None:
                losses = criterion(predictions, batch.boxes, batch.labels, batch.size)
                sums += torch.stack([losses["total"], losses["positives"]])
            found.append(on_host(model.detections(predictions, batch.size, batch.frames, **limits), batch.ids))
            if progress is not None:
                progress(done)
            asked = stop is not None and stop()
            if asked:
                break
    if any(ranks.any(asked)):
        raise Interrupted
    if ranks.device.type == "cuda":
        torch.cuda.synchronize(ranks.device)  # what is on its way to the host
    mine = [torch.cat(part).numpy() for part in zip(*found, strict=True)]
    everything = as_coco([part for part in ranks.gather(mine) if part], loader.dataset.annotations)
    figures = coco_figures(loader.dataset.ground_truth(), everything)
    if criterion is not None:
        total, positives = ranks.sum(sums).tolist()
        figures["val_loss"] = total / max(positives, 1)
    return {**figures, "detections": everything}


def on_host(detections: Sequence, ids: Tensor) -> tuple[Tensor, ...]:
    """The detections of a batch, and the indices `ids [B]` of its pictures -> boxes `[n, 4]`, scores, labels and indices `[n]`.

    From a GPU they arrive while it works on; they may be read when it was awaited.
    """
    parts = [torch.cat(part) for part in zip(*detections, strict=True)]
    index = ids.repeat_interleave(torch.tensor([len(one.scores) for one in detections]))
    return *(part.to("cpu", non_blocking=part.is_cuda) for part in parts), index


def as_coco(parts: Sequence[Sequence[np.ndarray]], annotations) -> list[dict]:
    """Boxes xyxy, scores, labels and indices of pictures, of each process -> entries of a COCO results file by image id:
    x, y, width, height and the data's own ids."""
    if not parts:
        return []
    boxes, scores, labels, index = (np.concatenate(part) for part in zip(*parts, strict=True))
    image_ids = np.asarray(annotations.image_ids)[index]
    order = np.argsort(image_ids, kind="stable")
    boxes = xyxy_to_xywh(boxes.astype(np.float64))
    columns = image_ids, np.asarray(annotations.category_ids)[labels], boxes, scores
    rows = zip(*(column[order].tolist() for column in columns), strict=True)
    return [{"image_id": i, "category_id": c, "bbox": box, "score": s} for i, c, box, s in rows]
