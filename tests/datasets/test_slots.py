"""Shared memory of workers is reused only when no tensor or array shows it."""

import numpy as np
import pytest

from datasets import shared_memory


@pytest.mark.shared_memory
def test_a_slot_is_reused_when_nothing_shows_its_images(monkeypatch):
    monkeypatch.setattr(shared_memory, "get_worker_info", lambda: "a worker")
    monkeypatch.setattr(shared_memory, "_slots", shared_memory._slots.copy())

    def send(value, side=8, count=2):
        return shared_memory.unpack(
            *shared_memory.pack(shared_memory.stack([np.full((side, side, 3), value, np.uint8)] * count))
        )

    held = [send(1)[1:, ::2], send(2).numpy()[0], send(3)]  # parts of the images keep a slot in use
    places = [slot.data_ptr() for slot in shared_memory._slots]
    fresh = [send(4), send(5)]  # no slot is free
    assert [int(one.flatten()[0]) for one in held + fresh] == [1, 2, 3, 4, 5] and len(
        set(places)
    ) == shared_memory.SLOTS
    del held[1]
    assert send(6, 4).data_ptr() == places[1] + shared_memory.HEAD and (held[0] == 1).all()
    large = send(7, 100)  # does not fit into the free slot, which is replaced
    assert (large == 7).all() and large.shape == (2, 100, 100, 3) and (held[1] == 3).all()
    assert [slot.data_ptr() for slot in shared_memory._slots][::2] == places[::2]


def test_without_a_worker_images_are_stacked_in_normal_memory():
    images = [np.full((4, 6, 3), i, np.uint8) for i in range(3)]
    stacked = shared_memory.stack(images)
    assert stacked.tolist() == np.stack(images).tolist() and not stacked.is_shared()
    assert shared_memory.unpack(*shared_memory.pack(stacked)) is stacked
