"""What the middlewares share: an answer with a body that is at hand.

In: a status, JSON. Out: the two messages of an answer.
"""

from starlette.types import Send

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
