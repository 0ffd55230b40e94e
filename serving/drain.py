"""A stop that loses nothing: after SIGTERM requests are still taken for a while, and callers are told to go elsewhere.

In: SIGTERM. Out: `begun` at once, after which /readyz says 503 and every answer `Connection: close`; the server's own
stop `linger_s` later, when nobody is in mid-request any more.
"""

import asyncio
import logging
import signal
from contextlib import suppress
from types import FrameType
from typing import Any

log = logging.getLogger("uvicorn.error.serving")


class Drain:
    """Stands before the server's handler of SIGTERM.

    Attributes:
        begun: whether the service is stopping.

    Args:
        linger_s: seconds between the signal and the server's own stop.
    """

    def __init__(self, linger_s: float) -> None:
        self.linger_s = linger_s
        self.begun = False

    def install(self) -> None:
        """Takes the signal from now on; outside the main thread, as in a test, there are no signals."""
        loop = asyncio.get_running_loop()
        stop: Any = signal.getsignal(signal.SIGTERM)
        if not callable(stop):
            return  # no server around this app has a stop of its own

        def later(number: int, frame: FrameType | None) -> None:
            if not self.begun:  # A supervisor and its group may both send it: the second says nothing new.
                self.begun = True
                log.info("stopping in %g s", self.linger_s)
                loop.call_soon_threadsafe(loop.call_later, self.linger_s, stop, number, frame)

        with suppress(ValueError):
            signal.signal(signal.SIGTERM, later)
