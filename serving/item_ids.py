"""Item ids as the bytes that stand for them in JSON: an answer of a hundred is put together without a hundred objects.

In: a bundle's item ids. Out: those of some rows, as UTF-8. Python's own strings lie all over the memory, and each one
that is touched costs a trip there; these lie in one array.
"""

import re

import numpy as np
from numpy.typing import NDArray

from serving.ids import Ids
from serving.index import Rows

# What JSON writes in another way than UTF-8 does.
ESCAPED = re.compile(rb'["\\\x00-\x1f]')
# Every id takes the room of the longest.
LONGEST = 64
BLOCK = 4_096


class ItemIds:
    """The ids of a bundle, ready to be written between two quotes.

    Args:
        ids: [N].
    """

    def __init__(self, ids: Ids) -> None:
        longest = int(np.diff(ids.offsets).max(initial=0))
        self._ids: NDArray[np.bytes_] | None = None
        if 0 < longest <= LONGEST and not ESCAPED.search(ids.text, ids.start):
            self._ids = np.empty(len(ids), f"S{longest}")
            for first in range(0, len(ids), BLOCK):
                rows = np.arange(first, min(first + BLOCK, len(ids)))
                self._ids[rows] = ids.raw(rows)

    def of(self, rows: Rows) -> list[bytes] | None:
        """The ids of rows below N; None where some ids of the bundle are long, or need more than quotes."""
        return None if self._ids is None else self._ids.take(rows).tolist()
