"""A folder in the cache that stands for a data set in a bucket, on a web server or in a tar.

Label files are copied into it at the start. An image is an empty file, whose contents are fetched when it is read for the first
time, and kept next to the folder. So the readers of all formats work on a local folder, and a run has the bits of a run on
that folder. What the empty files stand for is in a table; a start lists the storage again, and replaces what has changed.
"""

import hashlib
import os
import sqlite3
import tarfile
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, TypeVar
from urllib.parse import quote

from utils.files import IMAGE_SUFFIXES, atomic_write, cache_folder, files_under, make_cache_folder
from utils.progress import progress_bar
from utils.remote import (
    WEB,
    FetchError,
    Item,
    Missing,
    is_address,
    is_storage,
    parts_of,
    refuse_keys,
    scheme_of,
    storage_of,
)

A = TypeVar("A")
B = TypeVar("B")

FOLDER = "remote"  # in the cache folder
RUNS = "runs+"  # before the schemes of addresses with runs
TEXTS = (".txt", ".json", ".jsonl", ".ndjson", ".odgt", ".manifest", ".xml", ".csv", ".tsv")  # suffixes of label files
TEXTS += (".yaml", ".yml", ".data", ".names", ".labels")
DATA_FILES = (".yaml", ".yml", ".data")  # they name folders with label files
LARGE_TEXT = 1 << 20  # bytes; larger label files next to the one that is named are of other sets, such as another year
TAR = ".tar"
_opened = threading.local()  # see `_table`
THREADS = 32  # that fetch small files: each waits for the network most of the time
COPY, PLACEHOLDER = -2, -1  # values of Row.start


class Row(NamedTuple):
    """What a file in the folder stands for."""

    address: str  # of the object; of a file in a tar, the path of the tar
    version: str  # see `Item.version`
    size: int | None
    start: int  # offset in the tar; COPY: the file is a copy of the object; PLACEHOLDER: the file is empty

    @property
    def item(self) -> Item:
        """Returns the object."""
        return Item(self.address, self.version, self.size)


def local(path: str) -> str:
    """Returns the folder or the file in the cache that stands for a data set at an address or in a tar; other paths unchanged.

    Raises FetchError with the address and the fix."""
    refuse_keys("", path)
    if is_address(path):
        return _local(path)
    if path.lower().endswith(TAR) and os.path.isfile(path):
        status = os.stat(path)
        item = Item(os.path.abspath(path), f"{status.st_mtime_ns} {status.st_ino}", status.st_size)
        return _unpacked(item, ["tar", *filter(None, item.address.replace(":", "").split(os.sep))])
    return path


def local_file(address: str) -> str:
    """Returns the copy of a single file at an address, of any kind; other paths unchanged. Raises FetchError."""
    refuse_keys("", address)
    if not is_address(address):
        return address
    item = storage_of(address).file(address)
    if item is None:
        raise FetchError(f"{address}: is a folder, not a file: name the file")
    path = _place(parts_of(address))
    _update({path: Row(*item, COPY)})
    return path


def local_source(source: str) -> str:
    """Returns the local path of images to predict: of a folder, a file or a tar in a storage; other sources unchanged."""
    refuse_keys("", source)
    if source.lower().endswith(TAR):
        return local(source)
    if not is_storage(source):
        return source
    return local_file(source) if storage_of(source).file(source) else local(source)


def copied(path: str) -> str:
    """Returns the path of a large file, such as a video; fetches its contents first if it stands for an object."""
    row = _known([path]).get(path) if path.startswith(_root() + os.sep) else None
    if row and row.start >= 0:
        raise FetchError(f"{shown(path)}: a video in a tar cannot be read: unpack it")
    if row and row.start == PLACEHOLDER:
        _update({path: row._replace(start=COPY)})
    return path


