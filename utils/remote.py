"""Files at an address, such as s3://bucket/set or https://host/set.zip: listed, downloaded and uploaded.

fsspec, which comes with PyTorch, reads buckets. Each kind needs its own package, such as s3fs for s3://, which takes the keys
from where its tools keep them, never from the address. A web server is read by Python alone, one file at a time.
"""

import itertools
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from utils import web
from utils.text import first_line

T = TypeVar("T")

PAUSES = (1.0, 4.0)  # seconds before each new attempt after an error of the connection
WARN_AFTER = 30  # seconds without an answer after which a line says so
GIVE_UP_AFTER = 120  # seconds without an answer after which a start ends
LISTING = 600  # the same while a folder is listed: a million objects take minutes
BLOCK = 1 << 25  # bytes that are requested at a time
THREADS = 32  # that download: for small files, each waits for the network most of the time
PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}
PACKAGES |= {"hf": "huggingface_hub"}
# s3fs and its parts each try again by themselves, together for half an hour: here only `retried` does.
_S3 = {"config_kwargs": {"connect_timeout": 10, "read_timeout": 30, "retries": {"total_max_attempts": 1}}}
OPTIONS = {"s3": _S3, "s3a": _S3}
VERSIONS = (
    "generation",
    "ETag",
    "etag",
    "md5Hash",
    "blob_id",
    "mtime",
    "created",
    "LastModified",
)  # as storages list them
LOCAL = ("file", "local")  # schemes of addresses that are paths
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
# abfs://CONTAINER@ACCOUNT and sftp://USER@HOST have no key in front of the @; on the web it may be a token.
_USER = re.compile(r"(https?://)[^\s/?#]*@|([a-z][a-z0-9+.-]+://)[^\s/?#@]*:[^\s/?#]*@", re.IGNORECASE)
_QUERY = re.compile(r"\?[^\s'\"]*=[^\s'\"]*")


class FetchError(ValueError):
    """An object cannot be listed, read or written. The message names the address and the fix."""


class Missing(FetchError):
    """There is no such object."""


class Entry(NamedTuple):
    """An object of a storage."""

    address: str
    size: int | None  # bytes; None where it is not known
    version: str  # changes with the contents; "" where the storage does not tell it


# ---- addresses


def is_address(text: str) -> bool:
    """Whether text is an address, such as s3://bucket/folder, and not a path."""
    return _ADDRESS.match(text) is not None


def exists(word: str) -> bool:
    """Whether a word on the command line is the path of something that exists, or an address."""
    return is_address(word) or os.path.exists(word)


def scheme_of(address: str) -> str:
    """Returns s3 of s3://bucket/folder; "" for a path."""
    return address.partition("://")[0].lower() if is_address(address) else ""


def is_storage(text: str) -> bool:
    """Whether text is an address of a storage that fsspec knows, and not of a web page, a camera or a stream."""
    if scheme_of(text) in ("", "ftp", *web.SCHEMES):
        return False
    from fsspec.registry import known_implementations, registry  # only who has an address pays for fsspec

    return scheme_of(text) in {*known_implementations, *registry}


def path_of(address: str) -> str:
    """Returns the path of file:///path; other addresses and paths unchanged."""
    return address.partition("://")[2] if scheme_of(address) in LOCAL else address


def without_keys(text: str) -> str:
    """Returns text without what may be a key in an address: USER:PASSWORD@ and what follows a question mark."""
    return _QUERY.sub("?...", _USER.sub(lambda found: found[1] or found[2], text))


def refuse_keys(name: str, address: str) -> None:
    """Raises FetchError for an address that may hold a key: constants are printed, and saved with a run."""
    if is_address(address) and (_USER.match(address) or "?" in address):
        shown = without_keys(address).partition("?")[0]
        raise FetchError(
            f"{name}{shown}: the address has a user name and a password in it, or a query (?...), and may hold a key, which "
            f"would be in logs and checkpoints: leave it out, and give the key to the package of the storage "
            f"(AWS_ACCESS_KEY_ID, GOOGLE_APPLICATION_CREDENTIALS, ~/.netrc)"
        )


