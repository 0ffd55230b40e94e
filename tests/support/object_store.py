"""An object store of this machine that speaks S3."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.support.processes.running_service import free_port

BUCKET = "shop"


class ObjectStore:
    """The store; its content lives in this process and outlives its server.

    Attributes:
        system: a client; there is an empty bucket `BUCKET`.
    """

    def __init__(self, port: int) -> None:
        self.url, self._port = f"http://127.0.0.1:{port}", port
        self.system: Any = None

    def start(self) -> None:
        """Starts the server, again at the same address."""
        moto = pytest.importorskip("moto.server", reason="needs moto[server]")
        serving = pytest.importorskip("werkzeug.serving", reason="needs flask")
        application = moto.DomainDispatcherApplication(moto.create_backend_app)
        handler = moto.MotoRequestHandler
        self._server = serving.make_server("127.0.0.1", self._port, application, True, request_handler=handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def stop(self) -> None:
        """Stops the server if it runs; unlike moto's own it closes its socket, so that callers are refused."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()


@contextmanager
def local_s3() -> Iterator[ObjectStore]:
    """Starts the store and names it to every client of this process and its children."""
    s3fs = pytest.importorskip("s3fs", reason="needs the extra 'cloud'")
    store = ObjectStore(free_port())
    store.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", store.url)
        patch.setenv("AWS_ACCESS_KEY_ID", "any")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "any")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        s3fs.S3FileSystem.clear_instance_cache()
        httpx.post(f"{store.url}/moto-api/reset").raise_for_status()  # what an earlier store left
        store.system = s3fs.S3FileSystem()
        store.system.mkdir(BUCKET)
        try:
            yield store
        finally:
            s3fs.S3FileSystem.clear_instance_cache()
            store.stop()
