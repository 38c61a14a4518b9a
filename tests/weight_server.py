"""A local HTTP server that publishes a file of weights, and fails as servers do."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from nets import pretrained

DATA = os.urandom(200_000)


@contextmanager
def serving(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """`.answer` selects the behavior of the server, `.data` is the file, `.paths` lists the requested paths.

    Downloads go to `cache`, and no server listens at the official host.
    """
    paths = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            paths.append(self.path)
            answer = state.answer
            if answer == "missing":
                return self.send_error(404)
            if answer == "slow":
                return threading.Event().wait(2)
            self.send_response(200)
            if answer != "no length":
                self.send_header("Content-Length", str(len(state.data)))
            self.end_headers()
            self.wfile.write({"cut": DATA[:70_000], "other": b"x" * len(DATA)}.get(answer, state.data))

        def log_message(self, *_):
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state = SimpleNamespace(answer="ok", data=DATA, paths=paths, address=f"http://127.0.0.1:{http.server_port}")
    threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("THAW_CACHE", str(cache))
    monkeypatch.setattr(pretrained, "HOST", "http://127.0.0.1:1")
    yield state
    http.shutdown()
    http.server_close()
