"""Which items are taken near each other: for each item the few that stand closest to it in users' lists.

In: the events that train, in the order of time. Out: `Companions`. Two items of one user that stand d <= window places
apart add 1/d to their count c_ij; ``a_ij = c_ij / sqrt(c_i c_j)``, c_i the sum of an item's counts, so that what stands
beside everything is close to nothing. Source of the item graph beside that of users and items: Mao et al., UltraGCN,
CIKM 2021; the nearer, the more, as words in GloVe (Pennington et al., EMNLP 2014).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from towers.events import Events, Floats, Int32s


@dataclass(frozen=True)
class Companions:
    """Attributes: `item` [N, L], the items closest to each, the closest first, -1 beyond the last; `closeness` [N, L],
    their a_ij, 0 beyond the last.
    """

    item: Int32s
    closeness: Floats


def companions(parts: Sequence[Events], items: int, window: int, most: int) -> Companions:
    """The items taken nearest to each.

    Args:
        parts: the events that train, split by split, a user's in the order of time.
        items: how many there are, N.
        window: places apart that still count.
        most: items kept of each, L; of equally close ones those of the smaller number.
    """
    user, item = np.concatenate([part.user for part in parts]), np.concatenate([part.item for part in parts])
    order = np.argsort(user, kind="stable")
    counts = _counts(user[order], item[order], items, window)
    total = np.asarray(counts.sum(axis=1)).ravel()
    scale = sp.diags_array(np.where(total > 0, 1 / np.sqrt(np.maximum(total, 1e-12)), 0))
    return _closest((scale @ counts @ scale).tocsr(), most)


def _counts(user: Int32s, item: Int32s, items: int, window: int) -> sp.csr_array:
    """c_ij, symmetric, of events by user and time."""
    counts = sp.csr_array((items, items), dtype=np.float64)
    # Distance by distance, so that no more than one pair an event is held before equal ones are summed.
    for distance in range(1, min(window, len(item) - 1) + 1):
        first, second = item[:-distance], item[distance:]
        near = (user[:-distance] == user[distance:]) & (first != second)
        pairs = (np.full(np.count_nonzero(near), 1 / distance), (first[near], second[near]))
        counts = counts + sp.coo_array(pairs, shape=(items, items)).tocsr()
    return counts + counts.T


def _closest(closeness: sp.csr_array, most: int) -> Companions:
    items = closeness.shape[0]
    row = np.repeat(np.arange(items), np.diff(closeness.indptr))
    order = np.lexsort((closeness.indices, -closeness.data, row))
    place: NDArray[np.int64] = np.arange(len(row)) - closeness.indptr[:-1][row]
    kept = place < most
    item, value = np.full((items, most), -1, np.int32), np.zeros((items, most), np.float32)
    item[row[kept], place[kept]] = closeness.indices[order][kept]
    value[row[kept], place[kept]] = closeness.data[order][kept]
    return Companions(item, value)
