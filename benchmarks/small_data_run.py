"""One run of benchmarks.small_data, in a process of its own: trains, and returns the numbers of a row of the table."""

import contextlib
import csv
import json
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

import train
from benchmarks.small_data_hooks import Hook, hooked
from engine.run_folder import runs


class Job(NamedTuple):
    """What to train: constants of train.py by name, and hooks of small_data_hooks."""

    constants: dict[str, Any]
    hooks: tuple[Hook, ...] = ()
    peer: str | None = None  # another trainer: libreyolo or ultralytics


class Stopped(Exception):
    """The training was asked to stop before its end."""


def train_once(job: Job) -> dict[str, Any]:
    """Trains, and returns the cells of the row and the lists "curve_minutes" and "curve_AP", one value per epoch."""
    with tempfile.TemporaryDirectory(prefix="small_data_") as folder, hooked(job.hooks):
        cfg = train.Config(**job.constants, output=folder, name="run")
        begin = time.perf_counter()
        train.main(cfg)
        wall = time.perf_counter() - begin
        made = runs(folder, "run")[-1]
        with open(made / "log.csv", encoding="utf-8", newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["epoch"] != "0"]  # 0: before training
        used, about = (
            json.loads((made / f"{name}.json").read_text(encoding="utf-8")) for name in ("config", "environment")
        )
        if len(rows) < cfg.epochs:
            raise Stopped(f"stopped after epoch {len(rows)} of {cfg.epochs}")
    seen = about["training_images"] * len(rows)
    return cells(rows, used["freeze_epochs"]) | {"images_seen": seen, "minutes_in_all": wall / 60}


def cells(rows: list[dict[str, str]], freeze_epochs: int) -> dict[str, Any]:
    """Returns the numbers of a finished run from the rows of its log.csv.

    Minutes are those of training alone; evaluations are in "minutes_in_all". `AP` is that of the last epoch."""
    maps = [float(row["AP"]) for row in rows]
    seconds = [float(row["seconds"]) for row in rows]
    images = sum(float(row["images_per_second"]) * float(row["seconds"]) for row in rows)
    thawed = maps[freeze_epochs:] if 0 < freeze_epochs < len(maps) else []
    return {
        **{"AP": maps[-1], "AP50": float(rows[-1]["AP50"]), "best_AP": max(maps)},
        "frozen_AP": maps[freeze_epochs - 1] if thawed else None,
        "thawed_AP_1": thawed[0] if thawed else None,
        "thawed_AP_2": thawed[1] if len(thawed) > 1 else None,
        "minutes": sum(seconds) / 60,
        "images_per_second": images / sum(seconds),
        "curve_minutes": [sum(seconds[: i + 1]) / 60 for i in range(len(seconds))],
        "curve_AP": maps,
    }


def in_own_process(job: Job, work: Callable[[Job], dict] = train_once) -> dict[str, Any]:
    """Runs `work(job)` in a new process. Adds "cpu_minutes" and "peak_MiB" of it; a failure is a dict with "error" only."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(job, work, theirs), daemon=True)  # ends with this process
    process.start()
    theirs.close()
    try:
        result = ours.recv()
    except EOFError:
        process.join()
        result = {"error": f"the process ended with exit code {process.exitcode}"}
    process.join()
    if result.get("stopped"):
        raise KeyboardInterrupt
    return result


def _child(job: Job, work: Callable[[Job], dict], pipe) -> None:
    """Sends the result of `work(job)` through the pipe."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # before and after training: removes the folder
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        result = attempt(job, work)
    if "error" not in result:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        result["cpu_minutes"] = (usage.ru_utime + usage.ru_stime) / 60
        memory = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else resident_bytes(usage)
        result["peak_MiB"] = round(memory / 2**20)
    with contextlib.suppress(BrokenPipeError):  # the program was stopped
        pipe.send(result)


def attempt(job: Job, work: Callable[[Job], dict] = train_once) -> dict[str, Any]:
    """Returns the result of `work(job)`, or a dict with "error": what it failed with, in one line."""
    try:
        return work(job)
    except Stopped:
        return {"error": "stopped", "stopped": True}
    except (Exception, SystemExit) as error:
        traceback.print_exc(file=sys.__stderr__)
        return {"error": " ".join(f"{type(error).__name__}: {error}".split())[:300]}


def resident_bytes(usage: resource.struct_rusage) -> int:
    """Returns the peak memory of a process, without that on a GPU; macOS counts it in bytes, Linux in KiB."""
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
