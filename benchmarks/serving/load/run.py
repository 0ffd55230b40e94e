"""One measurement of the load generator: the loop that sends what is due and takes the answers.

In: a URL, bodies, connections, seconds, the moments at which requests are due. Out: a `Result`.

Plain sockets and epoll, no event loop of asyncio: its timers are a millisecond wide, and a tenth of that is much here.
"""

import gc
import os
import select
import socket
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import cycle
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from benchmarks.serving.load.connection import Answer, Connection, prebuilt
from benchmarks.serving.load.result import Result

GRACE_S = 5.0  # how long answers are waited for after the last request
AGAIN_S = 0.02  # a lost connection is opened again after this: a refused one must not become a storm
NEAR_S = 50e-6  # to wake up takes as long: nearer than this the loop spins


class Run:
    """The loop over all connections of one measurement."""

    def __init__(
        self,
        url: str,
        bodies: Sequence[bytes],
        connections: int,
        seconds: float,
        answers: Sequence[bytes] | None,
        headers: Mapping[str, str] | None,
        obeys: bool = False,
    ) -> None:
        if not bodies or connections < 1 or seconds <= 0 or (answers is not None and len(answers) != len(bodies)):
            raise ValueError("needs a body, a connection, some time, and an answer for every body or none at all")
        parts = urlsplit(url)
        if parts.scheme != "http" or parts.hostname is None:
            raise ValueError(f"not a URL of the form http://host:port/path: {url!r}")
        found = socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_STREAM)[0]
        self.family, self.address = found[0], found[4]
        expected: Sequence[bytes | None] = [None] * len(bodies) if answers is None else answers
        self.messages = cycle(list(zip(prebuilt(parts, bodies, headers or {}), expected, strict=True)))
        self.seconds, self.count, self.obeys = seconds, connections, obeys
        self.poll = select.epoll()
        _precise_timers()
        self.by_number: dict[int, Connection] = {}
        self.free: deque[Connection] = deque()
        self.later: deque[float] = deque()  # when to open lost connections again
        self.at: list[float] = []
        self.latency: list[float] = []
        self.status: list[int] = []
        self.lag: list[float] = []
        self.turns: list[float] = []  # how long one turn of the loop took: answers that came meanwhile wait as long
        self.errors: Counter[str] = Counter()
        self.unasked: Counter[int] = Counter()
        self.wrong = self.sent = self.waited = self.in_flight = self.tried = 0
        self.resting: deque[tuple[float, Connection]] = deque()  # those told to try again, and when
        self.again = False  # closed loop, and there is time left: a free connection sends at once

    def go(self, due: np.ndarray | None) -> Result:
        """Connects, sends, waits for the last answers."""
        with _no_collection():
            try:
                return self._go(None if due is None else due.tolist())
            finally:
                for connection in self.by_number.values():
                    connection.socket.close()
                self.poll.close()

    def _go(self, due: list[float] | None) -> Result:
        for _ in range(self.count):
            self._connect()
        until = time.perf_counter() + GRACE_S
        while self.tried < self.count and time.perf_counter() < until:
            self._turn(0.01)
        self.errors.clear()  # what could not be connected is tried again, and counts from here on
        self.start = time.perf_counter()
        if due is None:
            self._closed()
        else:
            self._open([self.start + moment for moment in due])
        self.again = False
        until = time.perf_counter() + GRACE_S
        while self.in_flight and time.perf_counter() < until:
            self._turn(0.01)
        self.errors["unanswered"] += self.in_flight
        return Result(
            seconds=self.seconds,
            sent=self.sent,
            at=np.array(self.at) - self.start,
            latency_ms=np.array(self.latency) * 1000,
            status=np.array(self.status, np.int16),
            errors=dict(+self.errors),
            unasked=dict(self.unasked),
            wrong=self.wrong,
            waited=self.waited,
            lag_ms=np.array(self.lag) * 1000,
            turn_ms=np.array(self.turns) * 1000,
        )

    def _closed(self) -> None:
        self.again = True
        end = self.start + self.seconds
        while self.free:
            self._send(self.free.popleft(), time.perf_counter())
        while time.perf_counter() < end:
            self._turn(0.01)

    def _open(self, due: list[float]) -> None:
        place, count, end = 0, len(due), self.start + self.seconds
        clock, free = time.perf_counter, self.free
        blocked = False  # no connection was free when the next request was due: that delay is the server's
        while place < count:
            now = clock()
            while place < count and due[place] <= now:
                if not free:
                    blocked = True
                    break
                if blocked:
                    self.waited += 1
                else:
                    self.lag.append(clock() - due[place])
                self._send(free.popleft(), due[place])
                place += 1
            else:
                blocked = False
            if now > end + GRACE_S:
                self.errors["never sent"] += count - place
                return
            wait = due[place] - now if place < count and not blocked else 0.0
            self._turn(0.01 if blocked else wait - NEAR_S)

    def _turn(self, wait: float) -> None:
        """Deals with every connection that is ready, after at most `wait` seconds."""
        if wait > 0:
            select.select([self.poll], [], [], wait)  # epoll's own timeouts are whole milliseconds
        ready = self.poll.poll(0)
        start = time.perf_counter()
        for number, event in ready:
            connection = self.by_number.get(number)
            if connection is None:
                continue
            if event & select.EPOLLOUT:
                self._writable(connection)
            elif event:
                self._readable(connection)
        while self.later and self.later[0] <= start:
            self.later.popleft()
            self._connect()
        while self.resting and self.resting[0][0] <= start:
            rested = self.resting.popleft()[1]
            if self.again and rested.due is None and self.by_number.get(rested.number) is rested:
                self._send(rested, start)
        if ready:
            self.turns.append(time.perf_counter() - start)

    def _readable(self, connection: Connection) -> None:
        answer = connection.read()
        if answer is None:
            return
        if isinstance(answer, str):
            self._lost(connection, answer)
            return
        self._answered(connection, answer)

    def _answered(self, connection: Connection, answer: Answer) -> None:
        status, body, keeps, rest_s = answer
        if connection.due is None:
            self.unasked[status] += 1
            self._lost(connection, "")
            return
        now = time.perf_counter()
        self.at.append(connection.due)
        self.latency.append(now - connection.due)
        self.status.append(status)
        self.in_flight -= 1
        if status == 200 and connection.expected is not None and body != connection.expected:
            self.wrong += 1
        connection.due = None
        if not keeps:
            self._lost(connection, "")
        elif self.again and rest_s and self.obeys:
            self.resting.append((now + rest_s, connection))
        elif self.again:
            self._send(connection, now)
        else:
            self.free.append(connection)

    def _send(self, connection: Connection, due: float) -> None:
        message, connection.expected = next(self.messages)
        connection.due = due
        self.sent += 1
        self.in_flight += 1
        lost = connection.send(message)
        if lost is not None:
            self._lost(connection, lost)
        elif connection.rest:
            self.poll.modify(connection.number, select.EPOLLIN | select.EPOLLOUT)

    def _writable(self, connection: Connection) -> None:
        if connection.connecting:
            error = connection.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if error:
                self._lost(connection, f"connect: {os.strerror(error)}")
                return
            connection.connecting = False
            self.tried += 1
            self.poll.modify(connection.number, select.EPOLLIN)
            if self.again:
                self._send(connection, time.perf_counter())
            else:
                self.free.append(connection)
            return
        lost = connection.send(connection.rest)
        if lost is not None:
            self._lost(connection, lost)
        elif not connection.rest:
            self.poll.modify(connection.number, select.EPOLLIN)

    def _connect(self) -> None:
        connection = Connection(self.family, self.address)
        self.by_number[connection.number] = connection
        self.poll.register(connection.number, select.EPOLLOUT)

    def _lost(self, connection: Connection, why: str) -> None:
        """The connection is at its end; another takes its place. An error only where it owes an answer."""
        self.tried += connection.connecting
        if connection.due is not None or connection.connecting:
            self.errors[why] += 1
        if connection.due is not None:
            self.in_flight -= 1
        elif connection in self.free:
            self.free.remove(connection)
        del self.by_number[connection.number]
        connection.socket.close()
        self.later.append(time.perf_counter() + AGAIN_S)


def _precise_timers() -> None:
    """Linux may wake a process 50 µs late to save power, unless it is told not to."""
    with suppress(OSError):
        Path("/proc/self/timerslack_ns").write_text("1", encoding="ascii")


@contextmanager
def _no_collection() -> Iterator[None]:
    """The garbage collector would stop the generator for milliseconds."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
