"""Where the time of a training step goes: data, forward, assignment + loss, backward, optimiser + EMA; and what freezing saves.

    python -m benchmarks.step                                         YOLOX-nano at 416
    python -m benchmarks.step model=yolox_s size=640 batch_size=4     and so on; json=FILE keeps the figures

Random pictures with `boxes` boxes each; medians over `rounds` interleaved rounds of a step while frozen and a step after the
thaw. The limit of freezing: a step is 3 passes of the network, two of them backward, of which the frozen backbone needs none:
3 / (3 - 2 * share of the backbone in the FLOPs).
"""

import json
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

import nets
from benchmarks.table import machine
from utils.config import override
from utils.optim import EMA, Plan, Schedule, Updater, build_optimizer

PARTS = ("data", "forward", "assignment + loss", "backward", "optimiser + EMA")


@dataclass(frozen=True)
class Config:
    model: str = "yolox_nano"
    size: int = 416
    batch_size: int = 8
    boxes: int = 20  # a picture
    rounds: int = 9
    device: str = "cpu"
    amp: str = "none"
    optimizer: str = "adamw"
    json: str | None = None  # a file for the figures


class Clock:
    """Seconds between calls, the device awaited."""

    def __init__(self, device: torch.device):
        self.device = device
        self()

    def __call__(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        now, self.last = time.perf_counter(), getattr(self, "last", 0.0)
        passed, self.last = now - self.last, now
        return passed


def batch(cfg: Config) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Pictures uint8 [B, 3, H, W], boxes [B, M, 4] of all sizes, labels [B, M], on the CPU."""
    random = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (cfg.batch_size, 3, cfg.size, cfg.size), generator=random, dtype=torch.uint8)
    centre, side = (torch.rand(cfg.batch_size, cfg.boxes, 2, generator=random) for _ in range(2))
    side = 8 * (cfg.size / 16) ** side
    boxes = torch.cat([centre * cfg.size - side / 2, centre * cfg.size + side / 2], -1).clamp(0, cfg.size)
    return images, boxes, torch.randint(0, 80, boxes.shape[:2], generator=random)


def one_step(cfg: Config, updater: Updater, host: tuple, criterion, clock: Clock) -> list[float]:
    """Seconds of each part of a step."""
    clock()
    images, boxes, labels = (x.to(updater.device) for x in host)
    times = [clock()]
    with updater.autocast():
        predictions = updater.model(images)
    times.append(clock())
    loss = criterion(predictions, boxes, labels, (cfg.size, cfg.size))["total"]
    times.append(clock())
    updater.scaler.scale(loss).backward()
    times.append(clock())
    updater._update()
    return [*times, clock()]


def measure(cfg: Config) -> dict:
    """Median seconds of each part, while frozen and after the thaw."""
    torch.manual_seed(0)
    device = torch.device(cfg.device)
    model = nets.build(cfg.model, 80).to(device, memory_format=torch.channels_last).train()
    schedule = Schedule(Plan(100, 0, 100, 100, 64, 64), "constant", 1e-4, 1e-4, 0, 0)
    optimizer = build_optimizer(cfg.optimizer, model, 0.05)
    updater = Updater(model, optimizer, schedule, EMA(model, 10000), cfg.amp, clip=10.0)
    criterion, host, clock = nets.criterion(model), batch(cfg), Clock(device)
    rounds = {"frozen": [], "thawed": []}
    for number in range(cfg.rounds + 2):
        for phase, found in rounds.items():
            model.freeze_backbone(phase == "frozen")
            model.train()
            times = one_step(cfg, updater, host, criterion, clock)
            if number >= 2:
                found.append(times)
    return {phase: [statistics.median(part) for part in zip(*found, strict=True)] for phase, found in rounds.items()}


def backbone_share(cfg: Config) -> float:
    """Share of the backbone in the FLOPs of a forward pass."""
    model = nets.build(cfg.model, 80).eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, 3, cfg.size, cfg.size))
    counts = {name: sum(ops.values()) for name, ops in counter.get_flop_counts().items()}
    return counts[f"{type(model).__name__}.backbone"] / counts["Global"]


def main(cfg: Config) -> None:
    """Prints the table."""
    times = measure(cfg)
    share = backbone_share(cfg)
    limit, reached = 3 / (3 - 2 * share), sum(times["thawed"]) / sum(times["frozen"])
    print(f"{cfg.model} at {cfg.size}, batch {cfg.batch_size}, {cfg.boxes} boxes a picture; {machine()}\n")
    print("| ms a step | " + " | ".join(PARTS) + " | all | assignment + loss + optimiser + EMA |")
    print("|---|" + "---:|" * (len(PARTS) + 2))
    for phase, parts in times.items():
        overhead = (parts[2] + parts[4]) / sum(parts)
        cells = [f"{1000 * seconds:.1f}" for seconds in (*parts, sum(parts))]
        print(f"| {phase} | " + " | ".join(cells) + f" | {100 * overhead:.1f} % |")
    print(
        f"\nfrozen over thawed: {reached:.2f} times as fast; limit {limit:.2f} (backbone {100 * share:.0f} % of the FLOPs)"
    )
    if cfg.json:
        figures = {"times": times, "parts": PARTS, "limit": limit, "reached": reached, "machine": machine()}
        Path(cfg.json).write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main(override(Config(), sys.argv[1:]))
