"""What every index offers, and the exact scores that all of them end with."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from serving.search.vector_codes import Floats as Floats
from serving.search.vector_codes import Vectors

Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]
RowSet = NDArray[np.int32] | NDArray[np.int64]
# Numbers of the vectors rescored at a time: 0.5 MB as float32 and 1 MB as float64 stay in a core's cache.
RESCORED_NUMBERS = 131_072
_GREATEST = float(np.finfo(np.float32).max)


class Index(Protocol):
    """Searches item vectors."""

    def search(self, queries: Floats, k: int, excluded: Sequence[Rows] | None = None) -> tuple[Rows, Floats]:
        """Finds the k best items of each query that are not excluded for it.

        Args:
            queries: [B, D].
            k: how many, at least 1.
            excluded: one array of item rows per query, ascending, or None.

        Returns:
            Rows [B, k] and scores [B, k], best first, ties by lower row; row -1 with score -inf where the
            index found fewer than k.

        Raises:
            ValueError: the queries are not [B, D], not finite, or k is below 1.
        """
        ...


def rescore(item_vectors: Vectors, queries: Floats, rows: Rows) -> Floats:
    """The scores of given pairs: dot products summed in float64, rounded once to the nearest finite float32.

    Args:
        item_vectors: [N, D], may be memory-mapped.
        queries: [B, D].
        rows: [B, C]; a negative row is padding.

    Returns:
        [B, C]; -inf for padding.
    """
    scores = np.empty(rows.shape, np.float32)
    step = queries_at_a_time(rows.shape[1], queries.shape[1], RESCORED_NUMBERS)
    doubles = queries[:, np.newaxis].astype(np.float64)
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        _round(_products(item_vectors, doubles[part], rows[part]), scores[part])
    scores[rows < 0] = -np.inf
    return scores


def best_of_one(item_vectors: Vectors, query: NDArray[np.float64], rows: Rows, k: int) -> tuple[Rows, Floats]:
    """`rescore` and `best_first` for one query, nearly twice as fast: [D] and rows [C], none negative, to [k], [k]."""
    # Each line is the quickest of several that mean the same: for so few numbers NumPy's calls take most of the time.
    products = _products(item_vectors, query, rows)
    order = products.argsort()[: -k - 2 : -1]
    falling = products.take(order)
    if len(order) >= k and falling[0] <= _GREATEST and falling[-1] >= -_GREATEST:
        scores = falling.astype(np.float32)
        if not np.count_nonzero(scores[1:] == scores[:-1]):
            return rows.take(order[:k]), scores[:k]
    every = np.empty(len(rows), np.float32)
    _round(products, every)
    best, best_scores = best_first(rows[np.newaxis], every[np.newaxis], k)
    return best[0], best_scores[0]


def _products(item_vectors: Vectors, queries: NDArray[np.float64], rows: Rows) -> NDArray[np.float64]:
    """The dot products of rows [B, C] with queries [B, 1, D], or of [C] with [D]."""
    # `take` with clipping is several times faster than indexing, and turns a negative row into row 0.
    vectors = item_vectors.take(rows, axis=0, mode="clip").astype(np.float64)
    # vecdot, not a matrix product: it sums each pair in the same order wherever the pair is in the batch.
    products: NDArray[np.float64] = np.vecdot(vectors, queries)
    return products


def _round(products: NDArray[np.float64], scores: Floats) -> None:
    """Rounds to the nearest finite float32, into `scores`; overwrites `products`."""
    np.maximum(products, -_GREATEST, out=products)
    np.minimum(products, _GREATEST, out=scores, casting="same_kind")


def best_first(rows: Rows, scores: Floats, k: int) -> tuple[Rows, Floats]:
    """The k best columns of each line: [B, C] to [B, k]; ties by lower row, padded with row -1, score -inf."""
    if rows.shape[1] < k:
        missing = len(rows), k - rows.shape[1]
        rows = np.concatenate([rows, np.full(missing, -1, np.int64)], axis=1)
        scores = np.concatenate([scores, np.full(missing, -np.inf, np.float32)], axis=1)
    # One sort of int64 is many times faster than a lexsort: the high half is the negated score as an integer of the
    # same order (flip the magnitude of negative floats; + 0.0 makes -0.0 and 0.0 equal), the low half is the row.
    high = (-scores + np.float32(0)).view(np.int32)
    high ^= (high >> 31) & 0x7FFFFFFF
    keys = np.sort((high.astype(np.int64) << 32) | (rows & 0xFFFFFFFF), axis=1)[:, :k]
    high = (keys >> 32).astype(np.int32)
    high ^= (high >> 31) & 0x7FFFFFFF
    # Read as int32, the low half of padding is -1 again.
    return keys.astype(np.int32).astype(np.int64), np.float32(0) - high.view(np.float32)


def is_in(rows: Rows, rising: Rows) -> NDArray[np.bool_]:
    """Which of `rows` occur in `rising`, which is sorted; several times faster than `np.isin`, which sorts both."""
    if not len(rising):
        return np.zeros(len(rows), np.bool_)
    found: NDArray[np.bool_] = rising.take(rising.searchsorted(rows), mode="clip") == rows
    return found


def unit_queries(queries: Floats) -> tuple[Floats, NDArray[np.float64]]:
    """Queries [B, D] scaled to length 1, and their lengths [B]; zero vectors stay, with length 1."""
    lengths = vector_lengths(queries)
    lengths[lengths == 0] = 1
    return (queries / lengths[:, None]).astype(np.float32), lengths


def checked_queries(queries: Floats, dimension: int, k: int) -> Floats:
    """The queries as contiguous float32 [B, D]; C++ code behind an index must never see a wrong width or a NaN.

    Raises:
        ValueError: they are not [B, D], not finite, or k is below 1.
    """
    if queries.ndim != 2 or queries.shape[1] != dimension:
        raise ValueError(f'"queries" must be [B, {dimension}], got {queries.shape}')
    if k < 1:
        raise ValueError(f'"k" must be at least 1, got {k}')
    if not np.isfinite(queries).all():
        raise ValueError('"queries" must be finite, got NaN or infinity')
    return np.ascontiguousarray(queries, np.float32)


def vector_lengths(vectors: Floats) -> NDArray[np.float64]:
    """The lengths [B] of vectors [B, D]."""
    doubles = vectors.astype(np.float64)
    # Nothing overflows: the square of the greatest float32 is far below the greatest float64.
    lengths: NDArray[np.float64] = np.sqrt(np.einsum("bd,bd->b", doubles, doubles))
    return lengths


def queries_at_a_time(candidates: int, dimension: int, numbers: int) -> int:
    """How many queries may gather this many candidates each before they hold more than `numbers` numbers."""
    return max(1, numbers // max(1, candidates * dimension))
