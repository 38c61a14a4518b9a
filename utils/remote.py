"""Objects in a bucket or on a web server: listed and read by fsspec, with retries, and errors that name the address and the fix.

fsspec comes with PyTorch. Each kind of storage needs its own package, such as s3fs for s3://, which the user installs, and
which takes the keys from where its tools keep them, never from the address.
"""

import hashlib
import os
import re
import threading
import time
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

from utils.text import first_line

T = TypeVar("T")

PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0)  # seconds before each new attempt after an error of the connection
PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}
PACKAGES |= {"http": "aiohttp", "https": "aiohttp", "hf": "huggingface_hub"}
WEB = ("http", "https")
FINAL = (400, 404, 405, 410)  # statuses of answers over HTTP after which no new attempt is made
VERSIONS = ("generation", "ETag", "etag", "md5Hash", "mtime", "created", "LastModified")  # what changes with an object
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_USER = re.compile(r"^[a-z][a-z0-9+.-]+://[^/?#]*@", re.IGNORECASE)
_KEY = re.compile(
    r"[?&]([\w-]*(?:signature|token|credential|accesskeyid|apikey|api_key|password|secret)|sig|key)=", re.I
)
_lock = threading.Lock()


class FetchError(ValueError):
    """An object cannot be listed, read or written. The message names the address and the fix."""


class Missing(FetchError):
    """There is no such object."""


class Item(NamedTuple):
    """A file of a storage."""

    address: str
    version: str  # changes with the contents; "" where the storage does not tell it
    size: int | None  # bytes; None where it is not known


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
    if scheme_of(text) in ("", *WEB, "ftp"):
        return False
    from fsspec.registry import known_implementations, registry  # only who has an address pays for fsspec

    return scheme_of(text) in {*known_implementations, *registry}


def is_in_bucket(name: str) -> bool:
    """Whether the name of an image in a file of labels, which others may have written, is an address that may be followed.

    It leads to buckets, and to kinds of storage that this program uses already, and to no other server."""
    if scheme_of(name) in ("", *WEB):
        return False
    from fsspec.registry import registry  # only who has an address pays for fsspec

    return scheme_of(name) in {*PACKAGES, *registry}


def refuse_keys(name: str, address: str) -> None:
    """Raises FetchError for an address with a password or a signature: constants are printed, and saved with a run."""
    if not is_address(address):
        return
    found = _KEY.search(address)
    if not found and not _USER.match(address):
        return
    what = f"?{found[1]}=..." if found else "USER:PASSWORD@..."
    shown = f"{scheme_of(address)}://{urlsplit(address).hostname}/..."
    raise FetchError(
        f"{name}{shown}: the address holds a key ({what}), which would be in logs and checkpoints: leave it out, and give the "
        f"key to the package of the storage (AWS_ACCESS_KEY_ID, GOOGLE_APPLICATION_CREDENTIALS, ~/.netrc)"
    )


def parts_of(address: str) -> list[str]:
    """Returns scheme, bucket or host, and the folders and the name of an address, without what follows `?`."""
    path = (
        re.split("[?#]", address.partition("://")[2])[0] if scheme_of(address) in WEB else address.partition("://")[2]
    )
    if scheme_of(address) in WEB:
        path = unquote(path)
    return [scheme_of(address), *filter(None, path.split("/"))]


