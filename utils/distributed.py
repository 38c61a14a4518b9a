"""Processes: who am I, on which device, and what do the others say. One process needs no setting at all."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import cv2
import torch
import torch.distributed as dist
from torch import Tensor, nn

from utils.sync_bn import synchronise


@dataclass(frozen=True)
class Ranks:
    """This process among all. Every method is a collective: all processes call it in the same order."""

    rank: int = 0
    world: int = 1
    device: torch.device = torch.device("cpu")

    @property
    def is_main(self) -> bool:
        """Whether this process prints and writes."""
        return self.rank == 0

    def sum(self, x: Tensor) -> Tensor:
        """The sum over all processes; `x` itself where there is one."""
        if self.world > 1:
            x = x.clone()
            dist.all_reduce(x)
        return x

    def share(self, count: Tensor) -> Tensor:
        """A count of this process -> the count of all, at least 1, divided by the number of processes."""
        return self.sum(count.detach()).clamp(min=1) / self.world

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """The main process does what is inside before the others: what it writes, they find."""
        if self.world > 1 and not self.is_main:
            dist.barrier()
        yield
        if self.world > 1 and self.is_main:
            dist.barrier()

    def gather(self, value: object) -> list:
        """One plain value a process -> the values of all, in the order of the ranks."""
        if self.world == 1:
            return [value]
        values: list = [None] * self.world
        dist.all_gather_object(values, value)
        return values

    def wrap(self, model: nn.Module, sync_bn: bool = True) -> nn.Module:
        """The model as the training loop calls it: itself, or inside DistributedDataParallel."""
        if self.world == 1:
            return model
        if sync_bn:
            model = synchronise(model)
        ids = [self.device] if self.device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(
            model, device_ids=ids, broadcast_buffers=False, gradient_as_bucket_view=True
        )

    def stop(self) -> None:
        """Leaves the group of processes."""
        if self.world > 1:
            dist.destroy_process_group()


def start(device: str = "auto", timeout_minutes: float = 30) -> Ranks:
    """Joins the processes that torchrun started (NCCL on GPUs, gloo on CPUs), or answers for one process."""
    world, local = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("LOCAL_RANK", 0))
    where = choose_device(device, local)
    if world == 1:
        return Ranks(device=where)
    if where.type == "cuda":
        torch.cuda.set_device(where)
    backend = "nccl" if where.type == "cuda" and torch.cuda.device_count() >= world else "gloo"
    dist.init_process_group(backend, timeout=timedelta(minutes=timeout_minutes))
    return Ranks(dist.get_rank(), dist.get_world_size(), where)


def choose_device(device: str = "auto", local_rank: int = 0) -> torch.device:
    """`auto`: CUDA, then MPS, then CPU; otherwise what the name says, with a cure where it is not there."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        chosen = torch.device(device)
    except RuntimeError:
        raise SystemExit(f"device={device} is no device; use auto, cpu, mps, cuda or cuda:1") from None
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise SystemExit(f"device={device}, but torch sees no GPU. {gpu_advice() or 'Use device=auto or device=cpu.'}")
    if chosen.type not in ("cpu", "cuda", "mps"):
        raise SystemExit(f"device={device} is not supported; use auto, cpu, mps, cuda or cuda:1")
    if chosen.type == "mps" and not torch.backends.mps.is_available():
        raise SystemExit(f"device={device}, but torch sees no GPU of Apple; use device=auto or device=cpu")
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise SystemExit(f"device={device}, but there are {torch.cuda.device_count()} GPUs, counted from 0")
    if chosen.type == "cuda" and chosen.index is None:
        chosen = torch.device("cuda", local_rank % torch.cuda.device_count())
    return chosen


def share_cores(device: torch.device, workers: int) -> None:
    """Leaves the cores that the workers need to them: on a CPU the network takes the others. OpenCV stays in one thread."""
    cv2.setNumThreads(0)
    if device.type == "cpu" and "OMP_NUM_THREADS" not in os.environ:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        torch.set_num_threads(max(1, cores - workers))


def gpu_advice(command: Sequence[str] = ()) -> str | None:
    """One line with its cure where GPUs stand idle: torch is the CPU build, or one process has several GPUs."""
    if not torch.cuda.is_available():
        if os.path.exists("/proc/driver/nvidia/version") or os.path.exists("/dev/nvidia0"):
            build = "the CPU build" if torch.version.cuda is None else f"built for CUDA {torch.version.cuda}"
            return (
                f"There is an NVIDIA GPU, but torch {torch.__version__} ({build}) cannot use it: install torch for it."
            )
        return None
    count = torch.cuda.device_count()
    if count > 1 and "WORLD_SIZE" not in os.environ:
        return (
            f"{count} GPUs, one in use: torchrun --nproc_per_node={count} {' '.join(command) or 'train.py'} uses all."
        )
    return None
