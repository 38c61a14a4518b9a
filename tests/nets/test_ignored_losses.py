"""nets/losses.py: what is not known about an image has no gradient, and everything else has the gradient that it always had."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from files import read_annotation_file
from test_losses import CRITERIA, SIZE, every_family, gradient_of_shards, random_predictions, some_batch, tiny_model

import nets
from datasets.dataset import DetectionDataset, Key, collate
from datasets.mosaic import Augment
from datasets.store import Annotations
from nets.coder import grid
from nets.extended import NewestCriterion
from nets.losses import _objectness_loss
from utils.ignore_regions import IgnoreRegions, joined, of_boxes, of_image

AUGMENTS = {  # test_ignore_regions.py has each augmentation alone
    "letterbox": None,
    "all": Augment(0.5, 0.5, flip=0.5, flip_vertical=0.5, rotation=10, scale=(0.5, 1.5), translate=0.1, shear=2),
}


def gradients_of(family, targets, labels=None, ignore=None):
    """Gradients of the predictions of a batch's images, and the predictions. `labels`: in place of the batch's."""
    boxes, own, size, *_ = targets
    own = own if labels is None else labels
    raw = random_predictions(len(boxes), num_classes=3, family=family)
    leaves = type(raw)(*(x.clone().requires_grad_() for x in raw))
    arguments = () if ignore is None else (ignore,)
    CRITERIA[family]()(leaves, boxes, own, size, *arguments)["total"].backward()
    return type(raw)(*(torch.zeros_like(x) if x.grad is None else x.grad for x in leaves))


def unknown_points(family, unknown: IgnoreRegions, size) -> torch.Tensor:
    """Which classes are unknown at each anchor point, bool [B, A, C]; one place at a time."""
    cells, strides = grid(size, nets.MODELS[family].model.strides, torch.zeros(1))
    x, y = ((cells + 0.5) * strides[:, None]).numpy().T
    found = torch.zeros(len(unknown.regions), len(x), unknown.classes.shape[-1], dtype=torch.bool)
    for b, (places, classes) in enumerate(zip(unknown.regions.numpy(), unknown.classes, strict=True)):
        for place, of_place in zip(places, classes, strict=True):
            u, v = (row[0] * x + row[1] * y + row[2] for row in place)
            found[b, (u >= 0) & (u < 1) & (v >= 0) & (v < 1)] |= of_place
    return found


@pytest.fixture
def partly(painted) -> Annotations:
    """Twelve images of three classes: in two of three, a class without boxes was not looked for; there are open regions."""
    data = read_annotation_file(str(painted(12)))
    rows = np.zeros(len(data.labels), bool)
    rows[data.starts[3]] = rows[data.starts[7] : data.starts[7] + 2] = True
    data = replace(data, classes=("a", "b", "c"), category_ids=np.arange(3), is_ignored=rows, crowd=rows)
    annotated = np.ones((12, 3), bool)
    for i in range(12):
        without = np.setdiff1d(np.arange(3), data.boxes_of(i)[1])
        if i % 3:
            annotated[i, without[i % len(without)]] = False
    return data.with_annotated(annotated)


def batch_of(data, kind):
    dataset = DetectionDataset(data, "corner", AUGMENTS[kind], seed=3)
    return collate([dataset[Key(0, i, i, (64, 96))] for i in range(12)])


@every_family
@pytest.mark.parametrize("kind", AUGMENTS)
def test_what_is_unknown_has_no_gradient_and_all_else_has_one(family, kind, partly):
    batch = batch_of(partly, kind)
    *targets, unknown = batch.targets
    points = unknown_points(family, unknown, batch.size)
    assert points.any() and not points.all()

    empty = gradients_of(family, targets, torch.full_like(batch.labels, -1), unknown)
    assert (empty.classes[points] == 0).all()
    nothing_known = points.all(-1)
    if family == "yolox":
        partly_known = points.any(-1) & ~nothing_known
        assert (empty.classes[partly_known[..., None] & ~points] > 0).all()
        assert (empty.objectness[nothing_known] == 0).all() and (empty.objectness[~nothing_known] > 0).all()
    else:
        assert (empty.classes[~points] != 0).all()
    if family == "picodet":
        assert (empty.alignment[nothing_known] == 0).all()

    whole = gradients_of(family, targets, ignore=unknown)  # with boxes, which may reach into another image's part
    for b, labels in enumerate(batch.labels):
        absent = [label for label in range(3) if label not in labels]
        assert (whole.classes[b][:, absent][points[b][:, absent]] == 0).all()


@every_family
def test_an_open_region_for_all_classes_leaves_only_its_positives(family):
    """Two equal images with a box; the second one is open everywhere."""
    _, boxes, _ = some_batch([1], torch.float32)
    boxes, labels = boxes.repeat(2, 1, 1), torch.tensor([[2], [2]])
    places = of_image(np.ones(3, bool)).regions
    unknown = IgnoreRegions(
        torch.tensor(places).float().repeat(2, 1, 1, 1), torch.tensor([[[False] * 3], [[True] * 3]])
    )
    found = gradients_of(family, (boxes, labels, SIZE), ignore=unknown)
    positive = found.boxes[1].abs().sum(-1) > 0
    assert positive.any() and (found.classes[1][~positive] == 0).all()
    assert (found.classes[1][:, :2] == 0).all() and (found.classes[1][positive][:, 2] != 0).any()
    if family == "yolox":
        assert (found.objectness[1][~positive] == 0).all() and (found.objectness[1][positive] < 0).all()


@pytest.mark.parametrize("logits, objectness", [((3, 3, -20), 6.0), ((-20, -20, 3), -6.0), ((1, 1, 5), 0.0)])
def test_objectness_learns_from_the_known_part_of_the_classes(logits, objectness):
    """An anchor point without a box: the more likely its object is of a known class, the more it is background."""
    known = torch.tensor([[[True, True, False]]])
    leaves = torch.tensor([[objectness]], requires_grad=True), torch.tensor([[logits]]).float().requires_grad_()
    _objectness_loss(leaves[0], torch.zeros(1, 1), leaves[1], known).backward()
    probability = torch.tensor(objectness).sigmoid()
    classes = leaves[1].detach().sigmoid()
    share = classes[..., :2].sum() / classes.sum()
    expected = share * probability * (1 - probability) / (1 - share * probability)
    torch.testing.assert_close(leaves[0].grad[0, 0], expected, atol=1e-6, rtol=1e-3)
    score = probability * classes  # of a class: BCE(objectness * class, 0), with the objectness as it is
    torch.testing.assert_close(
        leaves[1].grad, (score * (1 - classes) / (1 - score)).where(known, 0), atol=1e-6, rtol=1e-3
    )


@pytest.mark.parametrize("value", [-200.0, 200.0])
def test_predictions_that_are_certain_have_finite_losses_and_gradients(value):
    known = torch.tensor([[[True, False], [False, False], [True, True]]])
    leaves = torch.full((1, 3), value, requires_grad=True), torch.full((1, 3, 2), value, requires_grad=True)
    loss = _objectness_loss(leaves[0], torch.zeros(1, 3), leaves[1], known)
    loss.backward()
    assert all(x.isfinite().all() for x in (loss, leaves[0].grad, leaves[1].grad))


@every_family
def test_a_box_in_its_own_open_region_has_the_gradient_of_any_box(family):
    _, boxes, labels = some_batch([4], torch.float32)
    labels = labels % 3
    plain = gradients_of(family, (boxes, labels, SIZE))
    region = of_boxes(np.array([[0, 0, 96, 64]]), np.eye(3, dtype=bool)[:1])
    unknown = IgnoreRegions(torch.tensor(region.regions).float()[None], torch.tensor(region.classes)[None])
    found = gradients_of(family, (boxes, labels, SIZE), ignore=unknown)
    assert torch.equal(found.boxes, plain.boxes)
    if family != "yolox":
        assert torch.equal(found.classes[..., 1:], plain.classes[..., 1:])
        is_other = found.classes[..., 0] != plain.classes[..., 0]  # not at the anchor points of boxes of this class
        assert (found.classes[..., 0][is_other] == 0).all() and (found.classes[..., 0] != 0).any()


@every_family
def test_a_batch_in_which_everything_is_known_has_the_same_bits(family):
    _, boxes, labels = some_batch([3, 0, 2], torch.float32)
    labels = labels.clamp(max=2)
    unknown = IgnoreRegions(torch.zeros(3, 2, 2, 3), torch.zeros(3, 2, 3, dtype=torch.bool))
    plain, masked = (gradients_of(family, (boxes, labels, SIZE), ignore=one) for one in (None, unknown))
    assert all(map(torch.equal, plain, masked))


@every_family
def test_processes_together_have_the_gradient_of_the_whole_batch(family):
    shards = [[0], [1, 2, 3]]
    batch = some_batch([5, 0, 1, 2])
    parts = [
        of_image(np.array([True, False, False, False])),
        None,
        of_boxes(np.array([[9, 9, 60, 50.0]]), np.ones((1, 4), bool)),
    ]
    parts.append(joined([parts[0], parts[2]]))
    unknown = IgnoreRegions(torch.zeros(4, 2, 2, 3), torch.zeros(4, 2, 4, dtype=torch.bool))
    for b, part in enumerate(parts):
        if part is not None:
            for tensor, array in zip(unknown, part, strict=True):
                tensor[b, : len(array)] = torch.from_numpy(array)
    model = tiny_model(family)
    CRITERIA[family]()(model(batch[0]), *batch[1:], SIZE, unknown)["total"].backward()
    expected = torch.cat([p.grad.flatten() for p in model.parameters()])
    model.zero_grad()
    rows = iter([*shards, *shards])

    def criterion(normalizer):
        def of_shard(predictions, boxes, labels, size):
            shard = next(rows)
            return CRITERIA[family](normalizer=normalizer)(
                predictions, boxes, labels, size, IgnoreRegions(*(x[shard] for x in unknown))
            )

        return of_shard

    gradient, _ = gradient_of_shards(model, batch, shards, criterion)
    torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-12)


def test_the_newest_head_looks_at_its_own_classes():
    seen = []

    def family(predictions, targets, labels, size, unknown):
        seen.append(unknown)
        return {}

    unknown = IgnoreRegions(torch.zeros(1, 1, 2, 3), torch.tensor([[[False, True, False, True, False]]]))
    NewestCriterion(family, 3)((None,), None, torch.tensor([[3]]), SIZE, unknown)
    assert seen[0].classes.tolist() == [[[True, False]]]
