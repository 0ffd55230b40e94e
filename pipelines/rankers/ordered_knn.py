"""item-kNN that reads the order of events: a baseline for data in which one item leads to the next.

For items i and j that a user took d <= window places apart, i first,

    c_ij = sum d^(-1/2),    s_ij = (c_ij + b c_ji) / (sqrt(n_i n_j) + shrinkage)

with n_i the events of i and b the weight of pairs against the order. An item's score is the sum of s_ij over the
history, in which an item weighs the more, the newer it is (`pipelines.rankers.item_knn`, which counts sets). Of each
item only the 200 largest s_ij count.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from pipelines.dataset.popularity import PLAIN, Counting
from pipelines.rankers.popular import Integers

MOST_PAIRS = 10_000_000  # of events up to `window` places apart: up to five seconds and a gigabyte for a count
NEIGHBOURS = 200  # that each item keeps: its lists take no longer than those of `item_knn`
WINDOWS = (1, 3, 10, 30)


@dataclass(frozen=True)
class OrderedKnn:
    """Its settings; the defaults do well on Amazon's Beauty.

    Attributes:
        window: the largest distance in places.
        backward: the weight b of pairs against the order.
        half_life: of a history item's weight, in places from the end.
        shrinkage: added to the denominator.
        fallback: the popularity that fills short lists and answers users without history.
    """

    window: int = 10
    backward: float = 0.25
    half_life: float = 2.0
    shrinkage: float = 100.0
    fallback: Counting = PLAIN

    def __str__(self) -> str:
        return f"item-kNN in order, up to {self.window} places apart"

    def similarity(self, offsets: Integers, items: Integers, count: int) -> sp.csr_array:
        """Counts the pairs.

        Args:
            offsets: [U + 1].
            items: [E] item numbers of all users, each user's in order.
            count: of items.

        Returns:
            [count, count], s_ij in row i, the largest of each.
        """
        users, first, second, weights = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)), [], [], []
        for distance in range(1, self.window + 1):
            one = users[:-distance] == users[distance:]
            first.append(items[:-distance][one])
            second.append(items[distance:][one])
            weights.append(np.full(int(one.sum()), distance**-0.5, np.float32))
        pairs = (np.concatenate(first), np.concatenate(second))
        ahead = sp.csr_array((np.concatenate(weights), pairs), shape=(count, count))
        found = sp.coo_array(ahead + self.backward * ahead.T)
        roots = np.sqrt(np.bincount(items, minlength=count).astype(np.float64))
        values = found.data / (roots[found.row] * roots[found.col] + self.shrinkage)
        values[found.row == found.col] = 0
        similarity = sp.csr_array((values.astype(np.float32), (found.row, found.col)), shape=(count, count))
        for row in np.flatnonzero(np.diff(similarity.indptr) > NEIGHBOURS):
            own = similarity.data[similarity.indptr[row] : similarity.indptr[row + 1]]
            own[np.argsort(-own, kind="stable")[NEIGHBOURS:]] = 0
        similarity.eliminate_zeros()
        return similarity


def windows(events: int) -> Sequence[int]:
    """The windows whose pairs are few enough, of a data set of so many events."""
    return [window for window in WINDOWS if window * events <= MOST_PAIRS]
