"""The hits that users have at most, at a fraction of the cost of a ranking.

Of the whole catalogue some strong items and a user's targets are ranked. A target stands no lower there than among all
items, so that a metric of these hits is no smaller than the true one. Where even that is no better than what is known,
or 0, nothing needs to be ranked.
"""

import numpy as np

from towers.data.events import Floats, Int32s, Int64s
from towers.evaluation import metrics

ROWS = 512  # queries at once
# By how much of a query's highest score a target is raised: matrix products of other shapes are rounded in another way.
ROUNDING = 1e-5


def best_case(
    lists: Int32s, queries: Floats, vectors: Floats, targets: Int32s, offsets: Int64s, k: int
) -> metrics.Hits:
    """Which of the first k positions hold a target if there are no other items than those of the lists and the targets.

    Args:
        lists: [Q, L] rows of `vectors` that a query may get, distinct, in any order; -1 is none; at least one place.
        queries: [Q, D].
        vectors: [N, D].
        targets: rows of `vectors`, distinct within a query; -1 for one that is not ranked.
        offsets: [Q + 1]; the targets of query q are ``targets[offsets[q]:offsets[q + 1]]``.
        k: number of positions.

    Returns:
        bool [Q, k].
    """
    hits = np.zeros((len(lists), k), np.bool_)
    for begin in range(0, len(lists), ROWS):
        listed, query = lists[begin : begin + ROWS], queries[begin : begin + ROWS]
        ends = offsets[begin : begin + ROWS + 1]
        owner, own = np.repeat(np.arange(len(listed)), np.diff(ends)), targets[ends[0] : ends[-1]]
        owner, own = owner[own >= 0], own[own >= 0]
        counts = np.bincount(owner, minlength=len(listed))
        begins = np.cumsum(counts) - counts
        scores = np.matmul(vectors[listed], query[:, :, np.newaxis])[:, :, 0]
        mine = np.einsum("td,td->t", query[owner], vectors[own])
        mine += ROUNDING * np.abs(scores).max(axis=1)[owner]
        scores[listed < 0] = -np.inf
        target, place = np.nonzero(listed[owner] == own[:, np.newaxis])
        scores[owner[target], place] = -np.inf  # each target once, also if it is in the list
        order = np.lexsort((-mine, owner))
        rank = np.empty(len(own), np.int64)
        rank[order] = np.arange(len(own)) - begins[owner]  # among the query's targets
        rank += (scores[owner] > mine[:, np.newaxis]).sum(axis=1)
        hits[begin + owner[rank < k], rank[rank < k]] = True
    return hits
