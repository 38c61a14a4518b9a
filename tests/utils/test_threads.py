"""utils/threads.py: the threads and loader workers of each process, and the hint on a CPU that other programs use."""

import os
import shutil
import subprocess
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


def test_workers_are_chosen_by_device_and_cores(tmp_path, eight_cores):
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


def test_a_busy_cpu_is_a_hint_unless_the_user_chose_the_threads(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)

    def hint(busy: float, device: str = "cpu") -> str:
        monkeypatch.setattr(threads, "busy_cores", lambda: busy)
        return threads.busy_hint(torch.device(device))

    assert "OMP_NUM_THREADS=1 " in hint(3.2) and "OMP_NUM_THREADS=1 " in hint(9.0)
    assert hint(0.3) == hint(3.2, "cuda") == ""
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert hint(3.2) == ""


@pytest.mark.skipif(not os.path.exists("/proc/stat"), reason="needs Linux")
def test_cores_are_busy_while_another_program_computes_and_not_while_this_one_does(tmp_path, monkeypatch):
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        found = max(threads.busy_cores() for _ in range(8))  # it starts, and shares its core with other programs
        other.kill()
    assert found > 0.3
    stat, tick = tmp_path / "stat", 1 / os.sysconf("SC_CLK_TCK")
    stat.write_text("cpu  1000 20 300 90000 4000 5 6 7 8 9\n")
    monkeypatch.setattr(os, "times", lambda: (2.0, 1.0, 0.0, 0.0, 0.0))
    assert threads._seconds_of_others(str(stat)) == pytest.approx(1338 * tick - 3)


@pytest.mark.parametrize("error", [FileNotFoundError, ValueError])
def test_a_system_that_does_not_tell_its_cpu_time_has_no_busy_cores(error, monkeypatch):
    def unknown():
        raise error

    monkeypatch.setattr(threads, "_seconds_of_others", unknown)
    assert threads.busy_cores(0) == 0
