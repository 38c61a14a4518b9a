"""utils/boxes.py: box arithmetic equals its definition for tensors and arrays, and never gives NaN."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from utils import boxes as b
from utils.boxes import (
    area,
    ciou,
    clip,
    cxcywh_to_xyxy,
    giou,
    iou,
    pairwise_iou,
    xywh_to_xyxy,
    xyxy_to_cxcywh,
    xyxy_to_xywh,
)

ROOT = Path(__file__).parents[2]


def random_boxes(*shape, seed=0):
    """float64 xyxy with sides of 1 to 60 pixels; some reach below 0."""
    rng = np.random.default_rng(seed)
    first = rng.uniform(-20, 80, (*shape, 2))
    return np.concatenate([first, first + rng.uniform(1, 60, (*shape, 2))], -1)


def slow_iou(a, c):
    """The IoU of two boxes by its definition."""
    wide = max(0.0, min(a[2], c[2]) - max(a[0], c[0]))
    high = max(0.0, min(a[3], c[3]) - max(a[1], c[1]))
    both = wide * high
    return both / ((a[2] - a[0]) * (a[3] - a[1]) + (c[2] - c[0]) * (c[3] - c[1]) - both)


def test_conversions_by_hand():
    box = np.array([10.0, 20.0, 40.0, 80.0])
    assert xyxy_to_xywh(box).tolist() == [10, 20, 30, 60]
    assert xyxy_to_cxcywh(box).tolist() == [25, 50, 30, 60]
    assert area(box) == 1800


@pytest.mark.parametrize("there, back", [(xyxy_to_xywh, xywh_to_xyxy), (xyxy_to_cxcywh, cxcywh_to_xyxy)])
def test_conversions_are_inverse(there, back):
    boxes = random_boxes(3, 50)
    assert np.allclose(back(there(boxes)), boxes, atol=1e-12)
    assert not np.allclose(there(boxes), boxes)


@pytest.mark.parametrize("name", ["xyxy_to_xywh", "xywh_to_xyxy", "cxcywh_to_xyxy", "xyxy_to_cxcywh", "area"])
def test_tensors_and_arrays_give_equal_results_of_their_own_type(name):
    function, boxes = getattr(b, name), random_boxes(4, 7).astype(np.float32)
    array, tensor = function(boxes), function(torch.from_numpy(boxes))
    assert isinstance(array, np.ndarray) and isinstance(tensor, torch.Tensor)
    assert array.dtype == np.float32 and tensor.dtype == torch.float32
    assert np.array_equal(array, tensor.numpy())


def test_iou_of_tensors_and_arrays_is_the_same():
    first, second = random_boxes(40), random_boxes(40, seed=1)
    tensors = torch.from_numpy(first), torch.from_numpy(second)
    assert np.allclose(iou(first, second), iou(*tensors).numpy(), atol=1e-15)
    assert np.allclose(pairwise_iou(first, second), pairwise_iou(*tensors).numpy(), atol=1e-15)


def test_pairwise_iou_equals_the_definition():
    first, second = random_boxes(2, 30), random_boxes(2, 20, seed=1)
    result = pairwise_iou(first, second)
    assert result.shape == (2, 30, 20) and (result > 0.1).any() and (result == 0).any()
    for batch in range(2):
        for i in range(30):
            for j in range(20):
                assert result[batch, i, j] == pytest.approx(slow_iou(first[batch, i], second[batch, j]), abs=1e-9)


def test_iou_is_symmetric_and_one_only_for_the_same_box():
    boxes = random_boxes(30)
    result = pairwise_iou(boxes, boxes)
    assert np.allclose(result, result.T, atol=0) and np.allclose(np.diag(result), 1, atol=1e-8)
    assert (result[~np.eye(30, dtype=bool)] < 0.999).all() and (result >= 0).all()


def test_degenerate_boxes_have_no_area_and_no_nan():
    bad = np.array([[5, 5, 5, 5], [5, 5, 5, 9], [9, 9, 5, 5], [9, 5, 5, 9], [0, 0, 10, 10]], np.float32)
    assert area(bad).tolist() == [0, 0, 0, 0, 100]
    result = pairwise_iou(bad, bad)
    assert np.isfinite(result).all() and result[:4].max() == 0 and result[4, 4] == pytest.approx(1)


def test_functions_accept_no_boxes():
    none, some = torch.zeros(0, 4), torch.zeros(3, 4)
    assert pairwise_iou(none, some).shape == (0, 3) and pairwise_iou(some, none).shape == (3, 0)
    assert iou(none, none).shape == (0,) and area(none).shape == (0,) and clip(none, 5, 5).shape == (0, 4)


def test_clip_moves_only_corners_outside_of_the_image():
    boxes = random_boxes(200)
    clipped = clip(boxes, 70, 50)
    assert clipped[:, [0, 2]].min() == 0 and clipped[:, [0, 2]].max() == 70
    assert clipped[:, [1, 3]].min() == 0 and clipped[:, [1, 3]].max() == 50
    inside = (boxes[:, :2] >= 0).all(1) & (boxes[:, 2] <= 70) & (boxes[:, 3] <= 50)
    assert inside.any() and np.array_equal(clipped[inside], boxes[inside])
    assert np.array_equal(clip(clipped, 70, 50), clipped)
    assert np.array_equal(clip(torch.from_numpy(boxes), 70, 50).numpy(), clipped)


def test_iou_has_finite_gradients_everywhere():
    other = torch.tensor([[0.0, 0, 10, 10]]).expand(4, 4)
    boxes = torch.tensor([[0.0, 0, 10, 10], [50, 50, 60, 60], [3, 3, 3, 3], [2, 2, 8, 12]], requires_grad=True)
    iou(boxes, other).sum().backward()
    assert boxes.grad.isfinite().all() and boxes.grad[3].abs().sum() > 0


def test_giou_by_hand():
    """Side by side, apart by a box, and the same."""
    boxes = np.array([[4.0, 0, 8, 4], [8.0, 0, 12, 4], [0.0, 0, 4, 4]])
    assert giou(np.array([0.0, 0, 4, 4]), boxes) == pytest.approx([0, -1 / 3, 1], abs=1e-8)
    overlapping = giou(torch.tensor([0.0, 0, 4, 4]), torch.tensor([2.0, 2, 6, 6]))
    assert overlapping.item() == pytest.approx(4 / 28 - 8 / 36, abs=1e-6)


def test_ciou_by_hand():
    """Boxes of 4 x 4 and 8 x 4 with a common corner: IoU .5, centers 2 apart, diagonal sqrt(80), angles 45 and 63.4 degrees."""
    shape = 4 / np.pi**2 * (np.arctan(1) - np.arctan(2)) ** 2
    wanted = 0.5 - 4 / 80 - shape**2 / (0.5 + shape)
    assert ciou(np.array([0.0, 0, 4, 4]), np.array([0.0, 0, 8, 4])) == pytest.approx(wanted, abs=1e-8)
    assert ciou(np.array([0.0, 0, 4, 4]), np.array([6.0, 0, 10, 4])) == pytest.approx(-36 / 116, abs=1e-8)


def test_ciou_is_at_most_the_iou_and_one_only_for_the_same_box():
    first, second = random_boxes(200), random_boxes(200, seed=1)
    result = ciou(first, second)
    assert (result < iou(first, second)).all() and np.allclose(ciou(first, first), 1, atol=1e-8)
    assert np.allclose(result, ciou(second, first), atol=1e-12) and np.allclose(result, ciou(2 * first, 2 * second))
    assert np.allclose(result, ciou(torch.from_numpy(first), torch.from_numpy(second)).numpy(), atol=1e-15)


def test_the_weight_of_the_aspect_ratios_in_ciou_has_no_gradient():
    """The gradient equals a copy of the formula with a constant weight, and differs from a copy with a variable one."""
    box = torch.tensor([2.0, 3, 14, 9], dtype=torch.float64, requires_grad=True)
    other = torch.tensor([0.0, 0, 10, 10], dtype=torch.float64)
    overlap, distance = iou(box, other), ((box[:2] + box[2:] - other[:2] - other[2:]) / 2).square().sum()
    diagonal = (torch.maximum(box[2:], other[2:]) - torch.minimum(box[:2], other[:2])).square().sum()
    angles = [torch.atan((x[2] - x[0]) / (x[3] - x[1])) for x in (box, other)]
    shape = 4 / np.pi**2 * (angles[0] - angles[1]) ** 2
    weight = shape / (1 - overlap + shape)
    constant, variable = (overlap - distance / diagonal - w * shape for w in (weight.detach(), weight))
    wanted, wrong, found = (
        torch.autograd.grad(x, box, retain_graph=True)[0] for x in (constant, variable, ciou(box, other))
    )
    assert torch.allclose(found, wanted, atol=1e-8) and not torch.allclose(found, wrong, rtol=1e-2)


def test_ciou_has_finite_gradients_that_pull_distant_boxes_together():
    other = torch.tensor([[0.0, 0, 10, 10]]).expand(4, 4)
    boxes = torch.tensor([[0.0, 0, 10, 10], [50, 50, 60, 60], [3, 3, 3, 3], [2, 2, 8, 12]], requires_grad=True)
    ciou(boxes, other).sum().backward()
    assert boxes.grad.isfinite().all() and (boxes.grad[1, :2] < 0).all()  # the IoU alone would be flat there


def test_the_intersection_is_the_box_that_both_contain():
    first, second = random_boxes(200), random_boxes(200, seed=1)
    common = b.intersection(first, second)
    both = (common[:, 2:] > common[:, :2]).all(1)
    assert 20 < both.sum() < 180 and np.array_equal(both, iou(first, second) > 0)
    assert np.allclose(area(common), iou(first, second, 0) * (area(first) + area(second) - area(common)))


def test_the_places_where_coordinates_change_exist():
    """The paragraph of utils/boxes.py names files and functions, also after they move."""
    text = b.__doc__.partition("The coordinate systems")[2]
    files = re.findall(r"\b[\w/]+\.py\b", text)
    assert len(set(files)) >= 12 and all((ROOT / file).is_file() for file in files)
    for name, file in re.findall(r"`(\w+)`\s+in\s+([\w/]+\.py)", text):
        assert re.search(rf"^(def|class) {name}\b", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE), name
