"""Runs train.py as the process that the torture kills: the tiny model, and a sleep in every step, flush and evaluation.

python tests/stress/slow_training.py train=FILE val=FILE ...
"""

from utils import start  # noqa: F401  before PyTorch is imported, as in train.py

# isort: split
import os
import sys
import time
from collections.abc import Callable
from functools import partialmethod
from pathlib import Path

import tiny
import torch

# isort: split
import train  # after tiny, which adds its model to the choices
from engine.optimizer import Updater
from tests.stress.clock import CLOCK, move_clock
from utils.signals import StopSignal

SLEEP = 0.05  # seconds of sleep per step, per batch of the evaluation and per flush of a save
PATIENCE = 60  # seconds after a signal in which a save may begin: the computer may be busy


def slow(function: Callable) -> Callable:
    """Returns the function with a sleep before it."""

    def sleeping(*args, **kwargs):
        time.sleep(SLEEP)
        return function(*args, **kwargs)

    return sleeping


def main(words: list[str]) -> None:
    """Trains with the constants of a command line."""
    torch.set_num_threads(1)
    StopSignal.__init__ = partialmethod(StopSignal.__init__, patience=PATIENCE)
    if CLOCK in os.environ:
        move_clock(Path(os.environ[CLOCK]))
    Updater.step = slow(Updater.step)
    tiny.Tiny.detections = slow(tiny.Tiny.detections)
    os.fsync = slow(os.fsync)
    train.run_script(lambda: train.main(train.from_command_line(words)), stopped="stopped", memory_advice="")


if __name__ == "__main__":
    main(sys.argv[1:])
