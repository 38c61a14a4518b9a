"""Does a training step fit into the memory of the GPU, and how many images do? Asked at the start, so that a run does not
die after the night."""

import copy
from collections.abc import Callable, Sequence

import torch
from torch import nn

from utils.optim import Plan

SHARE = 0.8  # of the memory of a GPU that a batch may fill which is chosen for the user


def training_memory(
    model: nn.Module,
    criterion,
    image_size: tuple[int, int],
    batch_size: int,
    boxes: int,
    amp: str,
    frozen: Sequence[str] = (),
) -> int:
    """Bytes that a training step of `batch_size` images of height, width takes on the GPU at its peak. 0 on other devices.

    Runs a step of a copy of the model, which stands for the moving average that is not there yet, on empty images with
    so many boxes each, with those parts `frozen`; the model and all random states stay as they are. Raises
    torch.cuda.OutOfMemoryError.
    """
    device = next(model.parameters()).device
    if device.type != "cuda":
        return 0
    torch.cuda.reset_peak_memory_stats(device)
    trial = copy.deepcopy(model).train()
    trial.freeze(*frozen)
    images = torch.zeros(batch_size, 3, *image_size, dtype=torch.uint8, device=device)
    targets = torch.tensor([32.0, 32.0, 96.0, 96.0], device=device).repeat(batch_size, boxes, 1)
    labels = torch.zeros(batch_size, boxes, dtype=torch.int64, device=device)
    dtype = torch.float16 if amp == "fp16" else torch.bfloat16
    try:
        with torch.autocast("cuda", dtype, enabled=amp != "none"):
            predictions = trial(images)
        criterion(predictions, targets, labels, image_size)["total"].backward()
        moments = 2 * sum(p.nbytes for p in model.parameters())  # Adam makes them at the first step
        return torch.cuda.max_memory_allocated(device) + moments
    finally:
        del trial
        torch.cuda.empty_cache()


def largest_batch(needed: Callable[[int], int], most: int, device: torch.device) -> int:
    """The largest power of two up to `most` whose step, of `needed(images)` bytes, stays within 80 % of the memory of the
    GPU, of which others may have taken some. 0: not even one image does."""
    free, total = torch.cuda.mem_get_info(device)
    limit = min(SHARE * total, free + torch.cuda.memory_reserved(device))
    fits, images = 0, 1
    while images <= most:
        try:
            if needed(images) > limit:
                break
        except torch.cuda.OutOfMemoryError:
            break
        fits, images = images, 2 * images
    return fits


def less_memory(plan: Plan, accumulate: int, frozen: bool = False) -> str:
    """Which constant of train.py to lower, and to what, where a step of the thawed or frozen phase does not fit."""
    sizes = {"freeze_batch_size": plan.frozen_images // accumulate, "batch_size": plan.images // accumulate}
    name, other = ("freeze_batch_size", "batch_size") if frozen else ("batch_size", "freeze_batch_size")
    if sizes[name] == 1:
        return f"{name} is 1 already: lower image_size, or choose a smaller model"
    return (
        f"lower {name}={sizes[name]} to {sizes[name] // 2}; for steps of as many images as before "
        f"accumulate={2 * accumulate} (and {other}={max(1, sizes[other] // 2)})"
    )
