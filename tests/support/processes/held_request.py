"""A request that the service waits for as long as a test wants: the rest of its body comes when the test says so."""

import json
import socket
import time
from typing import Any

PAD_BYTES = 200_000  # more than the server reads without being asked: the service itself waits for the rest
# Settings with which nothing but the test ends it, on a machine however slow.
PATIENT = {"request_timeout_s": 1_000, "body_timeout_s": 1_000, "graceful_timeout_s": 1_000}


class HeldRequest:
    """`POST /recall` on a connection of its own.

    Args:
        port: of the service, on 127.0.0.1.
        **query: what is asked.
    """

    def __init__(self, port: int, **query: Any) -> None:
        body = json.dumps(query).encode()
        head = b"POST /recall HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        self._rest = body
        self._connection = socket.create_connection(("127.0.0.1", port), timeout=30)
        self._connection.sendall(head % (PAD_BYTES + len(body)) + b" " * PAD_BYTES)

    def answer(self) -> tuple[int, Any]:
        """Sends the rest; the status and the body of the answer."""
        self._connection.sendall(self._rest)
        with self._connection:
            head, _, body = b"".join(iter(lambda: self._connection.recv(65_536), b"")).partition(b"\r\n\r\n")
        return int(head.split()[1]), json.loads(body)


def until_refused(port: int, within_s: float) -> None:
    """Connects again and again, until nothing listens on a port any more.

    Args:
        port: on 127.0.0.1.
        within_s: seconds after which it fails.

    Raises:
        AssertionError: connections are still taken.
    """
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
        except ConnectionRefusedError:
            return
        except OSError:
            pass  # reset on its way: the socket is being closed
        time.sleep(0.05)
    raise AssertionError(f"connections are still taken after {within_s} s")
