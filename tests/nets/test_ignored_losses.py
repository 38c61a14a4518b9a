"""nets/losses.py: anchor points without a box in an ignore region have no gradient, and all others the gradient as without it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from files import read_annotation_file
from test_losses import CRITERIA, every_family, random_predictions

import nets
from datasets.dataset import Batch, DetectionDataset, Key, collate
from datasets.mosaic import Augment
from nets.coder import grid
from nets.extended import NewestCriterion

AUGMENTS = {  # test_ignore_regions.py has each augmentation alone
    "letterbox": None,
    "all": Augment(0.5, 0.5, flip=0.5, flip_vertical=0.5, rotation=10, scale=(0.5, 1.5), translate=0.1, shear=2),
}


@pytest.fixture(params=AUGMENTS)
def batch(painted, request) -> Batch:
    """Twelve images; three of them have ignore regions, one of them two, and a box may reach into a region."""
    data = read_annotation_file(str(painted(12)))
    rows = np.zeros(len(data.labels), bool)
    rows[data.starts[[3, 5]]] = rows[data.starts[7] : data.starts[7] + 2] = True
    boxes = data.boxes.copy()
    boxes[data.starts[5]] = [-500, -500, 500, 500]
    data = replace(data, boxes=boxes, is_ignored=rows, crowd=rows)
    dataset = DetectionDataset(data, "corner", AUGMENTS[request.param], seed=3)
    return collate([dataset[Key(0, i, i, (64, 96))] for i in range(12)])


def gradients_of(criterion, family, targets):
    """Gradients of the predictions for the targets of a batch."""
    raw = random_predictions(len(targets[0]), num_classes=3, family=family)
    leaves = type(raw)(*(x.clone().requires_grad_() for x in raw))
    criterion(leaves, *targets)["total"].backward()
    return type(raw)(*(torch.zeros_like(x) if x.grad is None else x.grad for x in leaves))


def points_in_regions(family, batch: Batch) -> torch.Tensor:
    """Which anchor points are in an ignore region, bool [B, A]; one region at a time."""
    cells, strides = grid(batch.size, nets.MODELS[family].model.strides, torch.zeros(1))
    x, y = ((cells + 0.5) * strides[:, None]).numpy().T
    found = torch.zeros(len(batch.ignore), len(x), dtype=torch.bool)
    for b, regions in enumerate(batch.ignore.numpy()):
        for region in regions:
            u, v = (row[0] * x + row[1] * y + row[2] for row in region)
            found[b, (u >= 0) & (u < 1) & (v >= 0) & (v < 1)] = True
    return found


@every_family
def test_only_anchor_points_without_a_box_in_a_region_lose_their_gradient(family, batch):
    criterion, inside = CRITERIA[family](), points_in_regions(family, batch)
    plain, found = (gradients_of(criterion, family, targets) for targets in (batch.targets[:3], batch.targets))
    positive = plain.boxes.abs().sum(-1) > 0  # only anchor points with a box have a box loss
    assert (inside & positive).any() and (inside & ~positive).any() and (~inside).any()
    for with_regions, without in zip(found, plain, strict=True):
        no_loss = (inside & ~positive).view(*inside.shape, *[1] * (without.ndim - 2))
        assert torch.equal(with_regions, without.where(~no_loss, 0))
    scores = plain.objectness if family == "yolox" else plain.classes[..., 0]
    assert (scores[inside & ~positive] != 0).all()


@every_family
def test_a_batch_without_regions_and_the_padding_of_regions_have_the_same_bits(family, batch):
    criterion, padding = CRITERIA[family](), batch.ignore[:1, -1:].expand(12, -1, -1, -1)
    assert not points_in_regions(family, batch._replace(ignore=padding)).any()
    plain = gradients_of(criterion, family, batch.targets[:3])
    for regions in (batch.ignore[:, :0], padding):
        assert all(map(torch.equal, plain, gradients_of(criterion, family, (*batch.targets[:3], regions))))


def test_the_newest_head_has_the_regions_of_the_batch(batch):
    newest = NewestCriterion(lambda *arguments: {"ignore": arguments[-1]}, 3)
    assert newest((None,), *batch.targets)["ignore"] is batch.ignore
