"""The processes of a run: how they start, what they exchange, and how they stop on request. One process needs no setup."""

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import cv2
import torch
import torch.distributed as dist
from torch import Tensor, nn

T = TypeVar("T")
MOST_WORKERS = 8  # per process, if chosen: more cores of a GPU are often needed by other programs
PATIENCE = 15.0  # seconds from a signal to the start of the save; batch systems and torchrun kill soon after that
# of train.py, noted before torch is imported
_process, _parent = map(int, os.environ.get("THAW_PROCESS", "0 0").split())
PARENT = _parent if _process == os.getpid() else os.getppid()


class RemoteError(RuntimeError):
    """Another rank failed and reports the cause. This one only ends."""


class Interrupted(Exception):
    """The program was asked to stop. All ranks raise it together, between two steps or at the end of an evaluation."""


@dataclass(frozen=True)
class Ranks:
    """This process (rank) and what it exchanges with the others. Methods are collectives: all ranks call them in one order."""

    rank: int = 0
    world_size: int = 1
    device: torch.device = torch.device("cpu")
    node_ranks: tuple[int, ...] = (0,)  # the ranks on this node
    node_group: dist.ProcessGroup | None = None  # their process group
    all_gpus: bool = False  # one process uses all GPUs through nn.DataParallel

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which prints and writes."""
        return self.rank == 0

    @property
    def is_node_main(self) -> bool:
        """Whether this is the first rank of its node, which reads the data and keeps checkpoints."""
        return self.rank == self.node_ranks[0]

    def sum(self, x: Tensor) -> Tensor:
        """The sum of a tensor over all ranks; `x` itself if there is one rank."""
        if self.world_size > 1:
            x = x.clone()
            dist.all_reduce(x)
        return x

    def normalizer(self, count: Tensor) -> Tensor:
        """Global normalizer for one rank: all-reduced count, clamped to 1, divided by the world size."""
        return self.sum(count.detach()).clamp(min=1) / self.world_size

    def any(self, *flags: bool) -> list[bool]:
        """For each flag, whether it is set on any rank. One small all-reduce, cheap enough for every step that logs."""
        return [count > 0 for count in self.sum(torch.tensor(flags, dtype=torch.int32)).tolist()]

    def gather(self, value: T) -> list[T]:
        """The plain values of all ranks, in the order of the ranks."""
        if self.world_size == 1:
            return [value]
        values: list = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values

    def gather_on_main(self, value: T) -> list[T]:
        """The plain values of all ranks, in the order of the ranks, on rank 0; an empty list on the others."""
        if self.world_size == 1:
            return [value]
        values: list | None = [None] * self.world_size if self.is_main else None
        dist.gather_object(value, values, 0)
        return values or []

    def on_main(self, work: Callable[[], T]) -> T:
        """Runs `work` on rank 0 and returns its result on all ranks. If it fails, the others raise RemoteError."""
        return self._broadcast_result(work, 0, None)

    def once_per_node(self, work: Callable[[], T]) -> T:
        """Runs `work` on the first rank of each node and returns its result on all ranks of the node. Errors: see `on_main`."""
        return self._broadcast_result(work, self.node_ranks[0], self.node_group)

    def _broadcast_result(self, work: Callable[[], T], source: int, group: dist.ProcessGroup | None) -> T:
        result, error = None, None
        if self.rank == source:
            try:
                result = work()
            except (Exception, SystemExit) as raised:
                error = raised
        failed = self.gather(error is not None)
        if error is not None:
            raise error
        if any(failed):
            raise RemoteError(f"rank {failed.index(True)} failed")
        if self.world_size > 1:
            box = [result]
            dist.broadcast_object_list(box, source, group)
            (result,) = box
        return result

    def check_same(self, facts: Mapping[str, object]) -> None:
        """Raises wrap.RankMismatchError, on all ranks, that names every fact whose value differs from that on rank 0."""
        if self.world_size > 1:
            from utils.wrap import check_same

            check_same(self, facts)

    @torch.no_grad()
    def broadcast_model(self, model: nn.Module) -> None:
        """Gives all ranks the weights and buffers of rank 0."""
        if self.world_size > 1:
            for tensor in model.state_dict().values():
                dist.broadcast(tensor, 0)

    def wrap(self, model: nn.Module, sync_bn: bool = True) -> nn.Module:
        """The model as the training loop calls it: unchanged, or inside DistributedDataParallel or DataParallel."""
        from utils.wrap import convert_sync_bn, wrap

        if self.world_size > 1:
            return wrap(model, self.device, sync_bn)
        if self.all_gpus:
            return nn.DataParallel(model)
        if self.device.type == "cpu" and model._compiled_call_impl is None:
            convert_sync_bn(model)  # its statistics are more exact
        return model

    def stop(self) -> None:
        """Leaves the process group."""
        if self.world_size > 1:
            # Time for gloo's threads to drop the last tensors; torch < 2.8 could wait for them forever (pytorch#154976).
            time.sleep(0.1)
            dist.destroy_process_group()


def start(device: str = "auto", timeout_minutes: float = 30) -> Ranks:
    """Joins the processes that torchrun started (NCCL on GPUs, gloo on CPUs), or sets up a single process.

    A rank that waits longer than `timeout_minutes` for the others gives up. `device`: see `choose_device`; "cuda:all"
    makes a single process use all GPUs.
    """
    world_size, local_rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("LOCAL_RANK", 0))
    all_gpus = device == "cuda:all"
    if world_size > 1 and (device.startswith("cuda:") or device.isdecimal()):
        raise SystemExit(f"device={device} is for one process without torchrun; under torchrun leave device=auto")
    chosen = choose_device("cuda" if all_gpus else device, local_rank)
    if world_size == 1:
        if chosen.type == "cuda":
            torch.cuda.set_device(chosen)  # CUDA graphs and pinned memory use the current GPU
        return Ranks(device=chosen, all_gpus=all_gpus)
    from utils.wrap import join

    return join(chosen, timedelta(minutes=timeout_minutes))


def choose_device(device: str | int = "auto", local_rank: int = 0) -> torch.device:
    """The device with this name. `auto`: CUDA, then MPS, then CPU. A number is a GPU: 0 is cuda:0.

    Ends the program with the fix if the device does not exist."""
    device = f"cuda:{device}" if str(device).isdecimal() else str(device)
    count = {"cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available()), "cpu": 1}
    if device == "auto":
        device = next(name for name in count if count[name])
    name, colon, index = device.partition(":")
    if name not in count or (colon and not (index.isascii() and index.isdecimal())):
        raise SystemExit(
            f"device={device} is not supported; use auto, cpu, mps, cuda or cuda:1; torchrun uses several GPUs"
        )
    if int(index or 0) >= count[name]:
        found = f"torch {torch.__version__} finds {count[name]} {name} devices (the first is {name}:0)"
        raise SystemExit(f"device={device}, but {found}; use device=auto, or install a torch built for your GPU")
    return torch.device("cuda", local_rank % count["cuda"]) if device == "cuda" else torch.device(device)


def set_threads(device: torch.device, workers: int, processes: int = 1) -> None:
    """Sets the threads of this process: its cores, minus one if workers load images, of any number; OpenCV gets one thread.

    On a CPU the network takes most of the time: loading an image costs about a twentieth of a step.
    """
    cv2.setNumThreads(0)
    if device.type == "cpu" and "OMP_NUM_THREADS" not in os.environ:  # the user's own number takes precedence
        torch.set_num_threads(max(1, cores_of(processes) - min(workers, 1)))


def choose_workers(
    device: torch.device, processes: int, images: int, image_size: tuple[int, int], folder: str = "/dev/shm"
) -> int:
    """Returns the number of processes that load images for each process of a node, for `workers=none`.

    On a CPU 1, and below 4 cores 0, because a core less for the network costs more than loading does. On a GPU all cores but
    one, at most 8. Never more than the shared memory has room for: `images` of `image_size` are the batches of the node.
    """
    cores = cores_of(processes)
    if device.type == "cpu":
        wanted = 1 if cores >= 4 else 0
    else:
        wanted = max(1, min(MOST_WORKERS, cores - 1))
    if not os.path.isdir(folder):  # not Linux
        return wanted
    return min(wanted, shutil.disk_usage(folder).free // shared_memory(1, images, image_size))


def cores_of(processes: int) -> int:
    """Returns the cores for each of the processes of this node, of those that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // processes)


