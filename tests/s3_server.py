"""A server of S3 on this computer, by moto, for the benchmark of buckets and for tests."""

import threading
import time


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
