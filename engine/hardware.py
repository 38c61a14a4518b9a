"""Warnings about hardware that a run leaves idle, or that is too small for it."""

import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import nn

from utils.start import install_line
from utils.threads import shared_memory


def gpu_advice(command: Sequence[str], all_gpus: bool = False) -> Iterator[str]:
    """Yields a hint if GPUs are idle: torch cannot use them, or one process uses one of several (`all_gpus`: DataParallel)."""
    count = torch.cuda.device_count()
    if not torch.cuda.is_available():
        if has_nvidia_driver():
            yield f"There is an NVIDIA GPU that torch {torch.__version__} cannot use, {usable_build()} (docs/install.md)"
    elif count > 1 and "WORLD_SIZE" not in os.environ:
        words = [word for word in command if not word.startswith("device=")]
        script = shlex.join(words) if words[0].endswith("train.py") else "train.py ..."  # not those of a notebook
        start = f"torchrun --standalone --nproc_per_node={count} {script}"
        if all_gpus:
            yield f"{count} GPUs in one process (DataParallel): {start} is faster."
        else:
            yield f"{count} GPUs, one in use: {start} uses all; device=cuda:all does too, more slowly, without torchrun."


def disk_warning(folder: Path, model: nn.Module) -> Iterator[str]:
    """Yields a warning if the disk of the run folders has no room for the checkpoints of a run.

    last.pt holds the weights, their moving average and two moments of the optimizer, and is written next to the one before.
    """
    there = next((path for path in (folder.absolute(), *folder.absolute().parents) if path.exists()), None)
    if there is None:  # a drive that is missing; `require_writable` tells
        return
    needed = (2 * 4 + 1) * sum(tensor.nbytes for tensor in model.state_dict().values())
    free = shutil.disk_usage(there).free
    if free < needed:
        fix = "make room, or name a folder on another disk in output="
        yield f"{there} has {free / 1e6:,.0f} MB free, and the checkpoints of this run need {needed / 1e6:,.0f} MB: {fix}"


def has_nvidia_driver() -> bool:
    """Returns whether the driver of an NVIDIA GPU is there, by files on Linux, by its program on Windows."""
    if sys.platform == "win32":
        return shutil.which("nvidia-smi") is not None
    return os.path.exists("/proc/driver/nvidia/version") or os.path.exists("/dev/nvidia0")


def usable_build() -> str:
    """Says why the installed PyTorch may not be able to use an NVIDIA GPU, and how to install one that can."""
    if torch.version.cuda is not None:
        return f"its driver or the GPU is too old for CUDA {torch.version.cuda}: {install_line('cu126')}"
    if Path(sys.prefix).parent.name == "cpu":  # the environment of uv run --project cpu
        return "it is built for CPUs: start without --project cpu"
    return f"it is built for CPUs: {install_line('cu130' if sys.platform == 'win32' else '')}"


def shared_memory_warning(
    workers: int, batch_size: int, image_size: tuple[int, int], folder: str = "/dev/shm"
) -> Iterator[str]:
    """Yields a warning if the batches of the workers (three per worker, uint8) do not fit into the shared memory."""
    needed = shared_memory(workers, batch_size, image_size)
    free = shutil.disk_usage(folder).free if Path(folder).is_dir() else needed
    if free < needed:
        unit, name = (2**20, "MiB") if needed >= 10 * 2**20 else (2**10, "KiB")
        yield (
            f"{folder} has {free / unit:.0f} {name} free, {workers} workers need {needed / unit:.0f}: they would die with a bus "
            f"error. Use fewer workers=, or start the container with --shm-size={max(1, round(2 * needed / 2**30))}g"
        )
