"""Runs trainings of train.py as processes that print nothing, and shows how far all of them are."""

import csv
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from engine.runs import runs
from utils.processes import choose_device
from utils.progress import progress_bar
from utils.threads import cores_of

TRAIN = (sys.executable, str(Path(__file__).parents[1] / "train.py"))
POLL = 0.3  # seconds between two looks at the logs
TAIL = 12  # last lines of a failed training that its error repeats


def run_trainings(folder: Path, trainings: Mapping[str, Sequence[str]], epochs: int) -> list[Path]:
    """Runs a training of `epochs` epochs for each name with its words of train.py, and returns the run folders.

    On a CPU all run at once, and share the cores: threads of two processes wait less for each other than threads of one. On
    a GPU they run one after another. What they print is in FOLDER/NAME.log. Raises ChildProcessError if one fails.
    """
    at_once = 1
    if choose_device() == torch.device("cpu"):
        at_once = len(trainings)
    waiting, shown = list(trainings), 0
    running: dict[str, subprocess.Popen] = {}
    with progress_bar(None, "training epochs", total=len(trainings) * epochs) as bar:
        try:
            while waiting or running:
                while waiting and len(running) < at_once:
                    name = waiting.pop(0)
                    words = [*trainings[name], f"output={folder}", f"name={name}", f"epochs={epochs}"]
                    running[name] = start(words, log_of(folder, name), at_once)
                time.sleep(POLL)
                for name in [name for name, process in running.items() if process.poll() is not None]:
                    if running.pop(name).returncode or epochs_done(folder, name) < epochs:
                        raise ChildProcessError(failure(log_of(folder, name)))
                done = sum(epochs_done(folder, name) for name in trainings)
                if done > shown:
                    bar.update(done - shown)
                    shown = done
        finally:
            for process in running.values():
                process.terminate()
            for process in running.values():
                process.wait()
    return [runs(folder, name)[-1] for name in trainings]


def log_of(folder: Path, name: str) -> Path:
    """Returns the file that gets what a training prints."""
    return folder / f"{name}.log"


def start(words: Sequence[str], log: Path, processes: int) -> subprocess.Popen:
    """Starts train.py with its share of the cores, one of `processes`."""
    environment = {"OMP_NUM_THREADS": str(cores_of(processes))} | os.environ  # the user's own number takes precedence
    with open(log, "wb") as file:
        return subprocess.Popen([*TRAIN, *words], stdout=file, stderr=subprocess.STDOUT, env=environment)


def epochs_done(folder: Path, name: str) -> int:
    """Returns the number of epochs in the log of the newest run of that name, 0 without one."""
    done = 0
    for run in runs(folder, name)[-1:]:
        if (run / "log.csv").exists():
            with open(run / "log.csv", encoding="utf-8", newline="") as file:
                done = max((int(row["epoch"]) for row in csv.DictReader(file)), default=0)
    return done


def failure(log: Path) -> str:
    """Returns the message of a training that ended too early: the last lines that it printed."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    end = "\n".join(line for line in lines[-TAIL:] if line.strip())
    return f"{log}: the training failed:\n{end}"
