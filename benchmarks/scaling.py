"""Estimates the speed of 1 to 64 GPUs by arithmetic; nothing is measured here: python -m benchmarks.scaling

Prints the Markdown tables of docs/distributed.md. The constants below hold all assumptions. Enter the values of your own
hardware and run it again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

import nets
from engine.schedule import Plan, Schedule
from engine.summary import gflops

CLASSES = 80
IMAGES = 16  # per GPU and step
GPUS_PER_NODE = 8
PEAK = 312e12  # operations per second of one GPU in mixed precision, from the data sheet of an A100
BACKWARD = 2  # times the operations of the forward pass
SIZES = {  # model: (side of the input, fraction of PEAK that training reaches)
    "yolox_nano": (416, 0.015),  # depthwise convolutions wait for memory: a guess
    "yolox_tiny": (416, 0.05),
    "yolox_s": (640, 0.08),
    "yolox_m": (640, 0.12),
    "yolox_l": (640, 0.18),
    "yolox_x": (640, 0.25),
}


@dataclass(frozen=True)
class Link:
    """The slowest link of a ring over all GPUs. Each node has one network adapter."""

    name: str
    gpus: int  # number of GPUs in the tables
    gigabytes: float  # GB/s each way that a collective reaches
    latency: float  # seconds of a collective of a few kilobytes, including the wait of the host


LINKS = (
    Link("NVLink", 8, 240, 50e-6),  # generation 3: .8 of 300 GB/s
    Link("PCIe 4", 8, 16, 50e-6),  # x16: half of 32 GB/s, because GPUs share its switches
    Link("400 Gbit IB", 64, 40, 100e-6),  # all networks: .8 of the line rate
    Link("200 Gbit IB", 64, 20, 100e-6),
    Link("100 Gbit IB", 64, 10, 100e-6),
    Link("25 Gbit Eth", 64, 2.5, 500e-6),
    Link("10 Gbit Eth", 64, 1.0, 500e-6),
    Link("1 Gbit Eth", 64, 0.1, 500e-6),
)
SAMPLES_PER_CORE = 107  # training samples per second, mosaic=.5 and rotation=5, every image decoded (results/loader.md)
IMAGES_PER_SAMPLE = 2.5  # mosaic=.5: half of the samples consist of four images
IMAGE_BYTES = 163e3  # COCO train2017: 19.3 GB in 118,287 files


@dataclass(frozen=True)
class Cost:
    """Cost of a training step of a model on one GPU, and the size of its gradients and batch norms."""

    name: str
    side: int
    parameters: int
    thawed: int  # parameters outside of the backbone, which are trained while it is frozen
    norms: int  # batch norms
    thawed_norms: int
    channels: int  # of all batch norms
    gflops: float  # forward pass of one image
    seconds: float  # per step

    def reduce(self, gpus: int, link: Link) -> float:
        """Seconds per step of the all-reduce of the gradients in a ring."""
        return 2 * (gpus - 1) / gpus * 4 * self.parameters / (link.gigabytes * 1e9)

    def norm(self, gpus: int, link: Link) -> float:
        """Seconds per step of SyncBN: an all-gather (forward) and an all-reduce (backward) for each batch norm."""
        if gpus == 1:
            return 0.0
        forward = (gpus - 1) * 4 * (2 * self.channels + self.norms)
        backward = 2 * (gpus - 1) / gpus * 4 * 2 * self.channels
        return 2 * self.norms * link.latency + (forward + backward) / (link.gigabytes * 1e9)

    def efficiency(self, gpus: int, link: Link, sync_bn: bool, hidden: bool) -> float:
        """Fraction of the speed of `gpus` GPUs that remains. `hidden`: the all-reduce overlaps with the backward pass."""
        behind = self.seconds * BACKWARD / (1 + BACKWARD) if hidden else 0.0
        waiting = max(0.0, self.reduce(gpus, link) - behind) + (self.norm(gpus, link) if sync_bn else 0.0)
        return self.seconds / (self.seconds + waiting)


def cost(name: str) -> Cost:
    """Builds a model and computes its cost."""
    side, fraction = SIZES[name]
    model = nets.build(name, CLASSES)
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    frozen_norms = sum(isinstance(m, nn.BatchNorm2d) for m in model.backbone.modules())
    parameters, frozen = (sum(p.numel() for p in part.parameters()) for part in (model, model.backbone))
    forward = gflops(model, (side, side))
    seconds = IMAGES * (1 + BACKWARD) * forward * 1e9 / (PEAK * fraction)
    channels = sum(m.num_features for m in norms)
    counts = (parameters, parameters - frozen, len(norms), len(norms) - frozen_norms, channels)
    return Cost(name, side, *counts, forward, seconds)


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a heading and a Markdown table; all columns but the first are right-aligned."""
    print(f"\n### {title}\n\n| {' | '.join(head)} |\n|---|{'---:|' * (len(head) - 1)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")


