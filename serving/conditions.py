"""Filters on item attributes: read from JSON, checked against the columns, and turned into one mask over the items.

In: `{"column": C, "op": O, "value": V}`, combined by `{"and": [...]}`, `{"or": [...]}` and `{"not": {...}}`, and a
frame of attributes with one row an item. Out: a bool array [N], True where the item passes.

A missing value (null, NaN) passes no comparison but `not_in`, which is the complement of `in`; `not` is the plain
complement. Numbers are compared as float64, strings by code point.
"""

import functools
import json
import operator
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from threading import Lock
from typing import Annotated, Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, PlainValidator

from serving.attributes import refuse_unknown_column
from serving.condition_limits import (
    GREATEST_VALUES,
    OPERATORS,
    Operator,
    check_size,
    checked_conditions,
    checked_operator,
    checked_value,
    refused,
)
from serving.errors import RequestError

Mask = NDArray[np.bool_]
Kind = Literal["string", "number", "list"]

OPERATORS_OF: dict[Kind, tuple[str, ...]] = {"string": OPERATORS[:-1], "number": OPERATORS[:-1], "list": ("has",)}
MASKS_BYTES = 64 * 2**20

_FORMS = '{"column", "op", "value"}, {"and": [...]}, {"or": [...]} or {"not": {...}}'
_LEAF = {"column", "op", "value"}


def _read(given: Any) -> Any:
    """One condition from what JSON holds; the models below do the rest, so that an error names the way to its place."""
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
        Any, PlainValidator(checked_value, json_schema_input_type=str | float | list[str] | list[float])
    ] = Field(description=f"a list of at most {GREATEST_VALUES:,} for in and not_in, otherwise one string or number")


class And(_Node):
    """Passes what passes all of them."""

    conditions: "Conditions" = Field(alias="and")


class Or(_Node):
    """Passes what passes one of them."""

    conditions: "Conditions" = Field(alias="or")


class Not(_Node):
    """Passes what the condition does not, missing values included."""

    condition: "Condition" = Field(alias="not")


# The forms differ in their keys, and `_read` goes by them: an error then names no member of the union in its path.
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
    """The columns that can be filtered, from a frame's schema; those of other types are left out."""
    found: dict[str, Kind] = {}
    for name, dtype in schema.items():
        if dtype in (pl.String, pl.Categorical, pl.Enum):
            found[name] = "string"
        elif dtype.is_numeric():
            found[name] = "number"
        elif isinstance(dtype, pl.List) and dtype.inner in (pl.String, pl.Categorical, pl.Enum, pl.Null):
            found[name] = "list"
    return found


def check(condition: Condition, columns: Mapping[str, Kind], path: str = "filter") -> None:
    """Refuses a condition that does not fit the columns.

    Args:
        condition: as a request holds it.
        columns: kind of each column, see `kinds`.
        path: how the errors name the condition.

    Raises:
        RequestError: an unknown column, an operator that its kind does not have, or a value of another type; names the
            place, what came and what is allowed.
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
        raise wrong("op", f"column {condition.column!r} is {of_kind}: {allowed} are allowed, got {condition.op}")
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


def mask(condition: Condition, attributes: pl.DataFrame) -> Mask:
    """Which items pass.

    Args:
        condition: one that `check` lets through for these columns.
        attributes: one row an item.

    Returns:
        [N].
    """
    if isinstance(condition, And):
        return functools.reduce(operator.and_, (mask(each, attributes) for each in condition.conditions))
    if isinstance(condition, Or):
        return functools.reduce(operator.or_, (mask(each, attributes) for each in condition.conditions))
    if isinstance(condition, Not):
        return ~mask(condition.condition, attributes)
    # Under another name: Polars takes a name like "*" or "^a.*$" for a pattern, even where a Series bears it.
    column = attributes.get_column(condition.column).alias("values")
    passed: Mask = _compare(condition, column).fill_null(False).to_numpy()
    return ~passed if condition.op == "not_in" else passed


_ORDERED: dict[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq, "lt": operator.lt, "lte": operator.le, "gt": operator.gt, "gte": operator.ge,
}  # fmt: skip


def _compare(condition: Comparison, column: pl.Series) -> pl.Series:
    """The comparison of each item, null where its value is missing; `in` stands for `not_in`, too."""
    value = condition.value
    if column.dtype == pl.List:
        return column.cast(pl.List(pl.String)).list.contains(value)
    number = column.dtype.is_numeric()
    column = column.cast(pl.Float64).fill_nan(None) if number else column.cast(pl.String)
    if isinstance(value, list):
        values = pl.Series([float(each) if number else each for each in value], dtype=column.dtype)
        return column.is_in(values.implode())
    compared: pl.Series = _ORDERED[condition.op](column, float(value) if number else value)
    return compared


def canonical(condition: Condition) -> str:
    """The condition as text, the same for conditions that differ only in order, repeats, or 1 instead of 1.0."""
    if isinstance(condition, And | Or):
        name = "and" if isinstance(condition, And) else "or"
        return f'{{"{name}": [{", ".join(sorted({canonical(each) for each in condition.conditions}))}]}}'
    if isinstance(condition, Not):
        return f'{{"not": {canonical(condition.condition)}}}'
    value = condition.value
    several = value if isinstance(value, list) else [value]
    texts = sorted({json.dumps(each if isinstance(each, str) else float(each)) for each in several})
    told = f"[{', '.join(texts)}]" if isinstance(value, list) else texts[0]
    return f'{{"column": {json.dumps(condition.column)}, "op": "{condition.op}", "value": {told}}}'


class Masks:
    """The masks of one frame, the ones used last kept; any number of threads may ask.

    Args:
        attributes: one row an item.
        most_bytes: what the kept masks and their keys may take together.
    """

    def __init__(self, attributes: pl.DataFrame, most_bytes: int = MASKS_BYTES) -> None:
        self.attributes, self.most_bytes = attributes, most_bytes
        self._kept: OrderedDict[str, Mask] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def of(self, condition: Condition) -> Mask:
        """`mask(condition, attributes)`, read only."""
        key = canonical(condition)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        # Outside the lock: two threads may both make one mask, none waits for the mask of another.
        made = mask(condition, self.attributes)
        made.flags.writeable = False
        with self._lock:
            if key not in self._kept:
                self._kept[key] = made
                self._bytes += _size(key, made)
            while self._bytes > self.most_bytes:
                self._bytes -= _size(*self._kept.popitem(last=False))
        return made


def _size(key: str, made: Mask) -> int:
    return sys.getsizeof(key) + made.nbytes
