"""Measures index recall on real queries: at intervals the latest one is repeated as an exact search.

Feeds two counters: items of the exact answers, and how many of them the index found. A sample is one query and of
its list at most as many as the index was tuned for, so it costs almost nothing; an hour of samples gives the ratio to
about a percent.
"""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from serving.search.exact import ExactIndex
from serving.search.index import Floats, Index, Rows
from serving.search.scann_parameters import TUNED_K
from serving.telemetry.metric_buffers import measures

# A block of the exact scan takes a few milliseconds; the pauses leave the CPU to requests.
BLOCK_ITEMS = 32_768
NOTHING = np.empty(0, np.int64)
PAUSE_S = 0.01


class SampledQuery(NamedTuple):
    """One query that the index answered.

    Attributes:
        query: [1, D].
        scores: [k] its best scores, best first, k at most that of the tuning; -inf where it found fewer.
        excluded: rows excluded from the search.
    """

    query: Floats
    scores: Floats
    excluded: Rows = NOTHING


class SampledIndex:
    """Wraps an index and keeps its latest query; delegates everything else.

    Args:
        index: an approximate index.
        most: the k of the recall that it was tuned for.
    """

    def __init__(self, index: Index, most: int = TUNED_K) -> None:
        self.index, self._most = index, most
        self._last: SampledQuery | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.index, name)

    def search(self, queries: Floats, k: int, excluded: Sequence[Rows] | None = None) -> tuple[Rows, Floats]:
        """See `Index.search`."""
        rows, scores = self.index.search(queries, k, excluded)
        # Not where it gave up and found nothing: another search answers that.
        if len(queries) and measures() and (scores[0, :1] > -np.inf).any():
            # Copies, as one row must not keep the arrays of a batch alive. Only the first of a long list: a filtered
            # search fetches thousands, which would outweigh hundreds of other queries.
            left_out = NOTHING if excluded is None else excluded[0].copy()
            self._last = SampledQuery(queries[:1].copy(), scores[0, : self._most].copy(), left_out)
        return rows, scores

    def take(self) -> SampledQuery | None:
        """Returns the latest query since the previous call, or None."""
        last, self._last = self._last, None
        return last


def unsampled(index: Index) -> Index:
    """The wrapped index, for internal searches that must not be sampled."""
    return index.index if isinstance(index, SampledIndex) else index


def found(sample: SampledQuery, exact: ExactIndex, *, pause_s: float = PAUSE_S) -> tuple[int, int]:
    """Compares an index answer with exact search.

    Args:
        sample: the index answer.
        exact: exact search over the same vectors.
        pause_s: pause between two blocks of the scan.

    Returns:
        How many items the exact answer has, at most k, and how many of them the index found. Any of the items tied at
        the end of the exact answer counts as found.
    """
    k = len(sample.scores)
    best = np.full(k, -np.inf, np.float32)
    for first in range(0, len(exact.item_vectors), BLOCK_ITEMS):
        if first:
            time.sleep(pause_s)
        block = ExactIndex(exact.item_vectors[first : first + BLOCK_ITEMS], longest=exact.longest)
        _, scores = block.search(sample.query, k, [_within(sample.excluded, first)])
        best = np.sort(np.concatenate([best, scores[0]]))[::-1][:k]
    wanted = int(np.count_nonzero(best > -np.inf))
    return wanted, int(np.count_nonzero(sample.scores >= best[wanted - 1])) if wanted else 0


def _within(rows: Rows, first: int) -> Rows:
    """The rows that lie in the block starting at `first`, as offsets into it."""
    return rows[(rows >= first) & (rows < first + BLOCK_ITEMS)] - first
