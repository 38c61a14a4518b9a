"""Files at an address, such as s3://bucket/set or https://host/set.zip: listed, downloaded and uploaded by fsspec.

fsspec comes with PyTorch. Each kind of storage needs its own package, such as s3fs for s3://, which tries again after errors
of the connection, and takes the keys from where its tools keep them, never from the address.
"""

import errno
import hashlib
import os
import queue
import re
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from utils.progress import progress_bar
from utils.text import first_line, pip

T = TypeVar("T")

WARN_AFTER = 30  # seconds without an answer before a warning; the package of the storage decides when to give up
THREADS = 32  # that download: with small files, a thread mostly waits for the network
PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}
PACKAGES |= {"http": "aiohttp", "https": "aiohttp", "hf": "huggingface_hub"}
WEB = ("http", "https")
PAGE = (b"<!doctype html", b"<html")  # first bytes, such as of a login page
# as storages list them, and web servers
VERSIONS = "generation ETag etag md5Hash blob_id mtime created LastModified Last-Modified Content-MD5 Digest".split()
STARTED = time.time()
_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]+)://", re.IGNORECASE)
# abfs://CONTAINER@ACCOUNT and sftp://USER@HOST have no key in front of the @; on the web it may be a token.
_USER = re.compile(r"(https?://)[^\s/?#]*@|([a-z][a-z0-9+.-]+://)[^\s/?#@]*:[^\s/?#]*@", re.IGNORECASE)
_QUERY = re.compile(r"\?[^\s'\"]*=[^\s'\"]*")


class FetchError(ValueError):
    """An object cannot be listed, read or written. The message names the address and the fix."""


class Entry(NamedTuple):
    """An object of a storage."""

    address: str
    size: int | None  # bytes; None where it is not known
    version: str  # changes with the contents; "" where the storage does not tell it


# ---- addresses


def is_address(text: str) -> bool:
    """Returns whether text is an address, such as s3://bucket/folder, and not a path."""
    return scheme_of(text) != ""


def exists(word: str) -> bool:
    """Whether a word on the command line is the path of something that exists, or an address."""
    return is_address(word) or os.path.exists(word)


def scheme_of(address: str) -> str:
    """Returns s3 of s3://bucket/folder; "" for a path."""
    found = _ADDRESS.match(address)
    return found[1].lower() if found else ""


def is_storage(text: str) -> bool:
    """Whether text is an address of a storage that fsspec knows, and not of a web page, a camera or a stream."""
    if scheme_of(text) in ("", "ftp", *WEB):
        return False
    from fsspec.registry import known_implementations, registry  # only who has an address pays for fsspec

    return scheme_of(text) in {*known_implementations, *registry}


def path_of(address: str) -> str:
    """Returns the path of file:///path; other addresses and paths unchanged."""
    return address.partition("://")[2] if scheme_of(address) in ("file", "local") else address


def without_keys(text: str) -> str:
    """Returns text without what may be a key in an address: USER:PASSWORD@ and what follows a question mark."""
    return _QUERY.sub("?...", _USER.sub(lambda found: found[1] or found[2], text))


def refuse_keys(name: str, address: str) -> None:
    """Raises FetchError for an address that may hold a key: constants are printed, and saved with a run."""
    if is_address(address) and (_USER.match(address) or "?" in address):
        shown = without_keys(address).partition("?")[0]
        why = "a password or a query (?...) may be a key, which would be in logs and checkpoints"
        fix = "give the key to the package of the storage (AWS_ACCESS_KEY_ID, GOOGLE_APPLICATION_CREDENTIALS, ~/.netrc)"
        raise FetchError(f"{name}{shown}: {why}: leave it out, and {fix}")


# ---- objects


