"""Measures the parts of a training step (data, forward, loss, backward, optimizer and EMA), and what freezing saves.

    python -m benchmarks.step                                         YOLOX-nano at 416
    python -m benchmarks.step model=yolox_s size=640 batch_size=4     another model

Random images with `boxes` boxes each. Prints medians over `rounds` rounds, each with a frozen and a thawed step, and how many
operations a step dispatches: on a GPU, small models wait for the host to launch them.

The limit of freezing: a step costs three passes through the network, two of them backward, and the frozen backbone needs no
backward pass. With the backbone's fraction f of the FLOPs, the limit is 3 / (3 - 2 f).
"""

import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import nets
from benchmarks.table import machine
from engine.optimizer import EMA, Updater, build_optimizer
from engine.rates import MAX_GRADIENT_NORM
from engine.schedule import Plan, Schedule
from utils.config import override

PARTS = ("data", "forward", "assignment + loss", "backward", "optimizer + EMA")
WARM_UP = 2  # rounds that are not measured


@dataclass(frozen=True)
class Config:
    model: str = "yolox_nano"
    size: int = 416
    batch_size: int = 8
    boxes: int = 20  # per image
    rounds: int = 9
    device: str = "cpu"
    amp: str = "none"
    optimizer: str = "adamw"


class Clock:
    """Returns the seconds since its last call, after waiting for the device."""

    def __init__(self, device: torch.device):
        self.device, self.last = device, 0.0

    def __call__(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        now = time.perf_counter()
        seconds, self.last = now - self.last, now
        return seconds


def random_batch(cfg: Config) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns images uint8 [B, 3, H, W], boxes [B, M, 4] xyxy of all sizes, and labels [B, M], on the CPU."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (cfg.batch_size, 3, cfg.size, cfg.size), generator=generator, dtype=torch.uint8)
    center, side = (torch.rand(cfg.batch_size, cfg.boxes, 2, generator=generator) for _ in range(2))
    side = 8 * (cfg.size / 16) ** side
    boxes = torch.cat([center * cfg.size - side / 2, center * cfg.size + side / 2], -1).clamp(0, cfg.size)
    return images, boxes, torch.randint(0, 80, boxes.shape[:2], generator=generator)


def time_step(cfg: Config, updater: Updater, batch: tuple, criterion, clock: Clock) -> list[float]:
    """Runs a training step and returns the seconds of each part."""
    clock()
    images, boxes, labels = (x.to(updater.device) for x in batch)
    times = [clock()]
    with updater.autocast():
        predictions = updater.model(images)
    times.append(clock())
    loss = criterion(predictions, boxes, labels, (cfg.size, cfg.size))["total"]
    times.append(clock())
    updater.scaler.scale(loss).backward()
    times.append(clock())
    updater.optimizer_step()
    return [*times, clock()]


class Operations(TorchDispatchMode):
    """Counts the dispatched operations, and apart from them the views, which launch no kernel.

    `mixed`: foreach operations on several dtypes. On a GPU they launch one kernel per tensor.
    """

    def __init__(self):
        super().__init__()
        self.count, self.views, self.mixed = 0, 0, []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        aliases = [value.alias_info for value in function._schema.returns]
        if any(alias is not None and not alias.is_write for alias in aliases):
            self.views += 1
        else:
            self.count += 1
        if "_foreach_" in str(function) and len({tensor.dtype for tensor in args[0]}) > 1:
            self.mixed.append(str(function))
        return function(*args, **(kwargs or {}))


def start(cfg: Config) -> tuple[Updater, Callable]:
    """Returns the updater of a model with random weights, and its criterion."""
    torch.manual_seed(0)
    device = torch.device(cfg.device)
    model = nets.build(cfg.model, 80).to(device, memory_format=torch.channels_last).train()
    schedule = Schedule(Plan(100, 0, 100, 100, 64, 64), "constant", 1e-4, 1e-4, 0, 0)
    optimizer = build_optimizer(cfg.optimizer, model, 0.05)
    updater = Updater(model, optimizer, schedule, EMA(model, 10000), cfg.amp, clip=MAX_GRADIENT_NORM)
    return updater, nets.criterion(model)


def operations(cfg: Config) -> dict[str, Operations]:
    """Counts the operations of a frozen and of a thawed step."""
    updater, criterion = start(cfg)
    counts = {"frozen": Operations(), "thawed": Operations()}
    for phase, counter in counts.items():
        updater.model.freeze_backbone(phase == "frozen")
        updater.model.train()
        for context in (nullcontext(), counter):  # the optimizer makes its state in the first step
            with context:
                time_step(cfg, updater, random_batch(cfg), criterion, Clock(updater.device))
    return counts


def measure(cfg: Config) -> dict[str, list[float]]:
    """Returns the median seconds of each part of a frozen and of a thawed step."""
    updater, criterion = start(cfg)
    batch, clock = random_batch(cfg), Clock(updater.device)
    rounds: dict[str, list] = {"frozen": [], "thawed": []}
    for number in range(cfg.rounds + WARM_UP):
        for phase, measured in rounds.items():
            updater.model.freeze_backbone(phase == "frozen")
            updater.model.train()
            times = time_step(cfg, updater, batch, criterion, clock)
            if number >= WARM_UP:
                measured.append(times)
    return {phase: [statistics.median(part) for part in zip(*times, strict=True)] for phase, times in rounds.items()}


def backbone_fraction(cfg: Config) -> float:
    """Returns the backbone's fraction of the FLOPs of a forward pass."""
    model = nets.build(cfg.model, 80).eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, 3, cfg.size, cfg.size))
    counts = {name: sum(ops.values()) for name, ops in counter.get_flop_counts().items()}
    return counts[f"{type(model).__name__}.backbone"] / counts["Global"]


def main(cfg: Config) -> None:
    """Prints the table."""
    times, fraction = measure(cfg), backbone_fraction(cfg)
    limit, speedup = 3 / (3 - 2 * fraction), sum(times["thawed"]) / sum(times["frozen"])
    print(f"{cfg.model} at {cfg.size}, batch {cfg.batch_size}, {cfg.boxes} boxes per image; {machine()}\n")
    print("| ms per step | " + " | ".join(PARTS) + " | total | assignment + loss + optimizer + EMA |")
    print("|---|" + "---:|" * (len(PARTS) + 2))
    for phase, parts in times.items():
        overhead = (parts[2] + parts[4]) / sum(parts)
        cells = [f"{1000 * seconds:.1f}" for seconds in (*parts, sum(parts))]
        print(f"| {phase} | " + " | ".join(cells) + f" | {100 * overhead:.1f} % |")
    print(f"\nA frozen step is {speedup:.2f} times as fast as a thawed one; the limit is {limit:.2f}", end=" ")
    print(f"(the backbone has {100 * fraction:.0f} % of the FLOPs).")
    counts = {phase: (counter.count, counter.views) for phase, counter in operations(cfg).items()}
    print("Operations per step: " + ", ".join(f"{phase} {n} and {views} views" for phase, (n, views) in counts.items()))


if __name__ == "__main__":
    main(override(Config(), sys.argv[1:]))
