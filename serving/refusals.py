"""The answers to requests that are not let in, ready to be written: under overload a refusal must cost little.

In: the name of a limit. Out: bytes.
"""

from serving.schemas import error_bytes

MOST_HEAD_BYTES = 65_536
MOST_HEADERS = 100
MOST_PIPELINED = 64
MESSAGES = {
    "concurrency": "as many requests as the service takes are being answered; try again",
    "heavy": "as many batches, vectors and changes as the service takes are being worked on; try again",
    "wait": "more requests come than can be answered soon; try again",
    "connections": "as many connections as the service takes are open; try again",
}


def _refusal(message: str) -> tuple[bytes, bytes]:
    body = error_bytes("too_many_requests", message)
    lines = [b"retry-after: 1", b"content-type: application/json", b"content-length: %d" % len(body), b""]
    return b"".join(line + b"\r\n" for line in lines), body


# Of status 429: all but the status line and the headers that differ. HEAD gets the headers alone: its caller would
# take a body for the beginning of the next answer.
_REFUSALS = {reason: _refusal(message) for reason, message in MESSAGES.items()}
REFUSALS = {reason: head + body for reason, (head, body) in _REFUSALS.items()}
REFUSALS_OF_HEAD = {reason: head for reason, (head, _) in _REFUSALS.items()}
TOO_SLOW = error_bytes("too_slow", "the request did not arrive in time")
TOO_LONG = error_bytes(
    "too_large", f"the head of the request, or what follows its body, is larger than {MOST_HEAD_BYTES} bytes"
)
TOO_MANY_HEADERS = error_bytes("too_large", f"the request has more than {MOST_HEADERS} headers")
TOO_MANY_IN_A_ROW = error_bytes(
    "invalid_http", f"more than {MOST_PIPELINED} requests were sent in a row, before their answers"
)
