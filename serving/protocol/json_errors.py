"""The one shape of an error in an answer: `{"error": {"code", "message", "field"}}`."""

import orjson

GREATEST_ECHO = 500


def error_bytes(code: str, message: str, field: str | None = None) -> bytes:
    """An error as JSON, cut to a bounded length: a wrong key may be a megabyte."""
    field = None if field is None else field[:GREATEST_ECHO]
    return orjson.dumps({"error": {"code": code, "message": message[:GREATEST_ECHO], "field": field}})
