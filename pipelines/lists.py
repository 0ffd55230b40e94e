"""Lists of items by owner as two flat arrays: offsets `[R + 1]`; the items of row r are `offsets[r]:offsets[r + 1]`."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from towers.events import Int32s, Int64s


def select_lists(rows: NDArray[np.integer[Any]], offsets: Int64s, items: Int32s) -> tuple[Int64s, Int32s]:
    """The lists of `rows` out of CSR lists, in their order; items of -1 are left out."""
    counts = np.diff(offsets)[rows]
    starts = np.repeat(offsets[rows], counts)
    picked = items[starts + np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)]
    kept = picked >= 0
    owner = np.repeat(np.arange(len(rows)), counts)[kept]
    return np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=len(rows)))]), picked[kept]
