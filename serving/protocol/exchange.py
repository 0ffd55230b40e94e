"""Reads request bodies and sends responses; drops exchanges that are too slow or hold too many bytes.

A body is passed on once it is complete. A large response is sent in pieces, each after the caller has read the previous
one. A late body gets 408 and a late response 503; if the response is not read, the connection is reset.
"""

import asyncio
from collections.abc import Callable
from contextvars import copy_context

from starlette.types import Message, Receive, Send

from serving.protocol.asgi import CLOSE, answer, error_bytes
from serving.telemetry import metrics

LOOK_S = 0.25
# Exchanges dropped at a time, with a pause in between: dropping hundreds at once would block the event loop.
AT_ONCE, PAUSE_S = 8, 0.005
PIECE_BYTES = 65_536
REFUSE_S = 5.0  # for a 408 or 503, which may wait until the caller has read earlier answers
TOO_SLOW = error_bytes("too_slow", "the body of the request did not arrive in time")
TIMEOUT = error_bytes("timeout", "the answer took too long; the change may still have been made")
EXCHANGE = "exchange"  # key of a request's state: its `Exchange`


class Exchanges:
    """The exchanges of one worker. Partial bodies and unread responses share one memory limit.

    Args:
        most_bytes: the limit; above it the oldest exchanges are dropped.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes, self._bytes = most_bytes, 0
        self._open: dict[Exchange, None] = {}  # oldest first
        self._looking = False

    def add(self, exchange: "Exchange") -> None:
        """Starts tracking an exchange."""
        self._open[exchange] = None
        if not self._looking:
            self._looking = True
            exchange.loop.call_later(LOOK_S, self._look, exchange.loop)

    def remove(self, exchange: "Exchange") -> None:
        """Stops tracking an exchange."""
        del self._open[exchange]
        self.keep(exchange, 0)

    def keep(self, exchange: "Exchange", count: int) -> None:
        """Records how many bytes of an exchange wait for its caller."""
        self._bytes += count - exchange.waiting_bytes
        exchange.waiting_bytes = count
        if self._bytes <= self._most_bytes or not count:
            return
        for other in list(self._open):
            if other.waiting_bytes and other is not exchange:
                self.keep(other, 0)
                other.give_up()
                if self._bytes <= self._most_bytes:
                    return

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        late = [each for each in self._open if each.due < now and not each.given_up]
        for exchange in late[:AT_ONCE]:
            exchange.give_up()
        self._looking = bool(self._open)
        if self._looking:
            loop.call_later(PAUSE_S if len(late) > AT_ONCE else LOOK_S, self._look, loop)


class Exchange:
    """One request and its response; create it in the task that handles the request.

    Attributes:
        due: deadline of the current step (body, response, or reading it), in event loop time.
        waiting_bytes: the count last recorded by `Exchanges.keep`.
        started: whether a response has begun.
        given_up: whether the exchange was dropped.
        answering: the task that sends the 408 or 503.

    Args:
        exchanges: the exchanges of this worker.
        source: ASGI receive callable.
        sink: ASGI send callable.
        seconds: timeout of the body.
        abort: closes the connection at once, without the bytes that the caller has not read; None if nothing can.
    """

    __slots__ = (
        "_abort", "_answer_s", "_body", "_context", "_exchanges", "_sink", "_source", "_task",
        "answering", "due", "given_up", "loop", "started", "waiting_bytes",
    )  # fmt: skip

    def __init__(
        self, exchanges: Exchanges, source: Receive, sink: Send, seconds: float, abort: Callable[[], None] | None = None
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.due, self.waiting_bytes = self.loop.time() + seconds, 0
        self.started = self.given_up = False
        self.answering: asyncio.Task[None] | None = None
        self._exchanges, self._source, self._sink, self._abort = exchanges, source, sink, abort
        self._task, self._context = asyncio.current_task(), copy_context()
        self._body: bytes | None = None
        self._answer_s = 0.0

    async def arrives(self, most_bytes: int) -> bool | None:
        """Waits for the whole body.

        Args:
            most_bytes: largest body allowed.

        Returns:
            True once it is complete, None if it is too large, False if it is late or the caller has disconnected.
        """
        come = bytearray()  # not a list of pieces: a body may arrive byte by byte
        while True:
            message = await self._source()
            if self.given_up or message["type"] == "http.disconnect":
                return False
            piece = message.get("body", b"")
            if len(come) + len(piece) > most_bytes:
                return None
            if not message.get("more_body", False):
                break
            come += piece
            self._exchanges.keep(self, len(come))
        if come:
            self._exchanges.keep(self, 0)
        self._body = bytes(come) + piece
        return True

    def work(self, seconds: float) -> None:
        """Starts the response timeout; reading a large response gets the same time again."""
        self._answer_s, self.due = seconds, self.loop.time() + seconds

    async def receive(self) -> Message:
        """Returns the whole body, then the server's messages."""
        if self._body is None:
            return await self._source()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message) -> None:
        """Forwards a response message unless the exchange was dropped."""
        if self.given_up:
            return
        self.started = True
        body = message.get("body", b"")
        if len(body) <= PIECE_BYTES:
            await self._sink(message)
            return
        self.work(self._answer_s)
        more = message.get("more_body", False)
        self._exchanges.keep(self, len(body))
        for start in range(0, len(body), PIECE_BYTES):
            piece, rest = body[start : start + PIECE_BYTES], start + PIECE_BYTES < len(body)
            await self._sink({"type": message["type"], "body": piece, "more_body": rest or more})
        self._exchanges.keep(self, 0)

    def give_up(self) -> None:
        """Sends 408 or 503, or cuts off a started response. Work in threads goes on: they cannot be stopped."""
        if self.given_up:
            return
        self.given_up = True
        if self.started:
            metrics.refused("unread")
            if self._abort is not None:
                # A mere close keeps the bytes until the caller reads them. First this, then the end of the task: so the
                # server knows that the caller is gone, and logs no error for a response without an end.
                self._abort()
            if self._task is not None:
                self._task.cancel()
            return
        self.started = True
        if self._answer_s:
            status, body = 503, TIMEOUT
            metrics.refused("timeout")
        else:
            status, body = 408, TOO_SLOW
            metrics.refused("slow")
        # In the request's own context: otherwise the log would show another request's id.
        self.answering = self.loop.create_task(self._refuse(status, body), context=self._context)

    async def _refuse(self, status: int, body: bytes) -> None:
        try:
            async with asyncio.timeout(REFUSE_S):
                await answer(self._sink, status, body, CLOSE)
        except TimeoutError:
            if self._abort is not None:
                self._abort()
