"""utils/evaluate.py: the figures are those of the data, whatever the batch size and the number of processes."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from toys import FAMILIES, detector

import nets
from datasets.annotations import read_annotation_file
from datasets.dataset import DetectionDataset
from datasets.loader import ValSampler, build_loader
from nets.losses import YOLOXCriterion
from nets.postprocess import Detections, into_original
from utils.distributed import Ranks
from utils.evaluate import as_coco, evaluate, on_host

SIZE = (64, 96)
FIGURES = ["AP", "AP50", "AP75", "AP_small", "AP_medium", "AP_large"]
FIGURES += ["AR1", "AR10", "AR100", "AR_small", "AR_medium", "AR_large"]


class Oracle:
    """A model that knows the pictures of a data set and answers with what `answer(item)` says: boxes of the input, labels."""

    def __init__(self, dataset, answer=lambda item: (item.boxes, item.labels)):
        self.items, self.answer = {}, answer
        for key in next(iter(ValSampler(len(dataset), len(dataset), SIZE))):
            self.items[dataset[key].image.tobytes()] = dataset[key]

    def eval(self):
        return self

    def __call__(self, images):
        return [self.items[image.permute(1, 2, 0).numpy().tobytes()] for image in images]

    def detections(self, predictions, image_size, frames, **limits):
        assert image_size == SIZE
        found = []
        for item, frame in zip(predictions, frames, strict=True):
            boxes, labels = (torch.as_tensor(x) for x in self.answer(item))
            found.append(Detections(into_original(boxes, frame), torch.linspace(0.9, 0.5, len(labels)), labels))
        return found


def data_set(file, kind="corner", **changes):
    return DetectionDataset(replace(read_annotation_file(str(file)), **changes), kind)


def loader_of(data, batch_size=4, rank=0, world=1):
    return build_loader(data, ValSampler(len(data), batch_size, SIZE, rank, world), 0)


def nothing(item):
    return np.zeros((0, 4), np.float32), np.zeros(0, np.int64)


def moved(item):
    """Some right, some off, some of the wrong class."""
    shift, wrong = 3 * (item.index % 3), item.index % 5 == 0
    return item.boxes + np.float32(shift), (item.labels + wrong) % 2


@pytest.mark.parametrize("kind", ["corner", "centre"])
def test_the_ground_truth_has_all_figures_at_one(painted, kind):
    data = data_set(painted(12), kind)
    figures = evaluate(Oracle(data), loader_of(data), Ranks())
    assert [figures[name] for name in FIGURES if name not in ("AR1", "AR10")] == pytest.approx(
        [1, 1, 1, 1, -1, -1, 1, 1, -1, -1]  # every box is small
    )
    assert {name: row["AP"] for name, row in figures["per_class"].items()} == pytest.approx({"0": 1, "1": 1})
    assert len(figures["detections"]) == len(data.annotations.labels) and "val_loss" not in figures


def test_pitfall_30_nothing_found_is_zero(painted):
    data = data_set(painted(8))
    figures = evaluate(Oracle(data, nothing), loader_of(data), Ranks())
    assert [figures[name] for name in FIGURES] == [0, 0, 0, 0, -1, -1, 0, 0, 0, 0, -1, -1]
    assert figures["detections"] == []


def test_one_of_two_classes_is_half(painted):
    data = data_set(painted(12))
    figures = evaluate(
        Oracle(data, lambda item: (item.boxes[item.labels == 1], item.labels[item.labels == 1])),
        loader_of(data),
        Ranks(),
    )
    assert figures["AP"] == pytest.approx(0.5)


def test_figures_do_not_depend_on_the_batch_size(painted):
    data = data_set(painted(13))
    one, four, all_of_them = (evaluate(Oracle(data, moved), loader_of(data, n), Ranks()) for n in (1, 4, 100))
    assert one == four == all_of_them
    assert 0.2 < one["AP50"] < 0.95


def test_detections_carry_the_ids_of_the_data(painted):
    """PITFALLS 11."""
    file = painted(6)
    ids, categories = np.array([900, 7, 41, 3, 5000, 12]), np.array([90, 3])
    data = data_set(file, image_ids=ids, category_ids=categories)
    figures = evaluate(Oracle(data), loader_of(data), Ranks())
    assert figures["AP"] == pytest.approx(1)
    assert [d["image_id"] for d in figures["detections"]] == sorted(d["image_id"] for d in figures["detections"])
    truth = {(int(ids[i]), int(categories[c])) for i in range(6) for c in data.annotations.boxes_of(i)[1]}
    assert {(d["image_id"], d["category_id"]) for d in figures["detections"]} == truth


def test_detections_as_coco_writes_them():
    class Ids:
        image_ids, category_ids = np.array([17, 5]), np.array([4, 8])

    def one(x1, score, label):
        return Detections(torch.tensor([[x1, 2, 11, 22]]), torch.tensor([score]), torch.tensor([label]))

    nothing = Detections(torch.zeros(0, 4), torch.zeros(0), torch.zeros(0, dtype=torch.int64))
    here, there = (
        on_host([one(1.0, 0.25, 1), nothing], torch.tensor([0, 1])),
        on_host([one(3.0, 0.5, 0)], torch.tensor([1])),
    )
    entries = as_coco([[part.numpy() for part in parts] for parts in (here, there)], Ids)
    assert entries == [
        {"image_id": 5, "category_id": 4, "bbox": [3.0, 2.0, 8.0, 20.0], "score": 0.5},
        {"image_id": 17, "category_id": 8, "bbox": [1.0, 2.0, 10.0, 20.0], "score": 0.25},
    ]
    assert {type(v) for entry in entries for v in entry.values()} == {int, list, float} and as_coco([], Ids) == []


class Together:
    """The place where threads that stand for processes meet."""

    def __init__(self, world):
        self.values, self.barrier = [None] * world, threading.Barrier(world, timeout=30)


class Thread(Ranks):
    """`Ranks` whose processes are threads."""

    def __init__(self, rank, together):
        super().__init__(rank, len(together.values))
        object.__setattr__(self, "together", together)

    def gather(self, value):
        self.together.values[self.rank] = value
        self.together.barrier.wait()
        values = list(self.together.values)
        self.together.barrier.wait()
        return values

    def sum(self, x):
        return torch.stack(self.gather(x)).sum(0)


@pytest.mark.parametrize("pictures, world", [(21, 2), (21, 3), (2, 3)])
def test_pitfall_8_figures_do_not_depend_on_the_number_of_processes(painted, pictures, world):
    data = data_set(painted(pictures))
    alone = evaluate(Oracle(data, moved), loader_of(data), Ranks())
    together = Together(world)

    def run(rank):
        return evaluate(Oracle(data, moved), loader_of(data, 4, rank, world), Thread(rank, together))

    with ThreadPoolExecutor(world) as pool:
        assert all(figures == alone for figures in pool.map(run, range(world)))
    assert alone["detections"]


def tiny_model():
    return detector(num_classes=2)


@pytest.mark.parametrize("family", FAMILIES)
def test_validation_loss_is_that_of_all_pictures_at_once(painted, family):
    data, model = data_set(painted(7)), detector(family, 2)
    criterion = nets.criterion(model, torch.ones_like)
    found = [evaluate(model, loader_of(data, n), Ranks(), criterion)["val_loss"] for n in (1, 3, 7)]
    (batch,) = loader_of(data, 7)
    with torch.no_grad():
        whole = nets.criterion(model)(model.eval()(batch.images), batch.boxes, batch.labels, batch.size)
    assert found == pytest.approx([whole["total"].item()] * 3, rel=1e-5)


def test_validation_loss_does_not_depend_on_the_number_of_processes(painted):
    data, together = data_set(painted(7)), Together(2)
    criterion = YOLOXCriterion((8, 16, 32), torch.ones_like)
    alone = evaluate(tiny_model(), loader_of(data), Ranks(), criterion)["val_loss"]

    models = [tiny_model(), tiny_model()]  # made here: threads share the generator of random numbers

    def run(rank):
        return evaluate(models[rank], loader_of(data, 4, rank, 2), Thread(rank, together), criterion)["val_loss"]

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(run, range(2))) == pytest.approx([alone] * 2, rel=1e-5)


def test_pictures_without_any_box_have_a_finite_validation_loss(painted):
    data, model = data_set(painted(1)), tiny_model()
    data = DetectionDataset(replace(data.annotations, classes=("0", "1"), category_ids=np.array([0, 1])), "corner")
    figures = evaluate(model, loader_of(data), Ranks(), YOLOXCriterion(model.strides, torch.ones_like))
    assert 0 < figures["val_loss"] < 1e4 and figures["AP"] == -1


def test_evaluates_in_evaluation_mode_and_changes_no_weight(painted):
    data, model, calls = data_set(painted(6)), tiny_model().train(), []
    before = {k: v.clone() for k, v in model.state_dict().items()}
    limits, seen = {"confidence": 0.0, "max_detections": 3}, []

    def criterion(predictions, boxes, labels, size):
        seen.append(predictions.boxes)
        return {"total": predictions.boxes.sum(), "positives": predictions.objectness.sum()}

    figures = evaluate(model, loader_of(data, 2), Ranks(), criterion, progress=calls.append, **limits)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert not any(p.grad_fn for p in seen) and calls == [1, 2, 3] and len(figures["detections"]) == 18
    assert evaluate(model, loader_of(data, 2), Ranks(), confidence=1.1)["detections"] == []
