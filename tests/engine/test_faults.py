"""Faults of disks, processes and people: what a run does in each case. Real faults where they are possible in a test.

More of them: tests/engine/test_resume.py (kills, full disks), tests/test_nodes.py (nodes, cables), tests/test_torture.py (killed processes).
"""

import errno
import io
import json
import multiprocessing as mp
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import cv2
import pytest
import torch
from refused import refused, told
from small import assert_same_run, config, log_of, only_run, same, train_quietly

import train
from datasets.loader import Loader, init_worker
from engine import hardware, resume, run_lock
from engine.environment import last_start, run_id
from engine.run_folder import Run
from engine.run_lock import RunInUse
from engine.saving import Saver
from utils import checkpoint, file_checks, signals
from utils.config import ConfigError
from utils.processes import Ranks
from utils.script import run_script
from utils.signals import StopSignal

ROOT = Path(__file__).parents[2]
posix = pytest.mark.skipif(os.name == "nt", reason="file locks and limits of POSIX")


@pytest.fixture(scope="module")
def undisturbed(demo_images, tmp_path_factory):
    return train_quietly(config(demo_images, tmp_path_factory.mktemp("undisturbed")))[0]


# --- disks and consoles -------------------------------------------------------------------------------------------------


@posix
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # of the thread of TensorBoard
def test_a_limit_on_file_sizes_that_is_lifted_later_loses_nothing(
    demo_images, tmp_path, at_call, undisturbed, monkeypatch
):
    """No file can grow from the first step of epoch 2 to the first one of epoch 3: not one byte can be written."""

    def limit(size):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

    monkeypatch.setattr(sys, "stderr", io.StringIO())  # pytest's is a file too
    at_call(5, partial(limit, 0))
    at_call(10, partial(limit, resource.RLIM_INFINITY))
    try:
        folder, _, text = train_quietly(config(demo_images, tmp_path))
    finally:
        limit(resource.RLIM_INFINITY)
    told(text, "last.pt", os.strerror(errno.EFBIG))
    assert_same_run(folder, undisturbed)


PRINTING = """
import sys
from dataclasses import dataclass
from pathlib import Path
from utils.config import override
from utils.script import run_script

@dataclass(frozen=True)
class Config:
    epochs: int = 3  # a constant

def main():
    if "--help" in sys.argv:
        override(Config(), sys.argv[1:])
    for number in range(3000):
        print("epoch", number, flush=number % 9 == 0)
        print("bar", number, file=sys.stderr)
    Path(sys.argv[1]).write_text("done")

run_script(main, "stopped", "")
"""


@pytest.fixture
def printing(tmp_path):
    """`printing(redirection)` runs a script that prints much, and writes a file at its end, in a shell with a redirection."""

    def run(redirection, argument=None):
        (tmp_path / "script.py").write_text(PRINTING)
        command = f"'{sys.executable}' '{tmp_path}/script.py' {argument or tmp_path / 'end'} {redirection}"
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run(["bash", "-o", "pipefail", "-c", command], env=env, capture_output=True, text=True)

    return run


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
@pytest.mark.parametrize(
    "redirection",
    [">/dev/full", "2>&-", *(pytest.param(r, marks=pytest.mark.slow) for r in ("2>/dev/full", "| head -n 1", ">&-"))],
)
def test_console_output_never_ends_a_run(printing, tmp_path, redirection):
    done = printing(redirection)
    assert done.returncode == 0 and (tmp_path / "end").read_text() == "done"
    assert "Error" not in done.stderr and "Exception" not in done.stderr


def test_help_may_be_cut(printing):
    done = printing("| head -n 1", "--help")
    assert done.returncode == 0 and done.stderr == ""


def test_output_without_a_buffer_appears_at_once(tmp_path):
    """PYTHONUNBUFFERED, as in containers: the program waits until its first line was read."""
    program = "import sys; from utils.script import run_script; run_script(lambda: (print('a'), input()), '', '')"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", program], env=env, **pipes) as process:
        assert process.stdout.readline() == b"a\n"
        process.communicate(b"\n")
    assert process.returncode == 0


@contextmanager
def small_disk(folder, size):
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if not shutil.which("mount") or subprocess.run(words, capture_output=True).returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_small_shared_memory_is_reported_with_true_amounts(tmp_path):
    with small_disk(tmp_path / "shm", 2**16) as folder:
        (warning,) = hardware.shared_memory_warning(2, 4, (64, 64), str(folder))
    told(warning, "64 KiB", 288)
    assert not list(hardware.shared_memory_warning(2, 4, (64, 64), str(tmp_path)))


