"""Turns what pydantic finds wrong with a request into a `RequestError` that a caller understands."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from serving.bundle.request_features import shown
from serving.errors import RequestError

# The rule by Pydantic's error type; names in braces come from the error's context.
_RULES = {
    "string_type": "must be a string",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "missing": "is missing",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "too_short": "must hold at least {min_length}",
}


MANY = 100


def explained_first(error: ValidationError, model: type[BaseModel]) -> RequestError:
    """The first of pydantic's errors in this service's words; `model` is the body's.

    Pydantic has no way to the first alone, and a megabyte of keys that do not exist would hold the event loop.
    """
    if (count := error.error_count()) > MANY:
        return RequestError(f"the body has {count:,} faults, most of them keys that do not exist")
    return explained(dict(error.errors(include_url=False)[0]), model)


def explained(detail: dict[str, Any], model: type[BaseModel] | None = None) -> RequestError:
    """Pydantic's error in this service's words; `model` is the body's model, used to list its keys."""
    if detail["type"] == "json_invalid":
        return RequestError(f"the body is not valid JSON: {detail['ctx']['error']}", code="invalid_json")
    field = ".".join(str(part) for part in detail["loc"]) or None
    where = field or "the body"
    if detail["type"] == "extra_forbidden":
        holder = _model_at(model, detail["loc"][:-1])
        allowed = f"; allowed are {', '.join(holder.model_fields)}" if holder is not None else ""
        return RequestError(f"{where}: no such key{allowed}", field=field)
    if detail["type"] == "list_type":
        rule = f"must be a list of {_lists_of(model, detail['loc'])}"
    elif detail["type"] == "string_pattern_mismatch":
        blank = r"\S" in detail["ctx"]["pattern"]
        rule = "must hold more than blanks, and no line break" if blank else "must hold no line feed"
    else:
        rule = _RULES[detail["type"]].format(**detail.get("ctx", {})) if detail["type"] in _RULES else detail["msg"]
    if detail["type"] in ("missing", "string_too_short"):
        return RequestError(f"{where}: {rule}", field=field)
    came = f"{len(detail['input'])}" if detail["type"] == "string_too_long" else _shown(detail["input"])
    hint = "; ids are strings, even if they look like numbers" if rule == "must be a string" else ""
    return RequestError(f"{where}: {rule}, got {came}{hint}", field=field)


def at_most(values: Sequence[object], most: int, field: str) -> None:
    """Raises RequestError, which names the field, if there are more than `most` values."""
    if len(values) > most:
        raise RequestError.at(field, f"must hold at most {most}, got {len(values)}")


def refuse_many(body: bytes, field: str, most: int) -> None:
    """As `at_most`, of a list in a body before `parse` makes an object of each entry.

    A megabyte of empty objects would hold the event loop for seconds. What is no such list is left to `parse`.
    """
    if body.count(b"{") > most:
        with suppress(ValueError):
            content = from_json(body)
            if isinstance(content, dict) and isinstance(entries := content.get(field), list):
                at_most(entries, most, field)


def _lists_of(model: type[BaseModel] | None, place: Sequence[str | int]) -> str:
    """What the lists at this place hold."""
    if place and place[-1] == "vector":
        return "numbers"
    return "strings" if _model_at(model, place) is None else "objects"


def _model_at(model: type[BaseModel] | None, place: Sequence[str | int]) -> type[BaseModel] | None:
    """The model of the object, or of the list's objects, at a place in the body; None if there is none."""
    for part in place:
        if model is not None and isinstance(part, str):
            model = _model_in(model.model_fields[part].annotation) if part in model.model_fields else None
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)


def _shown(came: Any) -> str:
    """The invalid input, in short; bytes are a whole body."""
    if isinstance(came, list):
        return f"a list of {len(came)}"
    return "no object" if isinstance(came, bytes) else shown(came)
