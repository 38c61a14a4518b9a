"""Runs at an address, output=s3://bucket/runs: written to a folder of this computer, and uploaded after each save.

The folder is in the cache. A start fetches the run that it resumes, so that it goes on from any computer.
"""

import json
import os
import secrets
import shutil
import socket
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from filelock import FileLock

from engine.environment import last_start, run_id
from engine.run_lock import lock
from utils import checkpoint, remote
from utils.file_checks import CheckpointError
from utils.remote import FetchError, is_address, is_storage, path_of
from utils.remote_cache import place, shown

AGAIN = 60.0  # seconds before uploads that failed are tried again, unless a save comes first
END = 55.0  # seconds for the last uploads of a run: a bucket may hold its end for a minute
FETCH = 900.0  # seconds for the uploads of a start, which other nodes wait for
LAST = "last.pt"
COPY = ".last.pt.upload"  # of the last.pt that is being uploaded
CLAIM = "environment.json"  # the first object of a run in a bucket: who writes it has the number of the run


def is_store(output: str | Path) -> bool:
    """Whether output= is the address of a bucket, and not a folder that this computer can write to."""
    return is_storage(str(output)) and path_of(str(output)) == str(output)


def run_root(output: str | Path) -> Path:
    """Returns the folder of the run folders: `output`, or the folder in the cache for it if it is an address."""
    return place(str(output), "runs") if is_store(output) else Path(path_of(str(output)))


def address_of_run(folder: str | Path) -> str:
    """Returns the address of a run folder in the cache; "" for any other folder."""
    address = shown(os.path.abspath(folder))
    return address if is_store(address) else ""


def require_store(output: str | Path) -> None:
    """Raises FetchError, before the data are read, if the bucket of `output` cannot be listed."""
    address = str(output)
    if is_address(address) and not is_storage(address):
        raise FetchError(f"output={address}: no such kind of storage is known: write s3://BUCKET/FOLDER, or a folder")
    if is_store(address):
        remote.entries(address)


def claim(folder: Path) -> bool:
    """Returns whether the number of a new run is free in the bucket, too, and takes it; True for a run in a folder."""
    address = address_of_run(folder)
    owner = {"id": secrets.token_hex(8), "run": run_id(), "host": socket.gethostname(), "pid": os.getpid()}
    return not address or remote.create(f"{address}/{CLAIM}", json.dumps(owner).encode())


def fetch_run(output: str | Path, newest: Callable[[], Path | None]) -> None:
    """Makes a run the same here and in the bucket, if `output` is one.

    All runs become folders here, so that `newest` finds the run among them. It is fetched, or uploaded if it has more progress
    here: its last upload was cut off, and other nodes need it."""
    if not is_store(output):
        return
    root, listed = run_root(output), remote.entries(str(output))
    for name in {name.partition("/")[0] for name in listed if "/" in name}:
        (root / name).mkdir(parents=True, exist_ok=True)
    run = newest()
    if run is None:
        return
    files = {name.partition("/")[2]: entry for name, entry in listed.items() if name.startswith(f"{run.name}/")}
    with FileLock(root / f".{run.name}.lock"), closing(lock(run)):
        if remote.is_current(run / LAST, files.get(LAST)):
            return
        fetched = run / ".fetch"
        needed = {name: entry for name, entry in files.items() if not name.startswith(("epoch_", "."))}
        remote.download(str(output), {fetched / name: entry for name, entry in needed.items()})
        if not files or _steps(run / LAST) > _steps(fetched / LAST):
            if problem := Uploads(run).close(FETCH):
                raise FetchError(problem)
        else:
            for name in sorted(needed, key=lambda name: name == LAST):  # last.pt last: it refers to the others
                (run / name).parent.mkdir(parents=True, exist_ok=True)
                os.replace(fetched / name, run / name)
        shutil.rmtree(fetched, ignore_errors=True)


def _files_of(run: Path) -> set[str]:
    """Returns the names of the files of a run, with the evaluation, and without hidden files, which are temporary."""
    found = set()
    for top, folders, names in os.walk(run):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found |= {Path(top, name).relative_to(run).as_posix() for name in names if not name.startswith(".")}
    return found


def _steps(path: Path) -> int:
    """Returns the number of steps of a last.pt, -1 for one that is missing or damaged."""
    try:
        return checkpoint.load(path)["step"]
    except (CheckpointError, LookupError):
        return -1


class Uploads:
    """Uploads the files of a run folder that have changed, by a thread, if the folder is in the cache for a bucket.

    The training never waits for the bucket, except in `close`. Nothing is uploaded over a start on another computer."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.address = folder, address_of_run(folder)
        self.done: dict[str, tuple[int, ...]] = {}  # name -> stamp of the version that is in the bucket
        self.problem = ""  # of the last attempt
        self._due, self._ending = threading.Event(), False
        self._thread = threading.Thread(target=self._work, daemon=True)

    def begin(self) -> None:
        """Uploads in the background what has changed."""
        self._due.set()
        if self.address and self._thread.ident is None:
            self._thread.start()

    def close(self, seconds: float = END) -> str:
        """Uploads the rest, and returns "". If that fails or takes too long, returns an error that names the folder."""
        if not self.address:
            return ""
        self._ending = True
        self.begin()
        self._thread.join(seconds)
        if self._thread.is_alive():
            self.problem = f"{self.address}: the last uploads took more than {seconds:g} s"
        if not self.problem:
            return ""
        fix = f"start again with resume=true, or copy that folder to {self.address}"
        return f"{self.problem}\nthe last files were not uploaded, but all are in {self.folder}: {fix}"

    def _work(self) -> None:
        is_last = False
        while not is_last:
            self._due.wait(AGAIN if self.problem else None)
            self._due.clear()
            is_last = self._ending
            try:
                self._upload()
                self.problem = ""
            except (FetchError, OSError) as error:
                if not self.problem:
                    print(
                        f"WARNING: {error}\nWARNING: training continues; {self.folder} has all files, to upload later"
                    )
                self.problem = str(error)

    def _upload(self) -> None:
        """Uploads what has changed: first what names this start, last the last.pt of the beginning, which refers to the rest."""
        if CLAIM in self.done and not self._is_own():
            raise FetchError(
                f"{self.address}: another start has resumed this run, which uploads now: end one of the two"
            )
        copy = self.folder / COPY  # stays this version when a save replaces last.pt
        with suppress(FileNotFoundError):
            shutil.copy2(self.folder / LAST, copy)
        for name in sorted(_files_of(self.folder) - {LAST, "lock"}, key=lambda name: (name != CLAIM, name)):
            self._one(name, self.folder / name)
        self._one(LAST, copy)
        copy.unlink(missing_ok=True)

    def _is_own(self) -> bool:
        """Whether the run in the bucket is of the start that is running here."""
        with suppress(ValueError, TypeError, LookupError):  # damaged
            return json.loads(remote.read(f"{self.address}/{CLAIM}"))["id"] == last_start(self.folder)["id"]
        return False

    def _one(self, name: str, path: Path) -> None:
        """Uploads a file if it is there and has changed."""
        with suppress(FileNotFoundError):
            status = path.stat()
            stamp = status.st_size, status.st_mtime_ns
            if self.done.get(name) != stamp:
                remote.upload(path, f"{self.address}/{name}")
                self.done[name] = stamp