@lru_cache
def storage(scheme: str) -> Any:
    """Returns the file system of fsspec for s3, gs, ... Raises FetchError if there is none, or its package is missing."""
    try:
        import fsspec  # only who has an address pays for it

        options: dict[str, Any] = {"use_listings_cache": False, "skip_instance_cache": True}
        if scheme in WEB:
            from aiohttp import ClientTimeout  # comes with fsspec's package for the web

            options["client_kwargs"] = {"trust_env": True, "timeout": ClientTimeout(total=None, sock_read=30)}
        return fsspec.filesystem(scheme, **options)
    except ImportError as error:
        fix = pip(f"install {PACKAGES[scheme]}") if scheme in PACKAGES else first_line(error)
        raise FetchError(f"{scheme}:// needs a package that is not installed: {fix}") from error
    except (ValueError, TypeError) as error:  # TypeError: of a kind that needs more than an address, such as ftp
        raise FetchError(f"{scheme}://: no such kind of storage is known ({first_line(error)})") from error


def entries(address: str) -> dict[str, Entry]:
    """Returns the objects below a folder by their names in it, with "/"; {} if there are none."""
    import fsspec  # only who has an address pays for it

    files, address = storage(scheme_of(address)), address.rstrip("/")
    top, options = files._strip_protocol(address).rstrip("/"), {}
    if type(files).find is fsspec.AbstractFileSystem.find:  # which would leave out folders that it fails to list
        options["on_error"] = "raise"
    found = answer(address, lambda: files.find(address, detail=True, **options))
    found.pop(top, None)  # the address is that of a file
    names = {path.removeprefix(f"{top}/"): info for path, info in found.items() if info["type"] == "file"}
    folders = {name[: place.start()] for name in names for place in re.finditer("/", name)}
    marks = {name for name in names if (name in folders or not name or name.endswith("/")) and not names[name]["size"]}
    return {name: _entry(files, info) for name, info in sorted(names.items()) if name not in marks}


def entry_of(address: str) -> Entry:
    """Returns the file at an address. Raises FetchError for a folder, and for a web page in place of a file."""
    files = storage(scheme_of(address))
    info = answer(address, lambda: files.info(address))
    if info["type"] != "file":
        raise FetchError(f"{address}: is a folder, not a file: name the file")
    if scheme_of(address) in WEB and (info.get("mimetype") == "text/html" or info.get("size") is None):
        raise FetchError(f"{address}: the server sends a page, or no length: download it, and give its path")
    return _entry(files, info)


def _entry(files: Any, info: Mapping[str, Any]) -> Entry:
    version = next((str(info[name]) for name in VERSIONS if info.get(name)), "")
    return Entry(files.unstrip_protocol(info["name"]), info.get("size"), version)


def create(address: str, data: bytes) -> bool:
    """Writes a new object, and returns True; returns False if there is one already. Of two that try, one succeeds."""
    files = storage(scheme_of(address))

    def write() -> bool:
        if files.exists(address):
            return False
        try:
            files.pipe_file(address, data, mode="create")
        except FileExistsError:  # perhaps from the answer to this attempt, which was lost
            pass
        return files.cat_file(address) == data  # not all servers know the condition

    return answer(address, write)


def read(address: str) -> bytes:
    """Returns the contents of a small object."""
    return answer(address, partial(storage(scheme_of(address)).cat_file, address))


def upload(path: Path, address: str) -> None:
    """Uploads a file, whole or not at all. Waits as long as the package of the storage does."""
    answer(address, partial(storage(scheme_of(address)).put_file, os.fspath(path), address))


# ---- downloads


def stamp_of(entry: Entry) -> int:
    """Returns the time of modification of the copy of an object, in seconds: it stands for the version of the object."""
    return int.from_bytes(hashlib.blake2b(repr(entry[1:]).encode(), digest_size=8).digest(), "big") % 2**29 * 2


def is_current(path: str | os.PathLike, entry: Entry | None) -> bool:
    """Whether a path is the whole copy of an object as it is now."""
    return entry is not None and is_stamped(path, entry) and entry.size in (None, os.path.getsize(path))


def is_stamped(path: str | os.PathLike, entry: Entry) -> bool:
    """Whether a file or a folder was made of an object as it is now; of one without a version, whether this start made it."""
    if not os.path.exists(path):
        return False
    status = os.stat(path)
    return int(status.st_mtime) == stamp_of(entry) and (entry.version != "" or status.st_ctime >= STARTED)


