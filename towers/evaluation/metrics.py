"""Ranking metrics of given top-k lists, one value per query, in plain NumPy.

They take lists ``[Q, K]`` of item numbers, best first, padded with -1, and the targets of each query as offsets
``[Q + 1]`` and items ``[T]`` (distinct within a query). Each metric returns float64 ``[Q]``, NaN for a query without
targets, for which no ranking is better than another. `hits` is computed once for all metrics and all k. A list shorter
than k counts as padded with misses.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.integer[Any]]
Floats = NDArray[np.float64]
Hits = NDArray[np.bool_]


def hits(lists: Integers, target_offsets: Integers, target_items: Integers) -> Hits:
    """Which positions of the lists hold a target of their query.

    Args:
        lists: [Q, K] item numbers, padded with -1.
        target_offsets: [Q + 1]; the targets of query q are ``target_items[target_offsets[q]:target_offsets[q + 1]]``.
        target_items: [T] item numbers, distinct within a query.

    Returns:
        [Q, K].
    """
    if lists.size == 0 or target_items.size == 0:
        return np.zeros(lists.shape, dtype=np.bool_)
    # One number per pair of query and item turns Q small look-ups into one binary search over sorted pairs.
    stride = np.int64(max(int(lists.max()), int(target_items.max())) + 1)
    queries = np.arange(len(lists), dtype=np.int64)
    targets = np.sort(np.repeat(queries, np.diff(target_offsets)) * stride + target_items)
    pairs = queries[:, None] * stride + lists
    places = np.minimum(np.searchsorted(targets, pairs), len(targets) - 1)
    found: Hits = (targets[places] == pairs) & (lists >= 0)
    return found


def recall(hits: Hits, targets: Integers, k: int) -> Floats:
    """Share of a query's targets among its first k: ``hits@k / targets``.

    Args:
        hits: [Q, K] from `hits`.
        targets: [Q] number of targets of each query.
        k: number of list entries that count.
    """
    return _ratio(hits[:, :k].sum(axis=1), targets)


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
    discount = 1.0 / np.log2(np.arange(2, k + 2))
    ideal = np.concatenate([[0.0], np.cumsum(discount)])
    first = hits[:, :k]
    return _ratio(first @ discount[: first.shape[1]], ideal[np.minimum(targets, k)])


METRICS = {"recall": recall, "ndcg": ndcg, "hit_rate": hit_rate, "mrr": mrr}


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


def mean_popularity(exposure: Integers, popularity: Integers) -> float:
    """Mean popularity of the recommended items, each counted as often as it was recommended.

    Args:
        exposure: [N] from `exposure`.
        popularity: [N] events of each item.
    """
    return float(np.dot(exposure.astype(np.float64), popularity) / max(int(exposure.sum()), 1))


def _ratio(numerator: NDArray[Any], denominator: NDArray[Any]) -> Floats:
    result = np.full(len(denominator), np.nan)
    np.divide(numerator, denominator, out=result, where=denominator > 0)
    return result


class Measured(NamedTuple):
    """One validation: the metric, and the criterion that chooses the epoch, higher is better."""

    metric: float
    criterion: float