# --- files of a run that are missing or damaged ---------------------------------------------------------------------------


def damaged(path, how):
    path.unlink()
    if how == "a folder":
        path.mkdir()
    elif how != "nothing":
        path.write_bytes(bytes(0 if how == "empty" else 5000))


@pytest.mark.parametrize("how, message", [("zeros", "only zeros"), ("empty", "is empty"), ("a folder", "is a folder")])
def test_an_unusable_checkpoint_is_described_in_one_sentence(undisturbed, tmp_path, how, message):
    folder = shutil.copytree(undisturbed, tmp_path / "small-2026-01-31-1")
    damaged(folder / "last.pt", how)
    for target in (True, str(folder)):
        with pytest.raises(file_checks.CheckpointError) as raised:
            resume.find(target, str(tmp_path), "small", Ranks())
        text = str(raised.value)
        assert message in text and "last.pt" in text and "weights_only" not in text and len(text) < 300


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


def test_best_pt_that_was_deleted_is_written_again_or_reported(demo_images, tmp_path, monkeypatch):
    parts = train.Parts(validate=lambda *args: {"AP": (0.1, 0.5, 0.2, 0.3)[args[5]], "AP50": 0.5, "val_loss": 1})
    for name, step in (("again", 6), ("lost", 9)):
        cfg = config(demo_images, tmp_path / name, resume=True)
        calls = iter(range(1, 99))
        between = Saver.between_steps

        def stop(self, state, meter, between=between, calls=calls, step=step):
            if next(calls) == step:  # 6: the first step of epoch 3, 9: of epoch 4
                self.stop.received = True
            between(self, state, meter)

        with monkeypatch.context() as patch:
            patch.setattr(Saver, "between_steps", stop)
            train_quietly(cfg, parts=parts)
        folder = only_run(tmp_path / name)
        before = checkpoint.load(folder / "best.pt")
        assert before["epoch"] == 2
        (folder / "best.pt").unlink()
        if name == "again":  # as if it had been stopped right after epoch 2
            last = checkpoint.load(folder / "last.pt")
            resume.restore_best(folder, last, 2)
            assert not (folder / "best.pt").exists()  # last.pt has the weights of the begun epoch 3
            last["resume"]["meter"]["batches"] = 0
            resume.restore_best(folder, last | {"model": before["model"]}, 2)
            assert same(checkpoint.load(folder / "best.pt")["model"], before["model"])
            continue
        *_, text = train_quietly(cfg, parts=parts)
        told(text, folder / "best.pt", "epoch 2", f"checkpoint={folder / 'last.pt'}")


def test_best_pt_is_not_written_from_a_damaged_last_pt(demo_images, tmp_path, undisturbed):
    folder = shutil.copytree(undisturbed, tmp_path / "run")
    last = checkpoint.load(folder / "last.pt")
    del last["resume"]["updater"]["optimizer"]
    checkpoint.save(folder / "last.pt", last)
    (folder / "best.pt").unlink()
    with refused(file_checks.CheckpointError, "last.pt"):
        train_quietly(config(demo_images, folder.parent, resume=str(folder), epochs=9))
    assert not (folder / "best.pt").exists()


def test_a_run_whose_folder_was_moved_saves_to_a_new_one(demo_images, tmp_path, at_call, undisturbed):
    moved = tmp_path / "moved"
    at_call(6, lambda: only_run(tmp_path / "runs").rename(moved))
    folder, _, text = train_quietly(config(demo_images, tmp_path / "runs"))
    told(text, f"WARNING: {folder}")
    assert same(checkpoint.load(folder / "last.pt")["model"], checkpoint.load(undisturbed / "last.pt")["model"])
    assert log_of(folder) == log_of(undisturbed) and len(log_of(moved)) == 1
    assert {"config.json", "environment.json", "curves.png"} <= {path.name for path in folder.iterdir()}
    assert list(folder.glob("events*")) and last_start(folder).get("id") == last_start(moved).get("id")


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
    saved = torch.load(only_run(tmp_path / "runs") / "last.pt", weights_only=True)
    del saved["resume"]["origin"]["facts"]["contents of the images"]  # as in runs of older versions
    torch.save(saved, only_run(tmp_path / "runs") / "last.pt")
    assert len(log_of(train_quietly(cfg)[0])) == 4


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
    with refused(RunInUse, f"process {holder.pid} on node-3", "2026-01-31 12:00:00", "resume=false"):
        Run(tmp_path, {})
    assert last_start(tmp_path).get("id") == "1" and not (tmp_path / "config.json").exists()  # nothing was changed
    holder.kill()  # its child lives on
    holder.wait()
    run = Run(tmp_path, {})
    assert last_start(tmp_path).get("id") == run.id


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
    lost.check_folder()
    Run(tmp_path, {}, run_id="job 7")
    with refused(RunInUse, f"process {os.getpid()}"):
        lost.check_folder()


