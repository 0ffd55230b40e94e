"""Lists the most popular items, without what a user has seen or with a user's own first, and fills short lists."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipelines.dataset.popularity import PLAIN, Counting
from towers.evaluation.metrics import hits

Integers = NDArray[np.integer[Any]]
Lists = NDArray[np.int32]

QUERIES = 64


def by_popularity(counts: NDArray[Any]) -> Lists:
    """Returns all item numbers by descending count, ties by ascending number."""
    return np.argsort(-counts.astype(np.float64), kind="stable").astype(np.int32)


@dataclass(frozen=True)
class Popular:
    """Gives every user the most popular items.

    Attributes:
        order: [N] item numbers, most popular first.
    """

    order: Lists

    def lists(self, seen_offsets: Integers, seen_items: Integers, k: int, *, repeats: bool = False) -> Lists:
        """Returns the first k items of `order` that each query has not seen; with `repeats` seen items, too.

        Args:
            seen_offsets: [Q + 1].
            seen_items: [S] item numbers.
            k: length of the lists.
            repeats: recommend items that were seen, too.

        Returns:
            [Q, k], -1 where the catalogue ends.
        """
        if repeats:
            seen_offsets, seen_items = np.zeros_like(seen_offsets), seen_items[:0]
        queries = len(seen_offsets) - 1
        out: Lists = np.full((queries, k), -1, np.int32)
        # A few queries at a time: each block is as wide as its longest list of seen items needs.
        for first in range(0, queries, QUERIES):
            offsets = seen_offsets[first : first + QUERIES + 1]
            wide = min(k + int(np.diff(offsets).max()), len(self.order))
            top = np.broadcast_to(self.order[:wide], (len(offsets) - 1, wide))
            masked = hits(top, offsets - offsets[0], seen_items[offsets[0] : offsets[-1]])
            out[first : first + len(offsets) - 1] = _first_unmasked(top, masked, k)
        return out


@dataclass(frozen=True)
class FavouriteSettings:
    """Settings of the favourites.

    Attributes:
        fallback: the popularity that fills the lists and answers users without history.
    """

    fallback: Counting = PLAIN

    def __str__(self) -> str:
        return f"own favourites, then {self.fallback}"


@dataclass(frozen=True)
class Favourites:
    """Lists a user's own items, those with the most events first, of as many the latest; then the most popular items.

    Source: GP-TopFreq of Li et al., A Next Basket Recommendation Reality Check, TOIS 41(4), 2023.

    Attributes:
        order: [N] item numbers, most popular first, to fill short lists.
    """

    order: Lists

    def lists(self, seen_offsets: Integers, seen_items: Integers, k: int, *, repeats: bool = False) -> Lists:
        """Arguments and result as in `ItemKnn.lists`; without `repeats` no own item counts, and popularity is left."""
        popular = Popular(self.order).lists(seen_offsets, seen_items, k, repeats=repeats)
        if not repeats:
            return popular
        queries, items = len(seen_offsets) - 1, len(self.order)
        pairs = np.repeat(np.arange(queries), np.diff(seen_offsets)) * items + seen_items
        # Reversed, a pair's last event comes first, and `unique` returns the first.
        own, age, events = np.unique(pairs[::-1], return_index=True, return_counts=True)
        query = own // items
        order = np.lexsort((age, -events, query))  # by query, so `query` stays as it is
        place = np.arange(len(own)) - np.searchsorted(query, query)
        found: Lists = np.full((queries, k), -1, np.int32)
        near = place < k
        found[query[near], place[near]] = (own[order] % items)[near]
        return fill(found, popular)


def fill(lists: Lists, filler: Lists) -> Lists:
    """Replaces each row's padding by the entries of `filler` that the row does not hold yet.

    Args:
        lists: [Q, K], changed in place.
        filler: [Q, K].

    Returns:
        `lists`.
    """
    short = np.flatnonzero((lists < 0).any(axis=1))
    held = lists[short]
    lengths = (held >= 0).sum(axis=1)
    repeated = hits(filler[short], np.concatenate([[0], np.cumsum(lengths)]), held[held >= 0])
    both = np.concatenate([held, filler[short]], axis=1)
    masked = np.concatenate([held < 0, repeated | (filler[short] < 0)], axis=1)
    lists[short] = _first_unmasked(both, masked, lists.shape[1])
    return lists


def _first_unmasked(lists: Integers, masked: NDArray[np.bool_], k: int) -> Lists:
    """Returns each row's first k unmasked entries, in order, padded with -1."""
    places = np.argsort(masked, axis=1, kind="stable")[:, :k]
    chosen = np.where(np.take_along_axis(masked, places, axis=1), -1, np.take_along_axis(lists, places, axis=1))
    padded = np.full((len(lists), k), -1, dtype=np.int32)
    padded[:, : chosen.shape[1]] = chosen
    return padded
