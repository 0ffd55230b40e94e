"""Writes the head of a response and the beginning of its body at once.

uvicorn writes them one after the other, and its event loop makes two system calls of that. A process killed between the
two leaves a head without a body, which a proxy can no longer ask another replica for.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

STATUS_LINE = b"HTTP/1.1 "


class WholeResponses:
    """A transport that holds a head back until the next write, at most until the next turn of the event loop.

    Args:
        transport: of the connection; all but `write` and `close` is its own.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport, self._head = transport, b""
        self._write, self._soon = transport.write, asyncio.get_running_loop().call_soon
        self.is_closing = transport.is_closing  # asked with each request

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """See `asyncio.WriteTransport`."""
        if self._head:
            data, self._head = self._head + data, b""
        elif data.startswith(STATUS_LINE):
            self._head = data
            self._soon(self._flush)
            return
        self._write(data)

    def close(self) -> None:
        """See `asyncio.BaseTransport`: what is held back is written first."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._head:
            data, self._head = self._head, b""
            self._write(data)


class HttpTools(HttpToolsProtocol):
    """uvicorn's protocol with the parser httptools."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See `asyncio.BaseProtocol`."""
        super().connection_made(WholeResponses(transport))  # type: ignore[arg-type]


class H11(H11Protocol):
    """uvicorn's protocol with the parser h11."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See `asyncio.BaseProtocol`."""
        super().connection_made(WholeResponses(transport))  # type: ignore[arg-type]


PROTOCOLS: dict[str, type[asyncio.Protocol]] = {"httptools": HttpTools, "h11": H11}  # values of TOWERS_HTTP
