"""uvicorn's server that stops at once while a bundle opens, and closes its sockets without resetting a caller.

A caller whose connection waits in the accept queue when the last listening socket closes is reset. So new connections
are first kept out of the queue, and those in it are taken and answered.
"""

import asyncio
import ctypes
import logging
import os
import socket
import struct
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType
from typing import Any

import uvicorn

from pipelines.errors import DataError
from pipelines.service.sigterm import end_by
from serving.background import OPENING
from serving.telemetry import metrics
from serving.telemetry.logs import SERVICE

log = logging.getLogger(SERVICE)

# For handshakes under way, and then for the requests of those who have just connected.
HANDSHAKE_S, REQUEST_S = 0.1, 0.25
# A classic BPF program for a TCP socket: drops a packet with SYN but no ACK, the first of a connection.
SYN_ONLY = ((0x30, 0, 0, 13), (0x54, 0, 0, 0x12), (0x15, 0, 1, 0x02), (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFFFFFF))
SO_ATTACH_FILTER = 26  # Linux; the socket module does not publish it
END_S = 0.1  # an idle thread ends within this time


class Server(uvicorn.Server):
    """Serves in this process.

    Args:
        config: of the server.
        turns: counts the iterations of its event loop; shared with a parent.
        closing: whether all processes that share its sockets are stopping; None if it shares them with nobody.
        wanted: how many processes should share them; set by a parent.
    """

    def __init__(self, config: uvicorn.Config, turns: Any = None, closing: Any = None, wanted: Any = None) -> None:
        super().__init__(config)
        self._turns, self._closing, self._wanted = turns, closing, wanted

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serves until stopped; the process then ends even if a bundle still opens."""
        try:
            super().run(sockets)
        finally:
            opening = [each for each in threading.enumerate() if each.name.startswith(OPENING)]
            for each in opening:
                each.join(END_S)
            if any(each.is_alive() for each in opening):
                os._exit(0)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stops; before it answers, without waiting for the bundle: no request is lost."""
        if not self.started:
            try:
                log.info("stopped before a bundle was open")
            finally:  # also if the signal interrupted a write to the log, which cannot begin again
                end_by(sig, frame)
        super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        """See `uvicorn.Server`."""
        if self._turns is not None:
            self._turns.value += 1
        if self._wanted is not None:
            metrics.workers_wanted(self._wanted.value)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Closes the sockets when nobody waits in their accept queues, then stops as uvicorn does."""
        # While other processes accept from the same queue, nobody in it is lost.
        if self._closing is None or self._closing.value:
            for server in self.servers:
                for each in server.sockets:
                    refuse_new_connections(each.fileno())
            await asyncio.sleep(HANDSHAKE_S)
        for server in self.servers:
            server.close()
        for each in sockets or []:
            each.close()
        # Who has just been accepted here has no other process: uvicorn would close the connection before its request.
        await asyncio.sleep(REQUEST_S)
        await super().shutdown(sockets)


def serve_alone(server: Server, sockets: list[socket.socket] | None = None) -> None:
    """Runs a server that no parent watches, until it is stopped.

    Raises:
        DataError: it could not start.
    """
    try:
        server.run(sockets)
    except KeyboardInterrupt:  # raised again after Ctrl-C has stopped the server
        return
    except SystemExit:  # uvicorn's, with the code by which this project's gate refuses
        pass
    if not server.started:
        raise DataError("the service could not start; the log above says why")


def refuse_new_connections(listener: int) -> None:
    """Keeps callers from a listening socket, on Linux; they try again within a second or so, and are refused then."""
    if sys.platform != "linux":
        return
    program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in SYN_ONLY))
    with suppress(OSError), socket.socket(fileno=os.dup(listener)) as duplicate:
        filter = struct.pack("@HP", len(SYN_ONLY), ctypes.addressof(program))
        duplicate.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, filter)


def close_ports(sockets: Sequence[socket.socket]) -> None:
    """Refuses callers until somebody listens again; in the system's queue they would wait for that."""
    for each in sockets:
        # Only once: a socket that does not listen would never work again.
        if each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            with suppress(OSError):  # of systems that cannot
                each.shutdown(socket.SHUT_RDWR)
