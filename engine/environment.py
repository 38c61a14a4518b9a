"""What determines a run besides its constants: versions, device, code, and which start of which torchrun job it is."""

import functools
import hashlib
import inspect
import json
import os
import platform
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch

from utils.text import first_of


def run_id() -> str | None:
    """Identifies a run under torchrun through all its restarts: --rdzv_id, or else the torchrun process of this host.

    Containers share host names and process ids, so the boot of the system and the start of the process are part of it.
    """
    name = os.environ.get("TORCHELASTIC_RUN_ID")
    if name != "none":
        return name
    parent, since = os.getppid(), ""
    with suppress(OSError):  # where there is no /proc
        started = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[19]
        since = f"-{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}-{started}"
    return f"{socket.gethostname()}-{parent}{since}"


def last_start(folder: Path) -> dict[str, Any]:
    """Returns environment.json of a run folder, {} if missing or damaged: "id" of the start, "run" (see `run_id`), "host", ..."""
    try:
        return dict(json.loads((folder / "environment.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


def jobs(folder: Path) -> set[str | None]:
    """Returns the jobs (see `run_id`) of all starts of a run folder."""
    last = last_start(folder)
    return {start.get("run") for start in (last, *last.get("earlier_starts", []))}


def file_digests(root: str | Path) -> dict[str, str]:
    """Returns digests of the source files under `root` that determine a run, committed or not, by their paths."""
    root, digests = Path(root), {}
    for pattern in ("train.py", "engine/*.py", "nets/*.py", "datasets/**/*.py", "metrics/*.py", "utils/*.py"):
        for path in sorted(root.glob(pattern)):
            name = path.relative_to(root).as_posix()
            digests[name] = hashlib.blake2b(path.read_bytes(), digest_size=6).hexdigest()
    return digests


def code_digest(root: str | Path) -> str:
    """Returns one digest of all source files under `root` that determine a run."""
    return hashlib.blake2b(json.dumps(file_digests(root)).encode(), digest_size=6).hexdigest()


def source_digest(function: Callable) -> str:
    """Returns a digest of the source of a function, of a class, or of the class of an object: it shows changes.

    Of a `functools.partial`, that of its function with its arguments.
    """
    if isinstance(function, functools.partial):
        arguments = f"{function.args} {sorted(function.keywords.items())}"
        arguments = re.sub(r" at 0x\w+", "", arguments)  # addresses, which differ in each process
        return hashlib.blake2b(f"{source_digest(function.func)} {arguments}".encode(), digest_size=6).hexdigest()
    function = function if inspect.isroutine(function) or inspect.isclass(function) else type(function)
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):  # built in, or typed into an interpreter
        source = function.__qualname__
    return hashlib.blake2b(source.encode(), digest_size=6).hexdigest()


def environment(device: torch.device | str) -> dict[str, Any]:
    """Returns what determines the results of a run besides the constants: versions, device, threads, code, command line."""
    device = torch.device(device)
    root = Path(__file__).resolve().parents[1]
    changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    return {
        "started": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "command": [sys.executable, *sys.argv],
        "working_folder": os.getcwd(),
        "commit": _git(root, "rev-parse", "HEAD"),
        "uncommitted_changes": None if changed is None else bool(changed),
        "code": file_digests(root),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": version("torchvision"),  # importing it takes a second
        "cv2": cv2.__version__,
        "numpy": np.__version__,
        "cuda": torch.version.cuda,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "machine": f"{platform.node()}, {platform.platform()}, {os.cpu_count()} cores",
        "threads": torch.get_num_threads(),
    }


def changes_of_rounding(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Names the entries of environment.json, "torch 2.6 is 2.14", because of which a resumed run is not bit-identical.

    Numbers of processes and, on a CPU, of threads decide the order of sums; versions and devices have other kernels.
    """
    names = ["torch", "cv2", "numpy", "cuda", "device", "processes"]
    if before.get("device") == now.get("device") == "cpu":
        names = ["torch", "cv2", "numpy", "device", "processes", "threads"]
    changed = [name for name in names if name in before and name in now and before[name] != now[name]]
    return ", ".join(f"{name} {before[name]} is now {now[name]}" for name in changed)


def changes_of_code(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Names the source files that differ between two starts of a run, by the entry "code" of environment.json."""
    old, new = before.get("code"), now["code"]
    if not isinstance(old, dict):  # of an earlier version
        return ""
    changed = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    return ", ".join(first_of(changed, 8))


def _git(root: Path, *words: str) -> str | None:
    """Returns the output of a git command; None without git or without a repository."""
    try:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
