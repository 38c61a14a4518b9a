"""Output files of tools: a check before long work whether they can be written, and the writing of all or none."""

import os
from collections.abc import Mapping
from pathlib import Path

from utils.config import ConfigError


def require_writable(option: str, folder: str | Path) -> None:
    """Raises ConfigError if files cannot be written to the folder of `option`, which may not exist yet."""
    there = next(path for path in (Path(folder).absolute(), *Path(folder).absolute().parents) if path.exists())
    if not there.is_dir():
        raise ConfigError(f"{option}: {there} is a file, not a folder: name another folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"{option}: no permission to write to {there}: name another folder")


def write_all(contents: Mapping[Path, str | bytes]) -> None:
    """Writes all files or, after an error, none: each to a temporary file, and then all of them are renamed."""
    temporary = {path: path.with_name(f".{path.name}.{os.getpid()}.tmp") for path in contents}
    try:
        for path, data in contents.items():
            data = data.encode("utf-8", "surrogateescape") if isinstance(data, str) else data
            temporary[path].write_bytes(data)
        for path in contents:
            os.replace(temporary[path], path)
    finally:
        for path in temporary.values():
            path.unlink(missing_ok=True)
