"""`towers index`: gives a bundle the index that its catalogue needs, tuned until its measured recall is enough.

In: BUNDLE, a target for recall@100 against exact search. Out: the bundle with `index/<digest>/` and, in its manifest,
what was built, how it is searched, and what was measured.
"""

import os
import time
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pipelines.errors import DataError
from pipelines.progress import progress, say
from serving.bundle import Bundle
from serving.bundle_writer import replace_index
from serving.index import ExactIndex, Floats, Index, Rows
from serving.manifest import IndexInfo
from serving.scann_index import EXACT_BELOW, TUNED_K, ScannIndex, ScannParameters
from serving.staging import remove

SAMPLE = 1_000
SINGLE_QUERIES = 200


def run(
    bundle: Path, *, target_recall: float = 0.98, kind: Literal["auto", "exact", "scann"] = "auto", seed: int = 0
) -> IndexInfo:
    """Builds, tunes, measures and publishes the index of a bundle, replacing the one it has.

    Args:
        bundle: the bundle directory.
        target_recall: recall@100 against exact search that the index must reach, in (0, 1].
        kind: "auto" takes exact search below 20,000 items.
        seed: picks the queries that measure.

    Returns:
        What the manifest now says about the index.

    Raises:
        DataError: an argument is wrong, or the target cannot be reached.
        BundleError: the bundle is not whole, or ScaNN is not installed on this platform.
    """
    if not 0 < target_recall <= 1:
        raise DataError(f"--target-recall must lie in (0, 1], got {target_recall:g}")
    opened = Bundle.open(bundle)
    if kind == "auto":
        kind = "exact" if opened.manifest.items < EXACT_BELOW else "scann"
    queries = sample_queries(opened, seed)
    if kind == "exact":
        info = IndexInfo(kind="exact", measured=_measure(ExactIndex(opened.item_vectors), queries, 1.0, 0.0, 0))
        replace_index(bundle, info)
    else:
        info = _build_scann(opened, queries, target_recall)
    say(_summary(info))
    return info


def sample_queries(bundle: Bundle, seed: int) -> Floats:
    """At most 1,000 of the bundle's query vectors, or item vectors where it has none of any user: [B, D]."""
    for vectors in (bundle.query_vectors, bundle.item_vectors):
        rows = np.random.default_rng(seed).choice(len(vectors), size=min(SAMPLE, len(vectors)), replace=False)
        drawn = vectors[np.sort(rows)]
        # A zero vector is answered with popular items, without a search.
        drawn = drawn[np.any(drawn != 0, axis=1)]
        if len(drawn):
            break
    return np.ascontiguousarray(drawn)


def tune(index: ScannIndex, queries: Floats, truth: Rows, target: float) -> tuple[ScannIndex, float]:
    """The cheapest search settings, of those tried, that reach the target.

    First the leaves: doubled until they lose at most half of what the target allows, with plenty rescored. Then the
    rescored candidates: by a quarter more until the whole reaches the target. Searching everything always does.

    Args:
        index: a built index.
        queries: [B, D].
        truth: the rows that exact search finds, [B, k].
        target: recall to reach.

    Returns:
        The index with these settings and its recall.

    Raises:
        DataError: not even searching everything reaches the target.
    """
    items = len(index.item_vectors)
    everything = index.parameters.exhaustive(items)
    leaf_target = 1 - (1 - target) / 2

    def tried(settings: Iterable[ScannParameters], wanted: float) -> tuple[ScannIndex, float]:
        for parameters in settings:
            candidate = index.with_parameters(parameters)
            recall = recall_against(truth, candidate.search(queries, truth.shape[1])[0])
            advance(1, note=f"recall@{truth.shape[1]} {recall:.4f}")
            if recall >= wanted:
                break
        return candidate, recall

    with progress("tune", total=None, unit="settings") as advance:
        if index.parameters.leaves:
            plenty = min(items, 64 * TUNED_K)
            steps = _rising(index.parameters.leaves_searched, everything.leaves_searched, 2.0)
            wide = (replace(everything, leaves_searched=leaves, rescored=plenty) for leaves in steps)
            everything = replace(tried(wide, leaf_target)[0].parameters, rescored=items)
        steps = _rising(index.parameters.rescored, items, 1.25)
        found, recall = tried((replace(everything, rescored=rescored) for rescored in steps), target)
        if recall < target:
            found, recall = tried([index.parameters.exhaustive(items)], target)
    if recall < target:
        raise DataError(
            f"recall@{truth.shape[1]} is {recall:.4f} even when ScaNN searches everything; the target {target:g} "
            "cannot be reached; use --kind exact"
        )
    return found, recall


def recall_against(truth: Rows, found: Rows) -> float:
    """The mean share of each line of `truth` that stands in the same line of `found`; both [B, k]."""
    hits = [len(np.intersect1d(wanted, got)) for wanted, got in zip(truth, found, strict=True)]
    return float(np.sum(hits) / truth.size)


def _build_scann(bundle: Bundle, queries: Floats, target: float) -> IndexInfo:
    k = min(TUNED_K, bundle.manifest.items)
    truth, _ = ExactIndex(bundle.item_vectors).search(queries, k)
    say(f"build: ScaNN over {bundle.manifest.items:,} x {bundle.manifest.dimension}")
    start = time.perf_counter()
    built = ScannIndex.build(bundle.item_vectors)
    build_s = time.perf_counter() - start
    index, recall = tune(built, queries, truth, target)
    # Beside the index directories, in the bundle: the move into place must be a rename on one file system.
    staging = bundle.path / f".index.{os.getpid()}.partial"
    for unfinished in bundle.path.glob(".index.*.partial"):
        remove(unfinished)
    try:
        index.save(staging)
        size = sum(path.stat().st_size for path in staging.iterdir())
        measured = _measure(index, queries, recall, build_s, size) | {"target_recall": target}
        info = IndexInfo(kind="scann", path="index", parameters=asdict(index.parameters), measured=measured)
        replaced = replace_index(bundle.path, info, staging).index
    finally:
        remove(staging)
    return replaced or info


def _measure(index: Index, queries: Floats, recall: float, build_s: float, size: int) -> dict[str, Any]:
    index.search(queries[:1], TUNED_K)
    singles = []
    for row in range(min(SINGLE_QUERIES, len(queries))):
        start = time.perf_counter()
        index.search(queries[row : row + 1], TUNED_K)
        singles.append(time.perf_counter() - start)
    start = time.perf_counter()
    index.search(queries, TUNED_K)
    batched_s = time.perf_counter() - start
    return {
        f"recall_at_{TUNED_K}": round(recall, 5),
        "queries": len(queries),
        "single_query_ms": round(1000 * float(np.median(singles)), 4),
        "batched_queries_per_s": round(len(queries) / batched_s, 1),
        "build_s": round(build_s, 3),
        "bytes": size,
        "processors": os.cpu_count(),
    }


def _rising(first: int, last: int, factor: float) -> Iterable[int]:
    step = max(1, first)
    while step < last:
        yield step
        step = max(step + 1, round(step * factor))
    yield last


def _summary(info: IndexInfo) -> str:
    measured = info.measured
    return (
        f"index: {info.kind}, recall@{TUNED_K} {measured[f'recall_at_{TUNED_K}']:.4f} against exact search, "
        f"{measured['single_query_ms']:.2f} ms a query, {measured['batched_queries_per_s']:,.0f} queries/s in a batch, "
        f"{measured['bytes'] / 1e6:,.1f} MB, built in {measured['build_s']:.1f} s"
    )
