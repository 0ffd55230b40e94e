"""The item columns of a live item, or that a caller asks for, checked against those of the bundle.

In: values by column, as JSON has them; names of columns. Out: the values as they are stored; a `RequestError` names the
column.
"""

import math
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

import polars as pl

from serving.errors import RequestError
from serving.features import shown


def checked_attributes(attributes: Mapping[str, Any], schema: Mapping[str, pl.DataType]) -> dict[str, Any]:
    """The columns of one item as they are stored; null counts as missing.

    Raises:
        RequestError: an unknown column, or a value of another type than the column's.
    """
    columns = {name: dtype for name, dtype in schema.items() if name != "item_id"}
    checked = {}
    for name, value in attributes.items():
        dtype = columns.get(name)
        if dtype is None:
            known = ", ".join(columns) or "none"
            raise RequestError.at(f"attributes.{name}", f"no such column; there are {known}")
        right, expected = (True, "") if value is None else _fits(value, dtype)
        if not right:
            raise RequestError.at(f"attributes.{name}", f"must be {expected}, got {shown(value)}")
        # JSON has one kind of number: 10.0 is a whole one.
        checked[name] = int(value) if value is not None and dtype.is_integer() else value
    return checked


def fitting_attributes(attributes: Mapping[str, Any], schema: Mapping[str, pl.DataType]) -> dict[str, Any]:
    """Those of an item's columns that a bundle has, with values of their type; the others are missing there."""
    fitting: dict[str, Any] = {}
    for name, value in attributes.items():
        with suppress(RequestError):
            fitting |= checked_attributes({name: value}, schema)
    return fitting


def refuse_unknown_column(name: str, columns: Collection[str], field: str) -> None:
    """Refuses a column that the bundle does not have.

    Args:
        name: of the column.
        columns: those that there are.
        field: of the request, where the name stood.

    Raises:
        RequestError: names the column, and those that there are.
    """
    if name not in columns:
        raise RequestError.at(field, f"no such column {name!r}; there are {', '.join(sorted(columns)) or 'none'}")


def _fits(value: Any, dtype: pl.DataType) -> tuple[bool, str]:
    if isinstance(dtype, pl.List):
        return isinstance(value, list) and all(isinstance(each, str) for each in value), "a list of strings"
    if dtype.is_integer():
        whole = isinstance(value, int | float) and not isinstance(value, bool) and value == value // 1
        low, high = _bounds(dtype)
        return whole and low <= value <= high, f"a whole number from {low} to {high}"
    if dtype.is_numeric():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and math.isfinite(float(value) if abs(value) < 2**1000 else math.inf), "a finite number"
    return isinstance(value, str), "a string"


def attribute_json_schema(dtype: pl.DataType) -> dict[str, Any]:
    """What `checked_attributes` takes for a column of this type, as JSON Schema."""
    if isinstance(dtype, pl.List):
        return {"type": "array", "items": {"type": "string"}}
    if dtype.is_integer():
        low, high = _bounds(dtype)
        return {"type": "integer", "minimum": low, "maximum": high}
    return {"type": "number" if dtype.is_numeric() else "string"}


def _bounds(dtype: pl.DataType) -> tuple[int, int]:
    some = pl.Series([0]).cast(dtype)
    return int(some.lower_bound()[0]), int(some.upper_bound()[0])
