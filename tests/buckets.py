"""A storage in memory for tests, which can break, and the S3 server of moto."""

import io
import tarfile
import threading
import time
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

    def cat_file(self, path, start=None, end=None, **options):
        type(self).reads += 1
        data = super().cat_file(path, start, end, **options)
        fault = self.faults.pop(0) if self.faults else None
        if isinstance(fault, int):
            return data[:fault]
        if fault is not None:
            raise fault
        return data


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


class S3Server:
    """A server of S3 on this computer, which answers after `latency` seconds. `env`: what its clients need."""

    def __init__(self, latency: float = 0.0) -> None:
        from moto.server import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import make_server

        inner = DomainDispatcherApplication(create_backend_app)

        def answer(environ, start_response):
            time.sleep(self.latency)
            return inner(environ, start_response)

        self.latency, self.server = latency, make_server("127.0.0.1", 0, answer, threaded=True)
        self.server.log = self.server.RequestHandlerClass.log_request = lambda *_, **__: None
        self.env = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.server.port}",
            "AWS_ACCESS_KEY_ID": "AKIATESTKEY",
            "AWS_SECRET_ACCESS_KEY": "test-secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
