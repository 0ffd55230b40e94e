"""Item columns: validates those of a live item against those of a bundle; finds the one with titles."""

import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import polars as pl

from serving.bundle.request_features import GREATEST_FLOAT32, shown
from serving.errors import RequestError

TITLES = ("title", "name", "movie_title", "item_title")


def title_name(columns: Iterable[str]) -> str | None:
    """Returns the name of the item column with readable titles, or None if there is none."""
    there = set(columns)
    return next((name for name in TITLES if name in there), None)


def checked_attributes(attributes: Mapping[str, Any], schema: Mapping[str, pl.DataType]) -> dict[str, Any]:
    """The columns of one item in stored form; null counts as missing.

    Raises:
        RequestError: an unknown column, or a value that does not have the column's type.
    """
    columns = {name: dtype for name, dtype in schema.items() if name != "item_id"}
    checked = {}
    for name, value in attributes.items():
        dtype = columns.get(name)
        if dtype is None:
            known = ", ".join(columns) or "none"
            raise RequestError.at(f"attributes.{name}", f"no such column; there are {known}")
        for place, each in enumerate(value if isinstance(value, list) and isinstance(dtype, pl.List) else ()):
            if not isinstance(each, str):
                raise RequestError.at(f"attributes.{name}.{place}", f"must be a string, got {shown(each)}")
        right, expected = (True, "") if value is None else _fits(value, dtype)
        if not right:
            raise RequestError.at(f"attributes.{name}", f"must be {expected}, got {shown(value)}")
        # JSON has one number type: 10.0 is an integer.
        checked[name] = int(value) if value is not None and dtype.is_integer() else value
    return checked


def fitting_attributes(attributes: Mapping[str, Any], schema: Mapping[str, pl.DataType]) -> dict[str, Any]:
    """An item's columns that exist in the bundle with a matching type; the others are left out."""
    fitting: dict[str, Any] = {}
    for name, value in attributes.items():
        with suppress(RequestError):
            fitting |= checked_attributes({name: value}, schema)
    return fitting


def _fits(value: Any, dtype: pl.DataType) -> tuple[bool, str]:
    if isinstance(dtype, pl.List):
        return isinstance(value, list), "a list of strings"
    if dtype.is_integer():
        whole = isinstance(value, int | float) and not isinstance(value, bool) and value == value // 1
        low, high = _bounds(dtype)
        return whole and low <= value <= high, f"a whole number from {low} to {high}"
    if dtype.is_numeric():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        largest = GREATEST_FLOAT32 if dtype == pl.Float32 else sys.float_info.max
        return number and abs(value) <= largest, f"a number from {-largest:.3g} to {largest:.3g}"
    return isinstance(value, str), "a string"


def attribute_json_schema(dtype: pl.DataType) -> dict[str, Any]:
    """JSON Schema of what `checked_attributes` accepts for a column of this type."""
    if isinstance(dtype, pl.List):
        return {"type": "array", "items": {"type": "string"}}
    if dtype.is_integer():
        low, high = _bounds(dtype)
        width = {"format": "int64"} if low >= -(2**63) and high < 2**63 else {}
        return {"type": "integer", **width, "minimum": low, "maximum": high}
    if dtype == pl.Float32:
        return {"type": "number", "minimum": -GREATEST_FLOAT32, "maximum": GREATEST_FLOAT32}
    return {"type": "number", "format": "double"} if dtype.is_numeric() else {"type": "string"}


def _bounds(dtype: pl.DataType) -> tuple[int, int]:
    some = pl.Series([0]).cast(dtype)
    return int(some.lower_bound()[0]), int(some.upper_bound()[0])
