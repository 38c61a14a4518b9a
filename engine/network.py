"""What runs the model in training steps: the model itself, or the model inside DDP, DataParallel or CUDA graphs."""

import copy
from collections.abc import Callable, Iterable
from itertools import chain, islice, repeat
from typing import Any

import torch
from torch import nn

from datasets.loader import TrainSampler
from engine.course import Phase
from engine.epoch import Meter, fit_one_epoch
from engine.optimizer import Updater
from engine.parallel import graphed, wrap
from nets import DetectionModel
from utils.processes import Ranks

CUDNN_SEARCH_STEPS = 20_000  # longer runs turn on cudnn.benchmark, whose search takes up to 40 s (H100)
WARM_UP_STEPS, TIMED_STEPS = 3, 5  # of `step_seconds`: the first steps allocate memory and choose algorithms


class WrappedModel:
    """The owner of what wraps the model, and of when it is wrapped again.

    `cfg`: the constants of train.py; `sampler`: of the training batches, which gets the epoch and its batch size.
    """

    def __init__(self, cfg: Any, model: DetectionModel, updater: Updater, sampler: TrainSampler, ranks: Ranks):
        self.sync_bn = cfg.sync_bn
        self.model, self.updater, self.sampler, self.ranks = model, updater, sampler, ranks
        self._ready: nn.Module | None = None  # as the last epoch used it

    def begin(self, phase: Phase, done: int = 0) -> nn.Module:
        """Freezes or thaws the backbone for a phase, and returns the model as the training loop calls it.

        `done`: batches of the epoch that are trained already.

        It is wrapped again only when the set of trained parameters or the mode of the batch norms changes: DDP registers the
        parameters with gradients when it is built, and CUDA graphs keep what they captured.
        """
        self.set_sampler(phase, done)
        modes = (phase.frozen, phase.fixed_statistics)
        if self._ready is None or modes != (self.model.frozen, self.model.fixed_statistics):
            self.model.freeze_backbone(phase.frozen)
            self.model.fix_statistics(phase.fixed_statistics)
            self._ready = wrap(self.model, self.ranks, self.sync_bn)
            self._ready = accelerate(self._ready, self.sampler, self.updater, self.ranks.log)
        return self._ready

    def set_sampler(self, phase: Phase, done: int = 0) -> None:
        """Sets the epoch and the batch size of the training batches."""
        self.sampler.batch_size = phase.batch_size
        self.sampler.epoch, self.sampler.start = phase.epoch, done


def accelerate(model: nn.Module, sampler: TrainSampler, updater: Updater, log: Callable[[str], None]) -> nn.Module:
    """Returns the model for training steps, on a single GPU with CUDA graphs, and sets cuDNN's search for the fastest kernels.

    The model is returned unchanged if gradients accumulate, or input sizes vary.
    """
    search = updater.schedule.plan.total_steps > CUDNN_SEARCH_STEPS
    torch.backends.cudnn.benchmark = search and not sampler.multi_scale  # searches again for each input size
    if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
        return model
    if updater.device.type != "cuda" or updater.accumulate > 1 or sampler.multi_scale:
        return model
    return graphed(model, (sampler.batch_size, 3, *sampler.image_size), updater.autocast, log)


def step_seconds(
    wrapped_model: WrappedModel,
    build_criterion: Callable,
    loader: Iterable,
    clock: Callable[[], float],
    phase: Phase,
) -> float:
    """Measures the seconds of a training step of a phase, with its data. Model and updater are afterwards as they were."""
    model, updater, ranks = wrapped_model.model, wrapped_model.updater, wrapped_model.ranks
    before = copy.deepcopy((model.state_dict(), updater.state_dict()))
    step_model = wrapped_model.begin(phase)
    criterion = build_criterion(model, ranks.normalizer, no_aug=phase.no_aug)
    batches = chain.from_iterable(repeat(loader))  # an epoch may have fewer steps

    def train(steps: int) -> None:
        fit_one_epoch(step_model, criterion, islice(batches, steps * updater.accumulate), updater, ranks, Meter())

    train(WARM_UP_STEPS)
    start = clock()
    train(TIMED_STEPS)
    seconds = (clock() - start) / TIMED_STEPS
    model.load_state_dict(before[0])
    updater.load_state_dict(before[1])
    return seconds
