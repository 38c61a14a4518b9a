"""A run that is killed with SIGKILL, again and again, ends with the bits of an undisturbed one. Real processes, real kills.

Each step and each flush of a file sleeps, and a save waits for its kill, so that a kill hits the place that it is meant for.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from small import assert_same_run, config, only_run

import train

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="the ranks of torchrun are found under /proc"),
]
ROOT = Path(__file__).parents[1]
SECONDS = 600  # a process that takes longer hangs
SLOW_TRAINING = """
import os
import runpy
import sys
import time

from engine.optimizer import Updater


backward, fsync = Updater.backward, os.fsync


def slow_backward(*args):
    time.sleep(0.05)
    backward(*args)


def slow_fsync(file):
    time.sleep(0.05)
    while os.path.exists("hold") and ".pt" in os.readlink(f"/proc/self/fd/{file}"):
        time.sleep(0.01)
    fsync(file)


Updater.backward, os.fsync = slow_backward, slow_fsync
runpy.run_path(TINY, run_name="__main__")
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """tests/tiny.py, a training of the tiny model, with a sleep in each step and in each flush of a file."""
    path = tmp_path / "slow_training.py"
    path.write_text(SLOW_TRAINING.replace("TINY", repr(str(ROOT / "tests/tiny.py"))), encoding="utf-8")
    return path


def start(script: Path, cfg: train.Config, processes: int = 1) -> subprocess.Popen:
    """Starts a training, by torchrun if it has several processes, which replaces killed ones by itself."""
    defaults = train.Config()
    words = [f"{name}={train.show(value)}" for name, value in vars(cfg).items() if value != getattr(defaults, name)]
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}", "--max-restarts=9"]
    command = [sys.executable, *(torchrun if processes > 1 else []), str(script), *words]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(command, cwd=script.parent, env=env, **quiet)


def wait(process: subprocess.Popen, what: str, reached: Callable[[], object]) -> None:
    """Waits until `reached()` is true. Fails if the process ends before, or takes too long."""
    end = time.monotonic() + SECONDS
    while not reached():
        assert process.poll() is None, f"the training ended before {what}"
        assert time.monotonic() < end, f"waited {SECONDS} s for {what}"
        time.sleep(0.005)


def saves(output: Path) -> set[tuple[Path, int]]:
    """The checkpoints, each with the time at which it was written."""
    return {(path, path.stat().st_mtime_ns) for path in output.glob("*/last.pt")}


def unfinished(output: Path) -> set[Path]:
    """The temporary files of saves that go on, or that a kill has left."""
    return set(output.glob("*/.*.pt.*.tmp"))


def ranks_of(torchrun: subprocess.Popen) -> dict[int, int]:
    """The processes that torchrun has started: rank -> process id."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            rank = re.search(rb"\0RANK=(\d+)\0", (folder / "environ").read_bytes())
        except OSError:  # it ended meanwhile, or belongs to another user
            continue
        if parent == torchrun.pid and rank:
            found[int(rank[1])] = int(folder.name)
    return found


def undisturbed(script: Path, cfg: train.Config, processes: int = 1) -> Path:
    process = start(script, cfg, processes)
    assert process.wait(SECONDS) == 0
    return only_run(Path(cfg.output))


@pytest.mark.parametrize("place", ["step", "save"])
def test_a_run_that_is_killed_within_a_step_or_a_save_resumes_with_the_same_bits(demo_images, tmp_path, script, place):
    """Three kills. A save after every step; a kill within a save leaves its temporary file, and the file before it."""
    nano = {"model": "yolox_nano", "learning_rate": 0.01, "save_minutes": 0.003, "workers": 1}
    changes = nano if place == "step" else {"learning_rate": 0.03, "save_minutes": 0.0, "workers": 1}
    expected = undisturbed(script, config(demo_images, tmp_path / "expected", **changes))
    cfg = config(demo_images, tmp_path / "killed", **changes, resume=True)
    output, hold = Path(cfg.output), script.with_name("hold")  # the file that makes the next save wait
    for _ in range(3):
        before, left = saves(output), unfinished(output)
        process = start(script, cfg)
        wait(process, "a save", lambda before=before: saves(output) > set() and saves(output) != before)
        if place == "save":
            hold.touch()
            wait(process, "the next save", lambda left=left: unfinished(output) - left)
        process.kill()
        assert process.wait() == -signal.SIGKILL
        assert place == "step" or unfinished(output) - left
        hold.unlink(missing_ok=True)
    process = start(script, cfg)
    assert process.wait(SECONDS) == 0
    assert_same_run(only_run(output), expected)


def test_torchrun_replaces_ranks_that_were_killed_and_ends_with_the_same_bits(demo_images, tmp_path, script):
    """Either rank once; then torchrun itself, whose ranks must end too, and a second start."""
    changes = {"learning_rate": 0.03, "save_minutes": 0.0}
    expected = undisturbed(script, config(demo_images, tmp_path / "expected", **changes), 2)
    cfg = config(demo_images, tmp_path / "killed", **changes)
    output = Path(cfg.output)
    torchrun = start(script, cfg, 2)
    for rank in (0, 1):
        before = saves(output)
        wait(torchrun, "a save", lambda before=before: saves(output) - before and len(ranks_of(torchrun)) == 2)
        os.kill(ranks_of(torchrun)[rank], signal.SIGKILL)
    before = saves(output)
    wait(torchrun, "a save", lambda: saves(output) - before and len(ranks_of(torchrun)) == 2)
    orphans = ranks_of(torchrun).values()
    torchrun.kill()
    torchrun.wait()
    end = time.monotonic() + SECONDS
    while any(Path(f"/proc/{pid}/exe").exists() for pid in orphans):
        assert time.monotonic() < end, "the ranks of a killed torchrun still run"
        time.sleep(0.05)
    assert start(script, replace(cfg, resume=True), 2).wait(SECONDS) == 0
    assert_same_run(only_run(output), expected)
