"""Processes: who am I, on which device, and what do the others say. One process needs no setting at all."""

import inspect
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TypeVar

import cv2
import torch
import torch.distributed as dist
from torch import Tensor, nn

from utils.sync_bn import synchronise

T = TypeVar("T")
CHUNK = 64 * 2**20  # bytes of a file that are sent at once


class Elsewhere(RuntimeError):
    """Another process has failed and says why; this one only ends."""


class Disagreement(ValueError):
    """The processes were not started with the same data, constants or code; the message names what differs."""


@dataclass(frozen=True)
class Ranks:
    """This process among all. Every method is a collective: all processes call it in the same order."""

    rank: int = 0
    world: int = 1
    device: torch.device = torch.device("cpu")
    machine: tuple[int, ...] = (0,)  # the ranks on this machine
    group: dist.ProcessGroup | None = None  # their group
    all_gpus: bool = False  # of this one process: nn.DataParallel

    @property
    def is_main(self) -> bool:
        """Whether this process prints and writes."""
        return self.rank == 0

    @property
    def is_first_here(self) -> bool:
        """Whether this process is the first of its machine, which reads the data and keeps checkpoints."""
        return self.rank == self.machine[0]

    def sum(self, x: Tensor) -> Tensor:
        """The sum over all processes; `x` itself where there is one."""
        if self.world > 1:
            x = x.clone()
            dist.all_reduce(x)
        return x

    def share(self, count: Tensor) -> Tensor:
        """A count of this process -> the count of all, at least 1, divided by the number of processes."""
        return self.sum(count.detach()).clamp(min=1) / self.world

    def any(self, *wishes: bool) -> list[bool]:
        """Of each wish, whether any process has it. Small: it may be asked at every step that logs."""
        return [count > 0 for count in self.sum(torch.tensor(wishes, dtype=torch.int32)).tolist()]

    def gather(self, value: T) -> list[T]:
        """One plain value a process -> the values of all, in the order of the ranks."""
        if self.world == 1:
            return [value]
        values: list = [None] * self.world
        dist.all_gather_object(values, value)
        return values

    def once(self, work: Callable[[], T]) -> T:
        """The answer of `work`, which rank 0 does, for all. Where it fails, all others raise Elsewhere."""
        return self._once(work, 0, None)

    def once_a_machine(self, work: Callable[[], T]) -> T:
        """The answer of `work`, which the first process of each machine does, for the others there.

        Where it fails, that process raises, and all others raise Elsewhere instead of waiting for what will not come.
        """
        return self._once(work, self.machine[0], self.group)

    def _once(self, work: Callable[[], T], source: int, group: dist.ProcessGroup | None) -> T:
        answer, error = None, None
        if self.rank == source:
            try:
                answer = work()
            except (Exception, SystemExit) as raised:
                error = raised
        failed = self.gather(error is not None)
        if error is not None:
            raise error
        if any(failed):
            raise Elsewhere(f"rank {failed.index(True)} has failed")
        if self.world > 1:
            box = [answer]
            dist.broadcast_object_list(box, source, group)
            (answer,) = box
        return answer

    def agree(self, facts: Mapping[str, object]) -> None:
        """Raises Disagreement, on all processes, that names every fact of which a process has another value than rank 0."""
        everyone = self.gather((socket.gethostname(), dict(facts)))
        (host, first), different = everyone[0], []
        for rank, (place, theirs) in enumerate(everyone):
            for name in first:
                if theirs.get(name) != first[name]:
                    different.append(
                        f"{name}: {theirs.get(name)} on rank {rank} ({place}), {first[name]} on rank 0 ({host})"
                    )
        if different:
            raise Disagreement(
                "the processes were not started alike; use the same code, constants and data everywhere\n  "
                + "\n  ".join(different)
            )

    def hand_out(self, path: str | os.PathLike, source: int, wanted: bool) -> None:
        """Copies a file of process `source` to `path` in the processes that want it; written whole or not at all."""
        data = (
            torch.from_file(str(path), size=os.path.getsize(path), dtype=torch.uint8) if self.rank == source else None
        )
        (length,) = [size for size in self.gather(None if data is None else len(data)) if size is not None]
        folder, name = os.path.split(path)
        temporary = os.path.join(folder, f".{name}.{socket.gethostname()}-{os.getpid()}.tmp")
        with open(temporary if wanted else os.devnull, "wb") as file:
            for start in range(0, length, CHUNK):
                chunk = (
                    torch.empty(min(CHUNK, length - start), dtype=torch.uint8)
                    if data is None
                    else data[start : start + CHUNK]
                )
                dist.broadcast(chunk, source)
                file.write(chunk.numpy())
            file.flush()
            if wanted:
                os.fsync(file.fileno())
        if wanted:
            os.replace(temporary, path)

    @torch.no_grad()
    def copy_from_main(self, model: nn.Module) -> None:
        """The weights and buffers of rank 0 for all."""
        if self.world > 1:
            for tensor in model.state_dict().values():
                dist.broadcast(tensor, 0)

    @torch.no_grad()
    def equalise(self, tensors: Sequence[Tensor]) -> None:
        """Sets floating-point tensors to their mean over the processes: running statistics that are not shared."""
        if self.world > 1:
            flat = torch.cat([t.flatten() for t in tensors])
            mean = self.sum(flat) / self.world
            for t, part in zip(tensors, mean.split([t.numel() for t in tensors]), strict=True):
                t.copy_(part.view_as(t))

    def wrap(self, model: nn.Module, sync_bn: bool = True) -> nn.Module:
        """The model as the training loop calls it: itself, or inside DistributedDataParallel or DataParallel."""
        if self.world == 1:
            return nn.DataParallel(model) if self.all_gpus else model
        if sync_bn:
            model = synchronise(model)
        ddp = nn.parallel.DistributedDataParallel
        options = {"device_ids": [self.device] if self.device.type == "cuda" else None, "gradient_as_bucket_view": True}
        known = inspect.signature(ddp).parameters
        options["forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"] = False
        return ddp(model, **options)

    def stop(self) -> None:
        """Leaves the group of processes.

        Before, gloo's threads get time to drop the last tensors: torch < 2.8 could wait for that forever (pytorch#154976).
        """
        if self.world > 1:
            time.sleep(0.1)
            dist.destroy_process_group()


