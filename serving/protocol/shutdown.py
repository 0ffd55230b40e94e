"""Graceful shutdown: after SIGTERM the service accepts requests for a while and sends callers elsewhere.

SIGTERM sets `begun`: /readyz returns 503 and every response says `Connection: close`. The server itself stops
`linger_s` later, when no request is left.
"""

import asyncio
import logging
import signal
from contextlib import suppress
from contextvars import Context
from types import FrameType
from typing import Any

from serving.telemetry.logs import SERVICE

log = logging.getLogger(SERVICE)


class Drain:
    """Wraps the server's SIGTERM handler.

    Attributes:
        begun: whether the service is stopping.

    Args:
        linger_s: seconds between the signal and the server's own stop.
    """

    def __init__(self, linger_s: float) -> None:
        self.linger_s = linger_s
        self.begun = False

    def install(self) -> None:
        """Installs the handler; no effect outside the main thread, as in a test."""
        loop = asyncio.get_running_loop()
        stop: Any = signal.getsignal(signal.SIGTERM)
        if not callable(stop):
            return  # no server around this app has a handler

        def later(number: int, frame: FrameType | None) -> None:
            if not self.begun:  # A supervisor may signal both the process and its group.
                self.begun = True
                # In a context of its own: that of the request which the signal interrupted holds an id for the log.
                Context().run(log.info, "stopping in %g s", self.linger_s)
                loop.call_soon_threadsafe(loop.call_later, self.linger_s, stop, number, frame)

        with suppress(ValueError):
            signal.signal(signal.SIGTERM, later)
