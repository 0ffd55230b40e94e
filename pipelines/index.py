"""`towers index`: gives a bundle the index that its catalogue needs, tuned until its measured recall is enough.

In: BUNDLE, a target for recall@100 against exact search. Out: the bundle with `index/<digest>/` and, in its manifest,
what was built, how it is searched, and what was measured.
"""

import math
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pipelines.errors import DataError
from pipelines.progress import progress, say
from serving.bundle import Bundle
from serving.bundle_writer import replace_index
from serving.index import ExactIndex, Floats, Index, Rows
from serving.manifest import MANIFEST, IndexInfo
from serving.scann_index import (
    EXACT_BELOW,
    SAMPLE_PER_LEAF,
    SMALL_SAMPLE_PER_LEAF,
    TUNED_K,
    ScannIndex,
    ScannParameters,
)
from serving.staging import refuse_existing, remove

SAMPLE = 2_000
TARGET_RECALL = 0.98
SINGLE_QUERIES = 200
# Steps between settings that are tried, and so many times k candidates before more leaves are tried instead.
LEAVES_STEP, RESCORED_STEP, PLENTY = 1.25, 1.05, 16
# Where more leaves are so much slower than the fastest found, they are not followed any further.
SLOWER, TURNS = 1.5, 5
MORE_RESCORED = (1.0, 1.2, 1.5, 2.0)  # times what an index of nearly the same vectors needed
# Queries times candidates at a time: 32 MB.
BLOCK_FOUND = 4_194_304


def run(
    bundle: Path,
    *,
    target_recall: float = TARGET_RECALL,
    kind: Literal["auto", "exact", "scann"] = "auto",
    seed: int = 0,
    like: IndexInfo | None = None,
) -> IndexInfo:
    """Builds, tunes, measures and publishes the index of a bundle, replacing the one it has.

    Args:
        bundle: the bundle directory.
        target_recall: recall@100 against exact search that the index must reach, in (0, 1].
        kind: "auto" takes exact search below 20,000 items.
        seed: picks the queries that measure.
        like: of the bundle that this one was made from just now, by vectors that are nearly the same; its settings are
            taken where they still reach the target.

    Returns:
        What the manifest now says about the index.

    Raises:
        DataError: an argument is wrong, or the target cannot be reached.
        BundleError: the bundle is not whole, or ScaNN is not installed on this platform.
        OSError: the bundle's directory may not be written to.
    """
    if not 0 < target_recall <= 1:
        raise DataError(f"--target-recall must lie in (0, 1], got {target_recall:g}")
    # A bundle that is like another one was verified when it was written, a moment ago.
    opened = Bundle.open(bundle, verify=like is None)
    refuse_existing(bundle / MANIFEST, overwrite=True)
    if kind == "auto":
        kind = "exact" if opened.manifest.items < EXACT_BELOW else "scann"
    queries = opened.sample_queries(SAMPLE, seed)
    if kind == "exact":
        info = IndexInfo(kind="exact", measured=_measure(ExactIndex(opened.recall_vectors), queries, 1.0, 0.0, 0))
        replace_index(bundle, info)
    else:
        info = _build_scann(opened, queries, target_recall, like)
    say(_summary(info))
    return info


