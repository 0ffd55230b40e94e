"""An app that answers over real sockets from a thread of this process: a process of its own takes seconds to start."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn


@contextmanager
def served(config: uvicorn.Config) -> Iterator[str]:
    """Serves until the context ends; gives the address. The config has port 0."""
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.02)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
