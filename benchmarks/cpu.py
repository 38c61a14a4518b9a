"""Images per second of CPU time that trainers learn from: this one, LibreYOLO and Ultralytics, in turns, on the same images.

    OMP_NUM_THREADS=1 python -m benchmarks.cpu data=TRAIN val=VAL peers=PYTHON

Each trains two epochs from scratch with its defaults, augmentation and loader, one process, one thread, without evaluation; the
second epoch counts. CPU time is not disturbed much by other programs. Writes the medians of `rounds` to results/cpu.md.
"""

import statistics
import sys
import time
from dataclasses import dataclass
from typing import NamedTuple

import nets
import train
from benchmarks.gpu_runs import log_of, peer_epochs, run_constants
from benchmarks.milliseconds import cost
from benchmarks.own_process import in_own_process
from benchmarks.table import add_row
from utils.config import override

HEAD = """# Training on a CPU, next to other trainers

Images per second of CPU time: the second epoch of a training from scratch, with the trainer's own augmentation, loader, loss and
optimizer, without evaluation. One process, one thread, the same images, size and batch, in turns; median (lowest to highest).
GFLOP: of a forward pass of the network for one image, a multiply-add counts as two; a training step has about three times as
many. By `python -m benchmarks.cpu`."""
OURS = ("yolox_nano", "yolov9_t")
PEERS = {"libreyolo": ("n", "yolox_nano"), "ultralytics": ("yolo11n", None)}  # its name of the model, and ours
YOLO11N = 6.5 / 640**2  # GFLOP per pixel, as in results/milliseconds.md
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
    speeds: list[float]


def own_speed(constants: train.Config) -> dict:
    """Trains two epochs, and returns the images per second of CPU time of the second."""
    train.main(constants, parts=train.Parts(clock=time.process_time))
    return {"images/s": float(log_of(constants)[-1]["images_per_second"])}


def main(cfg: Config) -> None:
    """Trains in turns, and adds a row for each model to the page."""
    found = {
        model: Trained("this one", model, cost(nets.build(model, 80).eval(), cfg.size)["gflops"], []) for model in OURS
    }
    for _ in range(cfg.rounds):
        with run_constants(cfg, device="cpu") as constants:
            for model in OURS:
                own = train.Config(**{**vars(constants), "model": model, "output": f"{constants.output}/{model}"})
                found[model].speeds.append(in_own_process(own_speed, own)["images/s"])
            for peer, (name, same) in PEERS.items() if cfg.peers else ():
                cells = peer_epochs(cfg, constants, peer, name, time.monotonic() + LIMIT)
                gflop = found[same].gflop if same else YOLO11N * cfg.size**2
                found.setdefault(peer, Trained(cells["trainer"], cells["model"], gflop, [])).speeds.append(
                    cells["images/s"]
                )
    for trained in found.values():
        median = statistics.median(trained.speeds)
        cells = {
            "trainer": trained.trainer,
            "model": trained.model,
            "size": str(cfg.size),
            "batch": str(cfg.batch_size),
        }
        cells |= {"images/s": f"{median:.1f} ({min(trained.speeds):.1f} to {max(trained.speeds):.1f})"}
        cells |= {"GFLOP": f"{trained.gflop:.2f}", "GFLOP/s": f"{median * trained.gflop:.1f}"}
        add_row("cpu", HEAD, cells)


if __name__ == "__main__":
    main(override(Config(), sys.argv[1:]))
