"""Golden runs: the losses of ten training steps of each family, stored as text. A diff shows every change of a value.

`python -m tests.golden` writes them again after an intended change. Explain in the commit message why the values
changed. The steps compute in float64: rounding differs between CPUs, and ten steps in float32 would amplify it.
"""

import platform
from pathlib import Path

import numpy as np
import torch
from toys import FAMILIES, detector

import nets
from datasets.dataset import Batch
from engine.epoch import Meter, fit_one_epoch
from engine.optimizer import EMA, Updater, build_optimizer
from engine.parallel import wrap
from engine.schedule import Plan, Schedule
from utils.processes import Ranks

FOLDER = Path(__file__).parent
STEPS, NO_AUG_STEPS = 10, 3
SIDE, IMAGES = 96, 4
RUNS = {f"{family}_{phase}": (family, phase == "frozen") for family in FAMILIES for phase in ("frozen", "thawed")}


def computer() -> str:
    """Returns what the bits of a run depend on: the version of torch, the instructions that it uses, the CPU and the threads."""
    info = Path("/proc/cpuinfo")
    pairs = [line.partition(":") for line in info.read_text(encoding="utf-8").splitlines()] if info.exists() else []
    facts = {name.strip(): value.strip() for name, _, value in pairs}
    cpu = " ".join(facts.get(name, "") for name in ("model name", "cpu family", "model", "stepping", "cache size"))
    torch_facts = f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}"
    return f"{torch_facts}, {cpu.strip() or platform.processor()}, {torch.get_num_threads()} threads"


def batch(step: int) -> Batch:
    """Images of noise with filled rectangles, one color per class. The last image of each batch is a background image."""
    rng = np.random.default_rng((26, step))
    images = rng.integers(60, 120, (IMAGES, SIDE, SIDE, 3), np.uint8)
    boxes, labels = np.zeros((IMAGES, 3, 4), np.float32), np.full((IMAGES, 3), -1)
    for i in range(IMAGES - 1):
        for row in range(rng.integers(1, 4)):
            (x, y), (width, height), label = rng.integers(0, 60, 2), rng.integers(8, 37, 2), rng.integers(3)
            images[i, y : y + height, x : x + width, label] = 250
            boxes[i, row], labels[i, row] = (x, y, x + width, y + height), label
    tensors = torch.from_numpy(images).permute(0, 3, 1, 2), torch.from_numpy(boxes), torch.from_numpy(labels)
    return Batch(*tensors, torch.arange(IMAGES), torch.zeros(IMAGES, 5), torch.zeros(IMAGES, 0, 2, 3))


def run(family: str, frozen: bool) -> list[dict[str, float]]:
    """Trains ten steps with the default recipe -> a row per step: its losses, then the norms of the weights and of the EMA."""
    model = detector(family).to(torch.float64, memory_format=torch.channels_last)
    model.freeze_backbone(frozen)
    schedule = Schedule(Plan(STEPS, 0, 1, 1, IMAGES, IMAGES), "cosine", 0.004, 0.0002, 3.0, NO_AUG_STEPS, 0.5)
    optimizer = build_optimizer("adamw", model, 0.05)
    updater, rows = Updater(model, optimizer, schedule, EMA(model, 1000), clip=10.0), []
    network = wrap(model, Ranks())
    for step in range(STEPS):
        criterion = nets.criterion(model, no_aug=step >= STEPS - NO_AUG_STEPS)
        meter = Meter()
        fit_one_epoch(network, criterion, [batch(step)], updater, Ranks(), meter)
        norms = {"weights": model, "average": updater.ema.model}
        norms = {
            name: float(torch.cat([p.detach().flatten() for p in m.parameters()]).norm()) for name, m in norms.items()
        }
        rows.append(meter.mean() | norms)
    return rows


def text_of(rows: list[dict[str, float]]) -> str:
    """Returns the contents of a file: the computer, then a line per step with `name=value`."""
    lines = (" ".join(f"{name}={value!r}" for name, value in row.items()) for row in rows)
    return "\n".join([computer(), *lines]) + "\n"


def read(name: str) -> tuple[str, list[dict[str, float]]]:
    """Returns the computer and the rows of a file."""
    first, *lines = (FOLDER / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    pairs = ([word.split("=") for word in line.split(" ")] for line in lines)
    return first, [{name: float(value) for name, value in row} for row in pairs]
