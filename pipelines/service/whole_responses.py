"""uvicorn's protocols, which write the head of a response and the beginning of its body at once.

uvicorn writes them one after the other, and its event loop makes two system calls of that. A process killed between the
two leaves a head without a body, which a proxy can no longer ask another replica for.

Each request can also close its connection at once: see `serving.protocol.asgi.ABORT`. And what anyone can make them
hold is bounded: nothing more is read of a caller while a request of theirs waits for the answer to another one, and
connections beyond those for which there are file handles are reset.
"""

import asyncio
import resource
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import h11
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from serving.protocol.asgi import ABORT
from serving.telemetry import metrics

STATUS_LINE = b"HTTP/1.1 "
NO_LINGER = struct.pack("ii", 1, 0)
# File handles that are no connections': those of the service, without which a library may end the process, and those of
# all that wait to be accepted, which are accepted before the first can be closed.
OWN_FILES, QUEUE = 512, 2_048
MOST_PIPELINED = 32  # requests that wait on a connection: what comes at once is parsed at once, whatever it holds


class WholeResponses:
    """A transport that holds a head back until the next write, at most until the next turn of the event loop.

    Args:
        transport: of the connection; all but `write`, `close` and `abort` is its own.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport, self._head = transport, b""
        self._soon = asyncio.get_running_loop().call_soon
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

    def abort(self) -> None:
        """See `asyncio.WriteTransport`; with a reset, or the system would keep its own buffer for the caller."""
        with suppress(OSError):
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
        self._transport.abort()

    def _write(self, data: bytes) -> None:
        # uvicorn tells only the last of several pipelined requests that the caller has gone. An earlier one, or a head
        # that is held back, would be written to a closed transport, where uvloop raises.
        if not self.is_closing():
            self._transport.write(data)

    def _flush(self) -> None:
        if self._head:
            data, self._head = self._head, b""
            self._write(data)


class _Flow(FlowControl):
    """Does not go on reading while a request waits for the answer to another one, however small that answer is."""

    def __init__(self, transport: asyncio.Transport, waits: Callable[[], bool]) -> None:
        super().__init__(transport)
        self._waits = waits

    def resume_reading(self) -> None:
        """See `FlowControl`."""
        if not self._waits():
            super().resume_reading()


class _Whole(asyncio.Protocol):
    """What both of uvicorn's protocols need to be given such a transport."""

    app_state: dict[str, Any]
    connections: set[Any]
    cycle: Any
    flow: FlowControl
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    timeout_keep_alive: int
    timeout_keep_alive_handler: Callable[[], None]
    timeout_keep_alive_task: asyncio.TimerHandle | None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See `asyncio.BaseProtocol`."""
        whole = WholeResponses(transport)
        super().connection_made(whole)  # type: ignore[arg-type]
        self.app_state = {**self.app_state, ABORT: whole.abort}
        self.flow = _Flow(whole, self._waits)  # type: ignore[arg-type]
        if len(self.connections) > most_connections():
            metrics.refused("connections")
            whole.abort()

    def on_response_complete(self) -> None:
        """See uvicorn: the next request has begun, so that reading may go on."""
        super().on_response_complete()  # type: ignore[misc]
        self.flow.resume_reading()

    def _waits(self) -> bool:
        """Whether a request has come whose turn it is not yet."""
        raise NotImplementedError

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`: the rest of a body that was refused unread does not end the wait for a request."""
        super().data_received(data)
        answered = self.cycle is not None and self.cycle.response_complete
        if answered and self.timeout_keep_alive_task is None and not self.transport.is_closing():
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )


class HttpTools(_Whole, HttpToolsProtocol):
    """uvicorn's protocol with the parser httptools."""

    def on_headers_complete(self) -> None:
        """See uvicorn; one request too many ends the connection, and the rest of the read is dropped.

        Raises:
            ValueError: what the parser would take for another request, which uvicorn answers with 400.
        """
        if b"#" in self.url:
            raise ValueError("the parser cuts the path there, and the rest may be that of another item")
        if self.parser.get_method() == b"CONNECT":
            raise ValueError("the parser takes what follows the head for the next request")
        if len(self.pipeline) >= MOST_PIPELINED and not self.transport.is_closing():
            metrics.refused("connections")
            self.transport.abort()
        if not self.transport.is_closing():
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """See uvicorn."""
        if not self.transport.is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        """See uvicorn."""
        if not self.transport.is_closing():
            super().on_message_complete()

    def _waits(self) -> bool:
        return bool(self.pipeline)


class H11(_Whole, H11Protocol):
    """uvicorn's protocol with the parser h11."""

    def send_400_response(self, msg: str) -> None:
        """See uvicorn, which would answer a request twice if what follows its answer is malformed."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    def _waits(self) -> bool:
        return self.conn.their_state is h11.DONE and bool(self.conn.trailing_data[0])


def queue() -> int:
    """How many connections may wait to be accepted."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return QUEUE if files == resource.RLIM_INFINITY else min(QUEUE, files // 4)


def most_connections() -> float:
    """How many connections leave enough file handles for all else."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return float("inf") if files == resource.RLIM_INFINITY else max(files - OWN_FILES - queue(), files // 2)


PROTOCOLS: dict[str, type[asyncio.Protocol]] = {"httptools": HttpTools, "h11": H11}  # values of TOWERS_HTTP
