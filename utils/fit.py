"""One epoch of training."""

from collections import deque
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from utils.distributed import Ranks
from utils.optim import MOST_BAD_STEPS, Updater


class NonFiniteLoss(RuntimeError):
    """Too many steps in a row without finite gradients. `ids`: their pictures, as data-set indices, the last step first."""

    def __init__(self, ids: list[int], step: int):
        super().__init__(f"the gradients of step {step} and before were not finite")
        self.ids = ids


class Meter:
    """Means of losses that stay on the device until they are asked for. A step whose loss is not finite does not count."""

    def __init__(self):
        self.names: list[str] = []
        self.sums = self.counts = torch.zeros(())

    def add(self, losses: dict[str, Tensor]) -> None:
        """Adds the scalars of one step, the same names in every step."""
        values = torch.stack([value.detach() for value in losses.values()])
        finite = values.isfinite()
        if not self.names:
            self.names, self.sums, self.counts = list(losses), torch.zeros_like(values), torch.zeros_like(values)
        self.sums = self.sums + values.where(finite, 0)
        self.counts = self.counts + finite

    def mean(self, ranks: Ranks) -> dict[str, float]:
        """Means over the steps and processes; one reduction, one wait for the device. NaN where no step was finite."""
        if not self.names:
            return {}
        sums, counts = ranks.sum(torch.stack([self.sums, self.counts]))
        return dict(zip(self.names, (sums / counts).tolist(), strict=True))


def fit_one_epoch(
    model: nn.Module, criterion, loader: Iterable, updater: Updater, ranks: Ranks, progress=None, log_every: int = 20
) -> dict[str, float]:
    """Trains on all batches of the loader -> mean losses. `progress(batches done, means so far, images)` is called every
    `log_every` batches and is the only place that waits for the device.

    Raises NonFiniteLoss after a run of non-finite steps.
    """
    model.train()
    meter, images = Meter(), 0
    recent: deque[Tensor] = deque(maxlen=MOST_BAD_STEPS * updater.accumulate)
    for done, batch in enumerate(loader, 1):
        batch = batch.to(ranks.device)
        with updater.autocast():
            predictions = model(batch.images)
        losses = criterion(predictions, batch.boxes, batch.labels, batch.size)
        updater.step(losses["total"])
        meter.add(losses)
        recent.append(batch.ids)
        images += len(batch.ids)
        if done % log_every == 0 or done == len(loader):
            if not updater.check():
                ids = torch.cat(list(reversed(recent))).tolist()
                raise NonFiniteLoss(list(dict.fromkeys(ids)), updater.step_number)
            if progress is not None:
                progress(done, meter.mean(ranks), images)
    return meter.mean(ranks)
