"""Answers a request that is refused before its body was read, so that its caller gets the answer.

A connection that closes with bytes unread is reset (RFC 9112, section 9.6): a caller who sends all before it reads
would find the reset instead of the answer, and take a wrong key for an outage. So the rest of the body is read and
dropped before such an answer. Only one piece is in memory at a time, and no place of a limit is taken.
"""

import asyncio
from contextlib import suppress

from starlette.types import Receive, Scope, Send

from serving.protocol.asgi import CLOSE, CLOSING, answer

# A caller who sends more, or takes longer, is answered then, and may be reset.
REST_S, REST_BYTES = 2.0, 33_554_432


async def refuse(
    scope: Scope, receive: Receive, send: Send, status: int, body: bytes, *headers: tuple[bytes, bytes]
) -> None:
    """Like `answer`, for a request whose body nobody has asked for yet.

    Args:
        scope: of the request.
        receive: the ASGI receive callable.
        send: the ASGI send callable.
        status: the HTTP status.
        body: the JSON body.
        headers: as of `answer`; with `CLOSE` the connection closes, as it does if the request wants that.
    """
    names = {name for name, _ in scope["headers"]}
    if b"expect" in names:
        # Reading would ask for the body. The caller may or may not still send it: the connection must close.
        headers = (*(each for each in headers if each != CLOSE), CLOSE)
    elif b"upgrade" not in names and (CLOSE in headers or closes(scope)):  # httptools loses the body of an upgrade
        await drop_body(receive)
    await answer(send, status, body, *headers)


def closes(scope: Scope) -> bool:
    """Whether the server closes the connection after a request, whatever the answer says."""
    if scope.get("state", {}).get(CLOSING):
        return True
    wanted = (value.lower() for name, value in scope["headers"] if name == b"connection")
    return scope["http_version"] == "1.0" or any(b"close" in each for each in wanted)


async def drop_body(receive: Receive) -> None:
    """Reads what still comes of a body, at most for `REST_S` and `REST_BYTES`."""
    left = REST_BYTES
    with suppress(TimeoutError):
        async with asyncio.timeout(REST_S):
            while left > 0:
                message = await receive()
                left -= len(message.get("body", b""))
                if not message.get("more_body", False):  # nor has the message that the caller has gone
                    return
