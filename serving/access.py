"""Who may ask what, and how long an answer may take: the middleware between the log and the routes.

In: requests. Out: those with a good key, where keys are asked for; 401, 403, or 503 when the time is over.
"""

import asyncio
from contextvars import copy_context
from typing import Any

from serving import metrics
from serving.keys import KeyRing
from serving.observed import App, Message, Receive, Scope, Send
from serving.schemas import error_bytes
from serving.settings import Settings

OPEN = frozenset({"/healthz", "/readyz"})
READ = frozenset({"/recall", "/recall/batch", "/similar", "/embed"})
# A reload takes as long as a bundle takes to open.
UNTIMED = frozenset({"/admin/reload"})
LOOK_S = 0.25
SCHEME = b"bearer "

_JSON = (b"content-type", b"application/json")
_CHALLENGE = (b"www-authenticate", b'Bearer realm="towers"')
NO_KEY = error_bytes("no_key", "send a key: Authorization: Bearer KEY")
WRONG_KEY = error_bytes("wrong_key", "this key is not known")
READ_ONLY = error_bytes("read_only", "this key may read; for changes and administration another one is needed")
TIMEOUT = error_bytes("timeout", "the answer took too long; a change may have been made")


class Access:
    """Pure ASGI: with no keys it adds a few microseconds.

    Args:
        app: what answers.
        settings: the file of keys, the time limit.

    Raises:
        KeysError: the file of keys cannot be used.
    """

    def __init__(self, app: App, settings: Settings) -> None:
        self.app = app
        self._keys = None if settings.keys is None else KeyRing(settings.keys)
        self._limit_s = settings.request_timeout_s
        self._running: dict[_Running, None] = {}  # oldest first
        self._looking = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request, or lets it be answered."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = scope["path"]
        if self._keys is not None and path not in OPEN:
            refused = _refused(self._keys, scope)
            if refused is not None:
                metrics.refused("key")
                await _answer(send, *refused)
                return
        if path in UNTIMED:
            await self.app(scope, receive, send)
            return
        running = _Running(send, asyncio.get_running_loop().time() + self._limit_s)
        self._running[running] = None
        if not self._looking:
            self._looking = True
            asyncio.get_running_loop().call_later(LOOK_S, self._look)
        try:
            await self.app(scope, receive, running.send)
        finally:
            del self._running[running]
            if running.answering is not None:
                await running.answering  # before the server looks for an answer, and sends one of its own

    def _look(self) -> None:
        """Answers those whose time is over; their work goes on, since no thread can be stopped, and still counts."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        for running in self._running:
            if running.due > now:
                break
            if not running.started:
                metrics.refused("timeout")
                running.started = running.over = True
                answer = _answer(running.to, 503, TIMEOUT, (b"connection", b"close"))
                # This look runs as a part of the request that happened to begin it: the log would name that one's id.
                running.answering = loop.create_task(answer, context=running.context)
        self._looking = bool(self._running)
        if self._looking:
            loop.call_later(LOOK_S, self._look)


class _Running:
    """One request that is worked on."""

    __slots__ = ("answering", "context", "due", "over", "started", "to")

    def __init__(self, to: Send, due: float) -> None:
        self.to, self.due = to, due
        self.context = copy_context()
        self.started = self.over = False
        self.answering: asyncio.Task[None] | None = None

    async def send(self, message: Message) -> None:
        """Passes an answer on, unless another one was sent."""
        if not self.over:
            self.started = True
            await self.to(message)


def _refused(keys: KeyRing, scope: Scope) -> tuple[Any, ...] | None:
    """Why a request is not let in: arguments of `_answer`."""
    sent = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(sent) != 1 or not sent[0].lower().startswith(SCHEME):
        return 401, NO_KEY, _CHALLENGE
    role = keys.role(sent[0][len(SCHEME) :].strip())
    if role is None:
        return 401, WRONG_KEY, (_CHALLENGE[0], _CHALLENGE[1] + b', error="invalid_token"')
    return None if role == "admin" or reads(scope["method"], scope["path"]) else (403, READ_ONLY)


def reads(method: str, path: str) -> bool:
    """Whether a request only reads. What is not known to is administration, a route of tomorrow too."""
    return (method == "POST" and path in READ) or (method == "GET" and not path.startswith("/admin"))


async def _answer(send: Send, status: int, body: bytes, *more: tuple[bytes, bytes]) -> None:
    headers = [_JSON, (b"content-length", str(len(body)).encode()), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
