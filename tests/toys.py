"""Small models and steps that several tests take."""

import math
import time
from functools import partial

import pytest
import torch
import torch.multiprocessing as mp
from torch import nn

from nets.blocks import ADown
from nets.losses import YOLOXCriterion
from nets.yolov9 import Size, YOLOv9
from nets.yolox import YOLOX
from utils.optim import EMA, Plan, Schedule, Updater, build_optimizer

FLAT = Schedule(Plan(100, 0, 10, 10, 64, 64), "constant", 0.01, 0.01, 0, 0)


def spawn(work, arguments, processes, seconds=600):
    """Does `work(rank, *arguments)` in several processes; a failure where they hang."""
    context, end = mp.spawn(work, arguments, processes, join=False), time.monotonic() + seconds
    while not context.join(1):  # raises what a process raised
        if time.monotonic() > end:
            for process in context.processes:
                process.kill()
            pytest.fail(f"processes still at work after {seconds} seconds")


def toy(seed=0):
    torch.manual_seed(seed)
    first = nn.Conv2d(3, 4, 3, bias=False)  # a bias before a batch norm has no gradient: it might or might not move
    return nn.Sequential(first, nn.BatchNorm2d(4), nn.SiLU(), nn.Conv2d(4, 2, 3))


# The smallest models with every kind of layer, as in nets.MODELS.
FAMILIES = {
    "yolox": partial(YOLOX, 0.33, 0.125, True),
    "yolov9": partial(YOLOv9, Size(8, ((8, 8, 16), *[(16, 16, 16)] * 3), (16, 16, 16), (16, 16), 0, 1, ADown)),
}


def detector(family="yolox", num_classes=3):
    torch.manual_seed(0)
    return FAMILIES[family](num_classes=num_classes)


def make_updater(model, optimizer="sgd", schedule=FLAT, total_steps=200, **options):
    return Updater(model, build_optimizer(optimizer, model, 0.01), schedule, EMA(model, total_steps), **options)


def images(step, count=4, side=8):
    return torch.rand(count, 3, side, side, generator=torch.Generator().manual_seed(step))


def snapshot(updater):
    """All floating-point numbers that a step changes; a state that is not there yet counts as zeros."""
    found = {f"model.{k}": v for k, v in updater.model.state_dict().items() if v.is_floating_point()}
    found |= {f"ema.{k}": v for k, v in updater.ema.model.state_dict().items() if v.is_floating_point()}
    found["ema_count"] = updater.ema.count
    for i, p in enumerate(updater.model.parameters()):
        found |= {f"optimizer.{i}.{k}": v for k, v in updater.optimizer.state[p].items()}
    return {k: v.clone() for k, v in found.items()}


def assert_equal_bits(a, b):
    for name in a.keys() | b.keys():
        zero = torch.zeros_like(a.get(name, b.get(name)))
        assert torch.equal(a.get(name, zero), b.get(name, zero)), name


def good_step(updater, step):
    updater.step(updater.model.train()(images(step)).square().mean())


def bad_step(updater, kind="pictures"):
    """Non-finite pictures spoil batch norm as well, a non-finite loss the gradients only."""
    x = images(99)
    if kind == "pictures":
        x[0, 0, 0, 0] = torch.inf
    loss = updater.model.train()(x).square().mean()
    updater.step(loss * math.inf if kind == "loss" else loss)


def fit_detector(updater, steps, frozen):
    """Some steps of real training, batch `step` a function of the step."""
    model, criterion = updater.model, YOLOXCriterion((8, 16, 32))
    model.freeze_backbone(frozen)
    model.train()
    for _ in range(steps):
        random = torch.Generator().manual_seed(updater.step_number)
        pictures = torch.randint(0, 256, (2, 3, 64, 64), generator=random)
        boxes = torch.tensor([[[8.0, 8, 40, 48]], [[20.0, 4, 60, 30]]])
        losses = criterion(model(pictures), boxes, torch.tensor([[0], [2]]), (64, 64))
        updater.step(losses["total"])
