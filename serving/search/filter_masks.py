"""Masks of the items that pass a filter, kept by the filter's text."""

import functools
import json
import operator
import sys
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Any

import polars as pl

from serving.search.conditions import And, Comparison, Condition, Not, Or
from serving.search.index import Mask

MASKS_BYTES = 64 * 2**20


def mask(condition: Condition, attributes: pl.DataFrame) -> Mask:
    """Computes which items pass.

    Args:
        condition: one that passes `check` for these columns.
        attributes: one row per item.

    Returns:
        [N].
    """
    if isinstance(condition, And):
        return functools.reduce(operator.and_, (mask(each, attributes) for each in condition.conditions))
    if isinstance(condition, Or):
        return functools.reduce(operator.or_, (mask(each, attributes) for each in condition.conditions))
    if isinstance(condition, Not):
        return ~mask(condition.condition, attributes)
    # Renamed: Polars takes a name like "*" or "^a.*$" for a pattern, even that of a Series.
    column = attributes.get_column(condition.column).alias("values")
    passed: Mask = _compare(condition, column).fill_null(False).to_numpy()
    return ~passed if condition.op == "not_in" else passed


_ORDERED: dict[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq, "lt": operator.lt, "lte": operator.le, "gt": operator.gt, "gte": operator.ge,
}  # fmt: skip


def _compare(condition: Comparison, column: pl.Series) -> pl.Series:
    """The comparison for each item, null where its value is missing; computes `in` for `not_in`, too."""
    value = condition.value
    if column.dtype == pl.List:
        return column.list.contains(value)
    number, stored = column.dtype.is_numeric(), column.dtype
    column = column.cast(pl.Float64).fill_nan(None) if number else column
    several = value if isinstance(value, list) else [value]
    values = pl.Series([float(each) if number else each for each in several], dtype=column.dtype)
    if stored == pl.Float32:
        values = values.cast(stored).cast(pl.Float64)  # 49.95 is the price 49.95, of which float32 holds 49.950001
    if isinstance(value, list):
        return column.is_in(values.implode())
    compared: pl.Series = _ORDERED[condition.op](column, values[0])
    return compared


def canonical(condition: Condition) -> str:
    """The condition as text, equal for conditions that differ only in order, repeats, or 1 instead of 1.0."""
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
    """A thread-safe LRU cache of the masks of one frame.

    Args:
        attributes: one row per item.
        most_bytes: limit of the cached masks and their keys together.
    """

    def __init__(self, attributes: pl.DataFrame, most_bytes: int = MASKS_BYTES) -> None:
        self.attributes, self.most_bytes = attributes, most_bytes
        self._kept: OrderedDict[str, Mask] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def of(self, condition: Condition) -> Mask:
        """`mask(condition, attributes)`, read-only."""
        key = canonical(condition)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        # Outside the lock: two threads may both compute a mask, but none waits for another's.
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
