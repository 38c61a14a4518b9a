"""Samplers and loaders, for any number of processes. The order of an epoch is a function of (seed, epoch)."""

import os
import signal
import threading
from collections.abc import Iterator

import cv2
import numpy as np
from torch.utils.data import DataLoader

from datasets.dataset import NO_PICTURE, DetectionDataset, Key, collate, epoch_order

SIZE_STEP = 32  # the coarsest stride: sizes of the input are multiples of it
SIZE_EVERY = 10  # steps between changes of the size (YOLOX)
SAYS_WHO = hasattr(signal, "sigtimedwait")  # not macOS and Windows: a SIGTERM to all processes costs them the last step


class TrainSampler:
    """Batches of keys for this process: its share of each global batch. `epoch` is set before each epoch, and `start` to
    the number of its batches that an earlier start of the run has done; these are passed over without reading a picture.

    The order is padded by wrapping to whole batches, and to whole optimiser steps of `accumulate` batches. A share may be
    one sample smaller than another.
    """

    def __init__(
        self,
        length: int,
        batch_size: int,
        image_size: tuple[int, int],
        seed: int,
        multi_scale: float = 0.0,
        rank: int = 0,
        world: int = 1,
        accumulate: int = 1,
    ):
        self.length, self.batch_size, self.image_size, self.seed = length, batch_size, image_size, seed
        self.multi_scale, self.rank, self.world, self.accumulate = multi_scale, rank, world, accumulate
        self.epoch = self.start = 0

    def __len__(self) -> int:
        """Batches of a whole epoch, the same for all processes."""
        return -(-self.length // (self.batch_size * self.accumulate)) * self.accumulate

    def size(self, step: int) -> tuple[int, int]:
        """Height and width of the input at a step of the epoch; the same for all processes."""
        reach = int(self.multi_scale * max(self.image_size) / SIZE_STEP)
        if reach == 0:
            return self.image_size
        rng = np.random.default_rng((self.seed, self.epoch, step // SIZE_EVERY, SIZE_STEP))
        factor = 1 + rng.integers(-reach, reach + 1) * SIZE_STEP / max(self.image_size)
        height, width = (max(1, round(side * factor / SIZE_STEP)) * SIZE_STEP for side in self.image_size)
        return height, width

    def __iter__(self) -> Iterator[list[Key]]:
        order = epoch_order(self.length, self.seed, self.epoch)
        for step in range(self.start, len(self)):
            size, first = self.size(step), step * self.batch_size
            positions = range(first + self.rank, first + self.batch_size, self.world)
            keys = [Key(self.epoch, p, int(order[p % self.length]), size) for p in positions]
            yield keys or [Key(self.epoch, first, NO_PICTURE, size)]  # a process without a share still takes the step


class ValSampler:
    """Every picture once, divided over the processes without padding."""

    def __init__(self, length: int, batch_size: int, image_size: tuple[int, int], rank: int = 0, world: int = 1):
        self.indices = range(rank, length, world)
        self.batch_size, self.image_size = batch_size, image_size

    def __len__(self) -> int:
        return -(-len(self.indices) // self.batch_size)

    def __iter__(self) -> Iterator[list[Key]]:
        for first in range(0, len(self.indices), self.batch_size):
            yield [Key(0, i, i, self.image_size) for i in self.indices[first : first + self.batch_size]]


def quiet_worker(_: int) -> None:
    """Workers leave threads, Ctrl-C and a SIGTERM to the whole group to the main process, which needs them for its last
    step. They end when it tells them to, or ends itself."""
    cv2.setNumThreads(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if SAYS_WHO:
        threading.Thread(target=_end_for_the_parent, daemon=True).start()


def _end_for_the_parent(every: float = 0.5) -> None:
    """Also without a word: sockets that a worker inherited would keep up the appearance of a process that was killed."""
    parent = os.getppid()
    while os.getppid() == parent:
        heard = signal.sigtimedwait({signal.SIGTERM}, every)
        if heard is not None and heard.si_pid == parent:
            break
    os._exit(0)


class Loader(DataLoader):
    """A DataLoader whose workers are born with SIGTERM blocked: torch may start a thread in a worker before
    `worker_init_fn` is called, and the signal ends the process if any of its threads can take it."""

    def __iter__(self):
        if not SAYS_WHO:
            return super().__iter__()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            return super().__iter__()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def build_loader(dataset: DetectionDataset, sampler, workers: int, pin_memory: bool = False) -> Loader:
    """Batches of the sampler, in its order."""
    return Loader(
        dataset,
        batch_sampler=sampler,
        num_workers=workers,
        collate_fn=collate,
        pin_memory=pin_memory,
        persistent_workers=workers > 0,
        worker_init_fn=quiet_worker,
    )
