"""Ranking metrics of given top-k lists, one value per query, without TensorFlow.

They take lists ``[Q, K]`` of item numbers, best first, padded with -1, and the targets of each query as offsets
``[Q + 1]`` and items ``[T]`` (distinct within a query). Each metric returns float64 ``[Q]``, NaN for a query without
targets, for which no ranking is better than another. `hits` is computed once for all metrics and all k. A list shorter
than k counts as padded with misses.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

Integers = NDArray[np.integer[Any]]
Floats = NDArray[np.float64]
Hits = NDArray[np.bool_]


def matches(lists: Integers, target_offsets: Integers, target_items: Integers) -> NDArray[np.int64]:
    """Which target each position of the lists holds.

    Args:
        lists: [Q, K] item numbers, padded with -1.
        target_offsets: [Q + 1]; the targets of query q are ``target_items[target_offsets[q]:target_offsets[q + 1]]``.
        target_items: [T] item numbers, distinct within a query.

    Returns:
        [Q, K] places in `target_items`; -1 where the position holds no target of its query.
    """
    if lists.size == 0 or target_items.size == 0:
        return np.full(lists.shape, -1, dtype=np.int64)
    # One number per pair of query and item turns Q small look-ups into one binary search over sorted pairs.
    stride = np.int64(max(int(lists.max()), int(target_items.max())) + 1)
    queries = np.arange(len(lists), dtype=np.int64)
    targets = np.repeat(queries, np.diff(target_offsets)) * stride + target_items
    order = np.argsort(targets)
    pairs = queries[:, None] * stride + lists
    places = np.minimum(np.searchsorted(targets, pairs, sorter=order), len(targets) - 1)
    found: NDArray[np.int64] = np.where((targets[order[places]] == pairs) & (lists >= 0), order[places], -1)
    return found


def hits(lists: Integers, target_offsets: Integers, target_items: Integers) -> Hits:
    """Which positions of the lists hold a target of their query: bool [Q, K]; arguments as in `matches`."""
    return matches(lists, target_offsets, target_items) >= 0


def recall(hits: Hits, targets: Integers, k: int) -> Floats:
    """Share of a query's targets among its first k: ``hits@k / targets``.

    Args:
        hits: [Q, K] from `hits`.
        targets: [Q] number of targets of each query.
        k: number of list entries that count.
    """
    return _ratio(hits[:, :k].sum(axis=1), targets)


def capped_recall(hits: Hits, targets: Integers, k: int) -> Floats:
    """Share of the targets that k places can hold: ``hits@k / min(targets, k)``; arguments as in `recall`."""
    return _ratio(hits[:, :k].sum(axis=1), np.minimum(targets, k))


def hit_rate(hits: Hits, targets: Integers, k: int) -> Floats:
    """1 where at least one target is among the first k, else 0; arguments as in `recall`."""
    return _ratio(hits[:, :k].sum(axis=1) > 0, np.minimum(targets, 1))


def mrr(hits: Hits, targets: Integers, k: int) -> Floats:
    """``1 / rank`` of the first target (the first place has rank 1); 0 if none is among the first k."""
    first = hits[:, :k]
    rank = first.argmax(axis=1) + 1 if first.shape[1] else np.ones(len(hits))
    return _ratio(np.where(first.any(axis=1), 1.0 / rank, 0.0), np.minimum(targets, 1))


def ndcg(hits: Hits, targets: Integers, k: int) -> Floats:
    """``DCG@k / IDCG@k`` with gain 1 and discount ``1 / log2(rank + 1)``; IDCG runs over ``min(k, targets)`` places.

    Source: Järvelin & Kekäläinen, ACM TOIS 20(4), 2002, in the binary form that LightGCN and BARS report.
    """
    k = min(k, max(hits.shape[1], int(targets.max(initial=0))))  # beyond, there is neither a hit nor a target
    discount = 1.0 / np.log2(np.arange(2, k + 2))
    ideal = np.concatenate([[0.0], np.cumsum(discount)])
    first = hits[:, :k]
    return _ratio(first @ discount[: first.shape[1]], ideal[np.minimum(targets, k)])


def precision(hits: Hits, targets: Integers, k: int) -> Floats:
    """Share of the first k places that hold a target: ``hits@k / k``; arguments as in `recall`."""
    return _ratio(hits[:, :k].sum(axis=1) / k, np.minimum(targets, 1))


def average_precision(hits: Hits, targets: Integers, k: int) -> Floats:
    """The sum of precision@rank over the ranks of hits up to k, divided by ``min(k, targets)``; its mean is MAP@k.

    Source: Manning, Raghavan & Schütze, Introduction to Information Retrieval, 2008, chapter 8, cut at k.
    """
    first = hits[:, :k]
    at_rank = np.cumsum(first, axis=1) / np.arange(1, first.shape[1] + 1)
    return _ratio((first * at_rank).sum(axis=1), np.minimum(targets, k))


METRICS = {
    "recall": recall,
    "ndcg": ndcg,
    "hit_rate": hit_rate,
    "mrr": mrr,
    "precision": precision,
    "map": average_precision,
    "capped_recall": capped_recall,
}


def exposure(lists: Integers, items: int, k: int) -> NDArray[np.int64]:
    """How often each of `items` items is among the first k of the lists; counts of blocks of queries add up.

    Returns:
        [N] counts.
    """
    shown = lists[:, :k]
    return np.bincount(shown[shown >= 0], minlength=items).astype(np.int64)


def coverage(exposure: Integers) -> float:
    """Share of the catalogue that is in at least one list, from the counts of `exposure`."""
    return float(np.count_nonzero(exposure) / max(len(exposure), 1))


def gini(exposure: Integers) -> float:
    """How unequally items are recommended: 0 if all equally often, near 1 if one item fills every list.

    ``sum_i (2 i - N - 1) x_i / (N sum x)`` over the counts x in rising order (i from 1). 0 if nothing is recommended.
    """
    # Equal counts stand together: (2 i - N - 1) over `items` ranks above `below` sums to items (2 below + items - N).
    items = np.bincount(exposure)
    below = np.cumsum(items) - items
    total = np.arange(len(items)) * items @ (2 * below + items - len(exposure))
    return float(total / max(len(exposure) * int(exposure.sum()), 1))


def self_information(takers: Integers, users: int) -> Floats:
    """How little known each item is, in bits, ``-log2(max(takers, 1) / users)``: its mean over lists is novelty.

    Args:
        takers: [N] how many users took each item.
        users: how many users took any.

    Source: Zhou et al., PNAS 107(10), 2010.
    """
    bits: Floats = -np.log2(np.maximum(takers, 1) / max(users, 1))
    return bits


def intra_list_similarity(lists: Integers, vectors: NDArray[np.float32], ks: Sequence[int]) -> Floats:
    """Mean cosine of all pairs among the first k items of each list: float64 [Q, ks], NaN for fewer than two vectors.

    Args:
        lists: [Q, K] item numbers, padded with -1.
        vectors: [N, D] of length 1; zeros for an item without a vector, which does not count.
        ks: the numbers of list entries that count, ascending.

    Source: Ziegler et al., WWW 2005.
    """
    listed = np.zeros(len(vectors), np.bool_)
    listed[lists[lists >= 0]] = True
    items = np.flatnonzero(listed)
    some = vectors[items]
    has_vector = np.append(some.any(axis=1), False)
    # Place -1, of padding, is the last one.
    place = np.full(len(vectors) + 1, len(items), np.int32)
    place[items] = np.arange(len(items))
    places = place[lists]
    counted = has_vector[places]
    out = np.empty((len(lists), len(ks)))
    count, total = np.zeros(len(lists), np.int64), np.zeros((len(lists), vectors.shape[1]))
    for column, (low, k) in enumerate(pairwise([0, *ks])):
        shown = counted[:, low:k]
        ends = np.concatenate([[0], np.cumsum(shown.sum(axis=1))]).astype(np.int32)
        # A product with a sparse matrix of ones sums the vectors without a copy of each.
        ones = csr_array((np.ones(ends[-1], some.dtype), places[:, low:k][shown], ends), shape=(len(lists), len(items)))
        total += ones @ some
        count += shown.sum(axis=1)
        pairs = np.where(count > 1, count * (count - 1.0), 0.0)
        out[:, column] = _ratio(np.square(total).sum(axis=1) - count, pairs)
    return out


def _ratio(numerator: NDArray[Any], denominator: NDArray[Any]) -> Floats:
    result = np.full(len(denominator), np.nan)
    np.divide(numerator, denominator, out=result, where=denominator > 0)
    return result


class Measured(NamedTuple):
    """One validation: the metric, and the criterion that chooses the epoch, higher is better."""

    metric: float
    criterion: float
