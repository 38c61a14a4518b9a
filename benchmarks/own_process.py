"""Runs a measurement in a separate process, with its CPU time and its peak of memory."""

import multiprocessing
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]
MARGIN = 4.0  # seconds that a program leaves unused: the one that started it has to end, too


def in_own_process(measure: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """Returns `measure(*arguments)` of a new process, with its "cpu_minutes" and "peak_MiB". Errors are raised here."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _end_with_parent) as pool:
        return pool.submit(_with_usage, measure, arguments).result()


def _end_with_parent() -> None:
    """Ends this process as soon as its parent has ended, also if that was killed."""

    def wait() -> None:
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _with_usage(measure: Callable[..., dict[str, Any]], arguments: tuple) -> dict[str, Any]:
    """Returns the result of a measurement and what its process used. On a GPU the memory is GPU memory."""
    result = measure(*arguments)
    used = usage_cells(resource.getrusage(resource.RUSAGE_SELF))
    if torch.cuda.is_available():
        used["peak_MiB"] = round(torch.cuda.max_memory_allocated() / 2**20)
    return result | used


def usage_cells(usage: resource.struct_rusage) -> dict[str, Any]:
    """Returns "cpu_minutes" and "peak_MiB" of a process; macOS counts memory in bytes, Linux in KiB."""
    unit = 1 if sys.platform == "darwin" else 1024
    minutes = (usage.ru_utime + usage.ru_stime) / 60
    return {"cpu_minutes": minutes, "peak_MiB": round(usage.ru_maxrss * unit / 2**20)}


def run(command: list[str], end: float) -> str:
    """Runs a program and returns what it prints. Raises an error with its last line if it fails or takes too long."""
    limit = end - MARGIN - time.monotonic()
    environment = {**os.environ, "YOLO_OFFLINE": "1"}
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit, env=environment)
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"not done after {limit:.0f} s, when the time of the part ended") from None
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1])
    return done.stdout
