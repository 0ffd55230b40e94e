"""What goes over the wire: the request as a strict model, the answer as bytes, and the one shape of every error.

In: a request body. Out: a `RecallQuery`, or a `RequestError` that names the field. Ids are strings on the wire.
"""

from typing import Annotated, Any

import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from serving.errors import RequestError
from serving.recall import Recalled, RecallQuery

GREATEST_ECHO = 500
DEFAULT_K = 100

# JSON has one kind of number: 10.0 is a whole one, and JSON Schema says so too.
Whole = Annotated[int, BeforeValidator(lambda n: int(n) if isinstance(n, float) and n.is_integer() else n)]


class RecallRequest(BaseModel):
    """The body of `POST /recall`. All keys are optional; with none of them the answer is the popular items."""

    model_config = ConfigDict(strict=True, extra="forbid")

    user_id: str | None = Field(None, description="a user; one known to the bundle is answered from the stored vector")
    features: dict[str, Any] | None = Field(None, description="raw features of the query tower by name")
    history: list[str] | None = Field(None, description="item ids, newest last; unknown ones are ignored")
    k: Whole = Field(DEFAULT_K, ge=1, description="how many items")
    exclude: list[str] = Field([], description="item ids that must not come back; unknown ones are ignored")
    exclude_seen: bool = Field(True, description="also leave out the user's seen items and the given history")


class RecallItem(BaseModel):
    """One recalled item."""

    model_config = ConfigDict(extra="forbid")

    id: str
    score: float = Field(description="dot product with the query's vector; event count where source is popular")


class RecallResponse(BaseModel):
    """The answer, best item first; fewer than k only where fewer are eligible."""

    model_config = ConfigDict(extra="forbid")

    items: list[RecallItem]
    model_version: str
    source: str = Field(
        description="what answered", json_schema_extra={"enum": ["user", "features", "history", "similar", "popular"]}
    )


class Status(BaseModel):
    """The answer of the probes."""

    model_config = ConfigDict(extra="forbid")

    status: str


class ErrorDetail(BaseModel):
    """What went wrong."""

    model_config = ConfigDict(extra="forbid")

    code: str = Field(description="machine-readable")
    message: str = Field(description="for a person")
    field: str | None = Field(description="the request field at fault, null where no single field is")


class ErrorResponse(BaseModel):
    """The one shape of every error."""

    model_config = ConfigDict(extra="forbid")

    error: ErrorDetail


def parse_request(body: bytes, max_k: int) -> RecallQuery:
    """Reads a request body.

    Raises:
        RequestError: code "invalid_json" where it is not JSON, otherwise "invalid_request" with the field.
    """
    try:
        request = RecallRequest.model_validate_json(body)
    except ValidationError as error:
        raise _explain(dict(error.errors(include_url=False)[0])) from None
    if "k" not in request.model_fields_set:
        request.k = min(DEFAULT_K, max_k)
    if request.k > max_k:
        raise RequestError(f"k: must be at most {max_k}, got {request.k}", field="k")
    return RecallQuery(**dict(request))


def answer_bytes(recalled: Recalled) -> bytes:
    """The answer as JSON."""
    items = [
        {"id": item_id, "score": score} for item_id, score in zip(recalled.ids, recalled.scores.tolist(), strict=True)
    ]
    return orjson.dumps({"items": items, "model_version": recalled.model_version, "source": recalled.source})


def error_bytes(code: str, message: str, field: str | None = None) -> bytes:
    """An error as JSON; a megabyte of wrong key is not sent back."""
    field = None if field is None else field[:GREATEST_ECHO]
    return orjson.dumps({"error": {"code": code, "message": message[:GREATEST_ECHO], "field": field}})


_EXPECTED = {
    "string_type": "must be a string",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "bool_type": "must be true or false",
    "list_type": "must be a list of strings",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "greater_than_equal": "must be at least 1",
}


def _explain(detail: dict[str, Any]) -> RequestError:
    if detail["type"] == "json_invalid":
        return RequestError(f"the body is not valid JSON: {detail['ctx']['error']}", code="invalid_json")
    field = ".".join(str(part) for part in detail["loc"]) or None
    where = field or "the body"
    if detail["type"] == "extra_forbidden":
        allowed = ", ".join(RecallRequest.model_fields)
        return RequestError(f"{where}: no such key; allowed are {allowed}", field=field)
    rule = _EXPECTED.get(detail["type"], detail["msg"])
    came = detail["input"]
    got = (
        str(came)
        if isinstance(came, int | float) and len(str(came)) <= 30
        else _JSON_NAMES.get(type(came), "something else")
    )
    hint = "; ids are strings, whatever they look like" if rule == "must be a string" else ""
    return RequestError(f"{where}: {rule}, got {got}{hint}", field=field)


_JSON_NAMES: dict[type, str] = {
    str: "a string", dict: "an object", list: "a list", type(None): "null",
    int: "a number", float: "a number", bool: "a boolean", bytes: "no object",
}  # fmt: skip
