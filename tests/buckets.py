"""A storage in memory for tests, which can break."""

import io
import tarfile
from pathlib import Path

import fsspec
from fsspec.implementations.memory import MemoryFileSystem

from utils.files import files_under


class Faulty(MemoryFileSystem):
    """Objects in memory at faulty://..., whose reads do what `faults` says, one fault for each read; then they are in order."""

    protocol = "faulty"
    store, pseudo_dirs = {}, [""]
    faults: list = []  # an error to raise, or a number of bytes after which the contents are cut off
    reads = 0

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.replace("faulty://", "memory://"))

    def unstrip_protocol(self, name):
        return f"faulty:/{name}"

    def get_file(self, path, lpath, **options):
        type(self).reads += 1
        fault = self.faults.pop(0) if self.faults else None
        if isinstance(fault, Exception):
            raise fault
        Path(lpath).write_bytes(self.cat_file(path)[:fault])


fsspec.register_implementation("faulty", Faulty, clobber=True)


def upload(folder: Path, address: str) -> str:
    """Copies a folder to an address, and returns it."""
    files, top = fsspec.core.url_to_fs(address)
    for name in files_under(folder):
        files.pipe_file(f"{top}/{name}", (folder / name).read_bytes())
    return address


def tar_of(folder: Path) -> bytes:
    """Returns the contents of a tar with the files of a folder."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for name in files_under(folder):
            tar.add(folder / name, name)
    return data.getvalue()
