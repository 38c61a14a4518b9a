"""Copies of data sets: downloaded from an address or unpacked from an archive at the start, and files like all others then.

A start lists the address, and downloads what is new or has changed. What is gone there goes here. A copy changes only while
no other program uses it.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO
from unicodedata import normalize
from urllib.parse import unquote

from filelock import FileLock, Timeout

from utils import archives, web
from utils.archives import is_archive, is_hidden
from utils.files import IMAGE_SUFFIXES, cache_folder
from utils.progress import progress_bar
from utils.remote import (
    Entry,
    FetchError,
    Missing,
    download,
    entries,
    entry_of,
    is_address,
    is_storage,
    path_of,
    refuse_keys,
    scheme_of,
)

try:
    import fcntl
except ImportError:  # Windows, where a file in use cannot be removed anyway
    fcntl = None

LABELS = (".txt", ".json", ".jsonl", ".ndjson", ".manifest", ".xml", ".csv", ".tsv", ".yaml", ".yml", ".data", ".names")
_addresses: dict[str, str] = {}  # folder or file in the cache -> the address or the archive that it is a copy of
_used: dict[Path, IO] = {}  # folder of a copy -> open file with a lock, which this process holds until its end


def local(source: str, alone: bool = False) -> str:
    """Returns the path of the copy of a data set at an address or in an archive; other paths unchanged. Raises FetchError.

    Of a label file its folder is copied, too, and without images there the folder above; not with `alone`."""
    refuse_keys("", source)
    source = path_of(source)
    if is_archive(source) and (is_address(source) or os.path.isfile(source)):
        return _unpacked(source)
    if not is_address(source) or scheme_of(source) in web.SCHEMES:
        return local_file(source)
    address, name = source.rstrip("/"), ""
    if address.lower().endswith(LABELS):
        address, _, name = address.rpartition("/")
    found = entries(address)
    has_images = any(name.lower().endswith(IMAGE_SUFFIXES) for name in found)
    if name in found and not has_images and not alone and address.count("/") > 2:  # as annotations/train.json
        address, _, folder = address.rpartition("/")
        name, found = f"{folder}/{name}", entries(address)
    if name and name not in found:
        raise Missing(f"{source}: there is no such object: correct the address, and the name of the bucket")
    if not found:
        return local_file(source)
    return os.path.join(_copied(address, found), *name.split("/"))


def local_file(address: str) -> str:
    """Returns the path of the copy of a single file at an address; other paths unchanged. Raises FetchError."""
    refuse_keys("", address)
    address = path_of(address)
    if not is_address(address):
        return address
    return _copied(address, {"": entry_of(address)})


def local_source(source: str) -> str:
    """Returns the path of images to predict that are in a bucket or an archive; other sources unchanged. Raises FetchError."""
    return local(source) if is_storage(source) or is_archive(source) else source


def place(address: str, kind: str = "remote") -> Path:
    """Returns the path in the cache for the copy of an address or of an archive. Raises FetchError for one without a name."""
    address = address.rstrip("/")
    path = address.partition("://")[2] if is_address(address) else os.path.basename(address)
    if scheme_of(address) in web.SCHEMES:
        path = unquote(path.partition("#")[0])
    try:
        name = archives.parts_of(path)[-1]
    except archives.BadName as error:
        raise FetchError(f"{address}: no address that can be read: correct it, as s3://BUCKET/FOLDER") from error
    digest = hashlib.blake2b(address.encode("utf-8", "surrogateescape"), digest_size=10).hexdigest()
    copy = Path(os.path.abspath(cache_folder()), kind, f"{scheme_of(address) or 'archive'}-{digest}", name)
    _addresses[str(copy)] = address
    return copy


def shown(text: str) -> str:
    """Returns text with addresses in place of the paths of their copies, as this process knows them."""
    for path, address in _addresses.items():
        text = text.replace(path, address)
    return text


def _copied(address: str, found: dict[str, Entry]) -> str:
    """Returns the path of the copy of a file, {"": entry}, or of a folder, with the files `found`, made equal to them."""
    copy = place(address)
    folder = copy.parent
    with _locked(folder, address):
        _check_names(address, found, folder)
        wanted = {"/".join(filter(None, (copy.name, name))): found[name] for name in found if not is_hidden(name)}
        known, here = _read_manifest(folder), _files_in(folder)
        current = {name for name, path in here.items() if _is_current(path, known.get(name), wanted.get(name))}
        outdated = here.keys() - current
        if not all(map(is_hidden, outdated)):  # otherwise they are what a start that was ended has left
            _require_unused(folder, address)
        for name in outdated:
            os.unlink(here[name])
        for top, _, _ in os.walk(folder, topdown=False):
            if top != str(folder) and not os.listdir(top):
                os.rmdir(top)
        _download(address, folder, {name: wanted[name] for name in wanted if name not in current})
        if outdated or known.keys() != wanted.keys():
            _write_manifest(folder, wanted)
    return str(copy)


def _files_in(folder: Path) -> dict[str, str]:
    """Returns the paths of all files below a folder by their names in it, with "/"."""
    paths = [os.path.join(top, name) for top, _, names in os.walk(folder) for name in names]
    return {os.path.relpath(path, folder).replace(os.sep, "/"): path for path in paths}


def _is_current(path: str, known: list | None, entry: Entry | None) -> bool:
    """Whether a file is what its object is now. A power cut may leave a file that is cut off."""
    if entry is None or not entry.version or known != list(entry[1:]):
        return False
    return entry.size in (None, os.path.getsize(path))


def _download(address: str, folder: Path, wanted: dict[str, Entry]) -> None:
    """Downloads files into a folder, and enters each one in the manifest as soon as it is there."""
    if not wanted:
        return
    size = sum(entry.size or 0 for entry in wanted.values())
    free = shutil.disk_usage(folder).free
    if size > free:
        fix = "make room, name another disk by THAW_CACHE=FOLDER, or mount the bucket (docs/buckets.md)"
        raise FetchError(f"{address}: {size / 1e9:.1f} GB, and {folder} has {free / 1e9:.1f} GB free: {fix}")
    print(f"downloading {address}: {len(wanted):,} new or changed files, {size / 1e6:,.1f} MB, to {folder}", flush=True)
    names = list(wanted)
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
    jobs = [(wanted[name], folder / name) for name in names]
    with (
        open(_manifest(folder), "a", encoding="utf-8") as manifest,
        progress_bar(None, "downloading (bytes)", total=size, delay=1) as bar,
    ):
        for index in download(address, jobs, bar.update):
            manifest.write(json.dumps([names[index], *wanted[names[index]][1:]]) + "\n")
            manifest.flush()


def _unpacked(archive: str) -> str:
    """Returns the path of the folder with the files of an archive, which is at an address or on this disk."""
    if is_address(archive):
        address, entry = archive, entry_of(archive)
    else:
        address, status = os.path.realpath(archive), os.stat(archive)
        entry = Entry("", status.st_size, f"{status.st_mtime_ns} {status.st_ino}")
    copy = place(address)
    folder, temporary = copy.with_name(copy.name.partition(".")[0] or "set"), copy.with_name(".unpacking")
    _addresses[str(folder)] = archive
    with _locked(copy.parent, archive):
        known = _read_manifest(copy.parent)
        if folder.is_dir() and entry.version and known == {folder.name: list(entry[1:])}:
            return str(folder)
        if folder.is_dir():
            _require_unused(copy.parent, archive)
            shutil.rmtree(folder)
        shutil.rmtree(temporary, ignore_errors=True)  # an earlier start was ended
        file = archive
        if is_address(archive):
            file = str(copy)
            if not copy.exists() or not _is_current(file, known.get(copy.name), entry):
                _download(archive, copy.parent, {copy.name: entry})
        print(f"unpacking {archive} to {folder}", flush=True)
        try:
            archives.extract(file, temporary)
        except archives.BadName as error:
            raise FetchError(f"{archive}: {error}") from error
        except archives.DAMAGED as error:
            raise FetchError(
                f"{archive}: cannot be unpacked ({error}): get another copy, without a password"
            ) from error
        if not any(temporary.iterdir()):
            raise FetchError(f"{archive}: there are no files in this archive")
        copy.unlink(missing_ok=True)
        os.replace(temporary, folder)
        _write_manifest(copy.parent, {folder.name: entry})
    return str(folder)


def _check_names(address: str, names: Iterable[str], folder: Path) -> None:
    """Raises FetchError for objects that cannot all be files below `folder`."""
    is_one_case, folders = _is_one_case(folder), set()
    seen: dict[str, str] = {}
    for name in filter(None, names):
        try:
            parts = archives.parts_of(name)
        except archives.BadName as error:
            raise FetchError(f"{address}: {error}") from error
        folders |= {"/".join(parts[:count]) for count in range(1, len(parts))}
        other = seen.setdefault(normalize("NFC", name).casefold() if is_one_case else name, name)
        if other != name:
            raise FetchError(f"{address}: {other!r} and {name!r} are one file on this disk: rename one of them")
    if both := folders.intersection(names):
        raise FetchError(
            f"{address}: {min(both)!r} is a file and a folder, which a disk cannot hold: rename one of them"
        )


def _is_one_case(folder: Path) -> bool:
    """Whether upper and lower case are one name on the disk of a folder, as on most of macOS and Windows."""
    return folder.with_name(folder.name.upper()).exists()


# ---- locks and the manifest


@contextmanager
def _locked(folder: Path, address: str) -> Iterator[None]:
    """One program at a time changes a copy. After that, this process is one that uses it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = FileLock(f"{folder}.lock")
    try:
        lock.acquire(timeout=1)
    except Timeout:
        print(f"waiting for another program that downloads {address}", flush=True)
        lock.acquire()
    try:
        yield
        _lock_use(folder, exclusive=False)
    finally:
        lock.release()


