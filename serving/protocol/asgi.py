"""Sends a complete ASGI response; shared by the middlewares."""

from starlette.types import Send

JSON = (b"content-type", b"application/json")
CLOSE = (b"connection", b"close")


async def answer(send: Send, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    """Sends a response.

    Args:
        send: the ASGI send callable.
        status: the HTTP status.
        body: the JSON body.
        headers: headers besides content-type and content-length.
    """
    lines = [JSON, (b"content-length", b"%d" % len(body)), *headers]
    await send({"type": "http.response.start", "status": status, "headers": lines})
    await send({"type": "http.response.body", "body": body})
