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

from engine.environment import run_id
from engine.run_lock import RunInUse, lock
from utils import checkpoint
from utils.file_checks import CheckpointError
from utils.files import atomic_write, files_under
from utils.remote import WARN_AFTER, FetchError, create, download, entries, is_address, is_storage, path_of, upload
from utils.remote_cache import place, shown

AGAIN = 60.0  # seconds before uploads that failed are tried again, unless a save comes first
END = 45.0  # seconds for the last uploads of a run
REPORT = 15.0  # seconds for its report: together with END a minute, for which a bucket may hold the end of a run
LAST = "last.pt"
LINK = ".last.pt.upload"  # a hard link to the last.pt that is being uploaded
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
        entries(address)


def claim(folder: Path) -> bool:
    """Returns whether the number of a new run is free in the bucket, too, and takes it; True for a run in a folder."""
    address = address_of_run(folder)
    owner = {"id": secrets.token_hex(8), "run": run_id(), "host": socket.gethostname(), "pid": os.getpid()}
    return not address or create(f"{address}/{CLAIM}", json.dumps(owner).encode())


def fetch_run(output: str | Path, newest: Callable[[list[Path]], Path | None]) -> None:
    """Makes a run the same here and in the bucket, if `output` is one: that which `newest` chooses from all run folders.

    It is fetched, or uploaded if it has more progress here: its last upload was cut off, and other nodes need it. All runs
    become folders here, so that their numbers go on. A run that a program on this computer continues is left alone."""
    if not is_store(output):
        return
    root, listed = run_root(output), entries(str(output))
    for name in {name.partition("/")[0] for name in listed if "/" in name}:
        (root / name).mkdir(parents=True, exist_ok=True)
    run = newest([path for path in root.glob("*") if path.is_dir()])
    if run is None:
        return
    files = {name.partition("/")[2]: entry for name, entry in listed.items() if name.startswith(f"{run.name}/")}
    needed = [name for name in files if "/" not in name and not name.startswith(("epoch_", "."))]
    with FileLock(root / f".{run.name}.lock"), suppress(RunInUse), closing(lock(run)):
        mark = run / ".fetched"  # the last.pt of the bucket that is here
        version = repr((files.get(LAST), _stamp(run / LAST)))
        if LAST in files and mark.exists() and mark.read_text(encoding="utf-8") == version:
            return
        fetched = run / ".fetch"
        shutil.rmtree(fetched, ignore_errors=True)
        fetched.mkdir()
        for _ in download(str(output), [(files[name], fetched / name) for name in needed], lambda _: None):
            pass
        here, there = _steps(run / LAST), _steps(fetched / LAST)
        if here > there or not files:
            _Upload(run, address_of_run(run)).all()
        else:
            for name in sorted(set(needed) - {LAST}):
                os.replace(fetched / name, run / name)
            if LAST in needed:  # last, because it refers to the others
                os.replace(fetched / LAST, run / LAST)
        shutil.rmtree(fetched)
        with atomic_write(mark) as file:
            file.write(repr((files.get(LAST), _stamp(run / LAST))).encode())


def _steps(path: Path) -> int:
    """Returns the number of steps of a last.pt, -1 for one that is missing or damaged."""
    try:
        return checkpoint.load(path)["step"]
    except (CheckpointError, LookupError):
        return -1


def _stamp(path: Path) -> tuple[int, ...]:
    """Returns what changes with the contents of a file."""
    with suppress(FileNotFoundError):
        status = path.stat()
        return status.st_size, status.st_mtime_ns, status.st_ino
    return ()


class _Upload:
    """Uploads the files of a folder that have changed since it did so before."""

    def __init__(self, folder: Path, address: str) -> None:
        self.folder, self.address = folder, address
        self.done: dict[str, tuple[int, ...]] = {}  # name -> stamp of the version that is in the bucket

    def all(self) -> None:
        """Uploads all files that have changed, last.pt as the last one: what it refers to is never missing or older."""
        link, stamp = self.folder / LINK, _stamp(self.folder / LAST)
        link.unlink(missing_ok=True)
        if stamp:
            try:
                os.link(self.folder / LAST, link)
            except OSError:  # a disk without links
                shutil.copy2(self.folder / LAST, link)
        try:
            for name in files_under(self.folder):
                if name not in (LAST, "lock") and not name.endswith(".tmp"):
                    self.one(name, self.folder / name, _stamp(self.folder / name))
            if stamp:
                self.one(LAST, link, stamp)
        finally:
            link.unlink(missing_ok=True)

    def one(self, name: str, path: Path, stamp: tuple[int, ...]) -> None:
        """Uploads a file if it has changed."""
        if self.done.get(name) != stamp and path.exists():
            upload(path, f"{self.address}/{name}")
            self.done[name] = stamp


class Uploads:
    """Uploads a run folder that is in the cache for a bucket, by a thread; does nothing for other folders.

    The training never waits for the bucket, except in `close`, and there for END seconds."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.address = folder, address_of_run(folder)
        self.problem = ""  # of the last attempt
        self._upload = _Upload(folder, self.address)
        self._due, self._ending = threading.Event(), False
        self._thread = threading.Thread(target=self._work, daemon=True) if self.address else None
        if self._thread:
            print(f"uploading this run to {self.address}")
            self._thread.start()
            self.begin()

    def begin(self) -> None:
        """Uploads in the background what has changed."""
        self._due.set()

    def _work(self) -> None:
        is_last = False
        while not is_last:
            self._due.wait(AGAIN if self.problem else None)
            self._due.clear()
            is_last = self._ending
            slow = threading.Timer(
                WARN_AFTER, self._warn, [f"{self.address}: an upload takes more than {WARN_AFTER} s"]
            )
            slow.daemon = True
            slow.start()
            try:
                self._upload.all()
                if self.problem:
                    print(f"uploads to {self.address} work again: everything is there")
                self.problem = ""
            except (FetchError, OSError) as error:
                if not self.problem:
                    self._warn(str(error))
                self.problem = str(error)
            finally:
                slow.cancel()

    def _warn(self, text: str) -> None:
        print(f"WARNING: {text}\nWARNING: training continues; {self.folder} has all files, which are uploaded later")

    def close(self) -> str:
        """Uploads the rest, and returns "". If that fails or takes too long, returns an error that names the folder."""
        if self._thread is None:
            return ""
        self._ending = True
        self.begin()
        self._thread.join(END)
        if self._thread.is_alive():
            self.problem = f"{self.address}: the last uploads took more than {END:g} s"
        self._thread = None
        if not self.problem:
            return ""
        fix = (
            f"copy that folder to {self.address} when the storage can be reached again, or start again with resume=true"
        )
        return f"{self.problem}\nthe last files were not uploaded, but all are in {self.folder}: {fix}"


def upload_folder(folder: Path) -> None:
    """Uploads what was written into a run folder after its run was closed, such as the report, within REPORT seconds."""
    if address := address_of_run(folder):
        problems = [f"{address}: the uploads took more than {REPORT:g} s"]

        def work() -> None:
            try:
                _Upload(folder, address).all()
                problems.clear()
            except (FetchError, OSError) as error:
                problems[:] = [str(error)]

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(REPORT)
        for problem in problems:
            print(f"WARNING: {problem}\nWARNING: {folder} has all files")
