"""Search without the excluded items that still gives k of them, whatever the index returns.

In: query vectors, k, rows to leave out per query. Out: rows [B, k] and scores [B, k], exactly k where k are eligible.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from serving.bundle import Bundle
from serving.index import ExactIndex, Floats, Index, Rows

# Up to so many excluded items are fetched on top of k and dropped; beyond, one masked exact scan is the better bargain.
OVERFETCH_LIMIT = 2_048


def search_filtered(
    index: Index, exact: ExactIndex, queries: Floats, k: int, excluded: Sequence[Rows] | None
) -> tuple[Rows, Floats]:
    """Finds k items of each query that are not excluded for it.

    An approximate index is asked for k and as many more as are excluded. Where it still comes short, or the excluded
    are too many for that, the exact index answers instead.

    Args:
        index: the bundle's index.
        exact: exact search over the same vectors; may be `index` itself.
        queries: [B, D].
        k: how many, at least 1.
        excluded: one array of distinct item rows per query, or None.

    Returns:
        Rows [B, k] and scores [B, k], best first; row -1 with score -inf where fewer are eligible.
    """
    if index is exact:
        return exact.search(queries, k, excluded)
    excluded = excluded if excluded is not None else [np.empty(0, np.int64)] * len(queries)
    lengths = np.array([len(rows) for rows in excluded], np.int64)
    rows = np.full((len(queries), k), -1, np.int64)
    scores = np.full((len(queries), k), -np.inf, np.float32)
    # Rounded up to powers of two, so that what a query fetches does not depend on the others in its batch.
    extra = np.where(lengths > 0, 2 ** np.ceil(np.log2(np.maximum(lengths, 1))), 0).astype(np.int64)
    for its_extra in sorted(set(extra[lengths <= OVERFETCH_LIMIT].tolist())):
        alike = np.flatnonzero(extra == its_extra)
        found, found_scores = index.search(queries[alike], min(len(exact.item_vectors), k + its_extra))
        for query, its_rows, its_scores in zip(alike.tolist(), found, found_scores, strict=True):
            keep = its_rows >= 0
            if its_extra:
                keep &= ~_is_in(its_rows, excluded[query])
            count = min(k, int(np.count_nonzero(keep)))
            rows[query, :count] = its_rows[keep][:count]
            scores[query, :count] = its_scores[keep][:count]
    eligible = np.minimum(k, len(exact.item_vectors) - lengths)
    short = np.flatnonzero(np.count_nonzero(rows >= 0, axis=1) < eligible)
    if len(short):
        rows[short], scores[short] = exact.search(queries[short], k, [excluded[query] for query in short.tolist()])
    return rows, scores


def _is_in(rows: Rows, some: Rows) -> NDArray[np.bool_]:
    """Which of `rows` stand in the non-empty `some`; several times faster than `np.isin` on so few."""
    some = np.sort(some)
    found: NDArray[np.bool_] = some[np.minimum(np.searchsorted(some, rows), len(some) - 1)] == rows
    return found


def popular(bundle: Bundle, k: int, excluded: Rows) -> tuple[Rows, Floats]:
    """The k most popular items that are not excluded, and their event counts as scores; fewer where fewer are left."""
    first = bundle.popular_rows[: k + len(excluded)]
    rows = first[~np.isin(first, excluded)][:k]
    return rows, bundle.popularity[rows].astype(np.float32)
