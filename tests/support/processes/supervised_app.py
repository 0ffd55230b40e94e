"""Apps for workers of their own: each start leaves a line in a file, as the test wants it."""

import asyncio
import os
import signal
import time
from pathlib import Path
from types import FrameType
from typing import Any


def lingers(directory: Path) -> None:
    """Goes on after SIGTERM as the service does, but for as long as a test wants, not for so many seconds."""
    loop, stop = asyncio.get_running_loop(), signal.getsignal(signal.SIGTERM)
    assert callable(stop)

    def look(number: int, frame: FrameType | None) -> None:
        if (directory / f"over-{os.getpid()}").exists():
            stop(number, frame)
        else:
            loop.call_later(0.02, look, number, frame)

    def later(number: int, frame: FrameType | None) -> None:
        (directory / f"term-{os.getpid()}").touch()
        loop.call_soon_threadsafe(look, number, frame)

    signal.signal(signal.SIGTERM, later)


def make(directory: Path) -> Any:
    """An app that starts while `directory/good` exists, and answers with its process id.

    Where `directory/linger` exists, SIGTERM makes `directory/term-PID`, and it goes on until there is
    `directory/over-PID`.
    """
    signal.signal(signal.SIGHUP, lambda *_: (directory / f"hup-{os.getpid()}").touch())
    with (directory / "starts").open("a", encoding="utf-8") as file:
        file.write(f"{time.time()}\n")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            good = (directory / "good").exists()
            if (directory / "linger").exists():
                lingers(directory)
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
