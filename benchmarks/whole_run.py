"""Divides the time of a whole run into its parts: steps, waiting for images, evaluation, saving, log, start and end.

    python -m benchmarks.whole_run                                        a simulated fast device, YOLOv9-s
    python -m benchmarks.whole_run model=yolov9_c images_per_second=250
    python -m benchmarks.whole_run images_per_second=0 image_size=224     the real network on this CPU
    python -m benchmarks.whole_run images_per_second=0 image_size=224 peers=PYTHON     and LibreYOLO and Ultralytics

Generated images. The simulated device computes nothing: the network returns constant predictions for `images_per_second`, and
keeps all its weights, so that checkpoints and the optimizer have their true sizes. Loss, gradients, optimizer and EMA of a step
run on the CPU where a GPU would compute them, so the run sleeps only for the rest of the device's time: a step takes max(device,
host). Loss, decoding and NMS of an evaluation count on top of the network's time. A step waits for the device, so that loading a
batch never overlaps with the step before, as it would on a GPU.

The time is wall time, in which worker processes load the images, as many as train.py starts next to a GPU. With wall=false it is
CPU time of one process that also loads the images, which other programs do not disturb. Adds a row to results/whole_run.md.
"""

import contextlib
import io
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

import nets
import train
from benchmarks.peer_task import peer_row
from benchmarks.table import add_row
from datasets import demo
from datasets.formats.options import read_options
from datasets.sources import read_train_and_val
from engine.clock import Clock
from engine.optimizer import Updater
from utils import threads
from utils.config import override, show

HEAD = """# Where the time of a whole run goes

Percent of the run after its start, and seconds of the start, by `python -m benchmarks.whole_run`. `images/s`: of the steps of a
simulated device (see benchmarks/whole_run.py), or 0: on the CPU. The steps wait for `loading`. Rows without a kind of time in
their note: CPU time of one process, in which a step takes the device's time only."""
PARTS = ("steps", "loading", "evaluation", "saving", "log")  # of the rows; the rest is the end
START = ("imports", "data", "model")
PEERS = {"libreyolo": "n", "ultralytics": "yolo11n"}  # and its name of the model
LIMIT = 6 * 3600.0  # seconds that another trainer may take


@dataclass(frozen=True)
class Config:
    model: str = "yolov9_s"
    images_per_second: float = (
        545.0  # of a training step of the simulated device, about that of an H100; 0: the real network
    )
    images: int = 300
    val_images: int = 64
    epochs: int = 100
    batch_size: int = 30
    image_size: int = 64
    device: str = "cpu"  # of the real network
    workers: int | None = None  # none: as many as train.py starts, next to a GPU if a device is simulated
    wall: bool = True  # wall time, with workers; false: CPU time of one process
    note: str = ""  # of the row
    peers: str = ""  # the Python of an environment with libreyolo and ultralytics, which then train on the same images


class Time:
    """Wall time or CPU time, in which what the device computes takes `seconds_per_image`, or the host's time if it is longer."""

    def __init__(self, seconds_per_image: float, wall: bool):
        self.seconds_per_image, self.wall, self.shift, self.began = seconds_per_image, wall, 0.0, 0.0
        self.now = time.perf_counter if wall else time.process_time

    def __call__(self) -> float:
        return self.now() + self.shift

    def begin(self) -> None:
        """Begins to compute on the device."""
        self.began = self.now()

    def end(self, images: float) -> None:
        """Ends what was begun, after the device's time for these images."""
        rest = max(0.0, images * self.seconds_per_image - (self.now() - self.began))
        if self.wall:
            time.sleep(rest)
        else:
            self.shift += rest


class Constant(torch.autograd.Function):
    """Returns a tensor, whose gradient is zero for all parameters."""

    @staticmethod
    def forward(ctx, value: Tensor, *parameters: Tensor) -> Tensor:
        ctx.save_for_backward(*parameters)
        return value.clone()

    @staticmethod
    def backward(ctx, _) -> tuple:
        return None, *map(torch.zeros_like, ctx.saved_tensors)


def constant_forward(model: nets.DetectionModel, clock: Time, size: int) -> Callable:
    """Returns a `forward` with constant predictions, which look like those of a trained model."""
    with torch.no_grad():
        raw = model.eval()(torch.zeros(1, 3, size, size))
    generator = torch.Generator().manual_seed(0)
    constant = {name: torch.randn(value.shape, generator=generator) for name, value in raw._asdict().items()}
    constant["classes"] = 1.5 * constant["classes"] - 6.5

    def forward(self, images: Tensor) -> Any:
        clock.begin()
        values = {name: value.expand(len(images), *value.shape[1:]) for name, value in constant.items()}
        if self.training:
            values["boxes"] = Constant.apply(values["boxes"], *self.parameters())
        else:
            clock.end(len(images) / 3)  # a step has two more passes, both backward
        return type(raw)(**values)

    model.train()
    return forward


