"""Item-based nearest neighbours: a baseline on the same events as the model."""

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from pipelines.console import Advance, no_bar
from pipelines.rankers.popular import Integers, Lists, Popular, fill
from towers.data.events import Int64s

PHASE = "item-kNN"
# Sum over users of (events of the user)^2, the work of counting co-occurrence: a few minutes on two cores.
MAX_PAIRS = 2_000_000_000
# A search counts several times.
MAX_SEARCH_PAIRS = MAX_PAIRS // 4
MAX_ITEMS = 300_000
# The most items whose co-occurrence is counted at once; fewer if they could take more memory than this.
ITEM_BLOCK = 2_048
BLOCK_BYTES = 1_000_000_000
# One co-occurrence entry: value, column and row, and the cosine's intermediate results in double precision.
ENTRY_BYTES = 48


@dataclass(frozen=True)
class ItemKnn:
    """Item-based k-nearest neighbours by the cosine of co-occurrence, shrunk towards 0 where co-occurrence is rare.

    ``s_ij = c_ij / (sqrt(c_i c_j) + shrinkage)`` with c_i the users of item i and c_ij the users of both items; the
    score of item j is the sum of s_ij over the items i of the history that are among the nearest neighbours of j.
    Options: `damp_users` counts a user of n items in c_ij as ``1 / log(e + n)``; `half_life` weights a history item by
    ``0.5 ** (place / half_life)``, place 0 the newest. Short lists are filled by popularity.
    Source: Sarwar et al., WWW 2001; the shrinkage as in Ferrari Dacrema et al., RecSys 2019; the user weight after
    Adamic & Adar, Social Networks 25(3), 2003.

    Attributes:
        similarity: [N, N] sparse; column j holds the nearest neighbours of item j, never j itself.
        order: [N] item numbers, most popular first, to fill short lists.
        half_life: in places from the end of the history; None weights all items equally.
    """

    similarity: sp.csr_array
    order: Lists
    half_life: float | None = None

    def lists(self, seen_offsets: Integers, seen_items: Integers, k: int, *, repeats: bool = False) -> Lists:
        """Returns the k unseen items with the highest sum of similarities to the history.

        Args:
            seen_offsets: [Q + 1].
            seen_items: [S] item numbers, newest last: the history, and the items not to recommend.
            k: length of the lists.
            repeats: recommend items of the history, too.

        Returns:
            [Q, k], best first, -1 where the catalogue ends.
        """
        queries, items = len(seen_offsets) - 1, len(self.order)
        scores = sp.csr_array(history(seen_offsets, seen_items, items, self.half_life) @ self.similarity)
        found = np.full((queries, k), -1, dtype=np.int32)
        own = np.zeros(items, np.bool_)
        for query, (start, end) in enumerate(zip(scores.indptr[:-1], scores.indptr[1:], strict=True)):
            seen = seen_items[seen_offsets[query] : seen_offsets[query + 1]]
            columns, values = scores.indices[start:end], scores.data[start:end].copy()
            own[seen] = not repeats
            values[own[columns]] = 0
            own[seen] = False
            best = _largest(values, k)
            found[query, : len(best)] = columns[best]
        return fill(found, Popular(self.order).lists(seen_offsets, seen_items, k, repeats=repeats))


def nearest_items(
    users: Integers,
    items: Integers,
    shape: tuple[int, int],
    *,
    neighbours: int,
    shrinkage: float,
    damp_users: bool = False,
    advance: Advance = no_bar,
) -> sp.csr_array:
    """Finds each item's nearest neighbours.

    Args:
        users: [E] user numbers.
        items: [E] item numbers; an item that a user took twice counts once.
        shape: number of users and of items.
        neighbours: how many each item keeps.
        shrinkage: added to the denominator of the cosine.
        damp_users: see `ItemKnn`.
        advance: called for each block of items.

    Returns:
        [N, N] sparse; row j holds the similarities of the nearest neighbours of item j, largest first.
    """
    events = _indicators(users, items, shape)
    transposed = sp.csr_array(events.T)
    blocks = _blocks(_most_together(events, transposed))
    root = np.sqrt(np.diff(transposed.indptr))
    if damp_users:
        sizes = np.diff(events.indptr)
        events.data *= np.repeat(1 / np.log(np.e + sizes), sizes).astype(np.float32)
    columns, values, lengths = [], [], [0]
    for start, stop in blocks:
        together = sp.csr_array(transposed[start:stop] @ events)
        rows = start + np.repeat(np.arange(together.shape[0]), np.diff(together.indptr))
        cosine = (together.data / (root[rows] * root[together.indices] + shrinkage)).astype(np.float32)
        cosine[rows == together.indices] = 0
        for begin, end in zip(together.indptr[:-1], together.indptr[1:], strict=True):
            best = _largest(cosine[begin:end], neighbours)
            columns.append(together.indices[begin:end][best])
            values.append(cosine[begin:end][best])
            lengths.append(len(best))
        advance(together.shape[0])
    return sp.csr_array((np.concatenate(values), np.concatenate(columns), np.cumsum(lengths)), shape=(shape[1],) * 2)


