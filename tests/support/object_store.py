"""Object stores of this machine: one that speaks S3, one that speaks Google Cloud Storage."""

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.processes.running_service import free_port

BUCKET = "shop"


def needed(module: str, reason: str) -> Any:
    """A module; skips the test if there is none, fails it if CI says that there must be."""
    try:
        return import_module(module)
    except ImportError:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)


class ObjectStore(ABC):
    """A store; its content outlives its server.

    Attributes:
        scheme: of its URLs.
        system: a client; there is an empty bucket `BUCKET`.
    """

    scheme: str

    def __init__(self) -> None:
        self.port = free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self.system: Any = None

    @property
    def bucket(self) -> str:
        """The URL of the bucket."""
        return f"{self.scheme}://{BUCKET}"

    @abstractmethod
    def start(self) -> None:
        """Starts the server, again at the same address."""

    @abstractmethod
    def stop(self) -> None:
        """Stops the server if it runs: callers are refused."""


class S3(ObjectStore):
    """moto; the content lives in this process."""

    scheme = "s3"

    def start(self) -> None:
        moto = needed("moto.server", "needs moto[server]")
        serving = needed("werkzeug.serving", "needs flask")
        application = moto.DomainDispatcherApplication(moto.create_backend_app)
        handler = moto.MotoRequestHandler
        self._server = serving.make_server("127.0.0.1", self.port, application, True, request_handler=handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def stop(self) -> None:
        if self._thread.is_alive():  # moto's own stop does not close the socket
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()


class GoogleCloudStorage(ObjectStore):
    """gcp-storage-emulator; the content lives in a folder."""

    scheme = "gs"

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def start(self) -> None:
        emulator = needed("gcp_storage_emulator.server", "needs gcp-storage-emulator")
        first = None if self._folder.exists() else BUCKET
        self._server = emulator.create_server("127.0.0.1", self.port, default_bucket=first, data_dir=str(self._folder))
        self._server.start()
        self._runs = True

    def stop(self) -> None:
        if self._runs:
            self._server.stop()
            self._runs = False


@contextmanager
def local_s3() -> Iterator[S3]:
    """Starts the store and names it to every client of this process and its children."""
    s3fs = needed("s3fs", "needs the extra 'cloud'")
    store = S3()
    store.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", store.address)
        patch.setenv("AWS_ACCESS_KEY_ID", "any")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "any")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        s3fs.S3FileSystem.clear_instance_cache()
        httpx.post(f"{store.address}/moto-api/reset").raise_for_status()  # what an earlier store left
        store.system = s3fs.S3FileSystem()
        store.system.mkdir(BUCKET)
        try:
            yield store
        finally:
            s3fs.S3FileSystem.clear_instance_cache()
            store.stop()


@contextmanager
def local_gs(folder: Path) -> Iterator[GoogleCloudStorage]:
    """Starts the store over a new folder and names it to every client of this process and its children."""
    with pytest.MonkeyPatch.context() as patch:
        # The kind of a bucket is asked over gRPC, at Google itself whatever the emulator is.
        patch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        patch.setenv("NO_GCE_CHECK", "true")
        gcsfs = needed("gcsfs", "needs the extra 'cloud'")
        store = GoogleCloudStorage(folder)
        patch.setenv("STORAGE_EMULATOR_HOST", store.address)
        store.start()
        gcsfs.GCSFileSystem.clear_instance_cache()
        store.system = gcsfs.GCSFileSystem()
        try:
            yield store
        finally:
            gcsfs.GCSFileSystem.clear_instance_cache()
            store.stop()
