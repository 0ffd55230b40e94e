"""Requests and their answers as their callers send and take them: late ones are given up, and what keeps too much.

In: a request. Out: its body once it has come whole; its answer in pieces, none handed on before its caller has read the
one before; 408 where the body is late, 503 where the answer is, the end of the connection where it is not read.
"""

import asyncio
from contextvars import copy_context

from starlette.types import Message, Receive, Send

from serving import metrics
from serving.asgi import CLOSE, answer
from serving.schemas import error_bytes

LOOK_S = 0.25
# Given up at a time, with the others' turns in between: hundreds that began together would hold everyone up.
AT_ONCE, PAUSE_S = 8, 0.005
PIECE_BYTES = 65_536
TOO_SLOW = error_bytes("too_slow", "the body of the request did not arrive in time")
TIMEOUT = error_bytes("timeout", "the answer took too long; a change may have been made")


class Exchanges:
    """Those of one worker. What waits for a caller, half a body or an answer that is not read, has one bound.

    Args:
        most_bytes: of what waits; beyond it the exchanges that began first are given up.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes, self._bytes = most_bytes, 0
        self._open: dict[Exchange, None] = {}  # oldest first
        self._looking = False

    def add(self, exchange: "Exchange") -> None:
        """Looks after one from now on."""
        self._open[exchange] = None
        if not self._looking:
            self._looking = True
            exchange.loop.call_later(LOOK_S, self._look, exchange.loop)

    def remove(self, exchange: "Exchange") -> None:
        """One is over."""
        del self._open[exchange]
        self.keep(exchange, 0)

    def keep(self, exchange: "Exchange", count: int) -> None:
        """Notes how many bytes of one wait for its caller."""
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
    """One request and its answer; its task makes it.

    Attributes:
        due: when what it waits for is late, in the loop's time: the rest of the body, the answer, that it is read.
        waiting_bytes: what `Exchanges.keep` noted.
        started: whether an answer has begun.
        given_up: whether its time was over.
        answering: the task of the answer that says so.

    Args:
        exchanges: those that it is one of.
        source: where its request comes from.
        sink: where its answer goes.
        seconds: within which its body must come.
    """

    __slots__ = (
        "_answer_s", "_body", "_context", "_exchanges", "_sink", "_source", "_task",
        "answering", "due", "given_up", "loop", "started", "waiting_bytes",
    )  # fmt: skip

    def __init__(self, exchanges: Exchanges, source: Receive, sink: Send, seconds: float) -> None:
        self.loop = asyncio.get_running_loop()
        self.due, self.waiting_bytes = self.loop.time() + seconds, 0
        self.started = self.given_up = False
        self.answering: asyncio.Task[None] | None = None
        self._exchanges, self._source, self._sink = exchanges, source, sink
        self._task, self._context = asyncio.current_task(), copy_context()
        self._body: bytes | None = None
        self._answer_s = 0.0

    async def arrives(self, most_bytes: int) -> bool | None:
        """Waits for the whole body.

        Args:
            most_bytes: of the body.

        Returns:
            Whether it is here; None where it is larger, False where it is late or its caller has gone.
        """
        come = bytearray()  # no list of pieces: a body may come byte by byte
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
        """From now on it is worked on, for so long at most; and for as long the caller may then read a long answer."""
        self._answer_s, self.due = seconds, self.loop.time() + seconds

    async def receive(self) -> Message:
        """The whole body; then what the server says."""
        if self._body is None:
            return await self._source()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message) -> None:
        """Passes an answer on, unless another one was sent."""
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
        """Its time is over: an answer says so, or ends where it is. Its work goes on: no thread can be stopped."""
        if self.given_up:
            return
        self.given_up = True
        if self.started:
            metrics.refused("unread")
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
        # In the context of its request: the log would name another one's id.
        self.answering = self.loop.create_task(answer(self._sink, status, body, CLOSE), context=self._context)
