"""Refuses, by its head, a request whose body is not plain JSON in UTF-8."""

from collections.abc import Iterable

from serving.errors import RequestError

JSON = "application/json"
_JSON = JSON.encode()
MOST_SHOWN = 100  # characters of a refused value
UTF_8 = (b"utf-8", b"utf8", b"us-ascii")  # ASCII is a part of UTF-8


def refuse_other_media_types(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Checks Content-Type and Content-Encoding.

    Args:
        headers: as in the ASGI scope, names in lower case.

    Raises:
        RequestError: code "unsupported_media_type"; says what to send, and what was sent.
    """
    media_type = b""
    for name, value in headers:
        if name == b"content-type":
            media_type = media_type or value
        elif name == b"content-encoding" and value.strip().lower() != b"identity":
            raise _refused("send the body without Content-Encoding", value)
    if media_type == _JSON:
        return
    kind, *parameters = (each.strip().lower() for each in media_type.split(b";"))
    if kind != _JSON:
        raise _refused(f"send Content-Type: {JSON}", media_type)
    for each in parameters:
        name, _, value = each.partition(b"=")
        value = value.strip(b' "')
        if name.strip() == b"charset" and value not in UTF_8:
            raise _refused("send the body in UTF-8", value)


def _refused(rule: str, value: bytes) -> RequestError:
    came = repr(value.decode("latin-1")[:MOST_SHOWN]) if value else "none"
    return RequestError(f"{rule}, got {came}", code="unsupported_media_type")