# ---- objects


@lru_cache
def storage(scheme: str) -> Any:
    """Returns the file system of fsspec for s3, gs, ... Raises FetchError if there is none, or its package is missing."""
    try:
        import fsspec  # only who has an address pays for it

        options = {"use_listings_cache": False, "skip_instance_cache": True, **OPTIONS.get(scheme, {})}
        files = fsspec.filesystem(scheme, **options)
    except ImportError as error:
        package = PACKAGES.get(scheme)
        fix = f"pip install {package}" if package else first_line(error)
        raise FetchError(f"{scheme}:// needs a package that is not installed: {fix}") from error
    except ValueError as error:
        raise FetchError(f"{scheme}://: no such kind of storage is known ({first_line(error)})") from error
    files.retries = 1  # of s3fs
    return files


def entries(address: str) -> dict[str, Entry]:
    """Returns the objects below a folder by their names in it, with "/"; {} if there are none."""
    import fsspec  # only who has an address pays for it

    files, address = storage(scheme_of(address)), address.rstrip("/")
    top, options = files._strip_protocol(address).rstrip("/"), {}
    if type(files).find is fsspec.AbstractFileSystem.find:  # which would leave out folders that it fails to list
        options["on_error"] = "raise"
    found = answer(address, lambda: files.find(address, detail=True, **options), LISTING)
    found.pop(top, None)  # the address is that of a file
    names = {path.removeprefix(f"{top}/"): info for path, info in found.items() if info["type"] == "file"}
    folders = {name[: place.start()] for name in names for place in re.finditer("/", name)}
    marks = {name for name in names if (name in folders or not name or name.endswith("/")) and not names[name]["size"]}
    return {name: _entry(files, info) for name, info in sorted(names.items()) if name not in marks}


def entry_of(address: str) -> Entry:
    """Returns the file at an address. Raises FetchError for a folder."""
    if scheme_of(address) in web.SCHEMES:
        return Entry(address, *answer(address, lambda: web.head(address)))
    files = storage(scheme_of(address))
    info = answer(address, lambda: files.info(address))
    if info["type"] != "file":
        raise FetchError(f"{address}: is a folder, not a file: name the file")
    return _entry(files, info)


def _entry(files: Any, info: dict[str, Any]) -> Entry:
    version = next((str(info[name]) for name in VERSIONS if info.get(name)), "")
    return Entry(files.unstrip_protocol(info["name"]), info.get("size"), version)


def create(address: str, data: bytes) -> bool:
    """Writes a new object, and returns True; returns False if there is one already. Of two that try, one succeeds."""
    files = storage(scheme_of(address))

    def write() -> bool:
        if files.exists(address):
            return files.cat_file(address) == data  # an attempt whose answer was lost
        try:
            files.pipe_file(address, data, mode="create")
        except FileExistsError:
            return False
        return files.cat_file(address) == data  # not all servers know the condition

    return answer(address, write)


def upload(path: Path, address: str) -> None:
    """Uploads a file, whole or not at all."""
    files = storage(scheme_of(address))
    retried(address, lambda: files.put_file(os.fspath(path), address))


# ---- attempts and deadlines


def retried(address: str, work: Callable[[], T]) -> T:
    """Returns work(). After an error of the connection it is called again, after a pause. Raises FetchError."""
    for pause in (*PAUSES, None):
        try:
            return work()
        except FetchError:
            raise
        except web.NoFile as error:
            raise FetchError(f"{address}: {error}: download it, and give its path") from error
        except FileNotFoundError as error:
            fix = "correct the address, and the name of the bucket"
            raise Missing(f"{address}: there is no such object: {fix}") from error
        except Exception as error:  # each package of a storage has its own kinds
            why = without_keys(f"{type(error).__name__}: {first_line(error)}")
            status = getattr(error, "status", getattr(error, "code", None))  # of an answer over HTTP
            if isinstance(error, PermissionError) or status in (401, 403) or "Credentials" in type(error).__name__:
                fix = "give the keys to the package of the storage, or the right to do this to their owner"
                raise FetchError(f"{address}: access is denied ({why}): {fix}") from error
            is_final = isinstance(error, NotImplementedError | TypeError | AttributeError)
            if pause is None or is_final or status in (400, 404, 405, 410):
                raise FetchError(
                    f"{address}: cannot be reached ({why}): check the connection and the address"
                ) from error
            time.sleep(pause)
    raise AssertionError("unreachable")


