"""Filters on item attributes: parsed from JSON, checked against the columns, and turned into a mask over the items.

A filter is `{"column": C, "op": O, "value": V}`, or a combination by `{"and": [...]}`, `{"or": [...]}` and
`{"not": {...}}`. Its mask over N items is a bool array [N], True where the item passes.

A missing value (null, NaN) passes no comparison but `not_in`, which is the complement of `in`; `not` is the plain
complement. Numbers are compared as float64, strings by code point.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import polars as pl
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, PlainValidator

from serving.errors import RequestError, refuse_unknown_column
from serving.search.condition_limits import (
    GREATEST_VALUES,
    OPERATORS,
    Operator,
    check_size,
    checked_conditions,
    checked_operator,
    checked_value,
    refused,
)

Kind = Literal["string", "number", "list"]

OPERATORS_OF: dict[Kind, tuple[str, ...]] = {"string": OPERATORS[:-1], "number": OPERATORS[:-1], "list": ("has",)}

Number = Annotated[float, Field(json_schema_extra={"format": "double"})]

_FORMS = '{"column", "op", "value"}, {"and": [...]}, {"or": [...]} or {"not": {...}}'
_LEAF = {"column", "op", "value"}


def _read(given: Any) -> Any:
    """Parses one condition; the models below parse the inner ones, so that an error has the path to its place."""
    if isinstance(given, Comparison | And | Or | Not):
        return given
    if not isinstance(given, dict):
        raise refused(f"must be {_FORMS}")
    check_size(given)
    form = _FORM_OF.get(next(iter(given), None)) if len(given) == 1 else Comparison if set(given) == _LEAF else None
    if form is None:
        raise refused(f"must be {_FORMS} and hold no other key")
    return form.model_validate(given)


class _Node(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Comparison(_Node):
    """One column against a value: has for lists (one of them is the value), the other operators for single values."""

    column: str = Field(description="an item column of the bundle")
    op: Annotated[Operator, PlainValidator(checked_operator, json_schema_input_type=Operator)]
    value: Annotated[
        Any, PlainValidator(checked_value, json_schema_input_type=str | Number | list[str] | list[Number])
    ] = Field(description=f"a list of at most {GREATEST_VALUES:,} for in and not_in, otherwise one string or number")


class And(_Node):
    """Passes items that pass all conditions."""

    conditions: "Conditions" = Field(alias="and")


class Or(_Node):
    """Passes items that pass at least one condition."""

    conditions: "Conditions" = Field(alias="or")


class Not(_Node):
    """Passes items that fail the condition, missing values included."""

    condition: "Condition" = Field(alias="not")


# `_read` picks the form by its keys, so that an error's path names no member of the union.
Condition = Annotated[
    Comparison | And | Or | Not,
    PlainValidator(_read, json_schema_input_type=Comparison | And | Or | Not),
    PlainSerializer(lambda condition: condition.model_dump(by_alias=True)),
]
Conditions = Annotated[list[Condition], BeforeValidator(checked_conditions), Field(min_length=1)]
for _form in (And, Or, Not):
    _form.model_rebuild()

_FORM_OF: dict[Any, type[_Node]] = {"and": And, "or": Or, "not": Not}


def kinds(schema: Mapping[str, pl.DataType]) -> dict[str, Kind]:
    """The columns of a schema that can be filtered; those of other types are left out."""
    found: dict[str, Kind] = {}
    for name, dtype in schema.items():
        if dtype == pl.String:
            found[name] = "string"
        elif dtype.is_numeric():
            found[name] = "number"
        elif dtype == pl.List(pl.String):
            found[name] = "list"
    return found


def size(condition: Condition) -> int:
    """How many conditions it consists of, itself included."""
    if isinstance(condition, And | Or):
        return 1 + sum(map(size, condition.conditions))
    return 1 + size(condition.condition) if isinstance(condition, Not) else 1


def check(condition: Condition, columns: Mapping[str, Kind], path: str = "filter") -> None:
    """Rejects a condition that does not fit the columns.

    Args:
        condition: a condition as sent in a request.
        columns: kind of each column, see `kinds`.
        path: how errors name the condition.

    Raises:
        RequestError: an unknown column, an operator that its kind does not have, or a value of the wrong type; names
            the place, what was sent and what is allowed.
    """
    if isinstance(condition, And | Or):
        name = "and" if isinstance(condition, And) else "or"
        for place, each in enumerate(condition.conditions):
            check(each, columns, f"{path}.{name}.{place}")
    elif isinstance(condition, Not):
        check(condition.condition, columns, f"{path}.not")
    else:
        _check_comparison(condition, columns, path)


def _check_comparison(condition: Comparison, columns: Mapping[str, Kind], path: str) -> None:
    def wrong(key: str, rule: str) -> RequestError:
        return RequestError.at(f"{path}.{key}", rule)

    refuse_unknown_column(condition.column, columns, f"{path}.column")
    kind = columns[condition.column]
    if condition.op not in OPERATORS_OF[kind]:
        of_kind = "a list" if kind == "list" else f"a {kind}"
        allowed = ", ".join(OPERATORS_OF[kind])
        raise wrong("op", f"column {condition.column!r} is {of_kind} and takes {allowed}; got {condition.op}")
    several = condition.op in ("in", "not_in")
    if several != isinstance(condition.value, list):
        wanted = "a list of values" if several else "one value"
        raise wrong("value", f"must be {wanted} for {condition.op}, got {_told(condition.value)}")
    wanted = "a number" if kind == "number" else "a string"
    for each in condition.value if isinstance(condition.value, list) else [condition.value]:
        if isinstance(each, str) == (kind == "number"):
            raise wrong("value", f"must be {wanted} for column {condition.column!r}, got {_told(each)}")


def _told(value: Any) -> str:
    return "a list" if isinstance(value, list) else f"the {'string' if isinstance(value, str) else 'number'} {value!r}"