class Storage:
    """The storage of an address. Its methods try again after errors of the connection, and raise FetchError."""

    def __init__(self, scheme: str) -> None:
        try:
            import fsspec  # only who has an address pays for it

            options = {"client_kwargs": {"trust_env": True}} if scheme in WEB else {}  # proxies and ~/.netrc
            self.files = fsspec.filesystem(scheme, use_listings_cache=False, **options)
        except ImportError as error:
            package = PACKAGES.get(scheme)
            fix = f"pip install {package}" if package else first_line(error)
            raise FetchError(f"{scheme}:// needs a package that is not installed: {fix}") from error
        except ValueError as error:
            raise FetchError(f"{scheme}://: no such kind of storage is known ({first_line(error)})") from error
        self.scheme = scheme

    def folder(self, address: str, missing_is_empty: bool = False) -> dict[str, Item]:
        """Returns the files in a folder and below it, by their paths in it with "/"."""
        top = self.files._strip_protocol(address).rstrip("/")
        try:
            found = attempt(address, lambda: self.files.find(address.rstrip("/"), detail=True))
        except Missing:
            if not missing_is_empty:
                raise
            found = {}
        names = {info["name"]: info for info in found.values() if info["type"] == "file"}
        inside = {name.removeprefix(top).lstrip("/"): info for name, info in names.items() if name != top}
        if self.scheme in WEB:
            inside = {unquote(name): info for name, info in inside.items()}
        return {name: self._item(info) for name, info in sorted(inside.items())}

    def file(self, address: str) -> Item | None:
        """Returns a file; None if the address is a folder."""
        info = attempt(address, lambda: self.files.info(address))
        return self._item(info) if info["type"] == "file" else None

    def read(self, item: Item) -> bytes:
        """Returns the contents of a file. Raises FetchError if it has changed since it was listed."""
        return attempt(item.address, lambda: self._read(item))

    def _read(self, item: Item) -> bytes:
        whole = {"start": 0, "end": item.size} if item.size else {}  # otherwise s3fs asks for the size first
        data = self.files.cat_file(item.address, **whole)
        if item.version and not _is_md5(item.version, data) and self._item(self.files.info(item.address)) != item:
            raise changed(item.address)
        if item.size is not None and len(data) != item.size:
            raise ConnectionError(f"{len(data):,} of {item.size:,} bytes came")
        return data

    def copy(self, item: Item, file: Any, block: int = 1 << 25) -> None:
        """Writes the contents of a file to an open one. After an error only the block in which it happened is read again."""
        size = item.size
        if size is None or size <= block:
            file.write(self.read(item))
            return
        for start in range(0, size, block):
            end = min(start + block, size)
            file.write(attempt(item.address, lambda start=start, end=end: self._range(item, start, end)))
        if item.version and self.file(item.address) != item:
            raise changed(item.address)

    def _range(self, item: Item, start: int, end: int) -> bytes:
        data = self.files.cat_file(item.address, start=start, end=end)
        if len(data) != end - start:
            raise ConnectionError(f"{len(data):,} of {end - start:,} bytes came")
        return data

    def write(self, path: str | os.PathLike, address: str) -> None:
        """Uploads a file, whole or not at all."""
        attempt(address, lambda: self.files.put_file(os.fspath(path), address))

    def _item(self, info: dict[str, Any]) -> Item:
        version = next((info[name] for name in VERSIONS if info.get(name)), "")
        if isinstance(version, datetime):  # some storages list a number
            version = version.timestamp()
        return Item(self.files.unstrip_protocol(info["name"]), str(version), info.get("size"))


def storage_of(address: str) -> Storage:
    """Returns the storage of an address. Each process has one of each kind, which its threads share."""
    with _lock:
        return _storage(scheme_of(address), os.getpid())


@lru_cache
def _storage(scheme: str, _: int) -> Storage:
    return Storage(scheme)


def _is_md5(version: str, data: bytes) -> bool:
    """Whether a version is the MD5 of these contents, as the ETag of most objects of S3 is. Then no request tells it."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest() == version.strip('"')


def changed(address: str) -> FetchError:
    """Returns the error of an object that is no longer the one that was listed."""
    fix = "start again; a run that is resumed tells whether its data are still the same"
    return FetchError(f"{address} has changed since it was listed: {fix}")


def attempt(address: str, work: Callable[[], T]) -> T:
    """Returns work(). After an error of the connection it is called again, with growing pauses. Raises FetchError."""
    for pause in (*PAUSES, None):
        try:
            return work()
        except FetchError:
            raise
        except FileNotFoundError as error:
            raise Missing(
                f"{address}: there is no such object: correct the address, and the name of the bucket"
            ) from error
        except Exception as error:  # each package of a storage has its own kinds
            why = f"{type(error).__name__}: {first_line(error)}"
            status = getattr(error, "status", None)  # of an answer over HTTP
            if isinstance(error, PermissionError) or status in (401, 403) or "Credentials" in type(error).__name__:
                fix = "give the keys to the package of the storage, or the right to do this to their owner"
                raise FetchError(f"{address}: access is denied ({why}): {fix}") from error
            final = isinstance(error, NotImplementedError | TypeError | AttributeError) or status in FINAL
            if pause is None or final:
                tries = f" after {len(PAUSES) + 1} attempts" if pause is None else ""
                fix = "check the connection and the address; what was fetched is kept"
                raise FetchError(f"{address}: cannot be reached{tries} ({why}): {fix}") from error
            time.sleep(pause)
    raise AssertionError("unreachable")
