"""Runs in a bucket, output=s3://bucket/runs: written to a folder of this computer, and uploaded by a thread.

The folder is in the cache. A start fetches the newest run of its name into it, so that a run resumes on any computer.
"""

import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from utils import checkpoint, mirror
from utils.file_checks import CheckpointError
from utils.files import atomic_write, files_under
from utils.remote import FetchError, Item, is_address, is_storage, scheme_of, storage_of

EVERY = 2.0  # seconds between two looks at the files of a run
FIRST = ("environment.json", "config.json", "best.pt")  # before what refers to them
LAST = "last.pt"
LOCAL = ("file", "local")  # schemes of addresses that are paths
SNAPSHOT = ".upload-"  # before the name of a file that is being uploaded


def is_store(output: str | Path) -> bool:
    """Whether output= is the address of a bucket, and not a folder that this computer can write to."""
    return is_storage(str(output)) and scheme_of(str(output)) not in LOCAL


def run_root(output: str | Path) -> Path:
    """Returns the folder of the run folders: `output`, or the folder in the cache that stands for it if it is an address."""
    if is_store(output):
        return Path(mirror.runs_at(str(output)))
    return Path(str(output).partition("://")[2] if scheme_of(str(output)) in LOCAL else output)


def fetch_run(output: str | Path, newest: Callable[[list[Path]], Path | None]) -> None:
    """Makes a run the same here and in the bucket, if `output` is one: that which `newest` chooses from all run folders.

    It is fetched, or uploaded if it has more progress here: its last upload was cut off, and other nodes need it. All runs
    become folders here, so that their numbers go on."""
    if not is_store(output):
        return
    root, listed = run_root(output), storage_of(str(output)).folder(str(output), missing_is_empty=True)
    for name in {Path(name).parts[0] for name in listed if "/" in name}:
        (root / name).mkdir(parents=True, exist_ok=True)
    run = newest([path for path in root.glob("*") if path.is_dir()])
    if run is None:
        return
    files = {Path(name).name: item for name, item in listed.items() if Path(name).parent == Path(run.name)}
    here, there = _progress(run / LAST), _progress_there(files.get(LAST), run)
    if here > there or not files:
        for name in filter(lambda name: (run / name).exists(), (*FIRST, LAST)):
            storage_of(str(output)).write(run / name, f"{mirror.address_of_run(str(run))}/{name}")
    elif here < there or (there < 0 and "environment.json" in files):
        for name in sorted(files, key=lambda name: (name == LAST, name)):  # last.pt last: it refers to best.pt
            if not name.startswith(("epoch_", ".")):
                _fetch(files[name], run / name)


def _fetch(item: Item, path: Path) -> None:
    with atomic_write(path) as file:
        storage_of(item.address).copy(item, file)


def _progress_there(item: Item | None, run: Path) -> int:
    """Returns the number of steps of the last.pt in the bucket, -1 if there is none."""
    if item is None:
        return -1
    copy = run / f".{LAST}-{os.getpid()}"
    try:
        _fetch(item, copy)
        return _progress(copy)
    finally:
        copy.unlink(missing_ok=True)


def _progress(path: Path) -> int:
    """Returns the number of steps of a last.pt, -1 for one that is missing or damaged."""
    try:
        return checkpoint.load(path)["step"]
    except (CheckpointError, LookupError):
        return -1


def require_store(output: str | Path) -> None:
    """Raises FetchError, before the data are read, if nothing can be written to the bucket of `output`."""
    address = str(output)
    if is_address(address) and not is_storage(address):
        raise FetchError(f"output={address}: no such kind of storage is known: write s3://BUCKET/FOLDER, or a folder")
    if is_store(address):
        with tempfile.NamedTemporaryFile() as empty:
            storage_of(address).write(empty.name, f"{address.rstrip('/')}/.writable")


class Uploads:
    """Uploads the files of a run folder that stands for a bucket whenever they have changed; does nothing for other folders.

    Each object is whole or the one before. best.pt comes before the last.pt that refers to it, and other files after it. The
    training does not wait, except in `close`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.address = folder, mirror.address_of_run(str(folder))
        self.done: dict[str, tuple] = {}  # name -> stamp of the version that is in the bucket
        self.problem = ""  # of the last attempt
        self._busy, self._end = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True) if self.address else None
        if self._thread:
            print(f"uploading this run to {self.address}")
            self._thread.start()

    def _work(self) -> None:
        while not self._end.wait(EVERY):
            self.upload()

    def upload(self) -> None:
        """Uploads what has changed. An error is printed once, and the files are uploaded later."""
        with self._busy:
            try:
                self._upload()
                if self.problem:
                    print(f"uploads to {self.address} work again: everything is there")
                self.problem = ""
            except (FetchError, OSError) as error:
                if not self.problem:
                    print(
                        f"WARNING: {error}\nWARNING: training continues; {self.folder} has all files, which are uploaded later"
                    )
                self.problem = str(error)

    def _upload(self) -> None:
        last, stamp = self._snapshot(LAST)  # before the others: best.pt is never older than it
        try:
            for name in FIRST:
                self._one(name)
            for name in sorted(path.name for path in self.folder.glob("epoch_*.pt")):
                self._one(name)
            if last and self.done.get(LAST) != stamp:
                storage_of(self.address).write(last, f"{self.address}/{LAST}")
                self.done[LAST] = stamp
        finally:
            if last:
                last.unlink(missing_ok=True)
        for name in files_under(self.folder):
            if name not in (*FIRST, LAST, "lock") and not name.endswith((".pt", ".tmp")):
                self._one(name)

    def _one(self, name: str) -> None:
        """Uploads a file if it has changed."""
        if self.done.get(name) == _stamp(self.folder / name):
            return
        snapshot, stamp = self._snapshot(name)
        if snapshot:
            try:
                storage_of(self.address).write(snapshot, f"{self.address}/{name}")
                self.done[name] = stamp
            finally:
                snapshot.unlink(missing_ok=True)

    def _snapshot(self, name: str) -> tuple[Path | None, tuple]:
        """Returns a second name of a file, which stays this version of it when a save replaces the file, and its stamp."""
        path = self.folder / name
        snapshot = path.with_name(f"{SNAPSHOT}{path.name}")
        snapshot.unlink(missing_ok=True)
        try:
            try:
                os.link(path, snapshot)
            except FileNotFoundError:
                return None, ()
            except OSError:  # a disk without links
                shutil.copy2(path, snapshot)
            return snapshot, _stamp(snapshot)
        except FileNotFoundError:
            return None, ()

    def close(self) -> str:
        """Waits until everything is uploaded, and returns "". If that fails, returns an error that names the folder."""
        if self._thread is None:
            return ""
        self._end.set()
        self._thread.join()
        self._thread = None
        self.upload()
        if not self.problem:
            return ""
        fix = f"copy that folder to {self.address} when the storage can be reached again"
        return f"{self.problem}\nthe last files were not uploaded, but all are in {self.folder}: {fix}"


def _stamp(path: Path) -> tuple:
    with suppress(FileNotFoundError):
        status = path.stat()
        return status.st_size, status.st_mtime_ns, status.st_ino
    return ()


def upload_folder(folder: Path) -> None:
    """Uploads what was written into a run folder after its run was closed, such as the report; an error is printed."""
    address = mirror.address_of_run(str(folder))
    try:
        for name in files_under(folder) if address else ():
            storage_of(address).write(folder / name, f"{address}/{name}")
    except FetchError as error:
        print(f"WARNING: {error}\nWARNING: {folder} has all files")