def answer(address: str, work: Callable[[], T], seconds: float | None = None) -> T:
    """Returns `retried` of work(). Says when it takes long, and raises FetchError after so many seconds."""
    answers: queue.SimpleQueue = queue.SimpleQueue()

    def call() -> None:
        try:
            answers.put((retried(address, work), None))
        except BaseException as error:
            answers.put((None, error))

    threading.Thread(target=call, daemon=True).start()
    value, error = next_of(answers, address, seconds)
    if error:
        raise error
    return value


def next_of(answers: queue.SimpleQueue, address: str, seconds: float | None = None) -> Any:
    """Returns what comes next. Says after each WARN_AFTER that nothing came, and raises FetchError in the end."""
    seconds = seconds or GIVE_UP_AFTER
    end = time.monotonic() + seconds
    for waited in itertools.count(1):
        left = end - time.monotonic()
        if left <= 0:
            raise FetchError(f"{address}: no answer within {seconds:g} s: check the connection and the storage")
        try:
            return answers.get(timeout=min(left, WARN_AFTER))
        except queue.Empty:
            if end > time.monotonic():
                print(f"WARNING: {address}: no answer for {waited * WARN_AFTER:g} s", flush=True)


def download(address: str, jobs: Sequence[tuple[Entry, Path]], moved: Callable[[int], None]) -> Iterator[int]:
    """Downloads objects to paths, whole or not at all, by many threads. Yields the index of each one that is there.

    `moved`: called with numbers of bytes. `address`: of all together, for messages."""
    waiting: queue.SimpleQueue = queue.SimpleQueue()
    events: queue.SimpleQueue = queue.SimpleQueue()  # (bytes, None, None), (0, index, None) or (0, index, error)
    ended = threading.Event()
    for index in range(len(jobs)):
        waiting.put(index)

    def work() -> None:
        while not ended.is_set():
            try:
                index = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                _copy(*jobs[index], lambda size: events.put((size, None, None)))
                events.put((0, index, None))
            except BaseException as error:
                ended.set()
                events.put((0, index, error))

    for _ in range(min(THREADS, len(jobs))):
        threading.Thread(target=work, daemon=True).start()
    left = len(jobs)
    try:
        while left:
            size, index, error = next_of(events, address)
            if error:
                raise error
            moved(size)
            if index is not None:
                left -= 1
                yield index
    finally:
        ended.set()


def _copy(entry: Entry, path: Path, moved: Callable[[int], None]) -> None:
    """Downloads an object to a path. Raises FetchError if it is no longer the one that was listed."""
    temporary = path.with_name(f".{os.getpid()}-{threading.get_ident()}.tmp")

    def write() -> None:
        with open(temporary, "wb") as file:
            for block in _blocks(entry):
                file.write(block)
                moved(len(block))

    try:
        retried(entry.address, write)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _blocks(entry: Entry) -> Iterator[bytes]:
    """Yields the contents of an object in blocks; of an fsspec storage, a block that does not come is requested again."""
    address, size, _ = entry
    if scheme_of(address) in web.SCHEMES:
        yield from web.blocks(address, entry[1:])
        return
    files = storage(scheme_of(address))
    if size is None:
        yield retried(address, lambda: files.cat_file(address))
        return

    def read(start: int) -> bytes:
        end = min(start + BLOCK, size)
        data = files.cat_file(address, start=start, end=end)
        if len(data) != end - start:
            raise ConnectionError(f"{len(data):,} of {end - start:,} bytes came")
        return data

    for start in range(0, size, BLOCK):
        yield retried(address, partial(read, start))
    if size > BLOCK and entry_of(address) != entry:
        raise FetchError(f"{address} has changed while it was downloaded: start again")
