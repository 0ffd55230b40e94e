"""An object store of this machine that speaks S3."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

BUCKET = "shop"


class ObjectStore(NamedTuple):
    """The server, and a client with an empty bucket `BUCKET`."""

    server: Any
    system: Any


@contextmanager
def local_s3() -> Iterator[ObjectStore]:
    """Starts the store and names it to every client of this process and its children."""
    s3fs = pytest.importorskip("s3fs", reason="needs the extra 'cloud'")
    server = pytest.importorskip("moto.server", reason="needs moto[server]").ThreadedMotoServer(
        ip_address="127.0.0.1", port=0, verbose=False
    )
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        patch.setenv("AWS_ACCESS_KEY_ID", "any")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "any")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        s3fs.S3FileSystem.clear_instance_cache()
        system = s3fs.S3FileSystem()
        system.mkdir(BUCKET)
        yield ObjectStore(server, system)
        # The store lives in this process and outlives its server.
        system.rm(BUCKET, recursive=True)
        s3fs.S3FileSystem.clear_instance_cache()
        server.stop()
