"""Selects from lists of items in two flat arrays: `offsets` [R + 1]; row r is `items[offsets[r]:offsets[r + 1]]`."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from towers.data.events import Int32s, Int64s


def select_lists(rows: NDArray[np.integer[Any]], offsets: Int64s, items: Int32s) -> tuple[Int64s, Int32s]:
    """Returns the lists of `rows` from CSR lists, in the order of `rows`, without items of -1."""
    counts = np.diff(offsets)[rows]
    starts = np.repeat(offsets[rows], counts)
    picked = items[starts + np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)]
    kept = picked >= 0
    owner = np.repeat(np.arange(len(rows)), counts)[kept]
    return np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=len(rows)))]), picked[kept]
