"""The connection to a PostgreSQL database that threads share: opened by the call that needs it, cut if no answer comes.

The system tells of a server that has gone. Of one that stands still its kernel still acknowledges every packet, so
that only the time tells: a thread watches how long each call takes.
"""

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg

from serving.catalogue.journal import JournalError
from serving.catalogue.postgres_tables import connect, create, prepare, telling_errors
from serving.files.database_url import DatabaseUrl

LOOK_S = 0.25
IDLE_S = 3.0  # an idle connection answers within this time, as a new one is opened within it
# Longer than the server waits for a lock: its own reason is the better one. A write that waits for a call before it, or
# for a new connection, still ends well before the 30 s after which the service gives up a request.
ANSWER_S = 12.0


class Wire:
    """An open connection that another thread can cut, which then fails at once in the thread that uses it."""

    def __init__(self, url: DatabaseUrl, **place: Any) -> None:
        self.connection = connect(url, **place)
        # A handle of its own: once libpq has closed the connection's, its number may be that of another socket.
        self._socket = socket.socket(fileno=os.dup(self.connection.fileno()))

    def cut(self) -> None:
        """Ends it for both sides."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes it; nobody may cut it any more."""
        self.connection.close()
        self._socket.close()

    def server_answers(self, url: DatabaseUrl) -> bool:
        """Whether its server, and not another one of several, answers over a new connection."""
        try:
            info = self.connection.info
            place = {"host": info.host, "hostaddr": info.hostaddr, "port": info.port}
            other = Wire(url, **{name: value for name, value in place.items() if value})
        except (psycopg.Error, OSError):
            return False
        late = threading.Timer(IDLE_S, other.cut)
        late.start()
        try:
            # A pooler accepts connections also for a server that stands still.
            other.connection.execute("")
        except psycopg.Error:
            return False
        finally:
            late.cancel()
            late.join()
            other.close()
        return True


class Call:
    """What a thread does with a wire now.

    Attributes:
        wire: the wire.
        until: when it is late.
        patient: it is not late while the server answers others.
        cut: why the wire was cut, or nothing.
    """

    def __init__(self, wire: Wire, limit_s: float, *, patient: bool) -> None:
        self.wire, self.until, self.patient, self.cut = wire, time.monotonic() + limit_s, patient, ""


class Link:
    """A wire and the lock of the threads that share it; `identity` is that of the journal it leads to."""

    def __init__(self, url: DatabaseUrl, *, must_exist: bool) -> None:
        self.identity = ""
        self._url, self._lock, self._must_exist = url, threading.Lock(), must_exist
        self._wire: Wire | None = None
        # When no wire could be opened, and why.
        self._failure = -1.0, ""
        # The call that runs, and its lock: who cuts a wire holds it, so that no other call has the wire by then.
        self._call: Call | None = None
        self._call_lock = threading.Lock()
        self._ended = threading.Event()
        threading.Thread(target=self._watch, name="postgres-watch", daemon=True).start()

    @contextmanager
    def held(self, *, patient: bool = False) -> Iterator[psycopg.Connection]:
        """Holds the connection; opens it if there is none or the last one broke.

        Args:
            patient: for as long as it takes while the server answers others; else for `ANSWER_S` at most.

        Raises:
            JournalError: it cannot be opened, a statement failed, or no answer came. What was committed may be kept.
        """
        asked = time.monotonic()
        with telling_errors(self._url), self._lock:
            failed, reason = self._failure
            if failed > asked:
                # Another call has just found out, while this one waited. If each tried, the last would wait for long.
                raise JournalError(reason)
            wire = self._whole()
            with self._watched(wire, ANSWER_S, patient=patient):
                yield wire.connection

    def close(self) -> None:
        """Closes it for good; a call that runs fails."""
        with self._call_lock:
            self._ended.set()
            if self._call is not None:
                self._cut(self._call, "closed")
        with self._lock:
            if self._wire is not None:
                self._wire.close()
                self._wire = None

    def _whole(self) -> Wire:
        """One that works: it may have died since its last use, and here nothing is lost by opening another."""
        if self._wire is not None:
            with suppress(psycopg.OperationalError, JournalError), self._watched(self._wire, IDLE_S):
                self._wire.connection.execute("")
                return self._wire
            self._wire.close()
            self._wire = None
        try:
            with telling_errors(self._url):
                self._wire = self._opened()
        except JournalError as error:
            self._failure = time.monotonic(), str(error)
            raise
        return self._wire

    def _opened(self) -> Wire:
        self._refuse_if_closed()
        wire = Wire(self._url)
        try:
            with self._watched(wire, ANSWER_S):
                prepare(wire.connection)
                identity = create(wire.connection, self._url, must_exist=self._must_exist)
            if self.identity not in ("", identity):
                raise JournalError(f"{self._url}: holds another journal than before; restart the service")
        except BaseException:
            wire.close()
            raise
        self.identity, self._must_exist = identity, True
        return wire

    @contextmanager
    def _watched(self, wire: Wire, limit_s: float, *, patient: bool = False) -> Iterator[None]:
        call = Call(wire, limit_s, patient=patient)
        with self._call_lock:
            self._refuse_if_closed()
            self._call = call
        try:
            yield
        except psycopg.Error as error:
            if call.cut:
                raise JournalError(f"{self._url}: {call.cut}") from error
            raise
        finally:
            with self._call_lock:
                self._call = None

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_S):
            call = self._call
            if call is None or time.monotonic() < call.until:
                continue
            if call.patient and call.wire.server_answers(self._url):
                call.until = time.monotonic() + ANSWER_S
                continue
            with self._call_lock:
                if call is self._call:
                    self._cut(call, "no answer from the server in time")

    def _cut(self, call: Call, reason: str) -> None:
        call.cut = call.cut or reason
        call.wire.cut()

    def _refuse_if_closed(self) -> None:
        if self._ended.is_set():
            raise JournalError(f"{self._url}: closed")