def _local(address: str) -> str:
    """Returns what stands for the data set at an address."""
    parts, storage = parts_of(address), storage_of(address)
    suffix = os.path.splitext(parts[-1])[1].lower()
    if scheme_of(address) in WEB and suffix not in (*TEXTS, TAR):  # a server has pages in place of folders
        item = None
    else:
        item = storage.file(address)
    if item and suffix == TAR:
        return _unpacked(item, [f"tar+{parts[0]}", *parts[1:]])
    if item is None:
        if not _list(address, parts):
            raise FetchError(f"{address}: there are no files: correct the address")
        return _place(parts)
    path, above = _place(parts), address.rpartition("/")[0]
    own = None if suffix in DATA_FILES else path
    if len(parts) > 2 and scheme_of(address) not in WEB:
        listed = _list(above, parts[:-1], own)
        if len(parts) > 3 and not any(map(_is_image, listed)):  # as annotations/train.json next to images/
            _list(above.rpartition("/")[0], parts[:-2], own)
    else:
        with suppress(FetchError):  # many servers list no folders; images next to the file are found by their names
            _list(above, parts[:-1], own)
    _update({path: Row(*item, COPY)})
    return path


def _list(address: str, parts: list[str], own: str | None = None) -> list[str]:
    """Makes the folder of an address like the storage. Returns the paths of its files.

    `own`: the large label file to copy; other large ones stay copies if they are, as those of the training data are when the
    validation data are read. None: all label files are copied."""
    folder = _place(parts)
    rows, tars, known = {}, {}, _rows(folder)
    for name, item in storage_of(address).folder(address).items():
        path = _path(folder, name)
        if path and path.lower().endswith(TAR):
            tars[name[: -len(TAR)]] = item
        elif path:
            is_copied = own in (None, path) or (item.size or 0) <= LARGE_TEXT or known.get(path) == Row(*item, COPY)
            rows[path] = Row(*item, COPY if is_copied and _is_text(path) else PLACEHOLDER)
    if not any(map(_is_image, rows)):  # otherwise a tar may be a copy of the images
        for name, item in tars.items():
            rows |= _rows_of_tar(item, [*parts, *name.split("/")])
    _update(rows, folder)
    return list(rows)


def _unpacked(item: Item, parts: list[str]) -> str:
    """Returns the folder that stands for a tar."""
    folder = _place(parts)
    _update(_rows_of_tar(item, parts), folder)
    return folder


def _rows_of_tar(item: Item, parts: list[str]) -> dict[str, Row]:
    """Returns the files in a tar, which is copied to the cache if it is elsewhere, by their paths in the folder `parts`.

    Its index is kept: the rows of an unchanged tar come from the table."""
    tar, version = item.address, f"{item.address} {item.version} {item.size}"
    if is_address(tar):
        tar = str(_object(item))
        if not os.path.exists(tar):
            make_cache_folder(os.path.dirname(tar))
            print(f"copying {item.address} ({(item.size or 0) / 1e9:.2f} GB)")
            with atomic_write(tar) as file:
                storage_of(item.address).copy(item, file)
    folder = _place(parts)
    known = _rows(folder)
    if known and all(row.address == tar and row.version == version for row in known.values()):
        return known
    rows = {}
    try:
        with tarfile.open(tar, "r:") as opened:
            for member in iter(opened.next, None):
                path = _path(folder, member.name.removeprefix("./"))
                if member.isreg() and path:
                    rows[path] = Row(tar, version, member.size, member.offset_data)
                opened.members = []  # otherwise it keeps all of them
    except (tarfile.TarError, OSError) as error:
        raise FetchError(
            f"{item.address}: not a tar that can be read ({error}): write it again, without compression"
        ) from error
    if not rows:
        raise FetchError(f"{item.address}: there are no files in this tar")
    return rows


