"""A stop, as the log tells it."""

import asyncio
import io
import logging
import os
import signal
from typing import Any

from serving.protocol.shutdown import Drain
from serving.telemetry.logs import SERVICE, request_id


class Pipe(io.RawIOBase):
    """A log's end to which SIGTERM comes in the middle of the first write."""

    def __init__(self) -> None:
        self.written = b""

    def writable(self) -> bool:
        return True

    def write(self, part: Any) -> int:
        if not self.written:
            signal.raise_signal(signal.SIGTERM)
        self.written += bytes(part)
        return len(part)


def test_a_signal_in_the_middle_of_a_line_of_the_log_stops_too() -> None:
    pipe, stops = Pipe(), list[int]()
    handler = logging.StreamHandler(io.TextIOWrapper(io.BufferedWriter(pipe), line_buffering=True))
    log = logging.getLogger(SERVICE)

    async def stopped() -> None:
        Drain(0.0).install()
        log.info("a line")
        while not stops:
            await asyncio.sleep(0.001)

    before = signal.signal(signal.SIGTERM, lambda number, _: stops.append(number))
    level = log.level
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    try:
        asyncio.run(asyncio.wait_for(stopped(), 20))
    finally:
        signal.signal(signal.SIGTERM, before)
        log.removeHandler(handler)
        log.setLevel(level)
    assert pipe.written.splitlines() == [b"a line", b"stopping in 0 s"]


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
