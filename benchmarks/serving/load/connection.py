"""One keep-alive connection of the load generator, and the bytes of its requests.

In: an address and whole HTTP/1.1 requests. Out: whole answers, each with status, body and whether the connection stays.
"""

import re
import socket
from collections.abc import Mapping, Sequence
from urllib.parse import SplitResult

CHUNK = 1 << 18
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
RETRY_AFTER = re.compile(rb"\r\nretry-after: *(\d+)\r\n", re.IGNORECASE)
Answer = tuple[int, bytes, bool, float]  # status, body, whether the connection stays, seconds to wait before the next


class Connection:
    """A socket that does not block, and the one request that is on it."""

    __slots__ = ("buffer", "connecting", "due", "expected", "number", "rest", "socket")

    def __init__(self, family: int, address: tuple[object, ...]) -> None:
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.number = self.socket.fileno()
        self.socket.connect_ex(address)
        self.connecting = True
        self.due: float | None = None  # when its request was due; None: it owes no answer
        self.expected: bytes | None = None
        self.buffer = b""
        self.rest = b""  # what the kernel did not take of the request yet

    def send(self, message: bytes) -> str | None:
        """Sends what the kernel takes; a reason where the connection is lost."""
        try:
            taken = self.socket.send(message)
        except BlockingIOError:
            taken = 0
        except OSError as error:
            return f"send: {error.strerror}"
        self.rest = message[taken:]
        return None

    def read(self) -> Answer | str | None:
        """A whole answer, None where more has to come, or why the connection is lost."""
        try:
            data = self.socket.recv(CHUNK)
        except BlockingIOError:
            return None
        except OSError as error:
            return f"receive: {error.strerror}"
        if not data:
            return "closed without an answer"
        if self.buffer:
            data = self.buffer + data
        head = data.find(b"\r\n\r\n")
        if head < 0:
            self.buffer = data
            return None
        length = LENGTH.search(data, 0, head + 2)
        if length is None:
            return "an answer without content-length"
        end = head + 4 + int(length[1])
        if len(data) < end:
            self.buffer = data
            return None
        if len(data) > end:
            return "more than one answer"
        self.buffer = b""
        status = int(data[9:12])
        told = RETRY_AFTER.search(data, 0, head + 2) if status == 429 else None
        stays = data.find(b"onnection: close", 0, head) < 0
        return status, data[head + 4 :], stays, 0.0 if told is None else float(told[1])


def prebuilt(url: SplitResult, bodies: Sequence[bytes], headers: Mapping[str, str]) -> list[bytes]:
    """The whole bytes of a POST of each body."""
    further = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    path = (url.path or "/") + (f"?{url.query}" if url.query else "")
    head = f"POST {path} HTTP/1.1\r\nHost: {url.netloc}\r\nContent-Type: application/json\r\n{further}"
    return [f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body for body in bodies]
