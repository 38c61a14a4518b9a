"""The processes of a run: how they start and what they exchange. One process needs no setup."""

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from utils.signals import StopSignal, end_at_once

T = TypeVar("T")


class RemoteError(RuntimeError):
    """Another rank failed and reports the cause. This rank ends without a message."""


class RankMismatchError(ValueError):
    """The ranks were started with different data, constants or code. The message names what differs."""


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
    adopted: bool = False  # an engine started the process group, and ends it
    all_gpus: bool = False  # one process uses all GPUs through nn.DataParallel

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which prints and writes."""
        return self.rank == 0

    def log(self, text: str) -> None:
        """Prints a text on rank 0, unless it is empty."""
        if text and self.is_main:
            print(text)

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
        result: list[Any] = [None]
        error = None
        if self.rank == source:
            try:
                result = [work()]
            except (Exception, SystemExit) as raised:
                error = raised
        failed = self.gather(error is not None)
        if error is not None:
            raise error
        if any(failed):
            raise RemoteError(f"rank {failed.index(True)} failed")
        if self.world_size > 1:
            dist.broadcast_object_list(result, source, group)
        return result[0]

    def check_same(self, facts: Mapping[str, object]) -> None:
        """Raises RankMismatchError, on all ranks, that names every fact whose value differs from that on rank 0."""
        (host, first), *others = self.gather((socket.gethostname(), dict(facts)))
        lines = [
            f"{name}: {other.get(name)} on rank {rank} ({other_host}), {first.get(name)} on rank 0 ({host})"
            for rank, (other_host, other) in enumerate(others, 1)
            for name in first | other
            if other.get(name) != first.get(name)
        ]
        if lines:
            advice = "the processes were started differently; use the same code, constants and data everywhere"
            raise RankMismatchError("\n  ".join([advice, *lines]))

    @torch.no_grad()
    def broadcast_model(self, model: nn.Module) -> None:
        """Gives all ranks the weights and buffers of rank 0."""
        if self.world_size > 1:
            for tensor in model.state_dict().values():
                dist.broadcast(tensor, 0)

    def stop(self) -> None:
        """Leaves the process group. If an engine started it, only the group of this node is left."""
        if self.world_size > 1:
            # Time for gloo's threads to drop the last tensors; torch < 2.8 could wait for them forever (pytorch#154976).
            time.sleep(0.1)
            dist.destroy_process_group(self.node_group if self.adopted else None)


def start(device: str = "auto", timeout_minutes: float = 30) -> Ranks:
    """Joins the processes that torchrun started (NCCL on GPUs, gloo on CPUs), or sets up a single process.

    If an engine such as Ray Train has started the process group already, that one is used, with its own time-out. In a group
    of torchrun, a rank that waits longer than `timeout_minutes` for the others gives up. `device`: see `choose_device`;
    "cuda:all" makes a single process use all GPUs.
    """
    running = dist.is_initialized()
    world_size = dist.get_world_size() if running else int(os.environ.get("WORLD_SIZE", 1))
    if world_size > 1 and (device.startswith("cuda:") or device.isdecimal()):
        raise ValueError(f"device={device} is for one process without torchrun; under torchrun leave device=auto")
    if world_size > 1 and running:
        return adopt(device)
    all_gpus = device == "cuda:all"
    chosen = choose_device("cuda" if all_gpus else device, int(os.environ.get("LOCAL_RANK", 0)))
    if world_size == 1:
        if chosen.type == "cuda":
            torch.cuda.set_device(chosen)  # CUDA graphs and pinned memory use the current GPU
        return Ranks(device=chosen, all_gpus=all_gpus)

    return join(chosen, timedelta(minutes=timeout_minutes))


def choose_device(device: str | int = "auto", local_rank: int = 0) -> torch.device:
    """The device with this name. `auto`: CUDA, then MPS, then CPU. A number is a GPU: 0 is cuda:0.

    Raises ValueError with the fix if the device does not exist."""
    device = f"cuda:{device}" if str(device).isdecimal() else str(device).lower()
    count = {"cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available()), "cpu": 1}
    if device == "auto":
        device = next(name for name in count if count[name])
    name, colon, index = device.partition(":")
    if name not in count or (colon and not (index.isascii() and index.isdecimal())):
        hint = "did you mean device=cuda? " if name in ("gpu", "nvidia") else ""
        fix = "Choose one of: auto, cpu, mps, cuda, cuda:1; torchrun uses several GPUs"
        raise ValueError(f"device={device}: {hint}{fix}")
    if int(index or 0) >= count[name]:
        found = f"torch {torch.__version__} finds {count[name]} {name} devices (the first is {name}:0)"
        raise ValueError(f"device={device}, but {found}; use device=auto, or install a torch built for your GPU")
    return torch.device("cuda", local_rank % count["cuda"]) if device == "cuda" else torch.device(device)


def join(device: torch.device, timeout: timedelta) -> Ranks:
    """Joins the processes that torchrun started: NCCL between GPUs, gloo between CPUs. `device`: of this process."""
    threading.Thread(target=_end_with_torchrun, daemon=True).start()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    store, rank, world_size = next(dist.rendezvous("env://", timeout=timeout))
    store = dist.PrefixStore(_agree_on_prefix(store, rank, world_size, timeout), store)
    dist.init_process_group(backend_of(device), store=store, rank=rank, world_size=world_size, timeout=timeout)
    return _with_node(Ranks(rank, world_size, device), timeout)


def adopt(device: str) -> Ranks:
    """Returns the ranks of the process group that an engine has started in this process. `device`: see `choose_device`.

    Raises ValueError with the fix if the group cannot exchange tensors of the CPU and of the device.
    """
    kind, backends = choose_device(device).type, dist.get_backend_config()  # such as cpu:gloo,cuda:nccl
    if not all(f"{name}:" in backends for name in ("cpu", kind)):
        best = "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo"
        needed = (
            f'it needs backend="{best}" (in Ray Train: torch_config=TorchConfig(backend="{best}")), or use device=cpu'
        )
        raise ValueError(f"the process group that is already running has backend={backends}; on {kind} {needed}")
    ranks = _with_node(Ranks(dist.get_rank(), dist.get_world_size(), adopted=True))
    chosen = choose_device(device, ranks.node_ranks.index(ranks.rank))
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    return replace(ranks, device=chosen)


def _with_node(ranks: Ranks, timeout: timedelta | None = None) -> Ranks:
    """Returns `ranks` with the ranks of this node and their process group, which all ranks create together."""
    places = ranks.gather(os.environ.get("GROUP_RANK", socket.gethostname()))  # torchrun: one group rank per node
    nodes = [tuple(r for r in range(ranks.world_size) if places[r] == place) for place in dict.fromkeys(places)]
    group, _ = dist.new_subgroups_by_enumeration([list(node) for node in nodes], timeout=timeout)
    return replace(
        ranks, node_ranks=next(node for node in nodes if ranks.rank in node), node_group=cast(dist.ProcessGroup, group)
    )


def backend_of(device: torch.device) -> str:
    """Returns the backend of the processes of a node: NCCL needs a GPU for each of them."""
    enough = device.type == "cuda" and torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    return "cpu:gloo,cuda:nccl" if enough else "gloo"


def _end_with_torchrun() -> None:
    """Ends this process soon after its torchrun was killed: it would wait for a dead rendezvous, or for other ranks."""
    while not StopSignal.orphaned():
        time.sleep(1)
    end_at_once("torchrun has ended without its processes", 1)


def _agree_on_prefix(store: dist.Store, rank: int, world_size: int, timeout: timedelta) -> str:
    """A prefix for the keys of this start in the store, which all ranks share and no earlier start used.

    torchrun gives the same store to every restart (pytorch#135712), with the addresses of processes that are dead. Every
    rank asks rank 0 with its random token, so that it cannot mistake an answer to a dead rank for its own.
    """
    token, end, missing = secrets.token_hex(8), time.monotonic() + timeout.total_seconds(), set(range(1, world_size))
    if rank:
        store.set(f"ask/{rank}", token)
        prefix = store.get(f"answer/{token}").decode()
        store.set(f"{prefix}/{rank}", "received")
        return prefix
    while missing:
        for other in sorted(missing):
            if store.check([f"ask/{other}"]):  # perhaps the token of a dead rank: answer every one
                store.set(f"answer/{store.get(f'ask/{other}').decode()}", token)
            if store.check([f"{token}/{other}"]):
                missing.discard(other)
        if time.monotonic() > end:
            raise TimeoutError(f"ranks {sorted(missing)} did not start within timeout_minutes=")
        time.sleep(0.01)
    return token
