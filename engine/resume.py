"""Finding the run to resume, on one node or several."""

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from engine.environment import jobs, run_id
from engine.run_folder import COMMON, near_run, newest_of, run_of, runs
from engine.run_store import address_of_run, fetch_run, is_store, run_root
from engine.state import State
from utils import checkpoint
from utils.config import ConfigError
from utils.processes import Ranks
from utils.remote_cache import shown
from utils.script import command_line

# Seconds before each look for a run. A node may have uploaded what it had more than the bucket, and disks have caches.
PAUSES = (0, 1, 5)


class Progress(NamedTuple):
    """How far a run folder is."""

    name: str  # of the folder
    epochs: int  # done; -1 without last.pt
    batches: int  # done in the current epoch

    def __str__(self) -> str:
        return f"{self.name} after epoch {self.epochs} and {self.batches} batches"

    @property
    def has_checkpoint(self) -> bool:
        """Whether the folder has a last.pt."""
        return self.epochs >= 0


class Found(NamedTuple):
    """The run to resume. Both are None for a new run."""

    folder: Path | None = None
    last: dict[str, Any] | None = None  # the contents of last.pt; None also if nothing was saved yet


def find(resume: bool | str, output: str, name: str, ranks: Ranks) -> Found:
    """Finds the run to resume.

    `resume`: True for the newest run of that name, or a folder or the name of a run. False for a new run, unless torchrun has
    restarted this one. Raises ConfigError if the nodes find different runs.
    """
    loaded: dict[Path, dict] = {}  # by this process already: the contents of last.pt by folder
    for pause in PAUSES:
        time.sleep(pause)
        answers = ranks.gather(ranks.once_per_node(lambda: _find_here(resume, output, name, loaded)))
        if len(set(answers)) == 1:
            break
    else:
        states = ", ".join(str(answer or "none") for answer in answers)
        raise ConfigError(f"the nodes find different states of a run ({states}): {COMMON}")
    if not answers[0]:
        if isinstance(resume, str):
            refuse_missing(resume, output)
        if resume:
            ranks.log(f"resume=true: no last.pt in the newest run of name={name} in output={output}; a new run starts")
        return Found()
    folder = run_here(resume, output, name, fetch=False)
    if not answers[0].has_checkpoint:
        return Found(folder)
    return Found(folder, loaded.get(folder) or checkpoint.load(folder / "last.pt", "resuming"))


def to_continue(script: str, folder: Path, ranks: Ranks) -> str:
    """Returns the command that resumes the run in this folder, on a separate line that can be copied. `script`: train.py.

    Empty on all ranks but the first, and before the first save.
    """
    if not ranks.is_main or not (folder / "last.pt").exists():
        return ""
    nodes = ", on every node" if len(ranks.node_ranks) < ranks.world_size else ""
    return f"To continue{nodes}:\n{command_line(script, [f'resume={shown(str(folder))}'])}"


def with_resume(argv: Sequence[str]) -> list[str]:
    """Returns the words of a command that starts a run again, or resumes what it has saved."""
    if any(word.startswith("resume=") for word in argv):
        return list(argv)
    return [*argv, "resume=true"]


def folder_of(resume: str) -> Path:
    """Returns the run folder of `resume`, which may also name its last.pt."""
    path = run_root(resume)
    if path.suffix == ".pt" and path.name != "last.pt":
        raise ConfigError(f"resume={path}: only last.pt can be resumed, no other checkpoint; name the run folder")
    return path.parent if path.name == "last.pt" else path


def run_here(resume: bool | str, output: str, name: str, fetch: bool = True) -> Path | None:
    """Returns the folder of the run to resume on this node; None for a new run. For the arguments see `find`.

    With `fetch`, a run that is in a bucket is fetched first."""
    has_id = os.environ.get("TORCHELASTIC_RUN_ID", "none") != "none"  # of --rdzv_id; the same after a restart
    restarts = run_id() and (has_id or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0")
    if isinstance(resume, str):
        if fetch:
            _fetch_named(resume, output)
        folder = folder_of(resume)
        if not (folder / "last.pt").exists():  # the name of a run, or of its folder
            folder = run_of(output, resume) or folder
        return folder if (folder / "last.pt").exists() else None
    if fetch:
        fetch_run(output, lambda folders: newest_of(folders, name) if resume or restarts else None)
    candidates = runs(output, name)[::-1]
    # torchrun: a restart, or a start with the same --rdzv_id, resumes the run that was started under this id, even if another
    # job has resumed it since.
    if restarts:
        started_here = [path for path in candidates if run_id() in jobs(path)]
        if started_here or not resume:
            return started_here[0] if started_here else None
    if resume and candidates and (candidates[0] / "last.pt").exists():
        return candidates[0]
    return None


def refuse_missing(resume: str, output: str) -> None:
    """Raises the error of a resume= that names no run with a last.pt: it names the run, a similar one, or the file."""
    if run := run_of(output, resume):
        raise ConfigError(f"resume={resume}: {run} has no last.pt, it ended before its first save: start it again")
    if near := near_run(output, resume):
        raise ConfigError(f"resume={resume}: there is no such run in output={output}; did you mean resume={near}?")
    checkpoint.load(folder_of(resume) / "last.pt")


def _fetch_named(resume: str, output: str) -> None:
    """Fetches the run that resume= names, by its address, by its folder here, or by its name in an output= that is an address."""
    run_root(output)  # makes the address of a folder in it known
    address = (address_of_run(resume) or resume).rstrip("/").removesuffix("/last.pt")
    if is_store(address):
        above, _, name = address.rpartition("/")
        fetch_run(above, lambda folders: next((folder for folder in folders if folder.name == name), None))
    else:
        fetch_run(output, lambda folders: newest_of(folders, resume))


def _find_here(resume: bool | str, output: str, name: str, loaded: dict[Path, dict]) -> Progress | None:
    """Finds the run on this node. Returns its `_progress`, and adds the contents of its last.pt to `loaded`."""
    folder = run_here(resume, output, name)
    return _progress(folder, loaded) if folder else None


def _progress(folder: Path, loaded: dict[Path, dict]) -> Progress:
    """Returns the progress of a run folder, and adds the contents of its last.pt to `loaded`."""
    epochs, batches = -1, -1
    if (folder / "last.pt").exists():
        loaded[folder] = checkpoint.load(folder / "last.pt", "resuming")
        saved = loaded[folder]["resume"]
        epochs, batches = State(**saved["state"]).epoch, saved["meter"]["batches"]
    return Progress(folder.name, epochs, batches)


def restore_best(folder: Path, last: Mapping[str, Any], best_epoch: int | None) -> None:
    """Writes a missing best.pt from last.pt, whose contents are `last`, if that was saved right after `best_epoch`, before the
    next epoch began; otherwise prints a warning."""
    if best_epoch is None:
        return
    if best_epoch == last["epoch"] and not last["resume"]["meter"]["batches"]:
        checkpoint.save(folder / "best.pt", {key: value for key, value in last.items() if key != "resume"})
        print(f"{folder / 'best.pt'} was missing: written again from last.pt")
    else:
        print(
            f"WARNING: {folder / 'best.pt'} of epoch {best_epoch} is missing; only a better epoch will write it again"
        )
