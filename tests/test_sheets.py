"""utils/sheets.py: pages of the first training samples, also of a run that was stopped among them."""

import numpy as np
import pytest
import torch

from datasets.dataset import Item, collate
from utils.sheets import shown


def batches(count):
    boxes, labels = np.array([[4, 4, 20, 20]], np.float32), np.array([0])
    return [
        collate([Item(np.full((32, 32, 3), 10 * i, np.uint8), boxes, labels, i, np.zeros(5))] * 2) for i in range(count)
    ]


@pytest.mark.parametrize("stop", range(5))
def test_a_stopped_run_has_the_pages_of_one_that_was_not(stop):
    """The page of a batch is there before its step, so that no save can lie between them."""
    whole, parts = {}, {}
    passed = list(shown(batches(5), ["a"], whole.__setitem__))
    assert list(whole) == ["train_batch_1", "train_batch_2", "train_batch_3"] and len(passed) == 5
    assert all(torch.equal(a.images, b.images) for a, b in zip(passed, batches(5), strict=True))
    first = shown(batches(5), ["a"], parts.__setitem__)
    for number in range(1, stop + 1):
        next(first)
        assert len(parts) == min(number, 3)
    list(shown(batches(5)[stop:], ["a"], parts.__setitem__, begun=stop))
    assert parts.keys() == whole.keys() and all(np.array_equal(parts[name], whole[name]) for name in whole)
    assert not np.array_equal(whole["train_batch_1"], whole["train_batch_2"])