@posix
def test_a_disk_without_locks_is_noted(tmp_path, monkeypatch, capsys):
    def unsupported(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.lockf", unsupported)
    Run(tmp_path, {}).close()
    told(capsys.readouterr().out, tmp_path, "No locks available")


def test_a_folder_in_use_ends_all_ranks(tmp_path):
    """Rank 0 raises inside of `on_main`, so that the others raise RemoteError and do not wait for it."""
    seen = []

    class Main(Ranks):
        def on_main(self, work):
            seen.append("on_main")
            return super().on_main(work)

    from engine.run_folder import open_run

    assert open_run(tmp_path / "run", {}, Main(), marks={}, rows=(), training_images=9).folder == tmp_path / "run"
    assert seen == ["on_main"]


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


@pytest.mark.slow
def test_torchruns_with_the_same_process_id_are_different_runs():
    """Two real process namespaces: in both the parent has id 1."""
    inner = f"'{sys.executable}' -c 'from engine.run_folder import run_id; print(run_id())'; true"
    words = ["unshare", "--pid", "--fork", "--mount-proc", "sh", "-c", inner]
    env, found = {**os.environ, "TORCHELASTIC_RUN_ID": "none"}, []
    for _ in range(2):
        done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"process namespaces are not allowed here: {done.stderr.strip()[:80]}")
        found.append(done.stdout.strip())
    assert found[0] != found[1] and all("-1-" in name for name in found)


def test_a_torchrun_that_was_killed_before_the_first_step_is_noticed(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job")
    monkeypatch.setattr(os, "getppid", lambda: 1 + signals.PARENT)  # since the import of the module
    assert StopSignal().orphaned()


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
    told(text, "workers=", "resume=true continues")
    assert "\n" not in text.strip()


class Limited(torch.utils.data.Dataset):
    """Sets a limit on the size of files in the process that loads images, or fails like a user's function."""

    def __init__(self, limit: bool):
        self.limit = limit

    def __getitem__(self, _):
        if not self.limit:
            raise RuntimeError("mine")
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
        return torch.zeros(100_000)


@posix
@pytest.mark.usefixtures("no_loader_left")
def test_an_error_of_a_loader_process_is_named():
    def first_batch(limit: bool) -> None:
        next(iter(torch.utils.data.DataLoader(Limited(limit), sampler=[0], num_workers=1)))

    with pytest.raises(SystemExit) as ended:
        run_script(partial(first_batch, True), stopped="resume=true continues", memory_advice="")
    text = str(ended.value).strip()
    told(text, "shared memory", os.strerror(errno.EFBIG), "ulimit", "resume=true continues")
    assert "\n" not in text
    with pytest.raises(RuntimeError, match="mine"):  # with its traceback
        run_script(partial(first_batch, False), stopped="", memory_advice="")


@posix
def test_a_batch_that_cannot_be_sent_ends_the_loader_process(tmp_path, monkeypatch, capfd):
    """PyTorch hands shared memory over through a socket in the folder of temporary files, which may be full or gone."""
    options = {"num_workers": 1, "worker_init_fn": init_worker, "timeout": 30}
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="DataLoader worker"):
        patch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
        patch.delitem(mp.current_process()._config, "tempdir", raising=False)
        list(Loader(torch.zeros(2, 10_000), **options))
    assert f"is {tmp_path / 'gone'} full?" in capfd.readouterr().err


def test_a_closed_standard_error_does_not_keep_a_second_signal_from_ending_a_program():
    program = """
import os, signal
from utils.signals import StopSignal
with StopSignal():
    os.close(2)
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGTERM)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, stderr=subprocess.DEVNULL)
    assert done.returncode == 128 + signal.SIGTERM
