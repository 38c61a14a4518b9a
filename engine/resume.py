"""Finding the run to resume, on one node or several."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from engine.environment import jobs, run_id
from engine.run_lock import saved_ns, why_unsaved
from engine.run_store import address_of_run, fetch_run, is_store, run_root
from engine.runs import COMMON, nearest_run, newest, run_of, runs
from engine.state import State
from utils import checkpoint
from utils.config import ConfigError
from utils.file_checks import fitting
from utils.processes import Ranks
from utils.remote_cache import shown
from utils.script import command_line

# Seconds before each look for a run. A node may have uploaded what it had more than the bucket, and disks have caches.
PAUSES = (0, 1, 5)


class Found(NamedTuple):
    """The run to resume. Both are None for a new run."""

    folder: Path | None = None
    last: dict[str, Any] | None = None  # the contents of last.pt; None also if nothing was saved yet
    saved_at: int | None = None  # when this node's last.pt was saved, in nanoseconds


def find(resume: bool | str, output: str, name: str, ranks: Ranks) -> Found:
    """Finds the run to resume, and reads its last.pt once in each process.

    For the arguments see `run_to_resume`. Raises ConfigError if the nodes find different runs.
    """
    last: dict[str, Any] | None = None
    saved_at: int | None = None

    def look() -> tuple[Path | None, str]:
        nonlocal last, saved_at
        folder = run_to_resume(resume, output, name)
        if folder is None or not (folder / "last.pt").exists():
            return folder, f"{folder.name} without last.pt" if folder else "none"
        saved_at = saved_ns(folder / "last.pt")
        last = checkpoint.load(folder / "last.pt", "resuming")
        with fitting(folder / "last.pt"):
            epoch, batches = State(**last["resume"]["state"]).epoch, last["resume"]["meter"]["batches"]
        return folder, f"{folder.name} after epoch {epoch} and {batches} batches"

    for pause in PAUSES:
        time.sleep(pause)
        folder, progress = ranks.once_per_node(look)
        states = ranks.gather(progress)
        if len(set(states)) == 1:
            break
    else:
        raise ConfigError(f"the nodes find different states of a run ({', '.join(states)}): {COMMON}")
    if folder is None:
        if isinstance(resume, str):
            refuse_missing(resume, output)
        if resume:
            ranks.log(f"resume=true: no last.pt in the newest run of name={name} in output={output}; a new run starts")
    elif last is None and (folder / "last.pt").exists():  # another process of this node has read it
        last = checkpoint.load(folder / "last.pt", "resuming")
    return Found(folder, last, saved_at)


def run_to_resume(resume: bool | str, output: str, name: str) -> Path | None:
    """Returns the folder of the run to resume on this node, after fetching it from a bucket; None for a new run.

    `resume`: the folder, the last.pt or the name of a run; True for the newest run of that name; False for a new run. Under
    torchrun a restart, or a start with the same --rdzv_id, resumes the run that was started under this id, even if another
    job has resumed it since.
    """
    if isinstance(resume, str):
        run_root(output)  # makes the address of a folder in it known
        path = named_folder(resume)
        address = address_of_run(path) or path
        if is_store(address):
            output, _, name = address.rpartition("/")
        else:
            name = path
        fetch_run(output, lambda: newest(output, name))
        return run_of(output, str(run_root(path)), "last.pt")
    has_id = os.environ.get("TORCHELASTIC_RUN_ID", "none") != "none"  # of --rdzv_id; the same after a restart
    restarts = run_id() and (has_id or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0")
    fetch_run(output, lambda: newest(output, name) if resume or restarts else None)
    newest_first = runs(output, name)[::-1]
    if restarts:
        own = next((path for path in newest_first if run_id() in jobs(path)), None)
        if own or not resume:
            return own
    if resume and newest_first and (newest_first[0] / "last.pt").exists():
        return newest_first[0]
    return None


def named_folder(resume: str) -> str:
    """Returns the run folder, the address or the name of a run that resume= names, also by its last.pt. Raises ConfigError."""
    path = Path(resume)
    if path.suffix == ".pt" and path.name != "last.pt":
        raise ConfigError(f"resume={path}: only last.pt can be resumed, no other checkpoint; name the run folder")
    return resume.rstrip("/").removesuffix("last.pt").rstrip("/")


def refuse_missing(resume: str, output: str) -> None:
    """Raises the error of a resume= that names no run with a last.pt."""
    if run := run_of(output, resume):
        raise ConfigError(f"resume={resume}: {run} has no last.pt: {why_unsaved(run)}")
    near = nearest_run(output, resume)
    fix = f"did you mean resume={near}?" if near else "correct it"
    raise ConfigError(f"resume={resume}: there is no such folder, and no run of this name in output={output}: {fix}")


def to_continue(script: str, folder: Path, ranks: Ranks) -> str:
    """Returns the command that resumes the run in this folder, on a separate line that can be copied. `script`: train.py.

    Empty on all ranks but the first, and before the first save.
    """
    if not ranks.is_main or not (folder / "last.pt").exists():
        return ""
    nodes = ", on every node" if len(ranks.node_ranks) < ranks.world_size else ""
    return f"To continue{nodes}:\n{command_line(script, [f'resume={shown(str(folder))}'])}"


@contextmanager
def noting(how_to_continue: Callable[[], str]) -> Iterator[None]:
    """Adds how to continue to the errors of a stopped or broken run, which `run_script` prints."""
    try:
        yield
    except (KeyboardInterrupt, BrokenPipeError, RuntimeError) as error:
        if note := how_to_continue():
            error.add_note(note)
        raise
