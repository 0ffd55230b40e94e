"""A bundle's items by popularity, in blocks."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from serving.bundle.reader import Bundle
from serving.search.index import Floats, Rows

Counts = NDArray[np.int64] | Floats
# Popular items are scanned in blocks, each this many times as long as the last.
GROWTH = 4


def by_popularity(
    bundle: Bundle, length: int, allowed: Rows | None, segment: str | None
) -> Iterator[tuple[Rows, Counts]]:
    """Blocks of the bundle's original rows and counts, most popular first, with deleted and changed items.

    Args:
        bundle: whose items.
        length: length of the first block.
        allowed: the only rows to include, ascending; None includes all.
        segment: a user segment, whose popular items come first; None for no segment.
    """
    order = bundle.popular_rows
    if allowed is not None:
        order = allowed[np.argsort(-bundle.popular_counts[allowed], kind="stable")]
    special = None if segment is None else bundle.segments.get(segment)
    if special is not None:
        first, counts = special
        among = slice(None) if allowed is None else np.isin(first, order)
        for part in _blocks(length, len(first[among])):
            yield first[among][part], counts[among][part]
    for part in _blocks(length, len(order)):
        rows = order[part]
        if special is None:
            yield rows, bundle.popular_counts[rows]
        else:
            rows = rows[~np.isin(rows, special[0])]
            yield rows, np.zeros(len(rows), np.int64)


def _blocks(length: int, total: int) -> Iterator[slice]:
    """Slices from 0 to `total`, the first of `length`, each next one `GROWTH` times as long."""
    start = 0
    while start < total:
        yield slice(start, start + length)
        start, length = start + length, length * GROWTH
