"""A server of S3 on this computer, by moto."""

import threading


class S3Server:
    """A server of S3 on this computer. `env`: what its clients need."""

    ENV = {
        "AWS_ACCESS_KEY_ID": "AKIATESTKEY",
        "AWS_SECRET_ACCESS_KEY": "test-secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }

    def __init__(self) -> None:
        from moto.server import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import make_server

        application = DomainDispatcherApplication(create_backend_app)
        self.server = make_server("127.0.0.1", 0, application, threaded=True)
        self.server.log = self.server.RequestHandlerClass.log_request = lambda *_, **__: None
        self.env = self.ENV | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.server.port}"}
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
