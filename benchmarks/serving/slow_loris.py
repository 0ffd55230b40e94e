"""A slow-loris client: connections that send a body byte by byte and never end it.

In: a URL, how many connections, seconds. Out: how each connection ended and when. A process of its own
(`python -m benchmarks.serving.slow_loris`), so that the load generator beside it is not slowed down.
"""

import argparse
import json
import select
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from benchmarks.harness.machine import ROOT

EVERY_S = 1.0  # one byte a second: no server sees the connection idle
# Heads that never end are for the proxy in front: the service itself has no time for them.
HEADERS = b"POST /recall HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
BEGINNINGS = (
    HEADERS + b'Content-Length: 1000\r\n\r\n{"user_id": "',
    HEADERS + b'Transfer-Encoding: chunked\r\n\r\n3e8\r\n{"user_id": "',
    HEADERS + b"Content-Length: 100000\r\n\r\n{" + b" " * 70_000,  # more than the server reads without being asked
)


@dataclass
class Dripping:
    """One connection: the response, and when the server closed it (seconds since it was made)."""

    socket: socket.socket
    made: float
    answer: bytes = b""
    closed_after: float | None = None


def drip(url: str, connections: int, seconds: float) -> dict[str, Any]:
    """Drips over all connections until the time is over; what the server closes is not opened again.

    Returns:
        `connections`, how many were `closed` by the server, the `statuses` they were answered with before, and the
        seconds after which the last was closed.
    """
    parts = urlsplit(url)
    address = parts.hostname or "127.0.0.1", parts.port or 80
    every: dict[int, Dripping] = {}
    for place in range(connections):
        one = Dripping(socket.create_connection(address), time.monotonic())
        one.socket.setblocking(False)
        with suppress(OSError):
            one.socket.send(BEGINNINGS[place % len(BEGINNINGS)])
        every[one.socket.fileno()] = one
    poll = select.epoll()
    for number in every:
        poll.register(number, select.EPOLLIN)
    end, following = time.monotonic() + seconds, time.monotonic() + EVERY_S
    while time.monotonic() < end and any(one.closed_after is None for one in every.values()):
        for number, _ in poll.poll(max(0.0, following - time.monotonic())):
            _take(every[number], poll, number)
        if time.monotonic() >= following:
            following += EVERY_S
            for one in every.values():
                if one.closed_after is None:
                    with suppress(OSError):
                        one.socket.send(b"x")
    closed = [one.closed_after for one in every.values() if one.closed_after is not None]
    return {
        "connections": connections,
        "closed": len(closed),
        "statuses": dict(Counter(one.answer[9:12].decode() for one in every.values() if one.answer)),
        "last_closed_after_s": round(max(closed, default=0.0), 1),
    }


@contextmanager
def dripping(url: str, connections: int, seconds: float, found: dict[str, Any]) -> Iterator[None]:
    """Drips in another process meanwhile; its result is in `found` afterwards."""
    words = [url, "--connections", str(connections), "--seconds", str(seconds)]
    command = [sys.executable, "-m", "benchmarks.serving.slow_loris", *words]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
    try:
        yield
        out, _ = process.communicate(timeout=seconds + 60)
        found |= json.loads(out)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def _take(one: Dripping, poll: select.epoll, number: int) -> None:
    try:
        data = one.socket.recv(1 << 16)
    except BlockingIOError:
        return
    except OSError:
        data = b""
    if data:
        one.answer += data
        return
    one.closed_after = time.monotonic() - one.made
    poll.unregister(number)
    one.socket.close()


def main() -> None:
    """Prints the result as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--connections", type=int, default=400)
    parser.add_argument("--seconds", type=float, default=30)
    given = parser.parse_args()
    print(json.dumps(drip(given.url, given.connections, given.seconds)))


if __name__ == "__main__":
    main()
