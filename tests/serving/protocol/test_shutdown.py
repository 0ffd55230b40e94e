"""A stop, as the log tells it."""

import asyncio
import logging
import os
import signal

from serving.protocol.shutdown import Drain
from serving.telemetry.logs import SERVICE, request_id


def test_the_line_of_a_stop_is_of_no_request() -> None:
    told, stops = list[tuple[str, str | None]](), list[int]()

    class Noting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.append((record.getMessage(), request_id.get()))

    async def stopped() -> None:
        Drain(0.0).install()
        request_id.set("of the request that the signal interrupts")
        os.kill(os.getpid(), signal.SIGTERM)
        while not stops:
            await asyncio.sleep(0.001)

    log, handler, before = logging.getLogger(SERVICE), Noting(), signal.getsignal(signal.SIGTERM)
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    signal.signal(signal.SIGTERM, lambda number, _: stops.append(number))
    try:
        asyncio.run(stopped())
    finally:
        signal.signal(signal.SIGTERM, before)
        log.removeHandler(handler)
        log.setLevel(level)
    assert told == [("stopping in 0 s", None)]
