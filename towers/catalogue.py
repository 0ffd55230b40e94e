"""The items that training learns from, by falling number of examples: what samplers and item tables count in.

In: the training events' items. Out: `Catalogue`. Rank 0 is the most frequent item, so that a log-uniform sampler fits;
an item without an example has no rank, is never drawn, and so stays what it was: unlearnt.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from towers.blocks import blocks
from towers.events import Int32s, Int64s


@dataclass(frozen=True)
class Catalogue:
    """Ranks of the trained items.

    Attributes:
        items: [N] item number of each rank.
        ranks: [all items] rank of each item number; -1 for one without an example.
        counts: [N] examples of each rank, falling.
    """

    items: Int32s
    ranks: Int64s
    counts: Int64s

    @classmethod
    def of(cls, item: NDArray[np.int32], size: int) -> "Catalogue":
        """Ranks the items of training events `item` [E]; `size` is the number of all items. Ties by item number."""
        counts = counted(item, size)
        items = np.argsort(-counts, kind="stable")[: int((counts > 0).sum())].astype(np.int32)
        ranks = np.full(size, -1, np.int64)
        ranks[items] = np.arange(len(items))
        return cls(items, ranks, counts[items])

    def __len__(self) -> int:
        return len(self.items)


def counted(numbers: NDArray[np.int32], size: int) -> Int64s:
    """How often each of ``range(size)`` stands in `numbers` [E]: [size]; E may be larger than memory."""
    counts = np.zeros(size, np.int64)
    for block in blocks(numbers):
        counts += np.bincount(numbers[block], minlength=size)
    return counts
