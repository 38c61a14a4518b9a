"""Small models and training steps for tests."""

import contextlib
import math
import secrets
import socket
import time
from functools import partial

import pytest
import torch
import torch.multiprocessing as mp
from torch import nn

import nets
from engine.optimizer import EMA, Updater, build_optimizer
from engine.schedule import Plan, Schedule
from nets import picodet, yolov9
from nets.blocks import ADown, SeparableConv
from nets.losses import YOLOXCriterion

FLAT = Schedule(Plan(100, 0, 10, 10, 64, 64), "constant", 0.01, 0.01, 0, 0)

# The smallest sizes with every kind of layer, and the models of these sizes: FAMILIES["yolox"](num_classes=3).
SIZES = {
    "yolox": (0.33, 0.125, SeparableConv),
    "yolov9": yolov9.Size(8, ((8, 8, 16), *[(16, 16, 16)] * 3), (16, 16, 16), (16, 16), 0, 1, ADown),
    "ppyoloe": (0.33, 0.125),
    "picodet": picodet.Size(0.25, 16, 1),
}
FAMILIES = {family: partial(nets.MODELS[family].model, size) for family, size in SIZES.items()}


def spawn(work, arguments, processes, seconds=600):
    """Runs `work(rank, *arguments)` in several processes. Fails if they hang."""
    context, end = mp.spawn(work, arguments, processes, join=False), time.monotonic() + seconds
    while not context.join(1):  # raises the errors of the processes
        if time.monotonic() > end:
            for process in context.processes:
                process.kill()
            pytest.fail(f"the processes still run after {seconds} seconds")


def free_ports(count: int) -> list[int]:
    """Ports that no program listens on, below those that a system gives to connections."""
    ports: list[int] = []
    while len(ports) < count:
        port = secrets.choice(range(15000, 32000))
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            ports += [port] * (port not in ports)
    return ports


def toy(seed=0):
    torch.manual_seed(seed)
    first = nn.Conv2d(3, 4, 3, bias=False)  # a bias before a batch norm has a gradient of rounding errors only
    return nn.Sequential(first, nn.BatchNorm2d(4), nn.SiLU(), nn.Conv2d(4, 2, 3))


def detector(family="yolox", num_classes=3):
    torch.manual_seed(0)
    return FAMILIES[family](num_classes=num_classes)


def make_updater(model, optimizer="sgd", schedule=FLAT, total_steps=200, **options):
    return Updater(model, build_optimizer(optimizer, model, 0.01), schedule, EMA(model, total_steps), **options)


def images(step, count=4, side=8):
    return torch.rand(count, 3, side, side, generator=torch.Generator().manual_seed(step))


def snapshot(updater):
    """Copies all floating-point numbers that a step changes. A state that does not exist yet counts as zeros."""
    state = {f"model.{k}": v for k, v in updater.model.state_dict().items() if v.is_floating_point()}
    state |= {f"ema.{k}": v for k, v in updater.ema.model.state_dict().items() if v.is_floating_point()}
    state["ema_count"] = updater.ema.count
    for i, p in enumerate(updater.model.parameters()):
        state |= {f"optimizer.{i}.{k}": v for k, v in updater.optimizer.state[p].items()}
    return {k: v.clone() for k, v in state.items()}


def assert_equal_bits(a, b):
    for name in a.keys() | b.keys():
        zero = torch.zeros_like(a.get(name, b.get(name)))
        assert torch.equal(a.get(name, zero), b.get(name, zero)), name


def good_step(updater, step):
    updater.backward(updater.model.train()(images(step)).square().mean())


def bad_step(updater, kind="images"):
    """A step with non-finite images, which also reach the batch norms, or with a non-finite loss."""
    x = images(99)
    if kind != "loss":
        x[0, 0, 0, 0] = torch.inf
    loss = updater.model.train()(x).square().mean()
    updater.backward(loss * math.inf if kind == "loss" else loss)


def fit_detector(updater, steps, frozen):
    """Trains a few steps. The batch is a function of the step number."""
    model, criterion = updater.model, YOLOXCriterion((8, 16, 32))
    model.freeze_backbone(frozen)
    model.train()
    for _ in range(steps):
        generator = torch.Generator().manual_seed(updater.step_number)
        batch = torch.randint(0, 256, (2, 3, 64, 64), generator=generator)
        boxes = torch.tensor([[[8.0, 8, 40, 48]], [[20.0, 4, 60, 30]]])
        losses = criterion(model(batch), boxes, torch.tensor([[0], [2]]), (64, 64))
        updater.backward(losses["total"])
