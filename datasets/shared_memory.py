"""Shared memory in which workers hand images to their process, reused when no tensor uses them any more.

Fresh shared memory for every batch, which the system has to clear, makes 30 % fewer images per second (benchmarks/decisions.md).
"""

import weakref

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate, get_worker_info

SLOTS = 3  # per worker: one is written, one waits, one is in use; if none is free, fresh memory is taken
HEAD = 64  # bytes before the images; the first byte is 1 while the slot is in use

_slots = [torch.zeros(1, dtype=torch.uint8)] * SLOTS  # of this worker; each is replaced by a larger one when needed


def stack(images: list[np.ndarray]) -> Tensor:
    """Stacks arrays of one shape `[H, W, 3]` -> `[B, H, W, 3]`. A worker stacks them in a free slot of shared memory."""
    if get_worker_info() is None:
        return torch.from_numpy(np.stack(images))
    free = next((i for i, slot in enumerate(_slots) if slot[0] == 0), None)
    if free is None:
        return default_collate([torch.from_numpy(image) for image in images])
    size = HEAD + len(images) * images[0].nbytes
    if len(_slots[free]) < size:
        _slots[free] = torch.zeros(size, dtype=torch.uint8).share_memory_()
    _slots[free][0] = 1
    stacked = _pixels(_slots[free], (len(images), *images[0].shape))
    np.stack(images, out=stacked)
    return torch.from_numpy(stacked)


def _pixels(slot: Tensor, shape: tuple[int, ...]) -> np.ndarray:
    return slot.numpy()[HEAD : HEAD + int(np.prod(shape))].reshape(shape)


def pack(images: Tensor) -> tuple[Tensor, tuple[int, ...] | None]:
    """Returns what to pickle for a result of `stack`: slot and shape, or the images and None. `unpack` takes both."""
    for slot in _slots:
        if slot.data_ptr() + HEAD == images.data_ptr():
            return slot, tuple(images.shape)
    return images, None


def unpack(slot: Tensor, shape: tuple[int, ...] | None) -> Tensor:
    """Returns the images in the receiving process. The slot is free again when no tensor or array uses them any more."""
    if shape is None:
        return slot
    pixels = _pixels(slot, shape)
    weakref.finalize(pixels, slot.__setitem__, 0, 0)
    return torch.from_numpy(pixels)