def shared_memory(workers: int, images: int, image_size: tuple[int, int]) -> int:
    """Returns the bytes of shared memory for three batches (uint8) per worker: two that wait, and one that is in use."""
    return workers * 3 * images * 3 * image_size[0] * image_size[1]


class StopSignal:
    """Context manager in which SIGINT, SIGTERM and SIGHUP only set `received`, so that the step ends and the run is saved.

    SIGHUP (a closed terminal) stays ignored where it is, under nohup. A second signal ends the program at once, except under
    torchrun, which repeats a Ctrl-C of the terminal. After a signal, a thread ends the program with status 1 as soon as
    `patience` seconds pass without a save. A save sets `saving`, and may take as long as it needs.
    """

    def __init__(self, patience: float = PATIENCE):
        self.received = self.saving = False
        self._patience = patience
        self._handlers: dict = {}
        self._ended = threading.Event()

    def __enter__(self) -> "StopSignal":
        if threading.current_thread() is threading.main_thread():  # Python allows signal handlers only there
            numbers = {signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}
            wanted = [n for n in numbers if n.name != "SIGHUP" or signal.getsignal(n) != signal.SIG_IGN]
            self._handlers = {n: signal.signal(n, self._handle) for n in wanted}
        return self

    def __exit__(self, *_) -> None:
        self._ended.set()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    @staticmethod
    def orphaned() -> bool:
        """Whether torchrun was killed and left this process behind, which must not write next to a restarted run."""
        return "TORCHELASTIC_RUN_ID" in os.environ and os.getppid() != PARENT

    def _handle(self, number: int, _) -> None:
        if not self.received:
            self.received = True
            threading.Thread(target=self._give_up, daemon=True).start()
        elif "TORCHELASTIC_RUN_ID" not in os.environ:
            end_at_once("stopped at once", 128 + number)

    def _give_up(self, tick: float = 0.1) -> None:
        waited = 0.0
        while waited < self._patience and not self._ended.wait(tick):
            waited = 0.0 if self.saving else waited + tick
        if not self._ended.is_set():
            end_at_once("stopped: the step did not end in time", 1)


def end_at_once(why: str, status: int) -> None:
    """Ends the process without waiting for anything."""
    with suppress(OSError):  # standard error may be closed
        os.write(2, f"\n{why}; what was saved before remains\n".encode())
    os._exit(status)
