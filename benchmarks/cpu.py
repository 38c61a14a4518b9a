"""Images per second of CPU time in training: Thaw, LibreYOLO and Ultralytics, in turns, on the same images.

    OMP_NUM_THREADS=1 python -m benchmarks.cpu data=TRAIN val=VAL peers=PYTHON

Each trains two epochs from scratch with its defaults, augmentation and loader, in one process on one thread, without evaluation;
the second epoch counts. Other programs change CPU time less than wall time. Adds the medians of `rounds` to results/cpu.md.
"""

import json
import statistics
import sys
import time
from dataclasses import dataclass
from typing import NamedTuple

import torch

import train
from benchmarks.gpu_runs import peer_epochs, run_constants
from benchmarks.milliseconds import cost
from benchmarks.own_process import in_own_process
from benchmarks.table import add_row
from utils.config import override

HEAD = """# Training on a CPU, next to other trainers

Images per second of CPU time: the second epoch of a training from scratch, without evaluation and saving. Each trainer uses its
own augmentation, loader, loss and optimizer, in one process without loader processes. The trainers take turns on the same images;
a cell has the median of the rounds, and in brackets the lowest and the highest. GFLOP: of a forward pass of the network for one
image, a multiply-add counts as two. By `python -m benchmarks.cpu`."""
OURS = ("yolox_nano", "yolov9_t")
PEERS = {"libreyolo": ("n", "yolox_nano"), "ultralytics": ("yolo11n", None)}  # the model's name there, and here
LIMIT = 3600.0  # seconds that two epochs of another trainer may take


@dataclass(frozen=True)
class Config:
    data: str = ""  # training data; empty: generated images
    val: str = ".2"
    size: int = 320
    batch_size: int = 8
    rounds: int = 3
    workers: int = 0
    peers: str = ""  # the Python of an environment with ultralytics and libreyolo; none: without them


class Trained(NamedTuple):
    """What was measured: the trainer, its model, the GFLOP of an image, and images per second of each round."""

    trainer: str
    model: str
    gflop: float
    threads: int
    speeds: list[float]


def own_speed(constants: train.Config) -> dict:
    """Trains two epochs, and returns images per second of CPU time of the second, and the GFLOP of the network."""
    seconds, networks = [], []

    def timed(network, *arguments):
        begin = time.process_time()
        train_epoch(network, *arguments)
        seconds.append(time.process_time() - begin)
        networks.append(network)

    train_epoch, train.fit_one_epoch = train.fit_one_epoch, timed
    outcome = train.main(constants)
    images = json.loads((outcome.folder / "environment.json").read_text(encoding="utf-8"))["training_images"]
    gflop = cost(networks[-1].eval(), constants.image_size[0])["gflops"]
    return {"images/s": images / seconds[1], "GFLOP": gflop, "threads": torch.get_num_threads()}


def main(cfg: Config) -> None:
    """Trains in turns, and adds a row for each model to the page."""
    found: dict[str, Trained] = {}
    for _ in range(cfg.rounds):
        with run_constants(cfg, device="cpu") as constants:
            for model in OURS:
                own = train.Config(**{**vars(constants), "model": model, "output": f"{constants.output}/{model}"})
                add(found, "Thaw", model, in_own_process(own_speed, own))
            for peer, (name, same) in PEERS.items() if cfg.peers else ():
                cells = peer_epochs(cfg, constants, peer, name, time.monotonic() + LIMIT)
                cells["GFLOP"] = cells.get("GFLOP") or found[same].gflop
                add(found, cells["trainer"], cells["model"], cells)
    for trained in found.values():
        median = statistics.median(trained.speeds)
        cells = {
            "trainer": trained.trainer,
            "model": trained.model,
            "size": str(cfg.size),
            "batch": str(cfg.batch_size),
        }
        cells |= {"threads": str(trained.threads), "rounds": str(len(trained.speeds))}
        cells |= {"images/s": f"{median:.1f} ({min(trained.speeds):.1f} to {max(trained.speeds):.1f})"}
        cells |= {"GFLOP": f"{trained.gflop:.2f}", "GFLOP/s, forward only": f"{median * trained.gflop:.1f}"}
        add_row("cpu", HEAD, cells)


def add(found: dict[str, Trained], trainer: str, model: str, cells: dict) -> None:
    """Adds the speed of a round."""
    new = Trained(trainer, model, cells["GFLOP"], cells["threads"], [])
    found.setdefault(model, new).speeds.append(cells["images/s"])


if __name__ == "__main__":
    main(override(Config(), sys.argv[1:]))
