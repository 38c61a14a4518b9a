"""Files of the program's own: written completely or not at all, and the cache folder."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def atomic_write(path: str | Path) -> Iterator[BinaryIO]:
    """Opens a temporary file that replaces `path` when the block ends without an error.

    At any moment, kill -9 and power cuts included, `path` is the whole old or the whole new file. After an error, also
    KeyboardInterrupt, the temporary file is removed. The folder must exist.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{socket.gethostname()}-{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        if os.name != "nt":  # Windows cannot open folders; elsewhere the rename itself survives a power cut
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def warn_if_disk_fails(errors: list[Exception] | None = None) -> Iterator[None]:
    """Prints disk errors as warnings and appends them to `errors`, so that training continues and can save later."""
    try:
        yield
    except OSError as error:
        if errors is not None:
            errors.append(error)
        print(f"WARNING: {error}")
        hint = "" if isinstance(error, FileNotFoundError) else "; make room on the disk before it ends"
        print(f"WARNING: training continues and saves again later{hint}")


def cache_folder() -> Path:
    """The folder for downloaded weights and decoded images: $THAW_CACHE, or ~/.cache/thaw."""
    return Path(os.environ.get("THAW_CACHE") or Path.home() / ".cache" / "thaw")


def make_cache_folder(inside: str = "") -> Path:
    """Creates the cache folder, which only this user may open, and a folder `inside`. Returns the latter. Raises OSError."""
    for folder in (cache_folder(), cache_folder() / inside):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder
