"""Search among the eligible items: exactly k of them if k are eligible, whatever the index returns."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from serving.search.exact import ExactIndex
from serving.search.index import Floats, Index, Mask, Rows, is_in
from serving.telemetry import metrics

# With a filter, up to this many excluded items are fetched on top of k and dropped; beyond, a masked exact scan is
# cheaper.
OVERFETCH_LIMIT = 2_048
# With a filter, the index is asked for this many times the number of extra items that it loses on average.
MARGIN = 3.0
# This share of the items expected to pass beyond k must have passed. If a query scores the items that pass lower than
# others, the k come from the end of the list, where an approximate index has gaps: among a million items, of which
# every tenth cluster passed, asking the index for more until k passed found 0.92 of the right ones.
RESERVE = 0.65
# A smaller k is searched like this one: with few items, how many pass varies too much to detect such a filter.
SMALLEST_K = 100
# Gathering and scanning this many eligible vectors takes as long as fetching one more item from the index.
ROWS_PER_FETCHED = 4
# If a larger share of all items is eligible, gathering and scanning them takes longer than scanning all, in order,
# behind a mask. A gathered block serves all queries: for 100 of them the share is ten times as large.
GATHERED_SHARE = 0.08
# Queries times items fetched at a time: a few arrays of this many numbers.
BLOCK_FETCHED = 4_194_304


def search_filtered(
    index: Index,
    exact: ExactIndex,
    queries: Floats,
    k: int,
    excluded: Sequence[Rows] | None,
    eligible: Mask | None = None,
) -> tuple[Rows, Floats]:
    """Finds k items of each query that are eligible and not excluded for it.

    An approximate index is asked for k items plus the number excluded, and for several times what the filter removes on
    average. If so few items pass that this would take longer, or hardly more than k passed, which means that the filter
    correlates with the query, an exact scan of the eligible items answers. What is fetched for a query does not depend
    on the others in its batch.

    Args:
        index: the bundle's index.
        exact: exact search over the same vectors; may be `index` itself.
        queries: [B, D].
        k: how many, at least 1.
        excluded: one array of distinct item rows per query, ascending, or None.
        eligible: [N], False for items that must not be returned; None if all may.

    Returns:
        Rows [B, k] and scores [B, k], best first; row -1 with score -inf where fewer are eligible.
    """
    if index is exact and eligible is None:
        return exact.search(queries, k, excluded)
    excluded = excluded if excluded is not None else [np.empty(0, np.int64)] * len(queries)
    if eligible is None:
        return _search_all(index, exact, queries, k, excluded)
    excluded = [rows[eligible[rows]] for rows in excluded]
    items = len(exact.item_vectors)
    passing = int(np.count_nonzero(eligible))
    lengths = np.array([len(rows) for rows in excluded], np.int64)
    rows = np.full((len(queries), k), -1, np.int64)
    scores = np.full((len(queries), k), -np.inf, np.float32)
    missing = lengths < passing
    # Rounded up to powers of two, so that what a query fetches does not depend on the others in its batch.
    extra = np.where(lengths > 0, 2 ** np.ceil(np.log2(np.maximum(lengths, 1))), 0).astype(np.int64)
    least = max(k, SMALLEST_K)
    enough = math.floor(least * (1 + RESERVE * (MARGIN - 1) * (1 - passing / items)))
    asking = missing & (lengths <= OVERFETCH_LIMIT) & (index is not exact)
    for its_extra in np.unique(extra[asking]).tolist():
        fetched = to_fetch(items, passing, k, its_extra)
        if fetched is None:
            continue
        alike = np.flatnonzero(asking & (extra == its_extra)).tolist()
        for query, its_rows, its_scores in _search(index, queries, alike, fetched):
            metrics.fetched([fetched - k])
            keep = _kept(its_rows, eligible, excluded[query])
            left = passing - len(excluded[query])
            if np.count_nonzero(keep) >= min(enough, left):
                count = min(k, left)
                rows[query, :count], scores[query, :count] = its_rows[keep][:count], its_scores[keep][:count]
                missing[query] = False
    short = np.flatnonzero(missing)
    if len(short):
        if index is not exact:
            metrics.fell_back("exact", len(short))
        left_out = [excluded[query] for query in short.tolist()]
        if passing > GATHERED_SHARE * items * len(short) ** 0.5:
            rows[short], scores[short] = exact.search(queries[short], k, left_out, eligible)
        else:
            rows[short], scores[short] = exact.search_among(queries[short], np.flatnonzero(eligible), k, left_out)
    return rows, scores


def _search_all(
    index: Index, exact: ExactIndex, queries: Floats, k: int, excluded: Sequence[Rows]
) -> tuple[Rows, Floats]:
    """`search_filtered` without a filter, with an approximate index."""
    rows, scores = index.search(queries, k, excluded)
    lengths = [len(rows) for rows in excluded]
    short = [
        query
        for query in np.flatnonzero(rows[:, -1] < 0).tolist()
        if np.count_nonzero(rows[query] >= 0) < min(k, len(exact.item_vectors) - lengths[query])
    ]
    metrics.fetched(lengths)
    if short:
        metrics.fell_back("exact", len(short))
        rows[short], scores[short] = exact.search(queries[short], k, [excluded[query] for query in short])
    return rows, scores


def to_fetch(items: int, passing: int, k: int, excluded: int) -> int | None:
    """How many items to ask the index for behind a filter; None where a scan of those that pass is cheaper.

    Args:
        items: how many there are.
        passing: how many of them pass.
        k: how many are wanted.
        excluded: how many are excluded for the query; rounded up to a power of two.
    """
    if not passing:
        return None
    wanted = max(k, SMALLEST_K) + (1 << (excluded - 1).bit_length() if excluded else 0)
    lost = math.ceil(wanted * MARGIN * (items / passing - 1))
    # The few items that do not pass, such as deleted ones, may all be among the first: allow for up to k of them.
    fetched = min(items, wanted + max(lost, min(wanted, items - passing)))
    return None if min(passing, GATHERED_SHARE * items) <= ROWS_PER_FETCHED * fetched else fetched


def _search(index: Index, queries: Floats, some: Sequence[int], fetched: int) -> Iterator[tuple[int, Rows, Floats]]:
    """Yields some queries, by number, with what the index finds for each; searches a bounded number at a time."""
    step = max(1, BLOCK_FETCHED // fetched)
    for start in range(0, len(some), step):
        part = some[start : start + step]
        yield from zip(part, *index.search(queries[part], fetched), strict=True)


def _kept(rows: Rows, eligible: Mask, excluded: Rows) -> Mask:
    keep = (rows >= 0) & eligible[rows]
    return keep & ~is_in(rows, excluded) if len(excluded) else keep


def distinct(rows: Rows) -> Rows:
    """Distinct rows, ascending: `np.unique`, but several times faster for a few that are distinct already."""
    rising = np.sort(rows)
    return rising if np.count_nonzero(rising[1:] > rising[:-1]) == len(rising) - 1 else np.unique(rising)
