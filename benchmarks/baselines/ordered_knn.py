"""item-kNN that reads the order of events: the strongest cheap baseline where the next item is asked for.

In: each user's items in order. Out: a ranker. For items i and j that a user took d <= window places apart, i first,

    c_ij = sum d^(-1/2),    s_ij = (c_ij + b c_ji) / (sqrt(n_i n_j) + shrinkage)

with n_i the events of i and b the weight of pairs against the order; an item's score is the sum of s_ij over the
history, the newest item first by its half-life (`pipelines.rankers.item_knn`, which counts sets).
"""

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from pipelines.rankers.item_knn import ItemKnn
from pipelines.rankers.popular import Integers, by_popularity


@dataclass(frozen=True)
class OrderedKnn:
    """Its settings.

    Attributes:
        window: the largest distance in places.
        backward: the weight b of pairs against the order.
        half_life: of a history item's weight, in places from the end.
        shrinkage: added to the denominator.
    """

    window: int = 10
    backward: float = 0.5
    half_life: float = 1.0
    shrinkage: float = 10.0

    def fitted(self, offsets: Integers, items: Integers, count: int) -> ItemKnn:
        """Counts the pairs.

        Args:
            offsets: [U + 1].
            items: [E] item numbers of all users, each user's in order.
            count: of items.
        """
        users, first, second, weights = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)), [], [], []
        for distance in range(1, self.window + 1):
            one = users[:-distance] == users[distance:]
            first.append(items[:-distance][one])
            second.append(items[distance:][one])
            weights.append(np.full(int(one.sum()), distance**-0.5))
        pairs = (np.concatenate(first), np.concatenate(second))
        ahead = sp.csr_array((np.concatenate(weights), pairs), shape=(count, count))
        found = sp.coo_array(ahead + self.backward * ahead.T)
        events = np.bincount(items, minlength=count).astype(np.float64)
        roots = np.sqrt(events)
        values = found.data / (roots[found.row] * roots[found.col] + self.shrinkage)
        values[found.row == found.col] = 0
        similarity = sp.csr_array((values.astype(np.float32), (found.row, found.col)), shape=(count, count))
        similarity.eliminate_zeros()
        return ItemKnn(similarity, by_popularity(events), self.half_life)
