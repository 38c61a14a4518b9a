"""A file that may hold labels. Its beginning and its JSON are read once, for recognition and for the reader."""

import os
from functools import cached_property

from datasets.errors import open_file
from datasets.formats.typed_json import Contents, open_json

HEAD = 1 << 16  # bytes


class File:
    """A file by its path, with its beginning and its contents as JSON."""

    def __init__(self, path: str | os.PathLike) -> None:
        self.path = os.fspath(path)
        self.name = os.path.basename(self.path)
        self.suffix = os.path.splitext(self.name)[1].lower()

    @cached_property
    def head(self) -> bytes:
        """The first 64 KB. Raises DataError for a device."""
        with open_file(self.path) as file:
            return file.read(HEAD)

    @cached_property
    def json(self) -> Contents:
        """The top level of a JSON file. Raises DataError naming file and line."""
        return open_json(self.path)

    @cached_property
    def keys(self) -> frozenset[str]:
        """The keys of a JSON file that holds an object; no keys for any other file."""
        return frozenset(self.json) if self.suffix == ".json" and isinstance(self.json, dict) else frozenset()