def download(address: str, wanted: Mapping[Path, Entry]) -> None:
    """Downloads objects to paths in one folder, by many threads. `address`: of all together, for messages."""
    if not wanted:
        return
    for folder in {path.parent for path in wanted}:
        folder.mkdir(parents=True, exist_ok=True)
    size = sum(entry.size or 0 for entry in wanted.values())
    free = shutil.disk_usage(min(wanted).parent).free
    if size > free:
        fix = "make room, name another disk by THAW_CACHE=FOLDER, or mount the bucket (docs/buckets.md)"
        raise FetchError(f"{address}: {size / 1e9:.1f} GB, and the disk has {free / 1e9:.1f} GB free: {fix}")
    print(f"downloading {address}: {len(wanted):,} new or changed files, {size / 1e6:,.1f} MB", flush=True)
    with progress_bar(None, "files", total=len(wanted), delay=1) as bar:
        for _ in in_threads(address, [partial(_copy, entry, path) for path, entry in wanted.items()]):
            bar.update()


def _copy(entry: Entry, path: Path) -> None:
    """Downloads an object to a path, whole or not at all."""
    temporary = path.with_name(f".{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        storage(scheme_of(entry.address)).get_file(entry.address, str(temporary))
        with open(temporary, "rb") as file:
            is_page = scheme_of(entry.address) in WEB and file.read(20).lstrip().lower().startswith(PAGE)
        if is_page:
            raise FetchError(f"{entry.address}: the server sends a page: download the file, and give its path")
        if entry.size not in (None, temporary.stat().st_size):
            raise FetchError(f"{entry.address}: was cut off, or has changed meanwhile: start again")
        os.utime(temporary, (stamp_of(entry), stamp_of(entry)))
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


# ---- threads


def answer(address: str, work: Callable[[], T]) -> T:
    """Returns work(). Prints a warning while it takes long, and raises an error that names the address."""
    return next(in_threads(address, [work]))


def in_threads(address: str, works: Sequence[Callable[[], T]]) -> Iterator[T]:
    """Yields the results of all works, in any order, from many threads. Raises FetchError for the first error.

    Prints a warning after every WARN_AFTER seconds without a result. A thread that hangs does not keep the program alive,
    as those of concurrent.futures do."""
    results: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
    rest, missing = iter(works), len(works)

    def run() -> None:
        for work in rest:  # each thread takes the next one
            try:
                results.put((work(), None))
            except BaseException as error:
                results.put((None, error))
                return

    for _ in range(min(THREADS, missing)):
        threading.Thread(target=run, daemon=True).start()
    try:
        while missing:
            try:
                value, error = results.get(timeout=WARN_AFTER)
            except queue.Empty:
                print(f"WARNING: {address}: no answer for {WARN_AFTER:g} s; waiting", flush=True)
                continue
            if error:
                raise _named(address, error) from error
            missing -= 1
            yield value
    finally:
        deque(rest, 0)  # works that no thread has begun are left out


def _named(address: str, error: BaseException) -> BaseException:
    """Returns the error of a package as one that names the address and the fix."""
    if isinstance(error, FetchError) or not isinstance(error, Exception):
        return error
    if isinstance(error, FileNotFoundError):
        return FetchError(f"{address}: there is no such object: correct the address, and the name of the bucket")
    why = without_keys(f"{type(error).__name__}: {first_line(error)}")
    status = getattr(error, "status", None)  # of an answer over HTTP
    fix = "cannot be reached ({}): check the connection and the address, and start again"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
        fix = "cannot be written to this disk ({}): make room in the cache folder, or name another one by THAW_CACHE=FOLDER"
    if isinstance(error, PermissionError) or status in (401, 403) or "Credentials" in type(error).__name__:
        fix = (
            "access is denied ({}): give the keys to the package of the storage, or the right to do this to their owner"
        )
    return FetchError(f"{address}: {fix.format(why)}")
