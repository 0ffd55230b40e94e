"""HTTP below the app: what is no HTTP request, and what a stop cuts off, get the one error shape, too.

In: bytes that uvicorn's parser refuses (request line, headers, Content-Length, chunks, an address of 64 KiB and more),
or a request that is still worked on when the time for a graceful stop is over. Out: status 400 or 503 with the JSON of
every other error, where uvicorn itself would send plain text.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from serving import metrics
from serving.schemas import error_bytes

MALFORMED = error_bytes("invalid_http", "this is not a valid HTTP request")
STOPPING = error_bytes("stopping", "the service is stopping")

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Any, Any], Awaitable[None]]


class BeyondLimitError(Exception):
    """What the parser has found is valid, and more than the service takes; raised in a callback of the parser.

    Args:
        status: of the answer.
        body: its JSON.
    """


class JsonErrorsProtocol(HttpToolsProtocol):
    """uvicorn's httptools protocol with this service's errors."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.app = _answering_when_stopped(self.app)

    def data_received(self, data: bytes) -> None:
        """Parses what came; nothing can be trusted after what the parser refuses.

        Not uvicorn's own, which writes a line to the log for each such request: whoever sends them could fill it.
        """
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as error:
            beyond = error.__context__
            self.refuse_malformed(*beyond.args if isinstance(beyond, BeyondLimitError) else (400, MALFORMED))
        except httptools.HttpParserUpgrade:
            pass  # A wish for another protocol is answered as plain HTTP.

    def refuse_malformed(self, status: int, body: bytes) -> None:
        """Ends the connection over what is no HTTP, or beyond a limit of its form; it is counted.

        Args:
            status: of the error.
            body: its JSON.
        """
        metrics.refused("malformed")
        self.close_with(status, body)

    def close_with(self, status: int, body: bytes) -> None:
        """Ends the connection with an error, unless half an answer is on its way.

        Args:
            status: of the error.
            body: its JSON.
        """
        running = self.cycle is not None and not self.cycle.response_complete
        if running and self.cycle.response_started:
            # A second answer would land inside the one to the request before.
            self.transport.close()
            return
        if running:
            self.cycle.disconnected = True  # The app may still answer: not after this.
        headers = [*self.server_state.default_headers, *_headers(body)]
        lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
        self.transport.write(STATUS_LINE[status] + lines + b"\r\n" + body)
        self.transport.close()


def _headers(body: bytes) -> list[tuple[bytes, bytes]]:
    return [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]


def _answering_when_stopped(app: App) -> App:
    async def answering(scope: Any, receive: Receive, send: Send) -> None:
        started = False

        async def noting(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await app(scope, receive, noting)
        except asyncio.CancelledError:
            if started:
                raise
            await send({"type": "http.response.start", "status": 503, "headers": _headers(STOPPING)})
            await send({"type": "http.response.body", "body": STOPPING})

    return answering
