"""Sends a complete ASGI response, and the one shape of an error: `{"error": {"code", "message", "field"}}`."""

import orjson
from starlette.types import Send

JSON = (b"content-type", b"application/json")
CLOSE = (b"connection", b"close")
GREATEST_ECHO = 500
# In the state of a request: a function that closes its connection at once. The server sets it, if it can.
ABORT = "abort"
CLOSING = "closing"  # likewise: whether its connection will close, as the service stops


def error_bytes(code: str, message: str, field: str | None = None) -> bytes:
    """An error as JSON, cut to a bounded length: a wrong key may be a megabyte."""
    field = None if field is None else field[:GREATEST_ECHO]
    return orjson.dumps({"error": {"code": code, "message": message[:GREATEST_ECHO], "field": field}})


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
