"""Run folders, `runs/<name>-<date>-<number>`: made for a new run, and found by the name of a run."""

import os
import re
import secrets
import socket
import time
from contextlib import suppress
from pathlib import Path

from engine.run_lock import why_unsaved
from engine.run_store import address_of_run, claim, run_root
from utils.config import ConfigError, is_weights
from utils.processes import Ranks
from utils.remote import is_address, is_storage
from utils.remote_cache import local_file
from utils.text import brief, nearest

DATED = r"-(\d{4}-\d\d-\d\d)-(\d+)$"  # the end of the name of a run folder
COMMON = "several nodes need output= on a disk that all of them share, or in a bucket, such as output=s3://BUCKET/runs"


def create(output: str | Path, name: str, ranks: Ranks | None = None) -> Path:
    """Makes and returns the folder of a new run, `output/name-2026-01-31-1`. Never returns an existing folder.

    It sorts after all runs of that name, even if the clock was set back. With `ranks`, rank 0 makes the folder.
    """
    output = run_root(output)

    def make() -> Path:
        last = max(map(date_and_number, runs(output, name)), default=("", 0))
        today, number = max((time.strftime("%Y-%m-%d"), 0), last)
        output.mkdir(parents=True, exist_ok=True)
        while True:
            number += 1
            with suppress(FileExistsError):  # another process has just made it
                folder = output / f"{name}-{today}-{number}"
                folder.mkdir()
                if claim(folder):  # in a bucket, another computer may have just taken it
                    return folder

    return output / (ranks or Ranks()).on_main(make).name


def require_common(folder: Path, ranks: Ranks) -> None:
    """Raises ConfigError, before the data are read, if the nodes do not all see the folder of the runs.

    The cache folder of a bucket may differ between nodes."""
    if len(ranks.node_ranks) == ranks.world_size or address_of_run(folder):
        return

    def make() -> str:
        folder.mkdir(parents=True, exist_ok=True)
        name = f".common-{secrets.token_hex(8)}"  # a new name, which no cache of a network disk knows
        (folder / name).touch()
        return name

    def check() -> None:
        if not (folder / name).exists():
            raise ConfigError(f"{folder.absolute()} on {socket.gethostname()} is not the folder of rank 0: {COMMON}")

    name = ranks.on_main(make)
    try:
        ranks.once_per_node(check)
    finally:
        if ranks.is_main:
            (folder / name).unlink()


def check_name(name: str) -> None:
    """Raises ValueError for a run name that cannot be part of a folder name."""
    max_bytes = 255 - len("-2026-01-31-10000")  # of a name on most disks
    if not name.strip(" .") or re.search(r'[/\\:*?"<>|]', name) or len(os.fsencode(name)) > max_bytes:
        must = f"use letters, digits, - and _, at most {max_bytes} bytes"
        raise ValueError(f"name={brief(repr(name))} becomes the name of a folder: {must}")


def runs(output: str | Path, name: str) -> list[Path]:
    """Returns the run folder of this name in `output`, or the folders of every run of that name, the oldest first."""
    own = []
    for path in run_root(output).glob("*"):
        date, number = date_and_number(path)
        if path.name in (name, f"{name}-{date}-{number}") and path.is_dir():
            own.append(path)
    return sorted(own, key=date_and_number)


def newest(output: str | Path, name: str) -> Path | None:
    """Returns the last folder of `runs`, None if there is none."""
    return next(reversed(runs(output, name)), None)


def run_of(output: str | Path, name: str, file: str = "environment.json") -> Path | None:
    """Returns the run folder that `name` means, or None: this path, or the newest in `output` of that name.

    Only a folder with `file` counts, so that a folder of data with the name of a run does not hide it.
    """
    if os.path.isfile(Path(name) / file):  # False also for a name that is too long
        return Path(name)
    return next((run for run in reversed(runs(output, name)) if (run / file).exists()), None)


def best_of(output: str | Path, name: str, option: str) -> Path | None:
    """Returns the best.pt of the run that `name` means; None for a file, and for a name that is no run's.

    `option`: that of the user, such as "weights=". Raises ConfigError for a run without best.pt.
    """
    if is_address(name):
        return None
    if os.path.isfile(name) or is_weights(name):
        run = None if os.path.isfile(name) else run_of(output, os.path.dirname(name) or name, os.path.basename(name))
        if run:
            raise ConfigError(f"{option}{name}: there is no such file; did you mean {run / os.path.basename(name)}?")
        return None
    if run := run_of(output, name, "best.pt"):
        return run / "best.pt"
    if run := run_of(output, name):
        last = run / "last.pt"
        fix = f"resume it, or write {option}{last}" if last.exists() else why_unsaved(run)
        raise ConfigError(f"{option}{name}: {run} has no best.pt: {fix}")
    if (near := nearest_run(output, name)) and not os.path.exists(name):
        raise ConfigError(
            f"{option}{name}: there is no such file, and no run of this name; did you mean {option}{near}?"
        )
    return None


def weights_file(weights: str, output: str) -> str:
    """Returns the file of weights=: the best.pt of a run, the copy of a file at an address, or the file itself."""
    if is_storage(weights) or (is_address(weights) and is_weights(weights)):  # another address is that of a mirror
        return local_file(weights)
    return str(best_of(output, weights, "weights=") or weights)


def nearest_run(output: str | Path, name: str) -> str | None:
    """Returns the name of a run in `output` that is most like a name that no run has; None if none is near."""
    return nearest(Path(name).name, (re.sub(DATED, "", path.name) for path in run_root(output).glob("*")))


def is_run(folder: Path) -> bool:
    """Returns whether a folder is a run folder, and not one of data or results: it has environment.json."""
    return os.path.isfile(folder / "environment.json")  # False also for a name that is too long, or without permission


def date_and_number(folder: Path) -> tuple[str, int]:
    """Returns date and number of a run folder, by which runs of one name are sorted."""
    match = re.search(DATED, folder.name)
    return (match[1], int(match[2])) if match else ("", 0)