def tune(index: ScannIndex, queries: Floats, truth: Rows, target: float) -> tuple[ScannIndex, float]:
    """The fastest search settings, of those tried, that surely reach the target: two standard errors below it, still.

    More leaves need fewer rescored candidates, and which of both is dearer depends on the machine. So the leaves rise,
    each with the fewest candidates that are enough for it, and the clock decides between these pairs. Of settings that
    take the same time either may win.

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
    k = truth.shape[1]
    reaching: dict[ScannIndex, float] = {}
    with progress("tune", total=None, unit="settings") as advance:
        built = index.parameters.leaves
        # Ever more leaves, up to all; an index without a tree has none.
        for leaves in _rising(math.ceil(built / 256), built, LEAVES_STEP) if built else [0]:
            parameters = replace(index.parameters, leaves_searched=leaves)
            wide, whole = index.with_parameters(parameters), leaves == built
            rescored, recall = _fewest_rescored(wide, queries, truth, target, whole=whole)
            advance(1, note=f"{leaves} leaves: recall@{k} {recall:.4f}")
            if rescored is None:
                continue
            tried = index.with_parameters(replace(parameters, rescored=rescored))
            reaching[tried] = _single_query_s(tried, queries, k)
            # From here on the leaves cost more than fewer candidates can save.
            if rescored == k or reaching[tried] > SLOWER * min(reaching.values()):
                break
        if not reaching:
            raise DataError(
                f"recall@{k} is {recall:.4f} even when ScaNN searches everything; the target {target:g} cannot be "
                "reached; use --kind exact"
            )
        # In turns, and each one's best turn: whatever else the machine does only ever takes time.
        turns = [[_single_query_s(each, queries, k) for each in reaching] for _ in range(TURNS)]
        found = list(reaching)[int(np.argmin(np.min(turns, axis=0)))]
    return found, recall_against(truth, found.search(queries, k)[0])


def recall_against(truth: Rows, found: Rows) -> float:
    """The mean share of each line of `truth` that stands in the same line of `found`; both [B, k]."""
    return float(np.mean(_places(truth, found) < found.shape[1]))


def _places(truth: Rows, found: Rows) -> Rows:
    """Where in the same line of `found` [B, C] each of `truth` [B, k] stands; C where nowhere."""
    places = np.full(truth.shape, found.shape[1], np.int64)
    for line, (wanted, got) in enumerate(zip(truth, found, strict=True)):
        _, at, where = np.intersect1d(wanted, got, return_indices=True)
        places[line, at] = where
    return places


def _fewest_rescored(
    index: ScannIndex, queries: Floats, truth: Rows, target: float, *, whole: bool
) -> tuple[int | None, float]:
    """With how few candidates these leaves reach the target, None where with none; and the recall with the most."""
    items, k = len(index.item_vectors), truth.shape[1]
    most = PLENTY * k
    while True:
        most = min(most, items)
        step = max(1, BLOCK_FOUND // most)
        blocks = [slice(start, start + step) for start in range(0, len(queries), step)]
        places = np.concatenate([_places(truth[part], index.candidates(queries[part], most)) for part in blocks])
        if _surely(places < most) >= target:
            fewest = next(some for some in _rising(k, most, RESCORED_STEP) if _surely(places < some) >= target)
            return fewest, float(np.mean(places < fewest))
        # Leaves that are left out are cheaper than yet more candidates.
        if not whole or most == items:
            return None, float(np.mean(places < most))
        most *= 8


def _surely(found: NDArray[np.bool_]) -> float:
    """Two standard errors below the mean recall of some queries; [B, k], which of each one's best were found."""
    shares = np.mean(found, axis=1)
    return float(shares.mean() - 2 * shares.std() / math.sqrt(len(shares)))


def _single_query_s(index: Index, queries: Floats, k: int) -> float:
    """The median time of one query."""
    index.search(queries[:1], k)
    seconds = []
    for row in range(min(SINGLE_QUERIES, len(queries))):
        start = time.perf_counter()
        index.search(queries[row : row + 1], k)
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))


def _build_scann(bundle: Bundle, queries: Floats, target: float, like: IndexInfo | None) -> IndexInfo:
    k = min(TUNED_K, bundle.manifest.items)
    truth, _ = ExactIndex(bundle.recall_vectors).search(queries, k)
    say(f"build: ScaNN over {bundle.manifest.items:,} x {bundle.manifest.dimension}")
    start = time.perf_counter()
    kept = None if like is None or like.kind != "scann" else ScannParameters(**like.parameters)
    sample = SAMPLE_PER_LEAF if kept is None else SMALL_SAMPLE_PER_LEAF
    built = ScannIndex.build(bundle.recall_vectors, kept, sample_per_leaf=sample)
    build_s = time.perf_counter() - start
    found = None if kept is None else _nearly_as(built, queries, truth, target)
    index, recall = found or tune(built, queries, truth, target)
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


def _nearly_as(built: ScannIndex, queries: Floats, truth: Rows, target: float) -> tuple[ScannIndex, float] | None:
    """The settings that it was built with, or a few more rescored candidates; None where those are not enough."""
    for more in MORE_RESCORED:
        rescored = min(len(built.item_vectors), math.ceil(more * built.parameters.rescored))
        index = built.with_parameters(replace(built.parameters, rescored=rescored))
        recall = recall_against(truth, index.search(queries, truth.shape[1])[0])
        if recall >= target:
            return index, recall
    return None


def _measure(index: Index, queries: Floats, recall: float, build_s: float, size: int) -> dict[str, Any]:
    single_s = _single_query_s(index, queries, TUNED_K)
    start = time.perf_counter()
    index.search(queries, TUNED_K)
    batched_s = time.perf_counter() - start
    return {
        f"recall_at_{TUNED_K}": round(recall, 5),
        "queries": len(queries),
        "single_query_ms": round(1000 * single_s, 4),
        "batched_queries_per_s": round(len(queries) / batched_s, 1),
        "build_s": round(build_s, 3),
        "bytes": size,
        "processors": os.cpu_count(),
    }


def _rising(first: int, last: int, factor: float) -> Iterator[int]:
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
