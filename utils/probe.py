"""Will the thawed phase fit into the memory of the GPU? Asked at the start, so that a run does not die after the night."""

import copy

import torch
from torch import nn


def training_memory(
    model: nn.Module, criterion, image_size: tuple[int, int], batch_size: int, boxes_a_picture: int, amp: str
) -> int:
    """Bytes that one thawed training step of `batch_size` pictures of height, width takes on the GPU at its peak.

    Runs a step of a copy of the model on empty pictures with so many boxes each; the model itself and all random states
    stay as they are. Raises torch.cuda.OutOfMemoryError where it does not fit. 0 on other devices.
    """
    device = next(model.parameters()).device
    if device.type != "cuda":
        return 0
    torch.cuda.reset_peak_memory_stats(device)
    trial = copy.deepcopy(model).train()
    trial.freeze_backbone(False)
    images = torch.zeros(batch_size, 3, *image_size, dtype=torch.uint8, device=device)
    boxes = torch.tensor([32.0, 32.0, 96.0, 96.0], device=device).repeat(batch_size, boxes_a_picture, 1)
    labels = torch.zeros(batch_size, boxes_a_picture, dtype=torch.int64, device=device)
    dtype = torch.float16 if amp == "fp16" else torch.bfloat16
    try:
        with torch.autocast("cuda", dtype, enabled=amp != "none"):
            predictions = trial(images)
        criterion(predictions, boxes, labels, image_size)["total"].backward()
        moments = 2 * sum(p.nbytes for p in model.parameters())  # Adam makes them at the first step
        return torch.cuda.max_memory_allocated(device) + moments
    finally:
        del trial
        torch.cuda.empty_cache()
