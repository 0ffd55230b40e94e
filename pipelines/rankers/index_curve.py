"""Measures an index: its recall against exact search, the time of a query, and how one trades for the other.

`curve` gives a report the settings around those that `towers index` chose.
"""

import os
import platform
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pipelines.console import Advance, amount, no_bar, progress
from serving.bundle.reader import Bundle
from serving.search.exact import ExactIndex
from serving.search.index import Floats, Index, Rows
from serving.search.scann import ScannIndex
from serving.search.scann_parameters import TUNED_K
from serving.search.vector_codes import VectorType, rounded

PHASE, COMPARE = "index curve", "compare with float32"
AGAINST_FLOAT32 = "vectors_against_float32"  # key of the lineage and of `report.json`
SINGLE_QUERIES = 200
BATCHES = 3
CURVE_QUERIES, SEED = 400, 1  # another sample than the tuning's, of seed 0; a small bundle has the same users in both
STEPS = (0.25, 0.5, 2.0, 4.0)  # multiples of the leaves searched, and of the rescored candidates
CODE_QUERIES = 500  # the recall of an encoding: its standard error is below 0.001
EXACT_S = 2.0  # the most time for single exact searches: with millions of items one takes a tenth of a second

Curve = dict[str, Any]


def curve(bundle: Bundle, index: Index) -> Curve:
    """Measures a bundle's ScaNN index with its own settings and with some around them, and exact search.

    A bar counts the queries.

    Returns:
        ``{"left_out": reason}`` without a ScaNN index; else ``k``, ``queries``, ``machine``, ``exact`` and ``points``,
        each ``{"leaves_searched", "rescored", "recall", "single_ms", "batched_ms", "chosen"}``; times are medians of
        one query, and the time of a batch divided by its queries. Exact search has no settings.
    """
    info = bundle.manifest.index
    if info is None or not isinstance(index, ScannIndex):
        return {"left_out": "the bundle has no ScaNN index: every query is an exact search"}
    k, queries = min(info.target_k, bundle.manifest.items), bundle.sample_queries(CURVE_QUERIES, SEED)
    exact, settings = ExactIndex(bundle.recall_vectors), list(_around(index, k))
    single, batch = min(SINGLE_QUERIES, len(queries)), len(queries)
    total = single + batch + len(settings) * (single + (1 + BATCHES) * batch)
    points = []
    with progress(PHASE, total=total, unit="queries") as advance:
        start = time.perf_counter()
        truth, _ = exact.search(queries, k)
        batched_s = (time.perf_counter() - start) / batch
        advance(batch)
        for leaves, rescored in settings:
            tried = index.with_parameters(replace(index.parameters, leaves_searched=leaves, rescored=rescored))
            found, _ = tried.search(queries, k)
            single_s = single_query_s(tried, queries, k)
            advance(batch + single)
            points.append(
                {
                    "leaves_searched": leaves,
                    "rescored": rescored,
                    "recall": recall_against(truth, found),
                    **_times(single_s, _batched_s(tried, queries, k)),
                    "chosen": tried.parameters == index.parameters,
                }
            )
            advance(BATCHES * batch)
        single_s = single_query_s(exact, queries, k, most_s=EXACT_S, advance=advance)
    return {
        "k": k,
        "queries": batch,
        "machine": f"{_processor()}, {os.cpu_count()} processors",
        "exact": {"recall": 1.0, **_times(single_s, batched_s)},
        "points": points,
    }