def _update(rows: Mapping[str, Row], folder: str | None = None) -> None:
    """Makes the files of these rows, and enters them in the table. With `folder`, all other files in it are removed."""
    known = _rows(folder) if folder else _known(rows)
    here = {os.path.join(folder, name) for name in files_under(folder)} if folder else set(filter(os.path.exists, rows))
    changed = {path: row for path, row in rows.items() if known.get(path) != row or not _is_whole(path, row)}
    changed |= {path: row for path, row in rows.items() if row.start == COPY and not row.version}  # may have changed
    for place in {os.path.dirname(path) for path in changed}:
        os.makedirs(place, mode=0o700, exist_ok=True)
    gone = (here | known.keys()) - rows.keys() if folder else set()
    for path in (*gone, *changed):
        Path(path).unlink(missing_ok=True)
    copies = {path: row for path, row in changed.items() if _is_copy(path, row)}
    for path in changed.keys() - copies.keys():
        open(path, "wb").close()  # a new file, whose stamp shows the change
    with progress_bar(None, "fetching label files", total=len(copies), delay=1) as bar:

        def copy(pair: tuple[str, Row]) -> None:
            path, row = pair
            temporary = os.path.join(os.path.dirname(path), f".{os.getpid()}-{threading.get_ident()}.tmp")
            with open(temporary, "wb") as file:
                if row.start == COPY:
                    storage_of(row.address).copy(row.item, file)
                else:
                    file.write(_bytes(row))
            os.replace(temporary, path)
            bar.update()

        in_threads(copy, copies.items())
    with _table() as table:
        table.executemany("DELETE FROM files WHERE path = ?", [(_key(path),) for path in gone])
        rows = [(_key(path), *row) for path, row in changed.items()]
        table.executemany("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?)", rows)


def _is_copy(path: str, row: Row) -> bool:
    """Whether a file holds the contents of its object, instead of being empty."""
    return row.start == COPY or (row.start >= 0 and _is_text(path))


def _is_whole(path: str, row: Row) -> bool:
    """Whether a file is there with the size that it must have: a power cut may leave a copy that is empty or cut off."""
    try:
        size = os.path.getsize(path)
    except OSError:
        return False
    if not _is_copy(path, row):
        return size == 0
    return row.size in (None, size)


def _is_text(path: str) -> bool:
    return path.lower().endswith(TEXTS)


def _is_image(path: str) -> bool:
    return path.lower().endswith(IMAGE_SUFFIXES)


# ---- reading


def contents(path: str) -> bytes | None:
    """Returns the contents of a file in a folder that stands for a storage; None for any other file. Raises FetchError."""
    path = os.path.abspath(path)
    if not path.startswith(_root() + os.sep):
        return None
    row = _known([path]).get(path)
    if row is not None:
        return _bytes(row)
    address = address_of(path)  # an annotation file names it, and the storage has not listed it
    with suppress(Missing):
        return _bytes(Row(address, "", None, PLACEHOLDER)) if is_address(address) else None
    return None


def fetch_all(paths: Iterable[str]) -> None:
    """Fetches the images among these files that are in a storage, by many threads, before they are read one by one."""
    inside = [path for path in paths if path.startswith(_root() + os.sep)]
    if inside:
        in_threads(contents, inside)


def _bytes(row: Row) -> bytes:
    """Returns what a row stands for: from its tar, from the cache, or from the storage, and then it is kept in the cache."""
    if row.start >= 0:
        with open(row.address, "rb") as file:
            file.seek(row.start)
            data = file.read(row.size)
        if len(data) != row.size:
            raise FetchError(f"{row.address}: the tar has changed: start again")
        return data
    if row.start == COPY:
        return storage_of(row.address).read(row.item)
    kept = _object(row.item)
    with suppress(OSError):
        data = kept.read_bytes()
        if data and row.size in (None, len(data)):
            return data
    data = storage_of(row.address).read(row.item)
    with suppress(OSError):  # a full disk: it is fetched again at its next use
        kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with atomic_write(kept) as file:
            file.write(data)
    return data


def in_threads(work: Callable[[A], B], items: Iterable[A]) -> list[B]:
    """Returns work(item) of all items, by many threads. After an error no further call begins."""
    with ThreadPoolExecutor(THREADS) as pool:
        try:
            return list(pool.map(work, items))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


# ---- places and the table


def shown(text: str) -> str:
    """Returns text with addresses in place of the paths in the cache that stand for them."""
    root = _root() + os.sep
    if root not in text:
        return text
    first, *rest = text.split(root)
    for one in rest:
        scheme, _, path = one.partition("/")
        first += f"/{path}" if scheme == "tar" else f"{scheme.rpartition('+')[2]}://{path}"
    return first


