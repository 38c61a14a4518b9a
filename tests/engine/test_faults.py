"""Faults of disks, processes and people: what a run does in each case. Real faults where they are possible in a test.

More of them: tests/engine/test_resume.py (kills, full disks), tests/test_nodes.py (nodes, cables),
tests/test_torture.py (killed processes).
"""

import json
import multiprocessing as mp
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import cv2
import pytest
import torch
from refused import refused, told
from small import config, only_run, train_quietly

import train
from datasets.loader import Loader, init_worker
from engine import hardware, resume, run_lock
from engine.environment import last_start, run_id
from engine.run_folder import Run
from engine.run_lock import RunInUse
from engine.runs import best_of
from utils import file_checks
from utils.config import ConfigError
from utils.processes import Ranks
from utils.script import run_script
from utils.signals import StopSignal
from utils.threads import choose_workers

ROOT = Path(__file__).parents[2]
posix = pytest.mark.skipif(os.name == "nt", reason="file locks and limits of POSIX")


@pytest.fixture(scope="module")
def undisturbed(demo_images, tmp_path_factory):
    return train_quietly(config(demo_images, tmp_path_factory.mktemp("undisturbed")))[0]


# --- disks -------------------------------------------------------------------------------------------------


def test_a_small_shared_memory_is_reported_with_true_amounts(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2**16))
    (warning,) = hardware.shared_memory_warning(2, 4, (64, 64), str(tmp_path))
    told(warning, "64 KiB", 288)
    assert not list(hardware.shared_memory_warning(2, 4, (64, 64), str(tmp_path / "none")))


# --- files of a run that are missing or damaged ---------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["zeros", "empty"])
def test_an_unusable_checkpoint_is_described_in_one_sentence(undisturbed, tmp_path, how):
    folder = shutil.copytree(undisturbed, tmp_path / "small-2026-01-31-1")
    (folder / "last.pt").write_bytes(bytes(0 if how == "empty" else 5000))
    for target in (True, str(folder)):
        with pytest.raises(file_checks.CheckpointError) as raised:
            resume.find(target, str(tmp_path), "small", Ranks())
        text = str(raised.value)
        assert "last.pt" in text and "use another" in text and "\n" not in text and len(text) < 300


@pytest.mark.parametrize("contents", ["", "{}", "[1]", '{"earlier_starts": [', None])
def test_a_damaged_environment_counts_as_no_earlier_start(tmp_path, contents):
    if contents is not None:
        (tmp_path / "environment.json").write_text(contents)
    run = Run(tmp_path, {})
    assert json.loads((tmp_path / "environment.json").read_text())["earlier_starts"] == []
    assert last_start(tmp_path).get("id") == run.id


def test_resume_without_a_run_says_where_it_looked(demo_images, tmp_path):
    cfg = config(demo_images, tmp_path, epochs=1, resume=True)
    *_, text = train_quietly(cfg)
    told(text, "last.pt", "name=small", f"output={tmp_path}")
    (only_run(tmp_path) / "last.pt").unlink()
    train.main(cfg)
    assert len(list(tmp_path.iterdir())) == 2


def test_images_that_were_replaced_are_noticed_by_a_resumed_run(demo_images, tmp_path, at_call):
    images = shutil.copytree(demo_images, tmp_path / "images")
    cfg = config(images, tmp_path / "runs", resume=True)
    at_call(4, partial(signal.raise_signal, signal.SIGTERM))
    train_quietly(cfg)
    first = images / (images / "train.txt").read_text().split()[0]
    image = cv2.imread(str(first))
    cv2.imwrite(str(first), 255 - image)  # of the same size
    with refused(ConfigError, "contents of the images="):
        train.main(cfg)


# --- processes ------------------------------------------------------------------------------------------------------------

