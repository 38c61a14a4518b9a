"""One epoch of training."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from utils.distributed import Ranks
from utils.optim import Updater


class NonFiniteLoss(RuntimeError):
    """Too many steps in a row without finite gradients. `ids`: the pictures since the last look, as data-set indices."""

    def __init__(self, ids: list[int], step: int):
        super().__init__(f"the gradients of step {step} and before were not finite")
        self.ids = ids


class Meter:
    """Means of losses that stay on the device until they are asked for."""

    def __init__(self):
        self.sums: dict[str, Tensor] = {}
        self.count = 0

    def add(self, losses: dict[str, Tensor]) -> None:
        """Adds the scalars of one step."""
        for name, value in losses.items():
            value = value.detach()
            self.sums[name] = self.sums[name] + value if name in self.sums else value.clone()
        self.count += 1

    def mean(self, ranks: Ranks) -> dict[str, float]:
        """Means over the steps and processes; one reduction, one wait for the device."""
        if not self.sums:
            return {}
        means = ranks.sum(torch.stack(list(self.sums.values()))) / (self.count * ranks.world)
        return dict(zip(self.sums, means.tolist(), strict=True))


def fit_one_epoch(
    model: nn.Module, criterion, loader: Iterable, updater: Updater, ranks: Ranks, progress=None, log_every: int = 20
) -> dict[str, float]:
    """Trains on all batches of the loader -> mean losses. `progress(batches done, means so far, images)` is called every
    `log_every` batches and is the only place that waits for the device.

    Raises NonFiniteLoss after a run of non-finite steps.
    """
    model.train()
    meter, recent, images = Meter(), [], 0
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
                raise NonFiniteLoss(sorted(set(torch.cat(recent).tolist())), updater.step_number)
            recent.clear()
            if progress is not None:
                progress(done, meter.mean(ranks), images)
    return meter.mean(ranks)