def start(device: str = "auto", timeout_minutes: float = 30) -> Ranks:
    """Joins the processes that torchrun started (NCCL on GPUs, gloo on CPUs), or answers for one process.

    A process that waits longer than `timeout_minutes` for the others gives up. `device`: see `choose_device`; "cuda:all"
    puts all GPUs to the use of a single process.
    """
    world, local = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("LOCAL_RANK", 0))
    all_gpus = device == "cuda:all"
    if all_gpus and world > 1:
        raise SystemExit("device=cuda:all is for one process without torchrun; under torchrun leave device=auto")
    where = choose_device("cuda" if all_gpus else device, local)
    if world == 1:
        return Ranks(device=where, all_gpus=all_gpus)
    backend = "gloo"  # also where processes share a GPU, which NCCL refuses
    if where.type == "cuda":
        torch.cuda.set_device(where)
        if torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", 1)):
            backend = "cpu:gloo,cuda:nccl"
    timeout = timedelta(minutes=timeout_minutes)
    store, rank, world = next(dist.rendezvous("env://", timeout=timeout))
    store = dist.PrefixStore(_name_of_this_start(store, rank, world, timeout), store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=timeout)
    ranks = Ranks(dist.get_rank(), dist.get_world_size(), where)
    places = ranks.gather(os.environ.get("GROUP_RANK", socket.gethostname()))  # torchrun: one number a machine
    machines = [tuple(r for r in range(world) if places[r] == place) for place in dict.fromkeys(places)]
    group, _ = dist.new_subgroups_by_enumeration([list(m) for m in machines], timeout=timeout)
    return replace(ranks, machine=next(m for m in machines if ranks.rank in m), group=group)


def _name_of_this_start(store: dist.Store, rank: int, world: int, timeout: timedelta) -> str:
    """A name that all processes of this start share, and none of an earlier one knew.

    torchrun hands the same store to all starts (pytorch#135712), with the addresses of processes that are dead. Each process
    asks rank 0 with a word of its own, so that no answer to a dead one can be taken for its own.
    """
    word, end, missing = secrets.token_hex(8), time.monotonic() + timeout.total_seconds(), set(range(1, world))
    if rank:
        store.set(f"ask/{rank}", word)
        name = store.get(f"answer/{word}").decode()
        store.set(f"{name}/{rank}", "heard")
        return name
    while missing:
        for other in sorted(missing):
            if store.check([f"ask/{other}"]):  # perhaps by a dead one
                store.set(f"answer/{store.get(f'ask/{other}').decode()}", word)
            if store.check([f"{word}/{other}"]):
                missing.discard(other)
        if time.monotonic() > end:
            raise TimeoutError(f"ranks {sorted(missing)} did not start within timeout_minutes=")
        time.sleep(0.01)
    return word


def lost_the_others(error: BaseException) -> bool:
    """Whether a collective failed: another process has ended, its machine cannot be reached, or it let us wait too long."""
    return dist.is_available() and (
        isinstance(error, dist.DistError) or isinstance(error, RuntimeError) and "gloo" in str(error).lower()
    )


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


def share_cores(device: torch.device, workers: int, processes: int = 1) -> None:
    """Leaves the cores that the workers need to them: on a CPU the network takes the others, divided by the `processes`
    of this machine. OpenCV stays in one thread."""
    cv2.setNumThreads(0)
    if device.type == "cpu" and "OMP_NUM_THREADS" not in os.environ:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        torch.set_num_threads(max(1, cores // processes - workers))


def gpu_advice(command: Sequence[str] = (), all_gpus: bool = False) -> str | None:
    """One line with its cure where GPUs stand idle: torch is the CPU build, or one process has several GPUs and does not use
    them (`all_gpus`: it does, through DataParallel, which is slow)."""
    if not torch.cuda.is_available():
        if os.path.exists("/proc/driver/nvidia/version") or os.path.exists("/dev/nvidia0"):
            build = "the CPU build" if torch.version.cuda is None else f"built for CUDA {torch.version.cuda}"
            return (
                f"There is an NVIDIA GPU, but torch {torch.__version__} ({build}) cannot use it: install torch for it."
            )
        return None
    count = torch.cuda.device_count()
    if count > 1 and "WORLD_SIZE" not in os.environ:
        words = [word for word in command or ["train.py"] if not word.startswith("device=")]
        how = f"torchrun --standalone --nproc_per_node={count} {' '.join(words)}"
        return f"{count} GPUs in one process (DataParallel): {how} is faster." if all_gpus else (
            f"{count} GPUs, one in use: {how} uses all; device=cuda:all does so, more slowly, without torchrun."
        )  # fmt: skip
    return None
