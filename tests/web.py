"""A local web server for tests."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = tuple[int, dict[str, str], bytes]  # status, headers, contents


@contextmanager
def serving(answers: Mapping[str, Answer | Callable[[BaseHTTPRequestHandler], None]]) -> Iterator[str]:
    """Serves the answer of each path, or what a function writes, on a free local port; yields the address of the server."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            answer = answers.get(self.path, (404, {}, b""))
            if callable(answer):
                answer(self)
                return
            status, headers, contents = answer
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(contents))} | headers).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(contents)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
