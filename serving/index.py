"""Top-k search by dot product: the `Index` protocol, and the one exact implementation (masked, in blocks, NumPy).

In: query vectors [B, D]. Out: item rows [B, k] and scores [B, k], best first. Serving, filters, baselines and reports
all use this file, and `rescore` defines what a score is: the same pair of vectors has the same score on every path.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Rows = NDArray[np.int64]
RowSet = NDArray[np.int32] | NDArray[np.int64]

# Blocks of 16 M scores are 64 MB: large enough for BLAS, small beside any catalogue worth blocking.
BLOCK_QUERIES = 256
BLOCK_ITEMS = 65_536
# Scores of catalogues full of equal vectors are merged so many numbers at a time: 64 MB as float32.
BLOCK_NUMBERS = 16_777_216
# Rescoring gathers vectors, so many numbers at a time: 0.5 MB as float32 and 1 MB as float64 stay in a core's cache.
RESCORED_NUMBERS = 131_072
_GREATEST = float(np.finfo(np.float32).max)


class Index(Protocol):
    """What searches item vectors."""

    def search(self, queries: Floats, k: int, excluded: Sequence[Rows] | None = None) -> tuple[Rows, Floats]:
        """Finds the k best items of each query that are not excluded for it.

        Args:
            queries: [B, D].
            k: how many, at least 1.
            excluded: one array of item rows per query, rising, or None.

        Returns:
            Rows [B, k] and scores [B, k], best first, equal scores by lower row; row -1 with score -inf where the
            index found fewer than k.

        Raises:
            ValueError: the queries are not [B, D], not finite, or k is below 1.
        """
        ...


class ExactIndex:
    """Brute force over all item vectors; memory is bounded by blocks, not by the catalogue.

    A float32 matrix product finds every item that can be among the best, with a margin for its rounding error; those
    few are scored by `rescore`. So the answer does not depend on batch size, threads or block borders.

    Args:
        item_vectors: [N, D], may be memory-mapped.
        block_queries: queries scored at a time.
        block_items: items scored at a time.
        longest: an upper bound of the vectors' lengths where one is known; None measures them.
    """

    def __init__(
        self,
        item_vectors: Floats,
        *,
        block_queries: int = BLOCK_QUERIES,
        block_items: int = BLOCK_ITEMS,
        longest: float | None = None,
    ) -> None:
        self.item_vectors = item_vectors
        self.block_queries, self.block_items = block_queries, block_items
        starts = range(0, len(item_vectors), block_items)
        blocks = (item_vectors[start : start + block_items] for start in starts)
        measured = (float(_lengths(block).max()) for block in blocks)
        self.longest = max(measured, default=0.0) if longest is None else longest

    def search(
        self,
        queries: Floats,
        k: int,
        excluded: Sequence[RowSet] | None = None,
        eligible: NDArray[np.bool_] | None = None,
    ) -> tuple[Rows, Floats]:
        """Finds the k best items of each query that are eligible and not excluded for it; see `Index.search`.

        Args:
            queries: [B, D].
            k: how many, at least 1.
            excluded: one array of item rows per query, in any order, repeats allowed.
            eligible: [N], False for items that must not come back for any query.

        Raises:
            ValueError: as `Index.search`, or `excluded` has another length than the queries.
        """
        queries = checked_queries(queries, self.item_vectors.shape[1], k)
        if excluded is not None and len(excluded) != len(queries):
            raise ValueError(f"excluded must hold one array per query: {len(queries)} queries, {len(excluded)} arrays")
        rows = np.full((len(queries), k), -1, np.int64)
        scores = np.full((len(queries), k), -np.inf, np.float32)
        for start in range(0, len(queries), self.block_queries):
            part = slice(start, start + self.block_queries)
            masked = _flat(excluded[part]) if excluded is not None else None
            for first in range(0, len(self.item_vectors), self.block_items):
                hidden = None if eligible is None else ~eligible[first : first + self.block_items]
                self._search_block(queries[part], first, masked, hidden, rows[part], scores[part])
        return rows, scores

    def _search_block(
        self,
        queries: Floats,
        first: int,
        masked: tuple[Rows, Rows] | None,
        hidden: NDArray[np.bool_] | None,
        rows: Rows,
        scores: Floats,
    ) -> None:
        """Merges the items from row `first` on into the best so far, in place."""
        block = self.item_vectors[first : first + self.block_items]
        # Of unit length, so that no product overflows; the order of a query's items is the same.
        unit, lengths = unit_queries(queries)
        rough = unit @ block.T
        if masked is not None:
            query, row = masked
            here = (row >= first) & (row < first + len(block))
            rough[query[here], row[here] - first] = -np.inf
        if hidden is not None:
            np.copyto(rough, -np.inf, where=hidden)
        # |float32 dot - exact| <= D u |q| |x| with u = 2^-24 and |q| = 1, on both sides of the comparison; scaling,
        # `rescore` and this line round a few times more.
        margin = 2 * (queries.shape[1] + 8) * 2.0**-24 * self.longest
        bound = np.maximum(_kth_bound(rough, rows.shape[1]), scores[:, -1] / lengths) - margin
        hit = (rough >= bound.astype(np.float32)[:, None]) & (rough > -np.inf)
        # Flat, because that is several times faster than the two-dimensional search for True.
        query, column = np.divmod(np.flatnonzero(hit), len(block))
        counts = np.bincount(query, minlength=len(queries))
        ends = np.concatenate([[0], np.cumsum(counts)])
        # Catalogues full of equal vectors tie by the thousand: take fewer queries at a time then.
        step = _queries_at_a_time(int(counts.max()), queries.shape[1], BLOCK_NUMBERS)
        for start in range(0, len(queries), step):
            part = slice(start, start + step)
            hits = column[ends[start] : ends[min(start + step, len(queries))]] + first
            _merge(queries[part], self.item_vectors, _padded(hits, counts[part]), rows[part], scores[part])


def rescore(item_vectors: Floats, queries: Floats, rows: Rows) -> Floats:
    """The scores of given pairs: dot products summed in float64, rounded once to the nearest finite float32.

    Args:
        item_vectors: [N, D], may be memory-mapped.
        queries: [B, D].
        rows: [B, C]; a negative row is nothing.

    Returns:
        [B, C]; -inf for nothing.
    """
    scores = np.empty(rows.shape, np.float32)
    step = _queries_at_a_time(rows.shape[1], queries.shape[1], RESCORED_NUMBERS)
    doubles = queries[:, np.newaxis].astype(np.float64)
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        _exact(item_vectors, doubles[part], rows[part], scores[part])
    scores[rows < 0] = -np.inf
    return scores


def best_of_one(item_vectors: Floats, query: NDArray[np.float64], rows: Rows, k: int) -> tuple[Rows, Floats]:
    """`rescore` and `best_first` of one query, twice as fast: [D] and rows [C], none negative, to [k] and [k]."""
    scores = np.empty(len(rows), np.float32)
    _exact(item_vectors, query, rows, scores)
    order = np.argsort(-scores)[: k + 1]
    falling = scores[order]
    if (falling[1:] == falling[:-1]).any():
        order = np.lexsort((rows, -scores))
    order = order[:k]
    if len(order) == k:
        return rows[order], scores[order]
    best, best_scores = np.full(k, -1, np.int64), np.full(k, -np.inf, np.float32)
    best[: len(order)], best_scores[: len(order)] = rows[order], scores[order]
    return best, best_scores


def _exact(item_vectors: Floats, queries: NDArray[np.float64], rows: Rows, scores: Floats) -> None:
    """Scores of pairs, in place: rows [..., C] of queries [..., 1, D], or [C] of [D]."""
    # `take` that clips: several times faster than an index in brackets, and a negative row becomes row 0.
    vectors = item_vectors.take(rows, axis=0, mode="clip").astype(np.float64)
    # vecdot, not a matrix product: it sums each pair in the same order wherever the pair stands in the batch.
    products = np.vecdot(vectors, queries)
    np.maximum(products, -_GREATEST, out=products)
    np.minimum(products, _GREATEST, out=scores, casting="same_kind")


def best_first(rows: Rows, scores: Floats, k: int) -> tuple[Rows, Floats]:
    """The k best columns of each line: [B, C] to [B, k]; ties by lower row, filled up with row -1, score -inf."""
    if rows.shape[1] < k:
        missing = ((0, 0), (0, k - rows.shape[1]))
        rows, scores = np.pad(rows, missing, constant_values=-1), np.pad(scores, missing, constant_values=-np.inf)
    # One sort of int64 is many times faster than a lexsort: the high half is the falling score as an integer of the
    # same order (flip the magnitude of negative floats; + 0.0 makes -0.0 and 0.0 equal), the low half is the row.
    high = (-scores + np.float32(0)).view(np.int32)
    high ^= (high >> 31) & 0x7FFFFFFF
    keys = np.sort((high.astype(np.int64) << 32) | (rows & 0xFFFFFFFF), axis=1)[:, :k]
    high = (keys >> 32).astype(np.int32)
    high ^= (high >> 31) & 0x7FFFFFFF
    # The low half read as int32 gives -1 back where there is nothing.
    return keys.astype(np.int32).astype(np.int64), np.float32(0) - high.view(np.float32)


def is_in(rows: Rows, rising: Rows) -> NDArray[np.bool_]:
    """Which of `rows` stand in `rising`, which is sorted; several times faster than `np.isin`, which sorts both."""
    if not len(rising):
        return np.zeros(len(rows), np.bool_)
    found: NDArray[np.bool_] = rising.take(rising.searchsorted(rows), mode="clip") == rows
    return found


def unit_queries(queries: Floats) -> tuple[Floats, NDArray[np.float64]]:
    """Queries [B, D] scaled to length 1, and their lengths [B]; zero vectors stay, with length 1."""
    lengths = _lengths(queries)
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


def _lengths(vectors: Floats) -> NDArray[np.float64]:
    doubles = vectors.astype(np.float64)
    # No number overflows: the square of the greatest float32 is far from the greatest float64.
    lengths: NDArray[np.float64] = np.sqrt(np.einsum("bd,bd->b", doubles, doubles))
    return lengths


def _queries_at_a_time(candidates: int, dimension: int, numbers: int) -> int:
    return max(1, numbers // max(1, candidates * dimension))


def _kth_bound(rough: Floats, k: int) -> Floats:
    """A lower bound of each line's k-th largest value, close to it, and far cheaper than a partition of the line.

    The columns fall into groups; the k-th largest of the groups' maxima is reached by at least k columns.
    """
    columns = rough.shape[1]
    groups = min(columns, max(512, 8 * k))
    if k > groups:
        return np.full(len(rough), -np.inf, np.float32)
    whole = columns // groups * groups
    maxima = rough[:, :whole].reshape(len(rough), -1, groups).max(axis=1)
    return np.partition(maxima, groups - k, axis=1)[:, groups - k]


def _padded(hits: Rows, counts: NDArray[np.int64]) -> Rows:
    """The hits of each line, rising within it, padded at the end with -1: [b, C]."""
    found = np.full((len(counts), int(counts.max())), -1, np.int64)
    found[np.arange(found.shape[1]) < counts[:, None]] = hits
    return found


def _merge(queries: Floats, item_vectors: Floats, found: Rows, rows: Rows, scores: Floats) -> None:
    both_rows = np.concatenate([rows, found], axis=1)
    both_scores = np.concatenate([scores, rescore(item_vectors, queries, found)], axis=1)
    # Columns already rise by row where scores tie: the best so far come from lower rows, and `found` rises.
    order = np.argsort(-both_scores, axis=1, kind="stable")[:, : rows.shape[1]]
    rows[:] = np.take_along_axis(both_rows, order, axis=1)
    scores[:] = np.take_along_axis(both_scores, order, axis=1)


def _flat(excluded: Sequence[RowSet]) -> tuple[Rows, Rows]:
    """Query numbers and item rows of all excluded pairs, flat."""
    lengths = [len(rows) for rows in excluded]
    query = np.repeat(np.arange(len(excluded)), lengths)
    row = np.concatenate([np.empty(0, np.int64), *excluded]).astype(np.int64)
    return query, row
