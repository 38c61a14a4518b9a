"""The evaluation of a model on a whole data set, by all processes."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from datasets.loader import Loader
from engine.optimizer import Updater
from engine.rates import domain_similarity_of
from engine.run_folder import Run
from metrics.coco import class_thresholds, coco_metrics, to_coco
from nets import DetectionModel, Pretraining
from report.drawn_images import prediction_sheet
from utils.processes import Interrupted, Ranks
from utils.progress import progress_bar
from utils.signals import StopSignal

MAX_DETECTIONS = 300  # per image; evaluate.py has max_detections=


@torch.no_grad()
def evaluate(
    model: DetectionModel,
    loader: Loader,
    ranks: Ranks,
    criterion: Callable | None = None,
    confidence: float = 0.001,
    nms_iou: float = 0.65,
    max_detections: int = MAX_DETECTIONS,
    stop: Callable[[], bool] | None = None,
) -> dict:
    """Computes the metrics of `metrics.coco_metrics` on a data set.

    Every process works on its shard and returns the same metrics. "detections" holds the COCO results, sorted by image id, on
    rank 0, which computes the metrics; it is empty on the others, to save their memory and time.

    With a criterion whose normalizer returns ones (so that it gives sums), "val_loss" is the total loss over all images divided
    by the number of positives. When `stop()` is true in one process, it leaves out the rest of its shard; all processes raise
    Interrupted together when the others are done with theirs.
    """
    model.eval()
    torch.backends.cudnn.allow_tf32 = False  # it rounds to 10 bits, and the metrics should equal a CPU's
    exact = torch.float32 if ranks.device.type == "mps" else torch.float64
    sums = torch.zeros(2, dtype=exact, device=ranks.device)  # loss, positives
    found, stopped = [], False
    limits = {"confidence": confidence, "nms_iou": nms_iou, "max_detections": max_detections}
    for batch in progress_bar(loader, "evaluation", ranks.is_main):
        batch = batch.to(ranks.device)
        predictions = model(batch.images)
        if criterion is not None:
            losses = criterion(predictions, *batch.targets)
            sums += torch.stack([losses["total"], losses["positives"]])
        detections = model.detections(predictions, batch.size, batch.transforms, **limits)
        index = batch.ids.repeat_interleave(torch.tensor([len(one.scores) for one in detections]))
        fields = [torch.cat(field).cpu() for field in zip(*detections, strict=True)]
        found.append((*fields, index))
        stopped = stop is not None and stop()
        if stopped:
            break
    if any(ranks.any(stopped)):
        raise Interrupted
    local = [torch.cat(part).numpy() for part in zip(*found, strict=True)]
    results = to_coco([part for part in ranks.gather_on_main(local) if part], loader.dataset.annotations)
    metrics = ranks.on_main(lambda: coco_metrics(loader.dataset.annotations.coco(), results))
    if criterion is not None:
        total, positives = ranks.sum(sums).tolist()
        metrics["val_loss"] = total / max(positives, 1)
    return {**metrics, "detections": results}


class Initial:
    """The evaluation of the initial weights before training (epoch 0), if they were trained on classes of the data.

    `row`: the row of the log, empty without an evaluation. `domain_similarity`: see `domain_similarity_of`. `expected`: the
    mAP50-95 of the weights on images like those of their training. `criterion`: see `evaluate`.
    """

    def __init__(
        self,
        pretraining: Pretraining | None,
        expected: float,
        model: DetectionModel,
        loader: Loader,
        criterion: Callable,
        ranks: Ranks,
    ):
        self.pretrained = pretraining is not None
        self.row: dict[str, Any] = {}
        self.domain_similarity = 0.0
        if pretraining and pretraining.known > 0:
            metrics = evaluate(model, loader, ranks, criterion)
            self.row = {"epoch": 0} | evaluation_row(metrics, model.first_class)
            self.domain_similarity = domain_similarity_of(pretraining, self.row["AP"], expected)


def validate(
    updater: Updater, loader: Loader, criterion: Callable, ranks: Ranks, run: Run, epoch: int, stop: StopSignal
) -> dict[str, Any]:
    """Evaluates the EMA model after an epoch (counted from 0). Returns columns for log.csv, and "thresholds" of classes.

    Batch-norm statistics are averaged over the processes before. Rank 0 also writes the AP of each class, and a contact sheet
    of boxes and detections, when the curves are drawn, to `run`. `criterion`: see `evaluate`.
    """
    updater.average_statistics(ranks)
    metrics = evaluate(updater.ema.model, loader, ranks, criterion, stop=lambda: stop.received)
    if ranks.is_main:
        per_class = {f"AP_class/{n}": row["AP"] for n, row in metrics["per_class"].items() if row["AP"] >= 0}
        run.scalars(per_class, epoch + 1)
        run.image_later("val_predictions", prediction_sheet(loader.dataset, metrics["detections"]))
    return evaluation_row(metrics, updater.ema.model.first_class)


def evaluation_row(metrics: Mapping[str, Any], first_class: int = 0) -> dict[str, Any]:
    """Returns the columns of log.csv of an evaluation (see `evaluate`), and "thresholds" of classes.

    `first_class`: the first class that is trained. If no trained class has boxes, the metrics are -1, as without any boxes:
    frozen classes have the same mAP in each epoch, which would make the first epoch the best one.
    """
    row = {name: value for name, value in metrics.items() if isinstance(value, float)}
    if not any(one["boxes"] for one in list(metrics["per_class"].values())[first_class:]):
        row |= dict.fromkeys(row.keys() - {"val_loss", "confidence"}, -1.0)
    return row | {"thresholds": class_thresholds(metrics["per_class"])}
