"""An upper bound on the hits of users, at a fraction of the cost of a ranking.

Of the whole catalogue some candidates and a user's targets are ranked. A target stands no lower there than among all
items, so that a metric of these hits is no smaller than the true one. Where even that is no better than what is known,
or 0, nothing needs to be ranked.
"""

import numpy as np

from towers.data.events import Floats, Int32s, Int64s
from towers.evaluation.metrics import Hits

ROWS, TARGETS = 512, 65_536  # of a block: queries, and about the most targets
# By how much of the largest score a target is raised: other products are rounded in another way, by 10 bits on a GPU.
ROUNDING = 1e-3


def upper_bound(candidates: Int32s, queries: Floats, vectors: Floats, targets: Int32s, offsets: Int64s, k: int) -> Hits:
    """Which of the first k positions hold a target if there are no other items than the candidates and the targets.

    Args:
        candidates: [Q, C] rows of `vectors` that a query may get, distinct, in any order; -1 is none; C is at least 1.
        queries: [Q, D].
        vectors: [N, D].
        targets: rows of `vectors`, distinct within a query; -1 for one that is not ranked.
        offsets: [Q + 1]; the targets of query q are ``targets[offsets[q]:offsets[q + 1]]``.
        k: number of positions.

    Returns:
        bool [Q, k].
    """
    hits = np.zeros((len(candidates), k), np.bool_)
    begin = 0
    while begin < len(candidates) and len(vectors):
        end = int(np.searchsorted(offsets, offsets[begin] + TARGETS, side="right")) - 1
        rows = slice(begin, min(max(begin + 1, end), begin + ROWS))
        some, query, ends = candidates[rows], queries[rows], offsets[begin : rows.stop + 1]
        owner, own = np.repeat(np.arange(len(some)), np.diff(ends)), targets[ends[0] : ends[-1]]
        owner, own = owner[own >= 0], own[own >= 0]
        counts = np.bincount(owner, minlength=len(some))
        begins = np.cumsum(counts) - counts
        scores = np.matmul(vectors[some], query[:, :, np.newaxis])[:, :, 0]
        mine = np.einsum("td,td->t", query[owner], vectors[own])
        mine += ROUNDING * np.abs(scores).max(axis=1)[owner]
        scores[some < 0] = -np.inf
        target, place = np.nonzero(some[owner] == own[:, np.newaxis])
        scores[owner[target], place] = -np.inf  # each target once, also if it is a candidate
        order = np.lexsort((-mine, owner))
        rank = np.empty(len(own), np.int64)
        rank[order] = np.arange(len(own)) - begins[owner]  # among the query's targets
        rank += (scores[owner] > mine[:, np.newaxis]).sum(axis=1)
        hits[begin + owner[rank < k], rank[rank < k]] = True
        begin = rows.stop
    return hits
