"""What several processes, CUDA graphs or torch.compile need: batch norms over all ranks, joining, copying files, faster steps."""

import gc
import inspect
import os
import secrets
import socket
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from utils.checkpoint import atomic_write
from utils.config import ConfigError
from utils.distributed import Ranks, StopSignal, end_at_once

CHUNK = 64 * 2**20  # bytes per broadcast of a file


class RankMismatchError(ValueError):
    """The ranks were started with different data, constants or code. The message names what differs."""


class _Normalize(torch.autograd.Function):
    """Batch normalization over all ranks: x [B, C, H, W] -> (x - mean) / sqrt(variance + eps), mean, biased variance, count.

    The second moments are combined in float64, so that their difference keeps its digits.
    """

    @staticmethod
    def forward(ctx, x: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        here = x.numel() // x.shape[1]
        total = x.sum((0, 2, 3)).double()
        mean = total / max(here, 1)
        squares = (x - mean.to(x.dtype)[:, None, None]).square().sum((0, 2, 3)).double() + here * mean.square()
        sums = torch.cat([total, squares, total.new_tensor([here])])
        dist.all_reduce(sums)
        count = sums[-1]
        mean, squares = (sums[:-1] / count).chunk(2)
        variance = (squares - mean.square()).clamp(min=0)
        mean, variance, count = (v.to(x.dtype) for v in (mean, variance, count))
        scale = torch.rsqrt(variance + eps)
        y = (x - mean[:, None, None]) * scale[:, None, None]
        ctx.save_for_backward(y, scale, count)
        ctx.mark_non_differentiable(mean, variance, count)
        return y, mean, variance, count

    @staticmethod
    def backward(ctx, gradient: Tensor, *_) -> tuple[Tensor, None]:
        """dx = (dy - mean(dy) - y * mean(dy * y)) / sqrt(variance + eps), means over all ranks (Ioffe and Szegedy 2015, 3)."""
        y, scale, count = ctx.saved_tensors
        sums = torch.cat([gradient.sum((0, 2, 3)), (gradient * y).sum((0, 2, 3))])
        dist.all_reduce(sums)
        shift, slope = (sums / count).chunk(2)
        return (gradient - shift[:, None, None] - y * slope[:, None, None]) * scale[:, None, None], None


class SyncBatchNorm2d(nn.BatchNorm2d):
    """BatchNorm2d for CPUs that uses the statistics of all ranks in training. In evaluation mode it is BatchNorm2d.

    nn.SyncBatchNorm works on GPUs only.
    """

    def forward(self, x: Tensor) -> Tensor:
        """x [B, C, H, W] -> the same shape. B may be 0 on this rank if another rank has an image."""
        if not self.training:
            return super().forward(x)
        wide = x if x.dtype == torch.float64 else x.float()
        y, mean, variance, count = _Normalize.apply(wide, self.eps)
        with torch.no_grad():
            self.num_batches_tracked += 1
            unbiased = variance * (count / (count - 1).clamp(min=1))
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
            self.running_var.lerp_(unbiased.to(self.running_var.dtype), self.momentum)
        return (y * self.weight[:, None, None] + self.bias[:, None, None]).to(x.dtype)


def convert_sync_bn(model: nn.Module) -> nn.Module:
    """Makes the batch norms of `model` use the statistics of all ranks, in place. Names and tensors stay the same."""
    if next(model.parameters()).device.type == "cuda":
        return nn.SyncBatchNorm.convert_sync_batchnorm(model)
    for module in model.modules():
        if type(module) is nn.BatchNorm2d:
            module.__class__ = SyncBatchNorm2d
    return model


def wrap(model: nn.Module, device: torch.device, sync_bn: bool) -> nn.Module:
    """Returns the model inside of DistributedDataParallel."""
    if sync_bn:
        model = convert_sync_bn(model)
    ddp, devices = nn.parallel.DistributedDataParallel, [device] if device.type == "cuda" else None
    names = ("forward_sync_buffers", "broadcast_buffers")  # PyTorch renamed the option
    name = next(name for name in names if name in inspect.signature(ddp).parameters)
    return ddp(model, device_ids=devices, gradient_as_bucket_view=True, **{name: False})


class Graphed(nn.Module):
    """A model on a GPU whose training passes are replayed from CUDA graphs: Python need not launch each operation.

    Outputs and gradients are those of the model. In evaluation mode, and for images of another shape than `shape`, the model
    runs without graphs. Each backward pass overwrites the gradients of the one before, so they cannot be accumulated.
    """

    def __init__(self, model: nn.Module, shape: tuple[int, ...], autocast: Callable):
        super().__init__()
        self.model, self.shape = model.train(), shape
        before = [buffer.clone() for buffer in model.buffers()]
        images = torch.zeros(shape, dtype=torch.uint8, device=next(model.parameters()).device)
        try:
            with autocast(cache=False):  # so that casts of the weights become part of the graph
                passes = torch.cuda.make_graphed_callables(nn.Sequential(model), (images,), allow_unused_input=True)
        finally:
            for buffer, value in zip(model.buffers(), before, strict=True):
                buffer.copy_(value)  # capturing runs the model, which changes the statistics of batch norms
        self.passes = passes

    def forward(self, images: Tensor):
        """Images [B, 3, H, W] -> predictions of the model."""
        replay = self.training and tuple(images.shape) == self.shape
        return self.passes(images) if replay else self.model(images)


def graphed(model: nn.Module, shape: tuple[int, ...], autocast: Callable, log: Callable[[str], None]) -> nn.Module:
    """Returns the model as `Graphed`; where CUDA graphs do not work, logs why and returns the model itself."""
    # A harmless warning: the passes are captured on another stream than the optimizer's, and PyTorch synchronizes the two.
    warnings.filterwarnings("ignore", message="The AccumulateGrad node's stream does not match")
    gc.collect()  # frees the graphs of the previous phase and the activations that they hold
    torch.backends.cudnn.allow_tf32 = True  # as in `fit_one_epoch`: the kernels are chosen at the capture
    stream = torch.cuda.current_stream()
    try:
        return Graphed(model, shape, autocast)
    except RuntimeError as error:
        log(f"CUDA graphs are not used, training continues without them: {str(error).strip().splitlines()[0]}")
    torch.cuda.set_stream(stream)  # a capture that fails leaves its own stream behind
    gc.collect()
    torch.cuda.empty_cache()  # not within `except`, whose traceback still holds the activations
    return model


def compile_forward(model: nn.Module, sizes_vary: bool, ranks: Ranks, sync_bn: bool = True) -> str:
    """Makes torch.compile compile the model at its first call, in place -> a line to print: whether it will.

    The tensors keep their names, so that checkpoints are the same. `sizes_vary`: compile once for all input sizes instead
    of once for each. If torch.compile does not work here, the model stays as it is. Raises ConfigError where it would only
    seem to work.
    """
    if ranks.all_gpus:  # the replicas of DataParallel would compute with the weights of the first GPU
        raise ConfigError("compile=true does not work with device=cuda:all: use torchrun, or compile=false")
    device = next(model.parameters()).device
    if device.type == "cuda" and ranks.world_size > 1 and sync_bn:  # each batch norm interrupts the compiled graph
        raise ConfigError(
            "compile=true does not work with sync_bn=true on several GPUs: set sync_bn=false or compile=false"
        )
    if device.type == "cpu" and ranks.world_size > 1:  # SyncBatchNorm2d was never tested with it
        return "compile=true is NOT active: on CPUs it works in a single process only"
    try:
        torch.compile(nn.functional.silu)(torch.zeros(8, device=device))
    except Exception as error:  # no C++ compiler, no Triton or a Python that is too new: each raises another error
        why = str(error).strip().splitlines()[0]
        return f"compile=true is NOT active, training continues without it: {type(error).__name__}: {why}"
    model.compile(dynamic=sizes_vary)
    return "compile    active: the first step of each phase takes some minutes, later steps are faster"


def compile_criterion(criterion: Callable) -> Callable:
    """Returns the loss function, which torch.compile compiles once for all numbers of boxes per image. Single process only."""
    compiled = torch.compile(criterion.__call__)  # epochs share what was compiled: it belongs to the code of the method

    def padded(
        predictions: Sequence[Tensor], boxes: Tensor, labels: Tensor, size: tuple[int, int]
    ) -> dict[str, Tensor]:
        missing = max(0, 2 - boxes.shape[1])  # 0 and 1 would be compiled apart; a row of label -1 changes nothing
        boxes, labels = F.pad(boxes, (0, 0, 0, missing)), F.pad(labels, (0, missing), value=-1)
        torch._dynamo.maybe_mark_dynamic(boxes, 1)
        torch._dynamo.maybe_mark_dynamic(labels, 1)
        return compiled(predictions, boxes, labels, size)

    return padded


def join(device: torch.device, timeout: timedelta) -> Ranks:
    """Joins the processes that torchrun started: NCCL between GPUs, gloo between CPUs. `device`: that of this process."""
    threading.Thread(target=_end_with_torchrun, daemon=True).start()
    backend = "gloo"  # also for ranks that share a GPU, which NCCL refuses
    if device.type == "cuda":
        torch.cuda.set_device(device)
        if torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", 1)):
            backend = "cpu:gloo,cuda:nccl"
    store, rank, world_size = next(dist.rendezvous("env://", timeout=timeout))
    store = dist.PrefixStore(_agree_on_prefix(store, rank, world_size, timeout), store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timeout)
    ranks = Ranks(rank, world_size, device)
    places = ranks.gather(os.environ.get("GROUP_RANK", socket.gethostname()))  # torchrun: one group rank per node
    nodes = [tuple(r for r in range(world_size) if places[r] == place) for place in dict.fromkeys(places)]
    group, _ = dist.new_subgroups_by_enumeration([list(node) for node in nodes], timeout=timeout)
    return replace(ranks, node_ranks=next(node for node in nodes if rank in node), node_group=group)


def _end_with_torchrun() -> None:
    """Ends this process soon after its torchrun was killed: it would wait for a dead rendezvous, or for other ranks."""
    while not StopSignal.orphaned():
        time.sleep(1)
    end_at_once("torchrun has ended without its processes", 1)


def _agree_on_prefix(store: dist.Store, rank: int, world_size: int, timeout: timedelta) -> str:
    """A prefix for the keys of this start in the store, which all ranks share and no earlier start used.

    torchrun gives the same store to every restart (pytorch#135712), with the addresses of processes that are dead. Every
    rank asks rank 0 with a random token of its own, so that it cannot mistake an answer to a dead rank for its own.
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


def copy_files(ranks: Ranks, folder: Path, names: Sequence[str], source: int, missing: bool) -> None:
    """Copies files of rank `source` to the ranks where they are `missing`, each completely or not at all, in their order."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ranks.gather([name for name in names if (folder / name).exists()])[source]:
        broadcast_file(ranks, folder / name, source, missing)
    ranks.gather(None)  # all files are written before any process reads them


def broadcast_file(ranks: Ranks, path: str | os.PathLike, source: int, wanted: bool) -> None:
    """Copies a file of rank `source` to `path` on the ranks where `wanted` is true, completely or not at all."""
    size = ranks.gather(os.path.getsize(path) if ranks.rank == source else 0)[source]
    data = torch.from_file(str(path), size=size, dtype=torch.uint8) if ranks.rank == source else None
    with atomic_write(path) if wanted else open(os.devnull, "wb") as file:
        for start in range(0, size, CHUNK):
            length = min(CHUNK, size - start)
            chunk = torch.empty(length, dtype=torch.uint8) if data is None else data[start : start + length]
            dist.broadcast(chunk, source)
            file.write(chunk.numpy())


def check_same(ranks: Ranks, facts: Mapping[str, object]) -> None:
    """Raises RankMismatchError, on all ranks, that names every fact whose value differs from that on rank 0."""
    (host, first), *others = ranks.gather((socket.gethostname(), dict(facts)))
    lines = [
        f"{name}: {other.get(name)} on rank {rank} ({other_host}), {first.get(name)} on rank 0 ({host})"
        for rank, (other_host, other) in enumerate(others, 1)
        for name in first | other
        if other.get(name) != first.get(name)
    ]
    if lines:
        advice = "the processes were started differently; use the same code, constants and data everywhere"
        raise RankMismatchError("\n  ".join([advice, *lines]))
