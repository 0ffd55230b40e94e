"""Recall of the index on real queries: now and then the last one that it answered is searched again, exactly.

In: an index that answers. Out: how many of the exact best items it had found, for two counters. One query a sample, and
of its list what the index was tuned for, so that it costs next to nothing; over an hour of samples the share is known
to about a percent.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from serving.index import ExactIndex, Floats, Index, Rows
from serving.scann_index import TUNED_K

# A block of the exact scan takes a few milliseconds; the pauses leave the processor to those who wait for answers.
BLOCK_ITEMS = 32_768
NOTHING = np.empty(0, np.int64)
PAUSE_S = 0.01


@dataclass(frozen=True)
class Sample:
    """One query that the index answered.

    Attributes:
        query: [1, D].
        scores: [k] the first of what it found, best first, at most `TUNED_K`; -inf where it found fewer.
        excluded: rows that it was to leave out.
    """

    query: Floats
    scores: Floats
    excluded: Rows = field(default_factory=lambda: NOTHING)


class Watched:
    """An index that keeps the last query which it answered; in all else the index itself.

    Args:
        index: an approximate one.
    """

    def __init__(self, index: Index) -> None:
        self.index = index
        self._last: Sample | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.index, name)

    def search(self, queries: Floats, k: int, excluded: Sequence[Rows] | None = None) -> tuple[Rows, Floats]:
        """See `Index.search`."""
        rows, scores = self.index.search(queries, k, excluded)
        if len(queries):
            # Copies: the arrays of a batch must not live on for one line each. And of a long list only the first: for a
            # filter the index is asked for thousands, which would count for more than hundreds of other queries.
            left_out = NOTHING if excluded is None else excluded[0].copy()
            self._last = Sample(queries[:1].copy(), scores[0, :TUNED_K].copy(), left_out)
        return rows, scores

    def take(self) -> Sample | None:
        """The last query since this was last asked, or None."""
        last, self._last = self._last, None
        return last


def unwatched(index: Index) -> Index:
    """The index itself, for searches that no caller asked for: they are no queries to be sampled."""
    return index.index if isinstance(index, Watched) else index


def found(sample: Sample, exact: ExactIndex, *, pause_s: float = PAUSE_S) -> tuple[int, int]:
    """Compares an answer of the index with the exact one.

    Args:
        sample: what the index answered.
        exact: search over the same vectors.
        pause_s: between two blocks of the scan.

    Returns:
        How many items the exact answer has, at most k, and how many of those the index found. Where items tie at the
        end of the exact answer, each of them is as good.
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
    """Those of the rows that a block from `first` on holds, by their place in it."""
    return rows[(rows >= first) & (rows < first + BLOCK_ITEMS)] - first