def nearest_of(nearest: sp.csr_array, neighbours: int) -> sp.csr_array:
    """Keeps the first `neighbours` of each row of `nearest_items`."""
    lengths = np.diff(nearest.indptr)
    place = np.arange(nearest.nnz) - np.repeat(nearest.indptr[:-1], lengths)
    kept = place < neighbours
    ends = np.concatenate([[0], np.cumsum(np.minimum(lengths, neighbours))])
    return sp.csr_array((nearest.data[kept], nearest.indices[kept], ends), shape=nearest.shape)


def history(seen_offsets: Integers, seen_items: Integers, items: int, half_life: float | None = None) -> sp.csr_array:
    """Builds the histories, [Q, items]; an item taken twice has the weight of its newest event.

    Args:
        seen_offsets: [Q + 1].
        seen_items: [S] item numbers, newest last.
        items: size of the catalogue.
        half_life: places from the end over which the weight halves; None weights all items equally.
    """
    counts = np.diff(seen_offsets)
    query = np.repeat(np.arange(len(counts)), counts)
    place = np.repeat(seen_offsets[1:], counts) - 1 - np.arange(len(seen_items))
    # Reversed, a pair's last event comes first, and `unique` returns the first.
    _, reverse = np.unique((query * items + seen_items)[::-1], return_index=True)
    newest = len(seen_items) - 1 - reverse
    weight = np.ones(len(newest)) if half_life is None else 0.5 ** (place[newest] / half_life)
    shape = (len(counts), items)
    return sp.csr_array((weight.astype(np.float32), (query[newest], seen_items[newest])), shape=shape)


def too_large(user_events: Integers, items: int) -> str | None:
    """Returns why item-kNN is left out for this data, or None if it is not.

    Args:
        user_events: [U] number of events of each user.
        items: size of the catalogue.
    """
    if items > MAX_ITEMS:
        return f"left out: {items:,} items, more than {MAX_ITEMS:,}"
    pairs = _pairs(user_events)
    if pairs > MAX_PAIRS:
        return f"left out: {pairs:,} pairs of events of the same user, more than {MAX_PAIRS:,}"
    return None


def too_large_to_search(user_events: Integers) -> str | None:
    """Returns why the settings of item-kNN are not searched for this data, or None if they are.

    Args:
        user_events: [U] number of events of each user.
    """
    pairs = _pairs(user_events)
    if pairs > MAX_SEARCH_PAIRS:
        return f"fixed settings: {pairs:,} pairs of events of the same user, more than {MAX_SEARCH_PAIRS:,}"
    return None


def _pairs(user_events: Integers) -> int:
    return int(np.square(user_events.astype(np.float64)).sum())


def _most_together(events: sp.csr_array, transposed: sp.csr_array) -> Int64s:
    """[N] upper bound on the entries of a co-occurrence row: the events of its users, or all items.

    Args:
        events: [users, N] 1 where there is an event.
        transposed: [N, users], its transpose.
    """
    # Single precision saves a copy of the events and is exact up to the number of items.
    sizes = np.diff(events.indptr).astype(np.float32)
    entries: Int64s = np.minimum(transposed @ sizes, events.shape[1]).astype(np.int64)
    return entries


def _blocks(entries: Int64s) -> list[tuple[int, int]]:
    """Splits rows into ranges whose entries [N] fit in memory; a row that does not fit gets its own range."""
    ends, most = np.cumsum(entries), BLOCK_BYTES // ENTRY_BYTES
    blocks, start = [], 0
    while start < len(ends):
        before = int(ends[start - 1]) if start else 0
        fitting = int(np.searchsorted(ends, before + most, side="right"))
        stop = max(start + 1, min(fitting, start + ITEM_BLOCK))
        blocks.append((start, stop))
        start = stop
    return blocks


def _indicators(users: Integers, items: Integers, shape: tuple[int, int]) -> sp.csr_array:
    """[users, items] 1 where there is an event."""
    matrix = sp.csr_array((np.ones(len(items), dtype=np.float32), (users, items)), shape=shape)
    matrix.sum_duplicates()
    matrix.data[:] = 1
    return matrix


def _largest(values: NDArray[np.float32], k: int) -> NDArray[np.intp]:
    """Returns the places of the k largest positive values, largest first."""
    places = np.argpartition(values, -k)[-k:] if len(values) > k else np.arange(len(values))
    places = places[values[places] > 0]
    return places[np.argsort(-values[places], kind="stable")]
