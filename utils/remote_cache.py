"""Local copies of data sets that are at an address or in an archive. After the start, the program only reads local files.

A start lists the address, downloads what is new or has changed, and removes what is gone.
"""

import hashlib
import os
import re
import shutil
import tarfile
import zipfile
from pathlib import Path
from unicodedata import normalize
from urllib.parse import unquote

from filelock import FileLock

from utils import remote
from utils.files import IMAGE_SUFFIXES, cache_folder
from utils.remote import WEB, Entry, FetchError, is_address, path_of, scheme_of
from utils.tar import extract_tar

LABELS = (".txt", ".json", ".jsonl", ".ndjson", ".manifest", ".xml", ".csv", ".tsv", ".yaml", ".yml", ".data", ".names")
ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz")
_addresses: dict[str, str] = {}  # folder or file in the cache -> the address or the archive that it is a copy of


def is_archive(path: str) -> bool:
    """Returns whether a path or an address is that of an archive, by its suffix."""
    return path.lower().endswith(ARCHIVES)


def local(source: str, alone: bool = False) -> str:
    """Returns the path of the copy of a data set at an address or in an archive; other paths unchanged. Raises FetchError.

    For an annotation file, its folder is copied, or the folder above if it has no images; not with `alone`."""
    remote.refuse_keys("", source)
    source = path_of(source)
    if is_archive(source) and (is_address(source) or os.path.isfile(source)):
        return _unpacked(source)
    if not is_address(source) or scheme_of(source) in WEB:
        return local_file(source)
    address, name = source.rstrip("/"), ""
    if address.lower().endswith(LABELS):
        address, _, name = address.rpartition("/")
    found = remote.entries(address)
    has_images = any(name.lower().endswith(IMAGE_SUFFIXES) for name in found)
    if name in found and not has_images and not alone and address.count("/") > 2:  # as annotations/train.json
        address, _, folder = address.rpartition("/")
        name, found = f"{folder}/{name}", remote.entries(address)
    if not found or (name and name not in found):
        return local_file(source)
    return os.path.join(_copied(address, found), *name.split("/"))


def local_file(address: str) -> str:
    """Returns the path of the copy of a single file at an address; other paths unchanged. Raises FetchError."""
    remote.refuse_keys("", address)
    address = path_of(address)
    return _copied(address, {"": remote.entry_of(address)}) if is_address(address) else address


def local_source(source: str) -> str:
    """Returns the path of images to predict that are in a bucket or an archive; other sources unchanged. Raises FetchError."""
    return local(source) if remote.is_storage(source) or is_archive(source) else source


def place(address: str, kind: str = "remote") -> Path:
    """Returns the path in the cache for the copy of an address or of an archive. Raises FetchError for one without a name."""
    address = address.rstrip("/")
    path = address.partition("://")[2] if is_address(address) else os.path.basename(address)
    if scheme_of(address) in WEB:
        path = unquote(path.partition("#")[0])
    name = _name_of(path, address)
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
    with _lock(folder):
        _check_names(address, list(found), folder)
        wanted = {str(copy.joinpath(name)): entry for name, entry in found.items()}
        here = {os.path.join(top, name) for top, _, names in os.walk(folder) for name in names}
        current = {path for path in here if remote.is_current(path, wanted.get(path))}
        for path in here - current:
            os.unlink(path)
        for top, _, _ in os.walk(folder, topdown=False):
            if not os.listdir(top) and top != str(folder):
                os.rmdir(top)
        remote.download(address, {Path(path): wanted[path] for path in wanted if path not in current})
    return str(copy)


def _unpacked(archive: str) -> str:
    """Returns the path of the folder with the files of an archive, which is at an address or on this disk."""
    if is_address(archive):
        address, entry = archive, remote.entry_of(archive)
    else:
        address, status = os.path.realpath(archive), os.stat(archive)
        entry = Entry(address, None, f"{status.st_size} {status.st_mtime_ns} {status.st_ino}")
    copy, stamp = place(address), remote.stamp_of(entry)
    folder, temporary = copy.with_name(copy.name.partition(".")[0] or "set"), copy.with_name(".unpacking")
    _addresses[str(folder)] = archive
    with _lock(copy.parent):
        if remote.is_stamped(folder, entry):
            return str(folder)
        for outdated in (folder, temporary):  # of an earlier version, and of a start that was ended
            shutil.rmtree(outdated, ignore_errors=True)
        if is_address(archive) and not remote.is_current(copy, entry):
            remote.download(archive, {copy: entry})
        print(f"unpacking {archive}", flush=True)
        _extract(str(copy) if is_address(archive) else archive, temporary, archive)
        copy.unlink(missing_ok=True)
        os.utime(temporary, (stamp, stamp))
        os.replace(temporary, folder)
    return str(folder)


def _extract(archive: str, folder: Path, shown: str) -> None:
    """Unpacks an archive into a new folder, and writes nothing outside of it. Raises FetchError, which names it as `shown`."""
    folder.mkdir(parents=True)
    try:
        with open(archive, "rb") as file:
            is_zip = file.read(2) == b"PK"
        with zipfile.ZipFile(archive) if is_zip else tarfile.open(archive) as opened:
            if isinstance(opened, zipfile.ZipFile):
                opened.extractall(folder)  # without "..", and without links
            else:
                extract_tar(opened, folder)
    except Exception as error:  # of a password, a damaged file, a full disk: each has its own kind
        fix = "make room, or get another copy, without a password"
        raise FetchError(f"{shown}: cannot be unpacked to {folder.parent} ({error}): {fix}") from error
    if not any(folder.iterdir()):
        raise FetchError(f"{shown}: there are no files in this archive")


def _lock(folder: Path) -> FileLock:
    """Returns the lock that a program holds while it changes a copy."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return FileLock(f"{folder}.lock")


def _name_of(name: str, address: str) -> str:
    """Returns the name of a file without its folders. Raises FetchError for a name that leads elsewhere."""
    parts = name.split("/")
    if any(part in ("", ".", "..") or os.sep in part or "\0" in part for part in parts):
        raise FetchError(f"{address}: {name!r} cannot be the name of a file here: rename it")
    return parts[-1]


def _check_names(address: str, names: list[str], folder: Path) -> None:
    """Raises FetchError for objects that cannot all be files below `folder`."""
    is_one_case = _is_one_case(folder)
    folders = {name[: slash.start()] for name in names for slash in re.finditer("/", name)}
    seen: dict[str, str] = {}
    for name in filter(None, names):
        _name_of(name, address)
        other = seen.setdefault(normalize("NFC", name).casefold() if is_one_case else name, name)
        if other != name or name in folders:
            both = f"{other!r} and {name!r} are one file" if other != name else f"{name!r} is a file and a folder"
            raise FetchError(f"{address}: {both}, which this disk cannot hold: rename one of them")


def _is_one_case(folder: Path) -> bool:
    """Whether upper and lower case are one name on the disk of a folder, as on most of macOS and Windows."""
    return folder.with_name(folder.name.upper()).exists()
