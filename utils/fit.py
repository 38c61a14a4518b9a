"""One epoch of training."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from utils.distributed import Ranks
from utils.optim import MOST_BAD_STEPS, Updater

LOG_EVERY = 20  # optimiser steps between looks at the device, where a look makes a GPU wait; on a CPU every step


class NonFiniteLoss(RuntimeError):
    """Too many steps in a row without finite gradients. `ids`: their pictures, as data-set indices, the last step first."""

    def __init__(self, ids: list[int], step: int):
        super().__init__(f"the gradients of step {step} and before were not finite")
        self.ids = ids


class Meter:
    """Means of losses over the batches of an epoch. They stay on the device until `reduce`, which adds those of all
    processes. A batch whose loss is not finite does not count. `state`: of an earlier start of the run."""

    def __init__(self, state: Mapping | None = None):
        state = state or {"batches": 0, "seconds": 0.0, "sums": {}}
        self.batches: int = state["batches"]  # done, of the epoch
        self.seconds: float = state["seconds"]  # that they took
        self.sums: dict[str, list[float]] = {name: list(pair) for name, pair in state["sums"].items()}  # sum, count
        self._names: list[str] = []
        self._here: Tensor | None = None  # the same since the last reduction, of this process [2, names]
        self._clock = time.perf_counter()

    def add(self, losses: dict[str, Tensor]) -> None:
        """Adds the scalars of one batch, the same names in all that follow."""
        values = torch.stack([value.detach() for value in losses.values()])
        finite = values.isfinite()
        pair = torch.stack([values.where(finite, 0), finite.to(values.dtype)])
        self._here = pair if self._here is None else self._here + pair
        self._names = list(losses)
        self.batches += 1

    def reduce(self, ranks: Ranks) -> None:
        """Adds what all processes have seen since the last time: one reduction, one wait for the device."""
        if self._here is not None:
            sums, counts = ranks.sum(self._here).tolist()
            for name, value, count in zip(self._names, sums, counts, strict=True):
                before = self.sums.get(name, (0.0, 0.0))
                self.sums[name] = [before[0] + value, before[1] + count]
            self._here = None
        now = time.perf_counter()
        self.seconds, self._clock = self.seconds + now - self._clock, now

    def mean(self) -> dict[str, float]:
        """Means over the batches and processes up to the last reduction. NaN where no batch was finite."""
        return {name: total / count if count else float("nan") for name, (total, count) in self.sums.items()}

    def state_dict(self) -> dict:
        """Plain numbers, the same in all processes."""
        return {"batches": self.batches, "seconds": self.seconds, "sums": self.sums}


def fit_one_epoch(
    model: nn.Module,
    criterion,
    loader: Iterable,
    updater: Updater,
    ranks: Ranks,
    meter: Meter,
    pulse: Callable[[Meter], None] | None = None,
    log_every: int = LOG_EVERY,
) -> None:
    """Trains on the batches of the loader and adds their losses to the meter, which may have begun the epoch earlier.

    After every `log_every` optimiser steps (on a CPU: every one) the meter is reduced and `pulse(meter)` called: the
    only place that waits for the device, between two steps, where a run may be saved, and left by raising.
    Raises NonFiniteLoss, in all processes, after a run of non-finite steps.
    """
    model.train()
    every = updater.accumulate * (1 if ranks.device.type == "cpu" else log_every)
    recent: deque[Tensor] = deque(maxlen=MOST_BAD_STEPS * updater.accumulate)
    for batch in loader:
        batch = batch.to(ranks.device)
        with _gradients_stay_here(model, updater):
            with (
                updater.autocast() if len(batch.images) else nullcontext()
            ):  # PyTorch's SyncBN: an empty share is float32
                predictions = model(batch.images)
            losses = criterion(predictions, batch.boxes, batch.labels, batch.size)
            updater.step(losses["total"])
        meter.add(losses)
        recent.append(batch.ids)
        if meter.batches % every == 0:
            _look(updater, ranks, meter, recent)
            if pulse is not None:
                pulse(meter)
    _look(updater, ranks, meter, recent)


def _gradients_stay_here(model: nn.Module, updater: Updater):
    """Of the batches that make a step only the last one sends gradients to the other processes."""
    inside = isinstance(model, nn.parallel.DistributedDataParallel) and updater.micro + 1 < updater.accumulate
    return model.no_sync() if inside else nullcontext()


def _look(updater: Updater, ranks: Ranks, meter: Meter, recent: Iterable[Tensor]) -> None:
    """Waits for the device: are the gradients finite, what are the losses?"""
    meter.reduce(ranks)
    if not updater.check():
        shares = ranks.gather([ids.tolist() for ids in recent])
        ids = [i for step in reversed(range(len(shares[0]))) for share in shares for i in share[step]]
        raise NonFiniteLoss(list(dict.fromkeys(ids)), updater.step_number)
