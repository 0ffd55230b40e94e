"""Finds the cheapest search parameters of a ScaNN index that reach a target recall."""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pipelines.console import progress
from pipelines.errors import DataError
from pipelines.rankers.index_curve import places, recall_against, single_query_s
from serving.search.index import Floats, Rows
from serving.search.scann import ScannIndex
from serving.search.scann_parameters import TUNED_K

PHASE = "tune"
# The steps between settings tried, and the multiple of k candidates beyond which more leaves are tried instead.
LEAVES_STEP, RESCORED_STEP, PLENTY = 1.25, 1.05, 16
# Stop adding leaves once they are this many times slower than the fastest setting found.
SLOWER, TURNS = 1.5, 5
# Queries times candidates per block: 32 MB.
BLOCK_FOUND = 4_194_304

MORE_RESCORED = (1.0, 1.2, 1.5, 2.0)  # multiples of what an index over nearly the same vectors needed


def tune(index: ScannIndex, queries: Floats, truth: Rows, target: float) -> tuple[ScannIndex, float]:
    """Returns the fastest settings tried whose recall, minus two standard errors, reaches the target.

    More leaves need fewer rescored candidates; which of the two costs more depends on the machine. So the search raises
    the leaves, takes the fewest sufficient candidates for each, and times these pairs. Between equally fast settings
    the choice is arbitrary.

    Args:
        index: a built index.
        queries: [B, D].
        truth: the rows found by exact search, [B, k].
        target: recall to reach.

    Returns:
        The index with these settings and its recall.

    Raises:
        DataError: even searching everything does not reach the target.
    """
    k = truth.shape[1]
    reaching: dict[ScannIndex, float] = {}
    built = index.parameters.leaves
    # Ever more leaves, up to all; an index without a tree has no leaves. Most searches end before the last of them.
    ladder = [*_rising(math.ceil(built / 256), built, LEAVES_STEP)] if built else [0]
    with progress(PHASE, total=len(ladder), unit="settings") as advance:
        for leaves in ladder:
            parameters = replace(index.parameters, leaves_searched=leaves)
            wide = index.with_parameters(parameters)
            whole = wide.effort(k)[1] == built
            fewest, recall = _fewest_rescored(wide, queries, truth, target, whole=whole)
            advance(1, note=f"{leaves} leaves: recall@{k} {recall:.4f}")
            if fewest is not None:
                # A search for more than `TUNED_K` rescores as many times more.
                rescored = math.ceil(fewest / max(1.0, k / TUNED_K))
                tried = index.with_parameters(replace(parameters, rescored=rescored))
                reaching[tried] = single_query_s(tried, queries, k)
                # From here on, more leaves cost more than fewer candidates save.
                if fewest == k or reaching[tried] > SLOWER * min(reaching.values()):
                    break
            if whole:
                break
        if not reaching:
            raise DataError(
                f"recall@{k} is {recall:.4f} even when ScaNN searches everything; the target {target:g} cannot be "
                "reached; use --kind exact"
            )
        # Interleaved, and the best round of each: other load on the machine only ever adds time.
        turns = [[single_query_s(each, queries, k) for each in reaching] for _ in range(TURNS)]
        found = list(reaching)[int(np.argmin(np.min(turns, axis=0)))]
    return found, recall_against(truth, found.search(queries, k)[0])


def _fewest_rescored(
    index: ScannIndex, queries: Floats, truth: Rows, target: float, *, whole: bool
) -> tuple[int | None, float]:
    """Returns the fewest candidates that reach the target, None if none do, and the recall (if None, with the most)."""
    items, k = len(index.item_vectors), truth.shape[1]
    most = PLENTY * k
    while True:
        most = min(most, items)
        step = max(1, BLOCK_FOUND // most)
        blocks = [slice(start, start + step) for start in range(0, len(queries), step)]
        found = np.concatenate([places(truth[part], index.candidates(queries[part], most, k)) for part in blocks])
        if _lower_bound(found < most) >= target:
            fewest = next(some for some in _rising(k, most, RESCORED_STEP) if _lower_bound(found < some) >= target)
            return fewest, float(np.mean(found < fewest))
        # Searching the remaining leaves is cheaper than rescoring yet more candidates.
        if not whole or most == items:
            return None, float(np.mean(found < most))
        most *= 8


def _lower_bound(found: NDArray[np.bool_]) -> float:
    """Mean recall minus two standard errors; `found` [B, k] marks which of each query's best were found."""
    shares = np.mean(found, axis=1)
    return float(shares.mean() - 2 * shares.std() / math.sqrt(len(shares)))


def nearly_as(built: ScannIndex, queries: Floats, truth: Rows, target: float) -> tuple[ScannIndex, float] | None:
    """Returns the settings the index was built with, with more rescored candidates if needed; None if not enough."""
    with progress(PHASE, total=len(MORE_RESCORED), unit="settings") as advance:
        for more in MORE_RESCORED:
            rescored = min(len(built.item_vectors), math.ceil(more * built.parameters.rescored))
            index = built.with_parameters(replace(built.parameters, rescored=rescored))
            recall = recall_against(truth, index.search(queries, truth.shape[1])[0])
            advance(1, note=f"recall@{truth.shape[1]} {recall:.4f}")
            if recall >= target:
                return index, recall
    return None


def _rising(first: int, last: int, factor: float) -> Iterator[int]:
    step = max(1, first)
    while step < last:
        yield step
        step = max(step + 1, round(step * factor))
    yield last
