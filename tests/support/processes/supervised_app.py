"""Apps for workers of their own: each start leaves a line in a file, as the test wants it."""

import os
import signal
import time
from pathlib import Path
from typing import Any

from serving.protocol.shutdown import Drain


def make(directory: Path) -> Any:
    """An app that starts while `directory/good` exists, and answers with its process id.

    Where `directory/linger` holds a number, it goes on for so many seconds after SIGTERM, as the service does.
    """
    signal.signal(signal.SIGHUP, lambda *_: (directory / f"hup-{os.getpid()}").touch())
    with (directory / "starts").open("a", encoding="utf-8") as file:
        file.write(f"{time.time()}\n")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            good = (directory / "good").exists()
            if (linger := directory / "linger").exists():
                Drain(float(linger.read_text())).install()
            await send({"type": f"lifespan.startup.{'complete' if good else 'failed'}"})
            if good:
                await receive()
                await send({"type": "lifespan.shutdown.complete"})
            return
        if scope["path"] == "/hang":
            time.sleep(600)  # the whole event loop
        body = str(os.getpid()).encode()
        headers = [(b"content-length", str(len(body)).encode()), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return app
