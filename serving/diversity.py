"""At most so many items of one attribute value, and still k items where there are so many.

In: items best first, and the values of each. Out: the best of them under that rule, taken greedily: from the best on,
an item is kept unless one of its values is used up. A missing value is no value: such items are never limited.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from serving.index import Floats, Rows

# The first search asks for so many times k; each further one for so many times the last.
GROWTH = 2


def diversify(rows: Rows, scores: Floats, groups: Sequence[Any], most: int, k: int) -> tuple[Rows, Floats]:
    """Keeps the best items of which at most `most` share a value.

    Args:
        rows: item rows, best first, [n]; row -1 is nothing.
        scores: [n].
        groups: of each item what a column holds: a string or number, a list of strings, of which each counts once, or
            None (or NaN) where it is missing.
        most: how many items may share a value, at least 1.
        k: how many items are wanted.

    Returns:
        Rows and scores [at most k], in their order.
    """
    used: Counter[Any] = Counter()
    kept: list[int] = []
    for place in np.flatnonzero(rows >= 0).tolist():
        if len(kept) == k:
            break
        values = _values(groups[place])
        if all(used[value] < most for value in values):
            used.update(values)
            kept.append(place)
    return rows[kept], scores[kept]


def search_diverse(
    search: Callable[[int], tuple[Rows, Floats]],
    groups_of: Callable[[Rows], Sequence[Any]],
    most: int,
    k: int,
    total: int,
) -> tuple[Rows, Floats]:
    """Asks for more and more items until k are left under the rule of `diversify`, or there are no more.

    Args:
        search: gives as many items as it is asked for, best first, or fewer (or row -1) where there are no more.
        groups_of: the values of items by their rows, see `diversify`.
        most: how many items may share a value, at least 1.
        k: how many items are wanted.
        total: how many items there are.

    Returns:
        Rows and scores [at most k], best first.
    """
    asked = min(total, GROWTH * k)
    while True:
        rows, scores = search(asked)
        found = rows >= 0
        rows, scores = rows[found], scores[found]
        kept = diversify(rows, scores, groups_of(rows), most, k)
        if len(kept[0]) == k or len(rows) < asked or asked >= total:
            return kept
        asked = min(total, GROWTH * asked)


def _values(group: Any) -> set[Any]:
    """The values of one item that count."""
    several = group if isinstance(group, list | tuple) else [group]
    return {value for value in several if value is not None and not (isinstance(value, float) and math.isnan(value))}