def _require_unused(folder: Path, address: str) -> None:
    """Raises FetchError if another program uses a copy that would change."""
    if not _lock_use(folder, exclusive=True):
        _lock_use(folder, exclusive=False)
        fix = "wait for its end, or give this one its own copy by THAW_CACHE=FOLDER"
        raise FetchError(f"{address} has changed, and another program on this computer still uses its copy: {fix}")


def _lock_use(folder: Path, exclusive: bool) -> bool:
    """Returns whether this process now uses a copy, together with others or alone."""
    if fcntl is None:
        return True
    if folder not in _used:
        _used[folder] = open(f"{folder}.use", "ab")
    try:
        fcntl.flock(_used[folder], (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a disk without locks
        pass
    return True


def _manifest(folder: Path) -> Path:
    return folder.with_suffix(".jsonl")


def _read_manifest(folder: Path) -> dict[str, list]:
    """Returns {name: [size, version]} of the files that were copied; a line that was cut off does not count."""
    known = {}
    if _manifest(folder).exists():
        for line in _manifest(folder).read_text(encoding="utf-8").splitlines():
            try:
                name, *stamp = json.loads(line)
            except ValueError:
                continue
            known[name] = stamp
    return known


def _write_manifest(folder: Path, wanted: dict[str, Entry]) -> None:
    """Replaces the manifest, which a download has only added to."""
    text = "".join(json.dumps([name, *entry[1:]]) + "\n" for name, entry in wanted.items())
    temporary = _manifest(folder).with_suffix(".tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, _manifest(folder))
