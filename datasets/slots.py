"""The way of pictures from a worker to its process: memory that both see, used again once nobody holds a picture in it.

Fresh shared memory for every batch, as the DataLoader takes it, is slower: Linux clears each page, and takes it back.
"""

import weakref

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate, get_worker_info

SLOTS = 3  # of a worker: one is written, one waits, one is in use; further ones are fresh
HEAD = 64  # bytes before the pictures; the first is 1 from the writing to the end of the use

_slots: list[Tensor] = []  # of this worker


def stack(images: list[np.ndarray]) -> Tensor:
    """Arrays of one shape `[H, W, 3]` -> `[B, H, W, 3]`, in a worker in shared memory."""
    if get_worker_info() is None:
        return torch.from_numpy(np.stack(images))
    slot = _free_slot(len(images) * images[0].nbytes)
    if slot is None:
        return default_collate([torch.from_numpy(image) for image in images])
    slot[0] = 1
    stacked = _pixels(slot, (len(images), *images[0].shape))
    np.stack(images, out=stacked)
    return torch.from_numpy(stacked)


def _free_slot(size: int) -> Tensor | None:
    """A slot that holds so many bytes, with its first byte 0."""
    for i, slot in enumerate(_slots):
        if slot[0] == 0:
            if len(slot) < HEAD + size:
                _slots[i] = torch.zeros(HEAD + size, dtype=torch.uint8).share_memory_()
            return _slots[i]
    if len(_slots) == SLOTS:
        return None
    _slots.append(torch.zeros(HEAD + size, dtype=torch.uint8).share_memory_())
    return _slots[-1]


def _pixels(slot: Tensor, shape: tuple[int, ...]) -> np.ndarray:
    return slot.numpy()[HEAD : HEAD + int(np.prod(shape))].reshape(shape)


def sent(images: Tensor) -> tuple:
    """What to pickle for `images` of `stack`, for `received`."""
    for slot in _slots:
        if slot.data_ptr() + HEAD == images.data_ptr():
            return slot, tuple(images.shape)
    return images, None


def received(slot: Tensor, shape: tuple[int, ...] | None) -> Tensor:
    """The images again. Their slot is free when the last tensor or array that shows a part of them is gone."""
    if shape is None:
        return slot
    pixels = _pixels(slot, shape)
    weakref.finalize(pixels, slot.__setitem__, 0, 0)
    return torch.from_numpy(pixels)
