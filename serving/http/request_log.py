"""Gives every request an id, metrics, a log line, and a generic 500 if the app fails.

Responses carry `X-Request-Id`. The metrics include a request before its caller has the whole response. During shutdown
every response says `Connection: close`.
"""

import asyncio
import logging
import re
import secrets
import time
from itertools import count

from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.http.route_table import WORK
from serving.protocol.asgi import CLOSE, CLOSING, answer, error_bytes
from serving.protocol.limits import PROBE
from serving.protocol.shutdown import Drain
from serving.settings import Settings
from serving.telemetry import metrics
from serving.telemetry.logs import SERVER, SERVICE, request_id

log = logging.getLogger(SERVICE)
access = logging.getLogger(f"{SERVER}.access")

HEADER = b"x-request-id"
# Ids that are safe to copy into a log line and a header.
SAFE_ID = re.compile(rb"[A-Za-z0-9._:+/=-]{1,128}")
UNKNOWN = "unknown"
# The wait for a body is the caller's: it makes no request slow. Of these, but 413, the log has summaries.
SUMMARISED = frozenset({401, 403, 408, 413, 429})
INTERNAL = error_bytes("internal", "internal error; see the log")
STOPPING = error_bytes("stopping", "the service is stopping")


class RequestLog:
    """The ASGI middleware around all others but `Refusals`; runs in the event loop's thread only.

    Args:
        app: the inner ASGI app.
        settings: which requests are logged.
        drain: whether the service is stopping.
    """

    def __init__(self, app: ASGIApp, settings: Settings, drain: Drain) -> None:
        self.app, self._drain = app, drain
        self._logged, self._slow_s = settings.access_log, settings.slow_ms / 1e3
        self._routes: _Templates | None = None
        # Unique to this process, and short: 12 random digits, then a number.
        self._prefix, self._numbers = f"{secrets.token_hex(6)}-", count(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun = time.perf_counter()
        name = self._id(scope)
        request_id.set(name)
        if self._drain.begun:
            scope.setdefault("state", {})[CLOSING] = True
        header = HEADER, name.encode()
        status = 0

        async def noting(message: Message) -> None:
            nonlocal status
            kind = message["type"]
            if kind == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), header]
                if self._drain.begun and CLOSE not in message["headers"]:
                    message["headers"].append(CLOSE)
            elif kind == "http.response.body" and status > 0 and not message.get("more_body", False):
                # Before the end is sent: a caller who has the response must find it in the metrics of any worker.
                self._over(scope, status, time.perf_counter() - begun)
                status = -1
            await send(message)

        try:
            await self.app(scope, receive, noting)
            if status > 0:  # cut off, because the caller did not read it: of that the summary of refusals tells the log
                self._over(scope, status, time.perf_counter() - begun, unread=True)
        except asyncio.CancelledError:
            # The graceful timeout of the shutdown is over.
            if status == 0:
                await answer(noting, 503, STOPPING, CLOSE)
                return
            if status > 0:
                self._over(scope, status, time.perf_counter() - begun)
            raise
        except Exception:
            log.exception("%s %s failed", scope["method"], self._route(scope))
            if status:
                # Half a response is on its way: the server must cut it off, or it would look complete.
                if status > 0:
                    self._over(scope, 500, time.perf_counter() - begun)
                raise
            await answer(noting, 500, INTERNAL)

    def _id(self, scope: Scope) -> str:
        for name, value in scope["headers"]:
            if name == HEADER:
                if SAFE_ID.fullmatch(value):
                    return str(value, "ascii")
                break
        return f"{self._prefix}{next(self._numbers):x}"

    def _over(self, scope: Scope, status: int, seconds: float, *, unread: bool = False) -> None:
        route, method = self._route(scope), scope["method"]
        metrics.served(route, method, status, seconds)
        slow = seconds > self._slow_s and status not in SUMMARISED
        # A probe's 503 is an answer: the log tells of the stop, and of a search that fails, on its own.
        failed = status >= 500 and not (status == 503 and WORK.get(route) is PROBE)
        if self._logged == "none" or (self._logged == "errors" and (unread or not (failed or slow))):
            return
        ms = round(seconds * 1e3, 3)
        fields = {"route": route, "method": method, "status": status, "ms": ms}
        user_id = scope.get("state", {}).get("user_id")
        if user_id is not None:
            fields["user_id"] = user_id
        level = logging.ERROR if failed else logging.WARNING if slow else logging.INFO
        access.log(level, "%s %s: %d after %s ms", method, route, status, ms, extra={"fields": fields})

    def _route(self, scope: Scope) -> str:
        if self._routes is None:
            self._routes = _Templates(scope["app"].routes)
        return self._routes.of(scope["path"])


class _Templates:
    """Maps a path to its route's template; unknown paths share one name, or callers could create metrics at will."""

    def __init__(self, routes: list[BaseRoute]) -> None:
        # Not `path`, which shows the converter, `{item_id:id}`; in `path_format` it is `{item_id}`.
        regexes = {route.path_format: route.path_regex for route in routes if isinstance(route, Route)}
        self._plain = {template: template for template in regexes if "{" not in template}
        self._patterns = [(template, regex) for template, regex in regexes.items() if "{" in template]

    def of(self, path: str) -> str:
        plain = self._plain.get(path)
        if plain is not None:
            return plain
        return next((template for template, regex in self._patterns if regex.match(path)), UNKNOWN)
