"""utils/threads.py: the threads and loader workers of each process."""

import os
import shutil
import sys
from types import SimpleNamespace

import pytest
import torch

from engine import hardware
from utils import threads


@pytest.fixture
def eight_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


def test_the_network_keeps_its_cores_but_one_for_any_number_of_workers(monkeypatch, eight_cores):
    numbers = []
    monkeypatch.setattr(torch, "set_num_threads", numbers.append)
    for workers in (0, 1, 4, 20):
        threads.set_threads(torch.device("cpu"), workers)
    for count in (2, 8, 20):
        threads.set_threads(torch.device("cpu"), 1, count)
    threads.set_threads(torch.device("cuda"), 4)  # the network is not on the cores
    assert numbers == [8, 7, 7, 7, 3, 1, 1]


def test_workers_are_chosen_by_device_and_cores(tmp_path, monkeypatch, eight_cores):
    monkeypatch.setattr(sys, "platform", "darwin")  # which has no folder of shared memory

    def chosen(device, ranks, folder=tmp_path / "none"):
        return threads.choose_workers(torch.device(device), ranks, 8, (416, 416), str(folder))

    assert [chosen("cpu", ranks) for ranks in (1, 2, 4, 20)] == [1, 1, 0, 0]
    assert [chosen("cuda", ranks) for ranks in (1, 2, 4, 8, 20)] == [7, 3, 1, 1, 1]
    assert chosen("mps", 1) == 7


def test_chosen_workers_fit_into_the_shared_memory(tmp_path, monkeypatch, eight_cores):
    """Docker gives a container 64 MiB; a worker needs three batches."""

    def chosen(free, images=8):
        monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
        workers = threads.choose_workers(torch.device("cuda"), 1, images, (416, 416), str(tmp_path))
        assert not list(hardware.shared_memory_warning(workers, images, (416, 416), str(tmp_path)))
        return workers

    assert [chosen(2**26), chosen(2**26, images=64), chosen(2**34)] == [5, 0, 7]
