"""The GPU memory of a training step, measured before the run: for the batch sizes, and because the thaw needs more."""

import copy
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from nets import DetectionModel
from utils.config import ConfigError
from utils.processes import Ranks

FILL = 0.8  # fraction of a GPU's memory that an automatically chosen batch may fill
MAX_IMAGES = 128  # images on a GPU, above which an automatically chosen batch gains no speed
MIN_STEPS = 50  # steps per epoch that an automatically chosen batch leaves, unless it has fewer images than MIN_IMAGES
MIN_IMAGES = 8  # images per step, the default of train.py
TOO_LARGE = re.compile(
    "out of memory|cudnn|cublas|unable to find an engine|32-?bit ?index|INT_MAX|invalid configuration argument", re.I
)
SIZES = ("freeze_batch_size", "batch_size")  # the constants with the images per step, of a frozen and of a thawed step


class StepMemory:
    """The owner of the batch sizes, which must fit the memory of the GPUs.

    `cfg`: the constants of train.py; `criterion`: a loss function of the model; `boxes`: maximum per image; `length`:
    the number of training images. Raises torch.cuda.OutOfMemoryError with advice if a thawed step does not fit.
    """

    def __init__(self, cfg: Any, model: DetectionModel, criterion: Callable, boxes: int, length: int, ranks: Ranks):
        self.accumulate = cfg.accumulate
        largest = tuple(round(side * (1 + cfg.multi_scale) / 32) * 32 for side in cfg.image_size)
        probe = StepProbe(model, criterion, largest, max(boxes, 1), cfg.amp)
        given = {name: getattr(cfg, name) for name in SIZES}
        self.batch_sizes: dict[str, Any] = choose_batch_sizes(given, probe.bytes, length, cfg.accumulate, ranks)
        self.thawed_bytes = 0  # of a step on each GPU after the thaw
        thaws = cfg.epochs == 0 or cfg.freeze_epochs < cfg.epochs
        if thaws and ranks.device.type == "cuda" and not ranks.all_gpus:
            try:
                self.thawed_bytes = probe.bytes(-(-self.batch_sizes["batch_size"] // ranks.world_size))
            except torch.cuda.OutOfMemoryError as error:
                error.args = (f"CUDA out of memory: a step does not fit after the thaw; {self.advice()}",)
                raise

    def text(self) -> str:
        """Returns a line about the memory of a thawed step; "" where it was not measured."""
        return f"memory     {self.thawed_bytes / 2**30:.1f} GiB for a thawed step" if self.thawed_bytes else ""

    def advice(self, frozen: bool = False) -> str:
        """Returns which batch size to lower, and to what, if a step of the frozen or of the thawed phase does not fit."""
        name, other = SIZES if frozen else SIZES[::-1]
        size = self.batch_sizes[name]
        if size == 1:
            return f"{name} is 1 already: lower image_size, or choose a smaller model"
        return (
            f"lower {name}={size} to {size // 2} in a new run; to keep the images per optimizer step, also set "
            f"accumulate={2 * self.accumulate} (and {other}={max(1, self.batch_sizes[other] // 2)})"
        )


@dataclass(frozen=True)
class StepProbe:
    """Measures training steps on copies of a model: black images of `image_size` with `boxes` boxes each."""

    model: DetectionModel
    criterion: Callable
    image_size: tuple[int, int]
    boxes: int
    amp: str

    def bytes(self, batch_size: int, frozen: bool = False) -> int:
        """Returns the peak memory of a step of `batch_size` images on a GPU, in bytes.

        The copy of the model takes as much memory as the later EMA. The model and all random states stay unchanged. Raises
        torch.cuda.OutOfMemoryError, also where cuDNN or a kernel refuses so large a batch.
        """
        device = next(self.model.parameters()).device
        torch.cuda.reset_peak_memory_stats(device)
        trial = copy.deepcopy(self.model).train()
        trial.freeze_backbone(frozen)
        images = torch.zeros(batch_size, 3, *self.image_size, dtype=torch.uint8, device=device)
        targets = torch.tensor([32.0, 32.0, 96.0, 96.0], device=device).repeat(batch_size, self.boxes, 1)
        labels = torch.full((batch_size, self.boxes), self.model.first_class, device=device)
        dtype = torch.float16 if self.amp == "fp16" else torch.bfloat16
        try:
            with torch.autocast("cuda", dtype, enabled=self.amp != "none"):
                predictions = trial(images)
            self.criterion(predictions, targets, labels, self.image_size)["total"].backward()
            moments = 2 * sum(p.nbytes for p in trial.parameters() if p.grad is not None)  # Adam allocates them later
            return torch.cuda.max_memory_allocated(device) + moments
        except RuntimeError as error:
            if not TOO_LARGE.search(str(error)):
                raise
            raise torch.cuda.OutOfMemoryError(str(error)) from error
        finally:
            del trial
            torch.cuda.empty_cache()


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
    sizes: Mapping[str, int], step_bytes: Callable[..., int], length: int, accumulate: int, ranks: Ranks
) -> dict[str, int]:
    """Returns `sizes` (freeze_batch_size, batch_size) with a number in place of each 0 (automatic).

    It is what fits the smallest GPU, times the number of GPUs, but leaves enough steps per epoch: the learning rate grows with
    the batch, and few large steps train worse than many. `step_bytes(images, frozen)`: bytes of a step on one GPU; `length`:
    training images; `accumulate`: batches per optimizer step. Raises ConfigError without a GPU and for nn.DataParallel.
    """
    chosen = {}
    of_step = min(length, max(length // MIN_STEPS, MIN_IMAGES))
    limit = min(MAX_IMAGES, max(of_step // (ranks.world_size * accumulate), 1))
    for name, size in sizes.items():
        if size:
            chosen[name] = size
            continue
        if ranks.device.type != "cuda" or ranks.all_gpus:
            place = "with device=cuda:all" if ranks.all_gpus else f"on {ranks.device}"
            raise ConfigError(f"{name}=0 fits the batch to the memory of one GPU; {place} set it, for example to 8")
        of_phase = partial(step_bytes, frozen=name == "freeze_batch_size")
        smallest = min(ranks.gather(largest_batch(of_phase, limit, ranks.device)))
        if smallest == 0:
            raise ConfigError(f"{name}=0: not even one image fits; lower image_size, or choose a smaller model")
        chosen[name] = smallest * ranks.world_size
    return chosen


def reserved_bytes(device: torch.device) -> int:
    """Returns the bytes of this GPU that PyTorch holds, in use or cached; 0 for other devices."""
    return torch.cuda.memory_reserved(device) if device.type == "cuda" else 0
