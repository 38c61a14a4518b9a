"""What a user sees when something goes wrong: one line with its cure."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import train
from utils import distributed, script
from utils.config import ConfigError
from utils.distributed import choose_device

ROOT = Path(__file__).parents[1]


def run(error):
    def main():
        raise error

    script.run(main, mistakes=(KeyError,), stopped="go on with resume=true", lower="lower batch_size=")


@pytest.mark.parametrize(
    "error, message",
    [
        (ValueError("what"), "ValueError: what"),
        (PermissionError("no"), "PermissionError: no"),
        (KeyError("mine"), "KeyError: 'mine'"),
        (KeyboardInterrupt(), "go on with resume=true"),
        (torch.cuda.OutOfMemoryError("full"), "CUDA out of memory: lower batch_size="),
    ],
)
def test_mistakes_end_in_one_line(error, message):
    with pytest.raises(SystemExit, match=message):
        run(error)


def test_other_errors_are_ours_and_keep_their_traceback():
    with pytest.raises(TypeError):
        run(TypeError("a bug"))


@pytest.mark.parametrize(
    "words",
    [
        ["train.py"],
        ["evaluate.py"],
        ["predict.py"],
        ["export.py"],
        ["-m", "datasets.convert"],
        ["-m", "datasets.check"],
    ],
)
def test_a_missing_library_of_the_system_is_said_with_its_cure(tmp_path, words):
    (tmp_path / "cv2.py").write_text("raise ImportError('libGL.so.1: cannot open shared object file')")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "libGL.so.1" in done.stderr and "apt-get install" in done.stderr


def test_a_name_that_the_terminal_cannot_show_does_not_end_the_program():
    program = "from utils import script; script.run(lambda: print('猫 done'), (), '', '')"
    env = {**os.environ, "PYTHONIOENCODING": "cp1252", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.strip() == "? done"


@pytest.mark.parametrize("device", ["gpu", "meta", "cuda", "cuda:99", "mps"])
def test_devices_that_are_not_there_are_told_with_the_cure(device):
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if there.get(device):
        pytest.skip(f"{device} is here")
    with pytest.raises(SystemExit, match=f"device={device}.*(use|Use|there are)"):
        choose_device(device)


def test_an_idle_gpu_and_a_cpu_build_are_said(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    advice = distributed.gpu_advice(["train.py", "epochs=3"])
    assert "torchrun --standalone --nproc_per_node=4 train.py epochs=3" in advice and "one in use" in advice
    advice = distributed.gpu_advice(["train.py", "device=cuda:all", "epochs=3"], all_gpus=True)
    assert "--nproc_per_node=4 train.py epochs=3 is faster" in advice
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert distributed.gpu_advice(["train.py"]) is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(distributed.os.path, "exists", lambda path: "nvidia" in path)
    assert "the CPU build" in distributed.gpu_advice([])


def test_threads_leave_the_cores_of_the_workers_alone(monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    monkeypatch.setattr(distributed.os, "sched_getaffinity", lambda _: range(8), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for workers in (0, 3, 20):
        distributed.share_cores(torch.device("cpu"), workers)
    distributed.share_cores(torch.device("cpu"), 1, processes=2)
    assert asked == [8, 5, 1, 3]


@pytest.fixture
def of_two(monkeypatch, tmp_path):
    """This is rank 1, the second process of a machine, under torchrun."""
    monkeypatch.setattr(script, "TURN", 0.01)
    for name, value in {
        "RANK": "1",
        "LOCAL_RANK": "1",
        "TORCHELASTIC_ERROR_FILE": str(tmp_path / "error.json"),
    }.items():
        monkeypatch.setenv(name, value)
    return tmp_path / "error.json"


def test_a_failing_rank_says_who_it_is_and_tells_torchrun(of_two):
    with pytest.raises(SystemExit, match="rank 1: ValueError: what"):
        run(ValueError("what"))
    assert json.loads(of_two.read_text())["message"]["message"] == "ValueError: what"
    with pytest.raises(SystemExit, match="rank 1: in so many words"):
        run(SystemExit("in so many words"))
    with pytest.raises(TypeError):
        run(TypeError("a bug"))
    assert "TypeError: a bug" in json.loads(of_two.read_text())["message"]["message"]


@pytest.mark.parametrize("error", [RuntimeError("[gloo/pair.cc:1] Connection closed"), dist.DistError("NCCL timeout")])
def test_those_who_lost_another_process_say_so_in_one_line_and_leave_the_cause_to_it(of_two, error):
    with pytest.raises(SystemExit, match="rank 1: lost the other processes.*timeout_minutes") as raised:
        run(error)
    assert "\n" not in str(raised.value) and "lost the other" in json.loads(of_two.read_text())["message"]["message"]
    of_two.unlink()
    with pytest.raises(SystemExit) as raised:
        run(distributed.Elsewhere("rank 0 has failed"))
    assert raised.value.code == 1 and not of_two.exists()  # not a word


def test_data_parallel_is_for_one_process_and_not_for_bf16(monkeypatch):
    with pytest.raises(ConfigError, match="amp=bf16"):
        train.main(train.Config(device="cuda:all", amp="bf16"))
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SystemExit, match="without torchrun"):
        distributed.start("cuda:all")
