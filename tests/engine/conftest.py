"""A fixture for trainings that something disturbs at a chosen step."""

from collections.abc import Callable

import pytest

from nets.losses import YOLOXCriterion


@pytest.fixture
def at_call(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable], None]:
    """`at_call(number, action)` runs `action` at this call of the criterion, counted from now; calls are batches.

    The run of tests/small.py has 9 images: 2 frozen batches in epoch 1, then 3 per epoch; 2 batches in each evaluation.
    """
    calls, todo, original = [0], {}, YOLOXCriterion.__call__

    def call(self, *args):
        calls[0] += 1
        todo.pop(calls[0], lambda: None)()
        return original(self, *args)

    monkeypatch.setattr(YOLOXCriterion, "__call__", call)
    return lambda number, action: todo.update({calls[0] + number: action})