HOLDER = """
import fcntl, os, sys, time
file = open(sys.argv[1] + "/lock", "ab")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
if os.fork() == 0:  # as a process that loads images
    time.sleep(60)
print(os.getpid(), flush=True)
time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """A process that holds the lock of the run folder `tmp_path`, in which environment.json names it. It has a child."""
    words = [sys.executable, "-c", HOLDER, str(tmp_path)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout.readline().strip() == str(process.pid)
    start = {"id": "1", "run": "job 7", "host": "node-3", "pid": process.pid, "started": "2026-01-31 12:00:00 +0000"}
    (tmp_path / "environment.json").write_text(json.dumps(start))
    yield process
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@posix
def test_a_run_folder_in_use_is_refused_and_kill_9_frees_it(holder, tmp_path, monkeypatch):
    monkeypatch.setattr(run_lock, "LOCK_PATIENCE", 0.2)
    with refused(RunInUse, f"process {holder.pid} on node-3", "2026-01-31 12:00:00", "resume="):
        Run(tmp_path, {})
    assert last_start(tmp_path).get("id") == "1" and not (tmp_path / "config.json").exists()  # nothing was changed
    holder.kill()  # its child lives on
    holder.wait()
    run = Run(tmp_path, {})
    assert last_start(tmp_path).get("id") == run.id


@posix
def test_a_run_without_a_save_is_not_started_again_while_it_runs(holder, tmp_path):
    reason = {}
    for state in ("runs", "ended"):
        for ask in (resume.refuse_missing, lambda name, output: best_of(output, name, "checkpoint=")):
            with pytest.raises(ConfigError) as error:
                ask(str(tmp_path), str(tmp_path.parent))
            reason.setdefault(state, []).append("start it again" in str(error.value))
        holder.kill()
        holder.wait()
    assert reason == {"runs": [False, False], "ended": [True, True]}


@posix
def test_a_restart_of_the_same_job_replaces_a_process_that_is_lost(holder, tmp_path, monkeypatch, capsys):
    """A node that was cut off cannot be asked to end. A process of another job is never replaced."""
    monkeypatch.setattr(run_lock, "RESTART_PATIENCE", 0.2)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job 8")
    with refused(RunInUse, f"process {holder.pid} on node-3"):
        Run(tmp_path, {}, run_id="job 8")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job 7")
    lost = Run(tmp_path, {}, run_id="job 7")
    told(capsys.readouterr().out, "WARNING", holder.pid)
    lost.require_own()
    Run(tmp_path, {}, run_id="job 7")
    with refused(RunInUse, f"process {os.getpid()}"):
        lost.require_own()


def test_containers_with_equal_host_names_and_process_ids_are_different_runs(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setattr("socket.gethostname", lambda: "container")
    found = []
    with subprocess.Popen(["sleep", "9"]) as first, subprocess.Popen(["sleep", "9"]) as second:
        for process in (first, second, first):
            if not Path(f"/proc/{process.pid}/stat").exists():
                pytest.skip("there is no /proc")
            monkeypatch.setattr(os, "getppid", lambda process=process: process.pid)
            found.append(run_id())
            time.sleep(0.02)
        first.kill(), second.kill()
    without_pid = [name.replace(str(first.pid), "").replace(str(second.pid), "") for name in found]
    assert found[0] == found[2] != found[1]
    assert without_pid[0] != without_pid[1] or len(without_pid[0]) > 40  # boot and start time


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="there is no SIGHUP")
@pytest.mark.parametrize("ignored", [False, True], ids=["closed terminal", "nohup"])
def test_a_closed_terminal_stops_a_run_unless_it_is_ignored(ignored):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    try:
        with StopSignal() as stop:
            signal.raise_signal(signal.SIGHUP)
            assert stop.received is not ignored
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no SIGKILL")
@pytest.mark.usefixtures("no_loader_left")
@pytest.mark.shared_memory
def test_a_killed_loader_process_is_reported_with_the_fix(demo_images, tmp_path, at_call):
    others = mp.active_children()

    def kill():
        worker = next(child for child in mp.active_children() if child not in others)
        os.kill(worker.pid, signal.SIGKILL)
        worker.join(5)

    at_call(6, kill)
    cfg = config(demo_images, tmp_path, workers=1)
    with pytest.raises(SystemExit) as ended:
        run_script(lambda: train_quietly(cfg), stopped="resume=true continues", memory_advice="")
    text = str(ended.value)
    told(text, "workers=", f"resume={only_run(tmp_path)}")


def test_a_run_without_loader_processes_needs_no_shared_memory(demo_images, tmp_path, monkeypatch):
    """Some containers have no /dev/shm that can be written to. With workers, the fix is named."""

    def none(*_):
        raise RuntimeError(
            "unable to open shared memory object </torch_1> in read-write mode: Read-only file system (30)"
        )

    monkeypatch.setattr(torch.Tensor, "share_memory_", none)
    monkeypatch.setattr(os, "access", lambda path, mode: path != "/dev/shm")
    train_quietly(config(demo_images, tmp_path / "runs", epochs=1, freeze_epochs=0))
    assert choose_workers(torch.device("cuda"), 1, 8, (64, 64)) == 0
    with refused(ValueError, "workers=0"):
        train_quietly(config(demo_images, tmp_path / "more", workers=1))


@posix
@pytest.mark.shared_memory
def test_a_batch_that_cannot_be_sent_ends_the_loader_process(tmp_path, monkeypatch, capfd):
    """PyTorch hands shared memory over through a socket in the folder of temporary files, which may be full or gone."""
    options = {"num_workers": 1, "worker_init_fn": init_worker, "timeout": 30}
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="DataLoader worker"):
        patch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
        patch.delitem(mp.current_process()._config, "tempdir", raising=False)
        list(Loader(torch.zeros(2, 10_000), **options))
    assert f"is {tmp_path / 'gone'} full?" in capfd.readouterr().err