def draw(folder: Path, images: int, val_images: int) -> None:
    """Writes generated images with their annotation files."""
    with mock.patch.dict(demo.IMAGES, {"train": images, "val": val_images}):
        demo.draw(folder)


def workers(cfg: Config) -> int | None:
    """Returns the processes that load images, none if train.py chooses them."""
    if not cfg.wall:
        return 0
    if cfg.workers is not None or not cfg.images_per_second:
        return cfg.workers
    return threads.choose_workers(torch.device("cuda"), 1, cfg.batch_size, (cfg.image_size, cfg.image_size))


def seconds_of_run(cfg: Config, folder: Path) -> dict[str, float]:
    """Trains, and returns the seconds of each part."""
    clock = Time(1 / cfg.images_per_second if cfg.images_per_second else 0.0, cfg.wall)
    accounts: list[Clock] = []

    def account(*args) -> Clock:
        accounts.append(Clock(*args))
        return accounts[-1]

    def build_model(*args, **options):
        model, pretraining = train.build_model(*args, **options)
        forward = constant_forward(model, clock, cfg.image_size)
        stack.enter_context(mock.patch.object(type(model), "forward", forward))
        return model, pretraining

    class SimulatedUpdater(Updater):
        def backward(self, loss: Tensor, images: int = 1) -> None:
            super().backward(loss, images)
            clock.end(images)

    parts = train.Parts(clock=clock)
    if cfg.images_per_second:
        parts = train.Parts(clock=clock, build_model=build_model, updater=SimulatedUpdater)
    run = train.Config(
        **{"train": str(folder / "data" / "train.txt"), "val": str(folder / "data" / "val.txt"), "weights": None},
        **{"model": cfg.model, "image_size": (cfg.image_size,) * 2, "epochs": cfg.epochs, "batch_size": cfg.batch_size},
        **{
            "output": str(folder / "runs"),
            "device": cfg.device,
            "workers": workers(cfg),
            "learning_rate": 1e-4,
            "min_learning_rate": 1e-5,
        },
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        stack.enter_context(mock.patch("train.Clock", account))
        if not cfg.wall:  # the curves are drawn once a minute
            stack.enter_context(mock.patch.object(time, "monotonic", clock))
        train.main(run, parts=parts)
    return accounts[0].seconds


def account_of_peer(cfg: Config, folder: Path, peer: str) -> dict:
    """Trains with another trainer, its defaults and the same images, and returns its name and the seconds of each part."""
    data = read_train_and_val(f"{folder}/data/train.txt", f"{folder}/data/val.txt", read_options(), lambda *_: None)
    made = {"weights": None, "epochs": cfg.epochs, "image_size": (cfg.image_size,) * 2, "seed": 0}
    end = time.monotonic() + LIMIT
    return peer_row(cfg.peers, "account", peer, PEERS[peer], data, made, cfg.batch_size, workers(cfg) or 0, end)


def cells(cfg: Config, seconds: dict[str, float]) -> dict[str, str]:
    """Returns the cells of a row: what ran, percent of each part after the start, and seconds. A part may be missing."""
    start = sum(seconds.get(part, 0.0) for part in (*START, "start"))
    total = sum(seconds.values()) - start
    row = {"model": cfg.model, "images": f"{cfg.images} + {cfg.val_images}", "epochs": f"{cfg.epochs}"}
    row |= {"images/s": f"{cfg.images_per_second:g}"}
    row |= {part: f"{100 * seconds[part] / total:.1f}" if part in seconds else "" for part in (*PARTS, "end")}
    return row | {"seconds": f"{total:.1f}", "start": f"{start:.1f}"}


def main(cfg: Config) -> None:
    """Adds the row, and rows of other trainers."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        draw(Path(place) / "data", cfg.images, cfg.val_images)
        rows = [cells(cfg, seconds_of_run(cfg, Path(place)))]
        for peer in PEERS if cfg.peers else ():
            account = account_of_peer(cfg, Path(place), peer)
            name = f"{account['trainer']}, {PEERS[peer]}, threads: {account['threads']}"
            rows.append(cells(cfg, account["seconds"]) | {"model": name})
    time_of = "wall time" if cfg.wall else "CPU time"
    for row in rows:
        add_row("whole_run", HEAD, row | {"note": f"{time_of}, workers={show(workers(cfg))}; {cfg.note}"})


if __name__ == "__main__":
    main(override(Config(), sys.argv[1:]))
