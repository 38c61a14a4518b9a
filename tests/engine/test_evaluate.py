"""engine/evaluation.py: the metrics depend on the data alone, not on the batch size or the number of processes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from files import read_annotation_file

import nets
from datasets.dataset import DetectionDataset
from datasets.loader import ValSampler, build_loader
from engine.evaluation import evaluate
from metrics.coco import COCO_METRICS
from nets.postprocess import Detections, into_original
from utils.processes import Interrupted, Ranks

SIZE = (64, 96)


class Oracle:
    """A model that knows the images of a data set. It predicts `answer(item)`: boxes in the network's input, and labels."""

    def __init__(self, dataset, answer=lambda item: (item.boxes, item.labels)):
        items = [dataset[key] for key in next(iter(ValSampler(len(dataset), len(dataset), SIZE)))]
        self.items, self.answer = {item.image.tobytes(): item for item in items}, answer

    def eval(self):
        return self

    def __call__(self, images):
        return [self.items[image.permute(1, 2, 0).numpy().tobytes()] for image in images]

    def detections(self, predictions, image_size, transforms, **limits):
        assert image_size == SIZE
        results = []
        for item, transform in zip(predictions, transforms, strict=True):
            boxes, labels = (torch.as_tensor(x) for x in self.answer(item))
            scores = torch.linspace(0.9, 0.5, len(labels))
            results.append(Detections(into_original(boxes, transform), scores, labels))
        return results


def data_set(file, kind="corner", **changes):
    return DetectionDataset(replace(read_annotation_file(str(file)), **changes), kind)


def loader_of(data, batch_size=4, rank=0, world=1):
    return build_loader(data, ValSampler(len(data), batch_size, SIZE, rank, world), 0)


def tiny_model(classes=2):
    torch.manual_seed(0)
    return nets.build("tiny_n", classes)


def moved(item):
    """Some boxes are correct, some shifted, some have the wrong class."""
    shift, wrong = 3 * (item.index % 3), item.index % 5 == 0
    return item.boxes + np.float32(shift), (item.labels + wrong) % 2


@pytest.mark.parametrize("kind", ["corner", "center"])
def test_predicting_the_ground_truth_gives_an_ap_of_one(painted, kind):
    data = data_set(painted(12), kind)
    metrics = evaluate(Oracle(data), loader_of(data), Ranks())
    assert [metrics[name] for name in COCO_METRICS if name not in ("AR1", "AR10")] == pytest.approx(
        [1, 1, 1, 1, -1, -1, 1, 1, -1, -1]  # every box is small
    )
    assert {name: row["AP"] for name, row in metrics["per_class"].items()} == pytest.approx({"0": 1, "1": 1})
    assert len(metrics["detections"]) == len(data.annotations.labels) and "val_loss" not in metrics


def test_metrics_do_not_depend_on_the_batch_size(painted):
    data = data_set(painted(13))
    one, four, whole = (evaluate(Oracle(data, moved), loader_of(data, n), Ranks()) for n in (1, 4, 100))
    assert one == four == whole and 0.2 < one["AP50"] < 0.95


def test_detections_have_the_image_and_category_ids_of_the_data(painted):
    ids, categories = np.array([900, 7, 41, 3, 5000, 12]), np.array([90, 3])
    data = data_set(painted(6), image_ids=ids, category_ids=categories)
    metrics = evaluate(Oracle(data), loader_of(data), Ranks())
    assert metrics["AP"] == pytest.approx(1)
    assert [d["image_id"] for d in metrics["detections"]] == sorted(d["image_id"] for d in metrics["detections"])
    truth = {(int(ids[i]), int(categories[c])) for i in range(6) for c in data.annotations.boxes_of(i)[1]}
    assert {(d["image_id"], d["category_id"]) for d in metrics["detections"]} == truth


@pytest.mark.parametrize("name", ["tiny_n", "yolov9_t"])
def test_the_validation_loss_is_that_of_all_images_in_one_batch(painted, name):
    torch.manual_seed(0)
    data, model = data_set(painted(5)), nets.build(name, 2)
    criterion = nets.criterion(model, torch.ones_like)
    losses = [evaluate(model, loader_of(data, n), Ranks(), criterion)["val_loss"] for n in (2, 5)]
    (batch,) = loader_of(data, 5)
    with torch.no_grad():
        whole = nets.criterion(model)(model.eval()(batch.images), batch.boxes, batch.labels, batch.size)
    assert losses == pytest.approx([whole["total"].item()] * 2, rel=1e-5)


def test_images_without_boxes_have_a_finite_validation_loss(painted):
    data, model = data_set(painted(1)), tiny_model()
    data = DetectionDataset(replace(data.annotations, classes=("0", "1"), category_ids=np.array([0, 1])), "corner")
    metrics = evaluate(model, loader_of(data), Ranks(), nets.criterion(model, torch.ones_like))
    assert 0 < metrics["val_loss"] < 1e4 and metrics["AP"] == -1


def test_evaluation_uses_eval_mode_and_limits_and_changes_no_weight(painted):
    data, model, seen = data_set(painted(6)), tiny_model().train(), []
    before = {k: v.clone() for k, v in model.state_dict().items()}

    def criterion(predictions, boxes, labels, size, ignore):
        seen.append(predictions.boxes)
        return {"total": predictions.boxes.sum(), "positives": predictions.objectness.sum()}

    limits = {"confidence": 0.0, "nms_iou": 1.0, "max_detections": 3}
    metrics = evaluate(model, loader_of(data, 2), Ranks(), criterion, **limits)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items()) and not model.training
    assert len(seen) == 3 and not any(p.requires_grad for p in seen) and len(metrics["detections"]) == 18
    assert evaluate(model, loader_of(data, 2), Ranks(), confidence=1.1)["detections"] == []


def test_a_stop_interrupts_after_the_batch(painted):
    data, calls = data_set(painted(12)), []

    def stop():
        calls.append(1)
        return len(calls) == 2

    with pytest.raises(Interrupted):
        evaluate(Oracle(data), loader_of(data, 3), Ranks(), stop=stop)
    assert len(calls) == 2


def test_a_stop_in_another_process_interrupts_this_one(painted):
    class OtherStops(Ranks):
        def any(self, *values):
            return [True] * len(values)

    data = data_set(painted(4))
    with pytest.raises(Interrupted):
        evaluate(Oracle(data), loader_of(data), OtherStops(), stop=lambda: False)
