"""Limits the items per attribute value, and still finds k items if they exist.

Greedy: from the best on, an item is kept unless one of its values is used up. Items with a missing value are never
limited.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import polars as pl

from serving.search.index import Floats, Mask, Rows

# The first search asks for this many times k items; each further one for this many times the last,
GROWTH = 2
# but without growing beyond this: the values of the items are checked one by one.
MOST_ASKED = 8_192


def diversify(groups: Sequence[Any], most: int, k: int, used: Counter[Any]) -> list[int]:
    """Keeps the best items of which at most `most` share a value.

    Args:
        groups: the column value of each item, best first: a string or number, a list of strings, each of which counts
            once, or None (or NaN) if missing.
        most: how many items may share a value, at least 1.
        k: how many items are wanted.
        used: how many items of each value are kept already; updated in place.

    Returns:
        Positions of the items kept, at most k, ascending.
    """
    kept: list[int] = []
    for place, group in enumerate(groups):
        if len(kept) == k:
            break
        values = values_of(group)
        if all(used[value] < most for value in values):
            used.update(values)
            kept.append(place)
    return kept


def search_diverse(
    search: Callable[[int, Mask | None], tuple[Rows, Floats]],
    groups_of: Callable[[Rows], Sequence[Any]],
    holding: Callable[[Collection[Any]], Mask],
    most: int,
    k: int,
    total: int,
) -> tuple[Rows, Floats]:
    """Searches until k items are kept under the rule of `diversify`, or there are no more.

    Each further search hides the items found before, and all items with a value that is used up.

    Args:
        search: returns the given number of items, best first, or fewer (or row -1) if there are no more; its second
            argument is the mask of hidden rows, [total], or None.
        groups_of: the values of items by row, see `diversify`.
        holding: which rows hold one of some values, [total].
        most: how many items may share a value, at least 1.
        k: how many items are wanted.
        total: how many rows there are.

    Returns:
        Rows and scores [at most k], best first.
    """
    used: Counter[Any] = Counter()
    used_up: set[Any] = set()
    hidden: Mask | None = None
    rows, scores = np.empty(0, np.int64), np.empty(0, np.float32)
    asked = min(total, GROWTH * k)
    while True:
        its_rows, its_scores = search(asked, hidden)
        found = its_rows >= 0
        its_rows, its_scores = its_rows[found], its_scores[found]
        kept = diversify(groups_of(its_rows), most, k - len(rows), used)
        rows, scores = np.concatenate([rows, its_rows[kept]]), np.concatenate([scores, its_scores[kept]])
        if len(rows) == k or len(its_rows) < asked or asked == total:
            # An approximate index may find a better item in a later search.
            order = np.argsort(-scores, kind="stable")
            return rows[order], scores[order]
        new = {value for value, count in used.items() if count >= most} - used_up
        used_up |= new
        hidden = np.zeros(total, np.bool_) if hidden is None else hidden
        hidden[its_rows] = True
        if new:
            hidden |= holding(new)
        asked = min(total, max(asked, min(GROWTH * asked, MOST_ASKED)))


def holding(column: pl.Series, values: Collection[Any]) -> Mask:
    """[n] which items hold one of the values; in a list column, in their list."""
    column, dtype = column.alias("values"), column.dtype  # as in `serving.search.filter_masks`
    if isinstance(dtype, pl.List):
        wanted = pl.Series(list(values), dtype=dtype.inner)
        passed = column.list.eval(pl.element().is_in(wanted.implode())).list.any()
    else:
        passed = column.is_in(pl.Series(list(values), dtype=dtype).implode())
    found: Mask = passed.fill_null(False).to_numpy()
    return found


def values_at(frame: pl.DataFrame, column: str, rows: Rows) -> list[object]:
    """The values of some rows, None where missing; a float32 as the shortest number that it stands for."""
    values = frame.get_column(column).alias("values").gather(rows)
    return (values.cast(pl.String).cast(pl.Float64) if values.dtype == pl.Float32 else values).to_list()


def values_of(group: Any) -> set[Any]:
    """The values of one item that are not missing, each once."""
    several = group if isinstance(group, list | tuple) else [group]
    return {value for value in several if value is not None and not (isinstance(value, float) and math.isnan(value))}
