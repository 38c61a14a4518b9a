"""What a training step costs: its GPU memory, measured before the run because the thaw needs more, its time, and a profile.

It also has the warnings about hardware that a run leaves idle or that is too small for it.
"""

import copy
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from engine.schedule import Plan
from utils.config import ConfigError
from utils.processes import Ranks
from utils.text import amount
from utils.threads import busy_hint, shared_memory

FILL = 0.8  # fraction of a GPU's memory that an automatically chosen batch may fill
MOST_IMAGES = 128  # images on a GPU, above which an automatically chosen batch gains no speed
MIN_STEPS = 50  # steps per epoch that an automatically chosen batch leaves, unless it has fewer images than MIN_IMAGES
MIN_IMAGES = 8  # images per step, the default of train.py
TOO_LARGE = re.compile(
    "out of memory|cudnn|cublas|unable to find an engine|32-?bit ?index|INT_MAX|invalid configuration argument", re.I
)
LOG_EVERY = 20  # optimizer steps between two logs on a GPU, where a log waits for the device
LOG_SECONDS = 2.0  # the same in seconds, so that slow steps do not delay the answer to a signal
PROFILE_WARM_UP = 5  # steps before a profile: the first ones allocate memory and choose algorithms


def training_memory(
    model: nn.Module,
    criterion,
    image_size: tuple[int, int],
    boxes: int,
    amp: str,
    batch_size: int,
    frozen: bool = False,
    all_gpus: bool = False,
) -> int:
    """Measures the peak memory of a training step on a GPU, in bytes.

    Runs a step of `batch_size` black images with `boxes` boxes each on a copy of the model, which takes as much memory as the
    later EMA. With `all_gpus` (nn.DataParallel) this GPU also computes the loss of the images of the others. The model and all
    random states stay unchanged. Raises torch.cuda.OutOfMemoryError, also where cuDNN or a kernel refuses so large a batch.
    """
    gathered = torch.cuda.device_count() if all_gpus else 1
    device = next(model.parameters()).device
    torch.cuda.reset_peak_memory_stats(device)
    trial = copy.deepcopy(model).train()
    trial.freeze_backbone(frozen)
    images = torch.zeros(batch_size, 3, *image_size, dtype=torch.uint8, device=device)
    targets = torch.tensor([32.0, 32.0, 96.0, 96.0], device=device).repeat(gathered * batch_size, boxes, 1)
    labels = torch.full((gathered * batch_size, boxes), model.first_class, device=device)
    dtype = torch.float16 if amp == "fp16" else torch.bfloat16
    try:
        with torch.autocast("cuda", dtype, enabled=amp != "none"):
            predictions = trial(images)
        if gathered > 1:
            predictions = repeated(predictions, gathered)
        criterion(predictions, targets, labels, image_size)["total"].backward()
        moments = 2 * sum(p.nbytes for p in trial.parameters() if p.grad is not None)  # Adam allocates them at first
        return torch.cuda.max_memory_allocated(device) + moments
    except RuntimeError as error:
        if not TOO_LARGE.search(str(error)):
            raise
        raise torch.cuda.OutOfMemoryError(str(error)) from error
    finally:
        del trial
        torch.cuda.empty_cache()


def repeated(predictions, times: int):
    """Returns predictions of `times` as many images: tensors `[B, ...]`, or tuples of them, become `[times * B, ...]`."""
    if isinstance(predictions, torch.Tensor):
        return torch.cat([predictions] * times)
    parts = [repeated(part, times) for part in predictions]
    return type(predictions)(*parts) if hasattr(predictions, "_fields") else tuple(parts)


def probe(
    model: nn.Module,
    criterion: Callable,
    image_size: tuple[int, int],
    multi_scale: float,
    boxes: int,
    amp: str,
    ranks: Ranks,
) -> Callable[..., int]:
    """Returns a function (images per step, frozen=False) -> bytes, which is `training_memory` at the largest input size."""
    largest = tuple(round(side * (1 + multi_scale) / 32) * 32 for side in image_size)
    return partial(training_memory, model, criterion, largest, max(boxes, 1), amp, all_gpus=ranks.all_gpus)


def largest_batch(step_bytes: Callable[[int], int], limit: int, device: torch.device) -> int:
    """Finds the largest power of two, up to `limit`, of images whose step fits into 80 % of the GPU's memory.

    `step_bytes`: images per step -> bytes. Memory that other programs use is not free. 0: not even one image fits.
    """
    free, total = torch.cuda.mem_get_info(device)
    budget = min(FILL * total, free + torch.cuda.memory_reserved(device))
    fits, images = 0, 1
    while images <= limit:
        try:
            if step_bytes(images) > budget:
                break
        except torch.cuda.OutOfMemoryError:
            break
        fits, images = images, 2 * images
    return fits


