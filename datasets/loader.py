"""Samplers and data loaders for any number of processes. The order of an epoch is a function of (seed, epoch)."""

import os
import re
import signal
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.queues import Queue
from typing import Any, Generic, TypeVar

import cv2
import numpy as np
from torch.utils.data import DataLoader

from datasets.dataset import NO_IMAGE, Batch, DetectionDataset, Key, collate, epoch_order
from utils.signals import end_at_once
from utils.threads import has_shared_memory

SIZE_STEP = 32  # input sizes are multiples of it
SIZE_EVERY = 10  # steps between changes of the input size (YOLOX)
KNOWS_SENDER = hasattr(signal, "sigtimedwait")  # not on macOS and Windows, where SIGTERM ends workers in any case


@dataclass
class TrainSampler:
    """Batches of keys for one rank: its shard of every global batch. Shards may differ by one sample."""

    length: int
    batch_size: int
    image_size: tuple[int, int]
    seed: int
    multi_scale: float = 0.0
    rank: int = 0
    world: int = 1
    accumulate: int = 1  # batches per optimizer step; the order wraps around to fill the last step
    repeats: Any = None  # of the data set
    epoch: int = 0  # set it before each epoch
    start: int = 0  # batches of the epoch that are already done: they are skipped without reading an image
    coarsest: int = SIZE_STEP  # the largest stride of the model

    def __len__(self) -> int:
        """Returns the number of batches of a whole epoch, the same on all ranks."""
        return -(-self.length // (self.batch_size * self.accumulate)) * self.accumulate

    @property
    def samples(self) -> int:
        """Returns the number of images of a whole epoch over all ranks, with the repeated ones that fill the last step."""
        return len(self) * self.batch_size

    def size(self, step: int) -> tuple[int, int]:
        """Returns height and width of the input at a step of the epoch, the same on all ranks."""
        reach = int(self.multi_scale * max(self.image_size) / SIZE_STEP)
        if reach == 0:
            return self.image_size
        rng = np.random.default_rng((self.seed, self.epoch, step // SIZE_EVERY, SIZE_STEP))
        factor = 1 + rng.integers(-reach, reach + 1) * SIZE_STEP / max(self.image_size)
        # Each side that is longer than the coarsest stride stays so: a map of 1 x 1 has no variance in a batch of one image.
        least = self.coarsest // SIZE_STEP + 1
        steps = (max(min(least, side // SIZE_STEP), round(side * factor / SIZE_STEP)) for side in self.image_size)
        height, width = (step * SIZE_STEP for step in steps)
        return height, width

    def __iter__(self) -> Iterator[list[Key]]:
        order = epoch_order(self.length, self.seed, self.epoch, self.repeats)
        for step in range(self.start, len(self)):
            size, first = self.size(step), step * self.batch_size
            positions = range(first + self.rank, first + self.batch_size, self.world)
            keys = [Key(self.epoch, p, int(order[p % self.length]), size) for p in positions]
            yield keys or [Key(self.epoch, first, NO_IMAGE, size)]  # a rank without images still takes the step


class ValSampler:
    """Batches of keys for one rank: every image once over all ranks, without padding."""

    def __init__(self, length: int, batch_size: int, image_size: tuple[int, int], rank: int = 0, world: int = 1):
        self.indices = range(rank, length, world)
        self.batch_size, self.image_size = batch_size, image_size

    def __len__(self) -> int:
        return -(-len(self.indices) // self.batch_size)

    def __iter__(self) -> Iterator[list[Key]]:
        for first in range(0, len(self.indices), self.batch_size):
            yield [Key(0, i, i, self.image_size) for i in self.indices[first : first + self.batch_size]]


Sampler = TypeVar("Sampler", TrainSampler, ValSampler)


def init_worker(_: int) -> None:
    """Makes a worker ignore Ctrl-C, a closed terminal, and SIGTERM except from its parent, which needs it to finish a step."""
    cv2.setNumThreads(0)
    Queue._on_queue_feeder_error = staticmethod(_batch_is_lost)  # type: ignore[attr-defined]  # not in its stubs
    for name in {"SIGINT", "SIGHUP"} & set(dir(signal)):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    if KNOWS_SENDER:
        threading.Thread(target=_end_with_parent, daemon=True).start()


def _batch_is_lost(error: Exception, _) -> None:
    """Ends this process when a batch cannot be sent: the queue would drop it, and the training would wait for it forever."""
    end_at_once(f"a process that loads images cannot send a batch ({error}): is {tempfile.gettempdir()} full?", 1)


def _end_with_parent(interval: float = 0.5) -> None:
    """Ends this process after SIGTERM from its parent, or when the parent is gone.

    An orphan would keep the sockets of its killed parent open, and the other ranks would wait for the dead process.
    """
    parent = os.getppid()
    while os.getppid() == parent:
        received = signal.sigtimedwait({signal.SIGTERM}, interval)
        if received is not None and received.si_pid == parent:
            break
    os._exit(0)


class Loader(DataLoader, Generic[Sampler]):
    """A DataLoader whose errors are the same with and without workers, and whose workers ignore requests to stop.

    It starts its workers with the signals blocked that ask the parent to stop: torch may start threads in a worker before it
    calls `worker_init_fn`, and one thread that does not block SIGTERM is enough for the signal to end the worker. Until that
    call, a worker also has the parent's own handlers.
    """

    dataset: DetectionDataset
    batch_sampler: Sampler
    keeps = False  # the batches in memory, after the first iteration
    _begun: Iterator | None = None
    _kept: list[Batch] | None = None

    def __iter__(self):
        if self._kept is not None:
            return iter(self._kept)
        batches, self._begun = self._begun or self._start(), None
        batches = _with_original_errors(batches)
        return self._keep(batches) if self.keeps else batches

    def _keep(self, batches: Iterator) -> Iterator:
        """Yields the batches, and keeps them for the next iterations."""
        kept = []
        for batch in batches:
            if self.num_workers and not self.pin_memory:
                batch = batch.clone()  # the memory of the workers is small
            kept.append(batch)
            yield batch
        self._kept = kept

    def begin(self) -> None:
        """Begins the next iteration: the workers load its first batches while the program does something else."""
        if self.num_workers:
            self._begun = self._start()

    def _start(self) -> Iterator:
        if not KNOWS_SENDER:
            return super().__iter__()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
        try:
            return super().__iter__()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _with_original_errors(batches: Iterator) -> Iterator:
    """Yields the batches. An error of a worker that a user can fix is raised with the message that it had in the worker."""
    try:
        yield from batches
    except (ValueError, OSError) as error:
        message = _message_in_worker(error)
        if message is None:
            raise
        raise type(error)(message) from error


def _message_in_worker(error: Exception) -> str | None:
    """Returns the message that an error of a worker had there, without the traceback that torch puts in front of it.

    torch's text begins with "Caught ImageError in DataLoader worker process 0" and ends as Python prints a traceback, with
    "utils.images.ImageError: message". None: the error was raised in this process.
    """
    if not str(error).startswith("Caught "):
        return None
    name = rf"^(?:[\w.]+\.)?{type(error).__name__}: "
    return re.split(name, str(error), flags=re.MULTILINE)[-1].rstrip("\n")


def build_loader(
    dataset: DetectionDataset, sampler: Sampler, workers: int, pin_memory: bool = False, keeps: bool = False
) -> Loader[Sampler]:
    """Returns a loader of the sampler's batches, in its order, with `workers` processes (0: in this process).

    `keeps`: all iterations have the same batches, which stay in memory after the first one.
    """
    if workers and not has_shared_memory():
        raise ValueError(f"workers={workers}: they need shared memory, and /dev/shm cannot be written: write workers=0")
    loader: Loader = Loader(
        dataset,
        batch_sampler=sampler,
        num_workers=workers,
        collate_fn=collate,
        pin_memory=pin_memory,
        persistent_workers=workers > 0 and not keeps,
        worker_init_fn=init_worker,
    )
    loader.keeps = keeps
    return loader
