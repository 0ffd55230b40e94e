"""Limits the size, time and concurrency of a worker's requests.

Complete requests within the limits reach the app; the others get 400, 413 or 429, before their connection closes only
after the rest of the body (`refuse`). Waiting for a caller takes no slot: neither a partial body nor an unread response
blocks other requests.
"""

import asyncio
import math
from collections.abc import Mapping
from enum import Enum

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.protocol.asgi import ABORT, CLOSE, answer, error_bytes
from serving.protocol.exchange import EXCHANGE, Exchange, Exchanges
from serving.protocol.line import Line
from serving.protocol.refusal import closes, drop_body, refuse
from serving.settings import Settings
from serving.telemetry import metrics


class Work(Enum):
    """How a request takes part in the limits."""

    PROBE = "answered always: a full service must not look dead"
    LIGHT = "a single recall, which waits in a line of its own"
    HEAVY = "holds threads and CPU for long: only `max_heavy` at a time, the remaining threads serve single recalls"
    LONG = "heavy, and takes as long as opening a bundle: no time limit"


PROBE, LIGHT, HEAVY, LONG = Work
AGAIN = (b"retry-after", b"1")
NO_UPGRADE = error_bytes("invalid_http", "send HTTP/1.1 without Upgrade; no other protocol is supported")
MANY = "too_many_requests"
FULL = {
    "wait": error_bytes(MANY, "requests arrive faster than they can be answered; try again"),
    "concurrency": error_bytes(MANY, "too many requests are being processed; try again"),
    "heavy": error_bytes(MANY, "too many batches, embeddings and changes are being processed; try again"),
}


class Limits:
    """Pure ASGI middleware inside `Access`: callers without a valid key use no resources here.

    Attributes:
        in_flight: requests being processed.
        heavy: those of them that are heavy or long work.

    Args:
        app: the inner ASGI app.
        settings: the limits.
        work: that of each path; any other path is heavy.
    """

    def __init__(self, app: ASGIApp, settings: Settings, work: Mapping[str, Work]) -> None:
        self.app, self._settings, self._kinds = app, settings, dict(work)
        self.in_flight = self.heavy = 0
        self._line = Line(settings.max_concurrent)
        self._exchanges = Exchanges(settings.max_waiting_bytes)
        self._too_large = f"the body is larger than {settings.max_body_bytes} bytes"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Rejects a request or passes it on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        length, work = 0, self._kinds.get(scope["path"], HEAVY)
        for name, value in scope["headers"]:
            if name == b"upgrade":
                # httptools drops the body of such a request or parses it as the next request: read nothing more.
                metrics.refused("upgrade")
                await answer(send, 400, NO_UPGRADE, CLOSE)
                return
            if name == b"content-length":
                length = int(value)
        if work is PROBE:
            await self.app(scope, receive, send)
        elif length > self._settings.max_body_bytes:
            await refuse(scope, receive, send, 413, error_bytes("too_large", f"{self._too_large}, got {length}"))
        elif full := self._full(work):
            metrics.refused(full)
            await refuse(scope, receive, send, 429, FULL[full], AGAIN)
        else:
            await self._exchange(work, scope, receive, send)

    async def _exchange(self, work: Work, scope: Scope, receive: Receive, send: Send) -> None:
        abort = scope.get("state", {}).get(ABORT)
        exchange = Exchange(self._exchanges, receive, send, self._settings.body_timeout_s, abort)
        self._exchanges.add(exchange)
        try:
            arrived = await exchange.arrives(self._settings.max_body_bytes)
            if arrived is None:
                self._exchanges.keep(exchange, 0)
                if closes(scope):
                    await drop_body(receive)
                await answer(exchange.send, 413, error_bytes("too_large", self._too_large))
            elif arrived:
                if full := self._full(work):
                    metrics.refused(full)
                    await answer(exchange.send, 429, FULL[full], AGAIN)
                else:
                    await self._work(work, scope, exchange)
        except asyncio.CancelledError:
            if not exchange.given_up:
                raise
        finally:
            self._exchanges.remove(exchange)
            if exchange.answering is not None:
                await exchange.answering  # or the server finds no response and sends its own

    async def _work(self, work: Work, scope: Scope, exchange: Exchange) -> None:
        """Holds a slot for a request until its response begins, or its work ends without one."""
        heavy, inside = work is not LIGHT, True

        def leave() -> None:
            nonlocal inside
            if inside:
                inside = False
                self.in_flight -= 1
                self.heavy -= heavy
                metrics.left()
                if not heavy:
                    self._line.leave()

        async def noting(message: Message) -> None:
            if not exchange.given_up:
                leave()
            await exchange.send(message)

        self.in_flight += 1
        self.heavy += heavy
        metrics.entered()
        scope.setdefault("state", {})[EXCHANGE] = exchange
        exchange.work(math.inf if work is LONG else self._settings.request_timeout_s)
        try:
            await self.app(scope, exchange.receive, noting)
        finally:
            del scope["state"][EXCHANGE]  # a cycle, which only the collector would free
            leave()

    def _full(self, work: Work) -> str | None:
        """The limit that rejects a request, or None."""
        full = self.in_flight >= self._settings.max_concurrent
        if work is not LIGHT:
            return "concurrency" if full else "heavy" if self.heavy >= self._settings.max_heavy else None
        loop = asyncio.get_running_loop()
        if self._line.flooded:
            self._line.time_turn(loop)
        room = self._line.has_room(self.in_flight - self.heavy, loop.time())
        return "concurrency" if full else None if room else "wait"