def percent(x: float) -> str:
    """A fraction as whole percent."""
    return f"{100 * x:.0f}"


def short(x: float) -> str:
    """Two significant digits of a number below 10, the whole part of a larger one."""
    return f"{x:.2g}" if x < 10 else f"{x:.0f}"


def step_tables(costs: Sequence[Cost]) -> None:
    """Prints the tables of computing and of gradients."""
    sizes = ("model", "input", "parameters, M", "GFLOPs forward")
    head = (*sizes, "step, ms", "images/s", "gradients, MB", "while frozen, MB")
    rows = []
    for c in costs:
        work = (f"{c.gflops:.1f}", f"{1e3 * c.seconds:.0f}", f"{IMAGES / c.seconds:.0f}")
        megabytes = (f"{4e-6 * c.parameters:.1f}", f"{4e-6 * c.thawed:.1f}")
        rows.append((c.name, str(c.side), f"{c.parameters / 1e6:.2f}", *work, *megabytes))
    table(f"One GPU, {IMAGES} images per step", head, rows)
    head = ("model", *(f"{link.name}, {link.gpus}" for link in LINKS))
    rows = []
    for c in costs:
        cells = []
        for link in LINKS:
            ends = [percent(c.efficiency(link.gpus, link, False, hidden)) for hidden in (False, True)]
            cells.append(f"{short(1e3 * c.reduce(link.gpus, link))} ({'-'.join(dict.fromkeys(ends))})")
        rows.append((c.name, *cells))
    table("Gradients: all-reduce, ms per step (efficiency without SyncBN, %)", head, rows)


def norm_tables(costs: Sequence[Cost]) -> None:
    """Prints the tables of SyncBN and of the total speed."""
    links = [link for link in LINKS if link.name in ("NVLink", "200 Gbit IB", "10 Gbit Eth")]
    names = [f"{link.name}, {link.gpus}" for link in links]
    head = ("model", "collectives", "frozen", *(f"{n}: ms" for n in names), *(f"{n}: images" for n in names))
    rows = []
    for c in costs:
        times = [c.norm(link.gpus, link) for link in links]
        images = [f"{-(-t // (0.1 * c.seconds / IMAGES)):.0f}" for t in times]
        counts = (str(2 * c.norms), str(2 * c.thawed_norms))
        rows.append((c.name, *counts, *(f"{1e3 * t:.0f}" for t in times), *images))
    table("SyncBN: collectives and ms per step; images per GPU from which it costs less than a tenth", head, rows)
    inside, outside = LINKS[0], next(link for link in LINKS if link.name == "200 Gbit IB")
    numbers, rows = (1, 2, 4, 8, 16, 32, 64), []
    for c in costs:
        cells = []
        for n in numbers:
            fraction = c.efficiency(n, inside if n <= GPUS_PER_NODE else outside, True, True)
            cells.append(f"{n * IMAGES / c.seconds * fraction:.0f} ({percent(fraction)})")
        rows.append((c.name, *cells))
    head = ("model", *(f"{n} GPU{'s' * (n > 1)}" for n in numbers))
    table("Default constants, with NVLink and 200 Gbit IB: images per second (efficiency, %)", head, rows)


def loader_table(costs: Sequence[Cost]) -> None:
    """Prints the table of the loader."""
    rows = []
    for c in costs:
        speed = IMAGES / c.seconds
        cores = [-(-n * speed // SAMPLES_PER_CORE) for n in (1, GPUS_PER_NODE, 64)]
        disk = [n * speed * IMAGES_PER_SAMPLE * IMAGE_BYTES / 1e6 for n in (1, GPUS_PER_NODE)]
        rows.append((c.name, f"{speed:.0f}", *(f"{n:.0f}" for n in cores), *(f"{d:.0f}" for d in disk)))
    head = ("model", "images/s per GPU", "cores: 1 GPU", "8 GPUs", "64 GPUs", "MB/s: 1 GPU", "8 GPUs")
    table("Loader: cores and disk speed at which the GPUs never wait", head, rows)


def rate_table() -> None:
    """Prints the table of learning rates by images per step."""
    head = (
        "images per step",
        "sgd, learning_rate=.01: rate of a step",
        "adamw, learning_rate=.004: rate of a step",
        "steps per epoch of COCO",
    )
    rows = []
    for images in (8, 16, 64, 256, 1024):
        plan = Plan(1, 0, 1, 1, images, images)
        rates = [
            rate * Schedule(plan, "constant", rate, rate, 0, 0, power).scale(images)
            for rate, power in ((0.01, 1.0), (0.004, 0.5))
        ]
        rows.append((str(images), *(f"{rate:.4f}" for rate in rates), str(-(-118287 // images))))
    table("Batch and learning rate", head, rows)


if __name__ == "__main__":
    everything = [cost(name) for name in SIZES]
    step_tables(everything)
    norm_tables(everything)
    loader_table(everything)
    rate_table()
