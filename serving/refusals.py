"""The answers to requests that are not let in, ready to be written: under overload a refusal must cost little.

In: the name of a limit. Out: bytes.
"""

from serving.schemas import error_bytes

MOST_HEAD_BYTES = 65_536
MESSAGES = {
    "concurrency": "as many requests as the service takes are being answered; try again",
    "heavy": "as many batches, vectors and changes as the service takes are being worked on; try again",
    "wait": "more requests come than can be answered soon; try again",
    "connections": "as many connections as the service takes are open; try again",
}


def _refusal(message: str) -> bytes:
    body = error_bytes("too_many_requests", message)
    lines = [b"retry-after: 1", b"content-type: application/json", b"content-length: %d" % len(body), b""]
    return b"".join(line + b"\r\n" for line in lines) + body


# Of status 429: all but the status line and the headers that differ.
REFUSALS = {reason: _refusal(message) for reason, message in MESSAGES.items()}
TOO_SLOW = error_bytes("too_slow", "the request did not arrive in time")
TOO_LONG = error_bytes("too_large", f"the head of the request is larger than {MOST_HEAD_BYTES} bytes")
