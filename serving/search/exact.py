"""Exact top-k search by dot product: masked, in blocks, by NumPy.

Serving, filters, baselines and reports all use it. Its scores are those of `serving.search.index.rescore`, as of every
index: the same pair of vectors has the same score on every path.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from serving.search.index import (
    Floats,
    Rows,
    RowSet,
    best_first,
    checked_queries,
    is_in,
    queries_at_a_time,
    rescore,
    unit_queries,
    vector_lengths,
)
from serving.search.vector_codes import Vectors, products

# Blocks of 16 M scores are 64 MB: large enough for BLAS, small beside any catalogue worth blocking.
BLOCK_QUERIES = 256
BLOCK_ITEMS = 65_536
# Numbers merged at a time in catalogues full of equal vectors: 64 MB as float32.
BLOCK_NUMBERS = 16_777_216


class ExactIndex:
    """Brute force over all item vectors; memory is bounded by blocks, not by the catalogue.

    A float32 matrix product finds every item that can be among the best, with a margin for its rounding error;
    `rescore` scores those few. So the answer does not depend on batch size, threads or block borders.

    Args:
        item_vectors: [N, D], may be memory-mapped.
        longest: an upper bound of the vectors' lengths, if known; None measures them.
    """

    def __init__(self, item_vectors: Vectors, *, longest: float | None = None) -> None:
        self.item_vectors = item_vectors
        starts = range(0, len(item_vectors), BLOCK_ITEMS)
        blocks = (item_vectors[start : start + BLOCK_ITEMS] for start in starts)
        measured = (float(vector_lengths(block).max()) for block in blocks)
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
            eligible: [N], False for items that must not be returned for any query.

        Raises:
            ValueError: as `Index.search`, or `excluded` does not hold one array per query.
        """
        queries = checked_queries(queries, self.item_vectors.shape[1], k)
        if excluded is not None and len(excluded) != len(queries):
            raise ValueError(f"excluded must hold one array per query: {len(queries)} queries, {len(excluded)} arrays")
        rows = np.full((len(queries), k), -1, np.int64)
        scores = np.full((len(queries), k), -np.inf, np.float32)
        for start in range(0, len(queries), BLOCK_QUERIES):
            part = slice(start, start + BLOCK_QUERIES)
            masked = _flat(excluded[part]) if excluded is not None else None
            for first in range(0, len(self.item_vectors), BLOCK_ITEMS):
                hidden = None if eligible is None else ~eligible[first : first + BLOCK_ITEMS]
                self._search_block(queries[part], first, masked, hidden, rows[part], scores[part])
        return rows, scores

    def search_among(
        self, queries: Floats, rows: Rows, k: int, excluded: Sequence[Rows] | None = None
    ) -> tuple[Rows, Floats]:
        """`search` among given rows, in any order, repeats allowed; gathers their vectors, a block at a time."""
        rows = np.unique(rows)
        if len(rows) == len(self.item_vectors):
            return self.search(queries, k, excluded)
        found = np.full((len(queries), k), -1, np.int64)
        scores = np.full((len(queries), k), -np.inf, np.float32)
        for start in range(0, len(rows), BLOCK_ITEMS):
            some = rows[start : start + BLOCK_ITEMS]
            left_out = None if excluded is None else [some.searchsorted(each[is_in(each, some)]) for each in excluded]
            block = ExactIndex(self.item_vectors[some], longest=self.longest)
            places, its_scores = block.search(queries, k, left_out)
            its_rows = np.where(places >= 0, some[places], -1)
            if len(rows) <= BLOCK_ITEMS:
                return its_rows, its_scores
            found, scores = best_first(
                np.concatenate([found, its_rows], axis=1), np.concatenate([scores, its_scores], axis=1), k
            )
        return found, scores

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
        last = min(first + BLOCK_ITEMS, len(self.item_vectors))
        # Of unit length, so that no product overflows; the order of a query's items does not change.
        unit, lengths = unit_queries(queries)
        rough = products(unit, self.item_vectors, first, last)
        if masked is not None:
            query, row = masked
            here = (row >= first) & (row < last)
            rough[query[here], row[here] - first] = -np.inf
        if hidden is not None:
            np.copyto(rough, -np.inf, where=hidden)
        # |float32 dot - exact| <= D u |q| |x| with u = 2^-24 and |q| = 1, on both sides of the comparison; scaling,
        # `rescore` and this line round a few times more.
        margin = 2 * (queries.shape[1] + 8) * 2.0**-24 * self.longest
        bound = np.maximum(_kth_bound(rough, rows.shape[1]), scores[:, -1] / lengths) - margin
        hit = (rough >= bound.astype(np.float32)[:, None]) & (rough > -np.inf)
        # Flat, because that is several times faster than the two-dimensional search for True.
        query, column = np.divmod(np.flatnonzero(hit), last - first)
        counts = np.bincount(query, minlength=len(queries))
        ends = np.concatenate([[0], np.cumsum(counts)])
        # In catalogues full of equal vectors thousands tie: take fewer queries at a time then.
        step = queries_at_a_time(int(counts.max()), queries.shape[1], BLOCK_NUMBERS)
        for start in range(0, len(queries), step):
            part = slice(start, start + step)
            hits = column[ends[start] : ends[min(start + step, len(queries))]] + first
            _merge(queries[part], self.item_vectors, _padded(hits, counts[part]), rows[part], scores[part])


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
    """The hits of each line, ascending within it, padded at the end with -1: [b, C]."""
    found = np.full((len(counts), int(counts.max())), -1, np.int64)
    found[np.arange(found.shape[1]) < counts[:, None]] = hits
    return found


def _merge(queries: Floats, item_vectors: Vectors, found: Rows, rows: Rows, scores: Floats) -> None:
    both_rows = np.concatenate([rows, found], axis=1)
    both_scores = np.concatenate([scores, rescore(item_vectors, queries, found)], axis=1)
    # Ties are already in row order: the best so far come from lower rows, and `found` is ascending.
    order = np.argsort(-both_scores, axis=1, kind="stable")[:, : rows.shape[1]]
    rows[:] = np.take_along_axis(both_rows, order, axis=1)
    scores[:] = np.take_along_axis(both_scores, order, axis=1)


def _flat(excluded: Sequence[RowSet]) -> tuple[Rows, Rows]:
    """Query numbers and item rows of all excluded pairs, flat."""
    lengths = [len(rows) for rows in excluded]
    query = np.repeat(np.arange(len(excluded)), lengths)
    row = np.concatenate([np.empty(0, np.int64), *excluded]).astype(np.int64)
    return query, row