def place(address: str) -> str:
    """Returns the path in the cache that stands for the object at an address."""
    return _place(parts_of(address))


def address_of(path: str) -> str:
    """Returns the address of an object for which a path in the cache stands; other paths, and those in a tar, unchanged."""
    if path.startswith((os.path.join(_root(), "tar"), os.path.join(_root(), "objects"))):
        return path
    address = shown(path)
    return quote(address, safe=":/[]") if scheme_of(address) in WEB else address  # a name may have a # or a ?


def runs_at(address: str) -> str:
    """Returns the folder in the cache for the runs at an address."""
    scheme, *parts = parts_of(address)
    return _place([f"{RUNS}{scheme}", *parts])


def address_of_run(folder: str) -> str:
    """Returns the address of a run folder that is in the cache; "" for any other folder."""
    path = os.path.abspath(folder)
    return shown(path) if path.startswith(os.path.join(_root(), RUNS)) else ""


def _root() -> str:
    return _absolute(os.environ.get("THAW_CACHE"), os.environ.get("HOME"))


@lru_cache
def _absolute(*_: str | None) -> str:
    """Returns the folder in the cache folder that these variables name: each reading of an image needs it three times."""
    return os.path.abspath(cache_folder() / FOLDER)


def _path(folder: str, name: str) -> str | None:
    """Returns the path of a file in a folder, by its name with "/"; None for hidden files and names that would lead elsewhere."""
    parts = name.split("/")
    if any(not part or part.startswith((".", "__MACOSX")) or os.sep in part or "\0" in part for part in parts):
        return None
    return os.path.join(folder, *parts)


def _place(parts: list[str]) -> str:
    """Returns the path in the cache that stands for an address with these parts. Raises FetchError if there is none."""
    if len(parts) < 2 or any(part in ("", ".", "..") or os.sep in part or "\0" in part for part in parts):
        address = f"{parts[0]}://{'/'.join(parts[1:])}"
        raise FetchError(f"{address}: no address that can be read: correct it, as s3://BUCKET/FOLDER")
    return os.path.join(_root(), *parts)


def _object(item: Item) -> Path:
    """Returns where the contents of an object are kept, for this version of it."""
    digest = hashlib.blake2b(repr(item).encode("utf-8", "backslashreplace"), digest_size=16).hexdigest()
    return Path(_root(), "objects", digest[:2], digest[2:])


def _key(path: str) -> str:
    return path[len(_root()) + 1 :].replace(os.sep, "/")


def _table() -> sqlite3.Connection:
    """Returns the table of what the files stand for, which each thread of a process opens once."""
    path = os.path.join(_root(), "files-1.sqlite")
    if getattr(_opened, "owner", None) == _owner(path):
        return _opened.table
    make_cache_folder(FOLDER)
    connection = sqlite3.connect(path, timeout=60)
    connection.execute(
        "CREATE TABLE IF NOT EXISTS files (path TEXT PRIMARY KEY, address, version, size, start) WITHOUT ROWID"
    )
    _opened.owner, _opened.table = _owner(path), connection
    return connection


def _owner(path: str) -> tuple[int, ...]:
    """Returns what a connection to the table is for: a process, because a forked one may not use that of its parent, and a
    file, because the user may delete the folder at any time."""
    with suppress(FileNotFoundError):
        status = os.stat(path)
        return os.getpid(), status.st_dev, status.st_ino
    return (os.getpid(),)


def _rows(folder: str) -> dict[str, Row]:
    """Returns the rows of the files in a folder."""
    first, root = _key(folder) + "/", _root()
    found = _table().execute("SELECT * FROM files WHERE path >= ? AND path < ?", (first, first[:-1] + "0"))
    return {os.path.join(root, path): Row(*columns) for path, *columns in found}


def _known(paths: Iterable[str]) -> dict[str, Row]:
    """Returns the rows of these files that are in the table."""
    table = _table()
    found = ((path, table.execute("SELECT * FROM files WHERE path = ?", (_key(path),)).fetchone()) for path in paths)
    return {path: Row(*row[1:]) for path, row in found if row}