def choose_batch_sizes(
    sizes: dict[str, int],
    before: dict[str, int] | None,
    step_bytes: Callable[..., int],
    length: int,
    accumulate: int,
    ranks: Ranks,
) -> dict[str, int]:
    """Returns `sizes` (freeze_batch_size, batch_size) with a number in place of each 0 (automatic).

    A resumed run takes the numbers of `before`. A new run takes what fits the smallest GPU, times the number of GPUs, but
    leaves enough steps per epoch: the learning rate grows with the batch, and few large steps train worse than many.
    `step_bytes(images, frozen)`: bytes of a step on one GPU; `length`: training images; `accumulate`: batches per optimizer
    step. Raises ConfigError without a GPU.
    """
    chosen, gpus = {}, number_of_gpus(ranks)
    of_step = min(length, max(length // MIN_STEPS, MIN_IMAGES))
    limit = min(MOST_IMAGES, max(of_step // (gpus * accumulate), 1))
    for name, size in sizes.items():
        if size or before:
            chosen[name] = size or before[name]
            continue
        if ranks.device.type != "cuda":
            raise ConfigError(
                f"{name}=0 fits the batch to the memory of a GPU; on {ranks.device} set it, for example to 8"
            )
        of_phase = partial(step_bytes, frozen=name == "freeze_batch_size")
        smallest = min(ranks.gather(largest_batch(of_phase, limit, ranks.device)))
        if smallest == 0:
            raise ConfigError(f"{name}=0: not even one image fits; lower image_size, or choose a smaller model")
        chosen[name] = smallest * gpus
    return chosen


def check_thawed_step(
    step_bytes: Callable[..., int], sizes: dict[str, int], plan: Plan, accumulate: int, ranks: Ranks
) -> int:
    """Returns the bytes that a step needs on each GPU after the thaw; 0 without a GPU, or if the plan has no thawed step.

    Raises SystemExit with advice if it does not fit.
    """
    if ranks.device.type != "cuda" or plan.freeze_epochs == plan.epochs:
        return 0
    try:
        return step_bytes(-(-sizes["batch_size"] // number_of_gpus(ranks)))
    except torch.cuda.OutOfMemoryError as error:
        raise SystemExit(f"CUDA out of memory after the thaw: {less_memory(sizes, accumulate)}") from error


def number_of_gpus(ranks: Ranks) -> int:
    """Returns the number of GPUs that a batch is divided among."""
    return torch.cuda.device_count() if ranks.all_gpus else ranks.world_size


def reserved_bytes(device: torch.device) -> int:
    """Returns the bytes of this GPU that PyTorch holds, in use or cached; 0 for other devices."""
    return torch.cuda.memory_reserved(device) if device.type == "cuda" else 0


def less_memory(sizes: dict[str, int], accumulate: int, frozen: bool = False) -> str:
    """Advises which batch size to lower, and to what, if a step of the frozen or of the thawed phase does not fit.

    CUDA graphs keep their memory between steps, also during an evaluation."""
    name, other = ("freeze_batch_size", "batch_size") if frozen else ("batch_size", "freeze_batch_size")
    if sizes[name] == 1:
        return f"{name} is 1 already: lower image_size, or choose a smaller model"
    return (
        f"lower {name}={sizes[name]} to {sizes[name] // 2}; to keep the images per optimizer step, also set "
        f"accumulate={2 * accumulate} (and {other}={max(1, sizes[other] // 2)}); cuda_graphs=false also saves memory"
    )


def batches_to_log(batches_per_second: float, accumulate: int, ranks: Ranks) -> int:
    """Returns after how many batches training on a GPU logs again: every 20 steps or 2 seconds. All ranks agree on it."""
    count = min(LOG_EVERY * accumulate, int(LOG_SECONDS * batches_per_second))
    return int(ranks.sum(torch.tensor(count))) // ranks.world_size


def profiled(batches: Iterable, steps: int, path: Path, log: Callable[[str], None] = print) -> Iterator:
    """Yields the batches unchanged, and profiles `steps` training steps after the first five.

    Writes a trace for https://ui.perfetto.dev to `path` (.json.gz), and a table of the most expensive operations next to it.
    """
    batches, done = iter(batches), 0
    yield from islice(batches, PROFILE_WARM_UP)
    gpu = torch.cuda.is_available()
    with profile(activities=[ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * gpu) as profiler:
        while done < steps:
            with record_function("wait for data"):
                batch = next(batches, None)
            if batch is None:
                break
            yield batch
            done += 1
    if done:
        profiler.export_chrome_trace(str(path))
        table = profiler.key_averages().table(f"self_{'device' if gpu else 'cpu'}_time_total", 40, 60)
        path.with_suffix("").with_suffix(".txt").write_text(table, encoding="utf-8")
        log(f"profile    {amount(done, 'step')}: {path} (open it at https://ui.perfetto.dev)")
    else:
        log(f"profile    no trace: the epoch has no more than {PROFILE_WARM_UP} steps")
    yield from batches


def hardware_warnings(workers: int, batch_size: int, image_size: tuple[int, int], ranks: Ranks) -> Iterator[str]:
    """Yields warnings about unused GPUs and too little shared memory."""
    yield from gpu_advice(sys.argv, ranks.all_gpus)
    if ranks.world_size == 1 and hasattr(os, "getloadavg"):  # not Windows
        if hint := busy_hint(ranks.device, os.getloadavg()[0], os.cpu_count() or 1):
            yield hint
    yield from shared_memory_warning(workers, batch_size, image_size)


def gpu_advice(command: Sequence[str], all_gpus: bool = False) -> Iterator[str]:
    """Yields a hint if GPUs are idle: torch cannot use them, or one process uses one of several (`all_gpus`: DataParallel)."""
    count = torch.cuda.device_count()
    if not torch.cuda.is_available():
        if os.path.exists("/proc/driver/nvidia/version") or os.path.exists("/dev/nvidia0"):
            build = "the CPU build" if torch.version.cuda is None else f"built for CUDA {torch.version.cuda}"
            yield f"There is an NVIDIA GPU that torch {torch.__version__} ({build}) cannot use: install a matching torch."
    elif count > 1 and "WORLD_SIZE" not in os.environ:
        words = [word for word in command if not word.startswith("device=")]
        start = f"torchrun --standalone --nproc_per_node={count} {shlex.join(words)}"
        if all_gpus:
            yield f"{count} GPUs in one process (DataParallel): {start} is faster."
        else:
            yield f"{count} GPUs, one in use: {start} uses all; device=cuda:all does too, more slowly, without torchrun."


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
