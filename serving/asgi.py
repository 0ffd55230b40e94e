"""What the middlewares share: the types of ASGI, and an answer with a body that is at hand.

In: a status, JSON. Out: the two messages of an answer.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

JSON = (b"content-type", b"application/json")
CLOSE = (b"connection", b"close")


async def answer(send: Send, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    """Sends an answer.

    Args:
        send: takes its messages.
        status: of the answer.
        body: its JSON.
        headers: those beside type and length.
    """
    lines = [JSON, (b"content-length", b"%d" % len(body)), *headers]
    await send({"type": "http.response.start", "status": status, "headers": lines})
    await send({"type": "http.response.body", "body": body})
