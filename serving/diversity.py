"""At most so many items of one attribute value, and still k items where there are so many.

In: items best first, and the values of each. Out: the best of them under that rule, taken greedily: from the best on,
an item is kept unless one of its values is used up. A missing value is no value: such items are never limited.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from serving.index import Floats, Rows

Mask = NDArray[np.bool_]

# The first search asks for so many times k; each further one for so many times the last,
GROWTH = 2
# but for no more than this, where k is not more: the values of each are looked at one by one.
MOST_ASKED = 8_192


def diversify(groups: Sequence[Any], most: int, k: int, used: Counter[Any]) -> list[int]:
    """Keeps the best items of which at most `most` share a value.

    Args:
        groups: of each item, best first, what a column holds: a string or number, a list of strings, of which each
            counts once, or None (or NaN) where it is missing.
        most: how many items may share a value, at least 1.
        k: how many items are wanted.
        used: how many items of each value are kept already; those kept here are added.

    Returns:
        Places of the items kept, at most k, rising.
    """
    kept: list[int] = []
    for place, group in enumerate(groups):
        if len(kept) == k:
            break
        values = _values(group)
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

    Each further search leaves out what came before, and every item of a value that is used up.

    Args:
        search: gives as many items as it is asked for, best first, or fewer (or row -1) where there are no more; of
            those that are not hidden: [total], or None where none is.
        groups_of: the values of items by their rows, see `diversify`.
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
            # An approximate index may find late what belongs before.
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
    """[n] which items hold one of the values; of a list column, in their list."""
    dtype = column.dtype
    if isinstance(dtype, pl.List):
        wanted = pl.Series(list(values), dtype=dtype.inner)
        passed = column.list.eval(pl.element().is_in(wanted.implode())).list.any()
    else:
        passed = column.is_in(pl.Series(list(values), dtype=dtype).implode())
    found: Mask = passed.fill_null(False).to_numpy()
    return found


def _values(group: Any) -> set[Any]:
    """The values of one item that count."""
    several = group if isinstance(group, list | tuple) else [group]
    return {value for value in several if value is not None and not (isinstance(value, float) and math.isnan(value))}
