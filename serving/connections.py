"""What the connections of one worker have in common: their count, one look at all of them, and who is read later.

In: the settings, connections. Out: those whose time is over are given up; those that were held are read again in turn.
"""

import asyncio
import math
import secrets
from collections import deque
from collections.abc import Iterable
from heapq import nsmallest
from itertools import count
from typing import Any, Protocol

from serving.admission import REFUSALS_PER_S, Admission
from serving.observed import SAFE_ID
from serving.settings import Settings

LOOK_S = 0.5
RESUME_S = 0.002
VICTIMS = 32


class Connection(Protocol):
    """What is asked of a connection.

    Attributes:
        due: when what it waits for is late, in the loop's time; infinite while a request is worked on.
        since: when it began to wait for that.
        running: the request that is worked on, or None.
        late: whether what comes from it now may have waited while it was held.
        transport: its transport.
    """

    due: float
    since: float
    running: Any
    late: bool
    transport: Any

    @property
    def begun(self) -> bool:
        """Whether half a request has come."""

    def give_up(self) -> bool:
        """Ends it: its time is over. Whether it is closed now."""

    def read_again(self) -> None:
        """Ends a hold."""


class Connections:
    """What the connections of one worker have in common.

    Args:
        settings: the limits.
        opened: the server's own set of its connections.
        loop: in which all of this happens.
    """

    def __init__(self, settings: Settings, opened: set[Any], loop: asyncio.AbstractEventLoop) -> None:
        self.settings, self.open, self.loop = settings, opened, loop
        self.admission = Admission(settings.max_concurrent, settings.max_heavy, settings.max_slowdown)
        self._ids, self._numbers = f"{secrets.token_hex(6)}-r".encode(), count(1)
        self._held: deque[Connection] = deque()
        self._late: list[Connection] = []
        self._victims: list[tuple[bool, float, int, Connection]] = []
        self._looking = self._resuming = False
        self._resumed_at = 0.0

    def look_soon(self) -> None:
        """Looks at all connections every moment, while there are any."""
        if not self._looking:
            self._looking = True
            self.loop.call_later(LOOK_S, self._look)

    def hold(self, connection: Connection) -> None:
        """Leaves a connection unread, until those held before it were read."""
        connection.transport.pause_reading()
        self._held.append(connection)
        if not self._resuming:
            self._resuming, self._resumed_at = True, self.loop.time()
            self.loop.call_later(RESUME_S, self._resume)

    def make_room(self) -> bool:
        """Closes the connection that is idle for longest, or else half-way through a request; False: all are in use."""
        if not self._victims:
            free = [each for each in self.open if each.due < math.inf and each.running is None]
            # A few for one look at all, and no more: meanwhile others become idle.
            self._victims = nsmallest(VICTIMS, ((each.begun, each.since, id(each), each) for each in free))[::-1]
        while self._victims:
            begun, since, _, victim = self._victims.pop()
            same = (victim.begun, victim.since, victim.running) == (begun, since, None)
            if same and not victim.transport.is_closing() and victim.give_up():
                return True
        return False

    def request_id(self, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        """The caller's id of a request where it is safe to send back, otherwise one of our own."""
        for name, value in headers:
            if name == b"x-request-id" and SAFE_ID.fullmatch(value):
                return value
        return b"%s%x" % (self._ids, next(self._numbers))

    def _look(self) -> None:
        now = self.loop.time()
        for connection in [each for each in self.open if each.due < now]:
            connection.give_up()
        self._looking = False
        if self.open:
            self.look_soon()

    def _resume(self) -> None:
        now = self.loop.time()  # The timer of a busy loop is late.
        due, self._resumed_at = math.ceil(REFUSALS_PER_S * (now - self._resumed_at)), now
        for each in self._late:
            each.late = False  # All that had come while it was held was read since.
        self._late = [self._held.popleft() for _ in range(min(len(self._held), due))]
        for each in self._late:
            each.late = True
            each.read_again()
        self._resuming = bool(self._held or self._late)
        if self._resuming:
            self.loop.call_later(RESUME_S, self._resume)
