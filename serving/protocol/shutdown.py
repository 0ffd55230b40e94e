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

        def linger(number: int, frame: FrameType | None) -> None:
            log.info("stopping in %g s", self.linger_s)
            loop.call_later(self.linger_s, stop, number, frame)

        def later(number: int, frame: FrameType | None) -> None:
            if not self.begun:  # A supervisor may signal both the process and its group.
                self.begun = True
                # The log waits for the loop: the signal may have interrupted a write to it, which cannot begin again.
                # In a context of its own: that of the request which the signal interrupted holds an id for the log.
                loop.call_soon_threadsafe(linger, number, frame, context=Context())

        with suppress(ValueError):
            signal.signal(signal.SIGTERM, later)