def recall_of_codes(
    kind: VectorType, items: Floats, users: Floats, columns: tuple[Floats, Floats] | None
) -> dict[str, Any]:
    """Measures what an encoding costs: recall of exact search over encoded vectors against that over the vectors.

    Args:
        kind: the encoding.
        items: [N, D].
        users: [Q, D], of whom up to 500 ask; zero vectors do not, and if all are zero, items do.
        columns: of items and users, what a prior adds to their vectors; it is not encoded.

    Returns:
        ``k``, ``queries`` and ``recall``.
    """
    asked = np.flatnonzero(users.any(axis=1))
    queries, chosen = (users, asked) if len(asked) else (items, np.arange(len(items)))
    chosen = np.random.default_rng(SEED).permutation(chosen)[:CODE_QUERIES]
    coded, queries = rounded(items, kind), queries[chosen]
    if columns is not None and len(asked):
        items, coded = (np.hstack([each, columns[0]]) for each in (items, coded))
        queries = np.hstack([queries, columns[1][chosen]])
    k, found = min(TUNED_K, len(items)), []
    with progress(COMPARE, total=2 * len(queries), unit="queries") as advance:
        for vectors in (items, coded):
            found.append(ExactIndex(vectors).search(queries, k)[0])
            advance(len(queries))
    return {"k": k, "queries": len(queries), "recall": recall_against(*found)}


def of_codes(kind: str, measured: Mapping[str, Any] | None) -> list[str]:
    """Says what `recall_of_codes` measured; nothing of float32."""
    if measured is None:
        return []
    found = f"exact search finds {measured['recall']:.4f} of the first {measured['k']} that float32 finds"
    return [f"item vectors as {kind}: {found}, measured with {amount(measured['queries'], 'queries')} at export"]


def recall_against(truth: Rows, found: Rows) -> float:
    """Returns the mean share of each row of `truth` found in the same row of `found`; both [B, k]."""
    return float(np.mean(places(truth, found) < found.shape[1]))


def places(truth: Rows, found: Rows) -> Rows:
    """Returns the place of each entry of `truth` [B, k] in the same row of `found` [B, C]; C if it is missing."""
    at_all = np.full(truth.shape, found.shape[1], np.int64)
    for line, (wanted, got) in enumerate(zip(truth, found, strict=True)):
        _, at, where = np.intersect1d(wanted, got, return_indices=True)
        at_all[line, at] = where
    return at_all


def single_query_s(
    index: Index, queries: Floats, k: int, *, most_s: float = np.inf, advance: Advance = no_bar
) -> float:
    """Returns the median time of one query, of at most `SINGLE_QUERIES`, or of as many as fit into `most_s`."""
    index.search(queries[:1], k)
    seconds: list[float] = []
    for row in range(min(SINGLE_QUERIES, len(queries))):
        start = time.perf_counter()
        index.search(queries[row : row + 1], k)
        seconds.append(time.perf_counter() - start)
        advance()
        if sum(seconds) > most_s:
            break
    return float(np.median(seconds))


def _batched_s(index: Index, queries: Floats, k: int) -> float:
    """Returns the time of a query in a batch of all, the median of `BATCHES`."""
    seconds = []
    for _ in range(BATCHES):
        start = time.perf_counter()
        index.search(queries, k)
        seconds.append((time.perf_counter() - start) / len(queries))
    return float(np.median(seconds))


def _around(index: ScannIndex, k: int) -> Iterator[tuple[int, int]]:
    """Yields leaves searched and rescored candidates: the index's own, then fewer and more of one and the other."""
    own = index.parameters
    # An index without a tree has no leaves; fewer candidates than k cannot be rescored.
    leaves = [round(step * own.leaves_searched) for step in STEPS if own.leaves]
    most = len(index.item_vectors) * TUNED_K // max(k, TUNED_K)
    rescored = [round(step * own.rescored) for step in STEPS]
    tried = [(own.leaves_searched, own.rescored)]
    tried += [(min(max(1, each), own.leaves), own.rescored) for each in leaves]
    tried += [(own.leaves_searched, min(max(min(k, TUNED_K), each), most)) for each in rescored]
    yield from dict.fromkeys(tried)


def _times(single_s: float, batched_s: float) -> dict[str, float]:
    return {"single_ms": round(1000 * single_s, 4), "batched_ms": round(1000 * batched_s, 4)}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
