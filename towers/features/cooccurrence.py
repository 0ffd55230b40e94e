"""Which items are taken near each other: for each item, the few that are closest to it in users' lists.

Two items of one user that are d <= window places apart add 1/d to their count c_ij; ``a_ij = c_ij / sqrt(c_i c_j)``,
c_i the sum of an item's counts, so that an item near everything is close to nothing. Sources: Mao et al., UltraGCN,
CIKM 2021, for an item graph beside that of users and items; GloVe (Pennington et al., EMNLP 2014) for counting near
words more.

Without an order (window "list") a user of n items adds ``1 / log(e + n)`` to every pair of them, and c_i is the number
of users who took i: the similarity of the item-kNN baseline (`pipelines.rankers.item_knn`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from towers.data.bags import MISSING
from towers.data.events import Floats, Int32s, Int64s
from towers.errors import ConfigError

MOST_PAIRS = 2_000_000_000  # of items of one user, for window "list": minutes
BLOCK_PAIRS = 10_000_000  # of them counted at once
BLOCK_EVENTS = 250_000  # events whose pairs, two for each event and place of the window, are held at once

Doubles = NDArray[np.float64]
Block = tuple[Int64s, Int64s, Doubles]


@dataclass(frozen=True)
class Companions:
    """The items closest to each item.

    Attributes:
        item: [N, L] item numbers, the closest first, padded with -1.
        closeness: [N, L] their a_ij, padded with 0.
    """

    item: Int32s
    closeness: Floats

    def in_rows(self, rows: Int32s) -> Int32s:
        """[N, L] the companions as table rows, padded with `MISSING`; `rows` [N] is the row of each item."""
        return np.where(self.item < 0, np.int32(MISSING), rows[self.item])

    def of_rows(self, rows: Int32s, count: int) -> "Companions":
        """The companions of table rows: `item` [count, L] holds table rows, padded with `MISSING`.

        Args:
            rows: [N] table row of each item.
            count: length of the table.
        """
        item = np.full((count, self.item.shape[1]), MISSING, np.int32)
        closeness = np.zeros(item.shape, np.float32)
        item[rows], closeness[rows] = self.in_rows(rows), self.closeness
        # Items without a row share the row of missing values, which has no companions.
        item[MISSING], closeness[MISSING] = MISSING, 0
        return Companions(item, closeness)


def companions(
    user: Int32s, item: Int32s, known: NDArray[np.bool_], window: int | Literal["list"], most: int, key: str
) -> Companions:
    """The closest companions of every item.

    Args:
        user, item: [E] of the training events, by user and time.
        known: [N] which items may be companions.
        window: largest distance that counts, in places; "list": all items of a user, whatever their order.
        most: L, companions kept per item; of equally close ones, those of the smaller number.
        key: of the window in the recipe.

    Raises:
        ConfigError: "list", and there are too many pairs.
    """
    total, blocks = pair_counts(user, item, len(known), window, key)
    scale = 1 / np.sqrt(np.where(total > 0, total, np.inf))
    found = Companions(np.full((len(known), most), -1, np.int32), np.zeros((len(known), most), np.float32))
    for first, second, count in blocks:
        kept = known[second]
        first, second, count = first[kept], second[kept], count[kept]
        _keep_closest(found, first, second, count * scale[first] * scale[second])
    return found


def pair_counts(
    user: Int32s, item: Int32s, items: int, window: int | Literal["list"], key: str
) -> tuple[Doubles, Iterator[Block]]:
    """How often items are taken together.

    Args:
        user, item, window, key: as in `companions`.
        items: N.

    Returns:
        c_i [N]; and, for a range of items i at a time, the pairs i, j that were, with c_ij.

    Raises:
        ConfigError: as in `companions`.
    """
    if window == "list":
        return _in_one_list(user, item, items, key)
    longest = int(np.bincount(user).max(initial=0))
    steps = [step for distance in range(1, min(window, longest - 1) + 1) for step in (-distance, distance)]
    total = np.zeros(items)
    for step in steps:
        event, _ = _beside(user, item, np.arange(len(item)), step)
        total += np.bincount(item[event], minlength=items) / abs(step)
    return total, _within(user, item, items, steps)


def _within(user: Int32s, item: Int32s, items: int, steps: Sequence[int]) -> Iterator[Block]:
    by_item, ends = np.argsort(item, kind="stable"), np.cumsum(np.bincount(item, minlength=items))
    for low, high in pairwise(_edges(ends, BLOCK_EVENTS)):
        yield _counted(user, item, by_item[slice(ends[low - 1] if low else 0, ends[high - 1])], steps)


def _in_one_list(user: Int32s, item: Int32s, items: int, key: str) -> tuple[Doubles, Iterator[Block]]:
    taken = sparse.csr_array((np.ones(len(item)), (user, item)), shape=(int(user.max(initial=-1)) + 1, items))
    taken.sum_duplicates()
    taken.data[:] = 1
    length = np.diff(taken.indptr)
    if (pairs := int((length.astype(np.int64) ** 2).sum())) > MOST_PAIRS:
        raise ConfigError(
            f"{key}: 'list' counts every pair of a user's items: at most {MOST_PAIRS:,}, got {pairs:,}; name a window "
            "in places (on data with an order), or leave out what counts them"
        )
    by_item, weighted = taken.T.tocsr(), sparse.diags_array(1 / np.log(np.e + length)) @ taken

    def blocks() -> Iterator[Block]:
        for low, high in pairwise(_edges(np.cumsum(by_item @ length), BLOCK_PAIRS)):
            count = (by_item[low:high] @ weighted).tocoo()
            first, second = count.row.astype(np.int64) + low, count.col.astype(np.int64)
            kept = first != second
            yield first[kept], second[kept], count.data[kept]

    return np.diff(by_item.indptr).astype(np.float64), blocks()


def _edges(ends: Int64s, block: int) -> Int64s:
    """Bounds of ranges of items with about `block` events, or pairs, each; no item is split."""
    bounds = np.searchsorted(ends, np.arange(block, int(ends[-1]), block))
    return np.unique(np.concatenate(([0], bounds, [len(ends)])))


def _beside(user: Int32s, item: Int32s, event: Int64s, step: int) -> tuple[Int64s, Int64s]:
    """Those of `event` with another item of the same user `step` places on, and the place of that item's event."""
    event = event[(event + step >= 0) & (event + step < len(item))]
    near = (user[event] == user[event + step]) & (item[event] != item[event + step])
    return event[near], event[near] + step


def _counted(user: Int32s, item: Int32s, event: Int64s, steps: Sequence[int]) -> Block:
    """Pairs i, j with i an item of `event`, each once and sorted, and c_ij."""
    keys, weights = [np.empty(0, np.int64)], [np.empty(0)]
    items = int(item.max(initial=0)) + 1
    for step in steps:
        one, other = _beside(user, item, event, step)
        keys.append(item[one].astype(np.int64) * items + item[other])
        weights.append(np.full(len(one), 1 / abs(step)))
    pairs, place = np.unique(np.concatenate(keys), return_inverse=True)
    count = np.bincount(place, np.concatenate(weights), minlength=len(pairs)).astype(np.float64)
    return pairs // items, pairs % items, count


def _keep_closest(found: Companions, first: Int64s, second: Int64s, closeness: Doubles) -> None:
    order = np.lexsort((second, -closeness, first))
    first, second, closeness = first[order], second[order], closeness[order]
    place = np.arange(len(first)) - np.searchsorted(first, first)
    kept = place < found.item.shape[1]
    found.item[first[kept], place[kept]] = second[kept]
    found.closeness[first[kept], place[kept]] = closeness[kept]
