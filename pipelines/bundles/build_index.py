"""`towers index`: builds the index a bundle's catalogue needs and tunes it until its measured recall is enough.

The target is recall against exact search, of the first 100 or of as many as asked. The bundle gets `index/<digest>/`,
and its manifest records the build, the search settings and the measurements.
"""

import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pipelines.bundles.tune_index import PHASE as TUNE
from pipelines.bundles.tune_index import nearly_as, tune
from pipelines.console import Advance, phase, phases, progress, say
from pipelines.errors import DataError
from pipelines.rankers.index_curve import SINGLE_QUERIES, single_query_s
from pipelines.rankers.scann_log import without_scann_log
from pipelines.service.verify import VERIFY, refuse_changed, verify
from serving.bundle.index_writer import replace_index
from serving.bundle.manifest import MANIFEST, IndexInfo, read_manifest
from serving.bundle.reader import Bundle
from serving.errors import BundleError
from serving.files.lock import exclusive
from serving.files.staging import refuse_existing, remove
from serving.recall.self_test import LEAST_RECALL
from serving.search.exact import BLOCK_QUERIES, ExactIndex
from serving.search.index import Floats, Index, Rows
from serving.search.scann import SAMPLE_PER_LEAF, SMALL_SAMPLE_PER_LEAF, ScannIndex, scann_library
from serving.search.scann_parameters import EXACT_BELOW, TUNED_K, ScannParameters

SAMPLE, SEED = 2_000, 0  # of the queries to measure with
FEWEST = 16  # items that ScaNN can quantise: it makes as many codes of each block of dimensions
TARGET_RECALL = 0.98
SEARCH, BUILD, MEASURE = "exact search", "build ScaNN", "measure"


def run(
    bundle: Path,
    *,
    target_recall: float = TARGET_RECALL,
    target_k: int = TUNED_K,
    kind: Literal["auto", "exact", "scann"] = "auto",
    like: IndexInfo | None = None,
) -> IndexInfo:
    """Builds, tunes, measures and publishes a bundle's index, replacing any existing one.

    Args:
        bundle: the bundle directory.
        target_recall: recall@k against exact search that the index must reach, in [`LEAST_RECALL`, 1]: services refuse
            an index below it.
        target_k: that k.
        kind: "auto" uses exact search below 20,000 items, and with a warning where ScaNN cannot be loaded.
        like: the index of the bundle from which this one was just made, with nearly the same vectors; its settings are
            reused if they still reach the target.

    Returns:
        The manifest's new entry about the index.

    Raises:
        DataError: an argument is wrong, or the target cannot be reached.
        BundleError: the bundle is damaged, another command has replaced it meanwhile, or ScaNN is not installed on
            this platform.
        BusyError: another process is building its index, or removing a user from it.
        OSError: the bundle's directory is not writable, or was removed meanwhile.
    """
    if not LEAST_RECALL <= target_recall <= 1:
        raise DataError(f"--target-recall must lie in [{LEAST_RECALL}, 1], got {target_recall:g}")
    if target_k < 1:
        raise DataError(f"--target-k must be at least 1, got {target_k}")
    if kind not in (kinds := ("auto", "exact", "scann")):
        raise DataError(f"--kind {kind!r}: allowed are {', '.join(kinds)}")
    items = read_manifest(bundle).items
    if kind == "auto":
        kind = _kind_for(items)
    refuse_existing(bundle / MANIFEST, overwrite=True)
    if kind == "scann" and 1 < items < FEWEST:
        raise DataError(f"{bundle}: ScaNN needs at least {FEWEST} items, it has {items}; use --kind exact")
    # A `towers forget` beside it would publish a copy of the bundle without this index.
    with exclusive(bundle, f"{bundle}: another command is changing it; give yours again later", create=False):
        if like is None:
            phases("index", VERIFY, *phases_of(kind))
            (opened,) = verify(bundle)
        else:
            # It was verified when it was written a moment ago, by a command that has named its phases.
            opened = Bundle.open(bundle, verify=False)
        queries = opened.sample_queries(SAMPLE, SEED)
        if kind == "exact":
            measured = _measure(ExactIndex(opened.recall_vectors), queries, target_k, 1.0, 0.0, 0)
            info = IndexInfo(kind="exact", measured=measured)
            refuse_changed(opened)  # `export --overwrite` and others take no lock, and the manifest names what is there
            replace_index(bundle, info)
        else:
            info = _build_scann(opened, queries, target_recall, target_k, like)
    # With `like`, the bundle is still on its way to its place.
    say(f"{bundle if like is None else 'index'}: {_summary(info)}")
    return info


def _kind_for(items: int) -> Literal["exact", "scann"]:
    if items < EXACT_BELOW:
        return "exact"
    try:
        scann_library()
    except BundleError as error:
        reason = str(error).partition(". Use the exact index")[0]
        say(f"warning: every query scans all {items:,} items: {reason}")
        return "exact"
    return "scann"


def phases_of(kind: Literal["exact", "scann"]) -> tuple[str, ...]:
    """Names the phases of building an index and measuring it."""
    return (MEASURE,) if kind == "exact" else (SEARCH, BUILD, TUNE, MEASURE)


def _build_scann(bundle: Bundle, queries: Floats, target: float, k: int, like: IndexInfo | None) -> IndexInfo:
    with progress(SEARCH, total=len(queries), unit="queries") as advance:
        truth = _search(ExactIndex(bundle.recall_vectors), queries, min(k, bundle.manifest.items), advance)
    kept = None if like is None or like.kind != "scann" else ScannParameters(**like.parameters)
    sample = SAMPLE_PER_LEAF if kept is None else SMALL_SAMPLE_PER_LEAF
    with phase(BUILD), without_scann_log():
        start = time.perf_counter()
        built = ScannIndex.build(bundle.recall_vectors, kept, sample_per_leaf=sample)
        build_s = time.perf_counter() - start
    found = None if kept is None else nearly_as(built, queries, truth, target)
    index, recall = found or tune(built, queries, truth, target)
    # Inside the bundle, so that moving the index into place is a rename on one file system.
    staging = bundle.path / f".index.{os.getpid()}.partial"
    for unfinished in bundle.path.glob(".index.*.partial"):
        remove(unfinished)
    try:
        index.save(staging)
        size = sum(path.stat().st_size for path in staging.iterdir())
        measured = _measure(index, queries, k, recall, build_s, size) | {"target_recall": target}
        info = IndexInfo(kind="scann", path="index", parameters=asdict(index.parameters), measured=measured)
        refuse_changed(bundle)
        replaced = replace_index(bundle.path, info, staging).index
    finally:
        remove(staging)
    return replaced or info


def _search(index: Index, queries: Floats, k: int, advance: Advance) -> Rows:
    # Exact search takes such blocks anyway; ScaNN is measured with all queries in one batch.
    size = BLOCK_QUERIES if isinstance(index, ExactIndex) else max(1, len(queries))
    found = []
    # At least one search, so that no query at all has an answer of the right shape, too.
    for start in range(0, max(1, len(queries)), size):
        found.append(index.search(queries[start : start + size], k)[0])
        advance(len(found[-1]))
    return np.concatenate(found)


def _measure(
    index: ExactIndex | ScannIndex, queries: Floats, k: int, recall: float, build_s: float, size: int
) -> dict[str, Any]:
    most = min(k, len(index.item_vectors))  # a longer list costs memory and time, and holds no more
    with progress(MEASURE, total=min(SINGLE_QUERIES, len(queries)) + len(queries), unit="queries") as advance:
        single_s = single_query_s(index, queries, most, advance=advance)
        start = time.perf_counter()
        _search(index, queries, most, advance)
        batched_s = time.perf_counter() - start
    return {
        f"recall_at_{k}": round(recall, 5),
        "target_k": k,
        "queries": len(queries),
        "single_query_ms": round(1000 * single_s, 4),
        "batched_queries_per_s": round(len(queries) / batched_s, 1),
        "build_s": round(build_s, 3),
        "bytes": size,
        "processors": os.cpu_count(),
    }


def _summary(info: IndexInfo) -> str:
    measured, k = info.measured, info.target_k
    return (
        f"{info.kind} index, recall@{k} {measured[f'recall_at_{k}']:.4f} against exact search, "
        f"{measured['single_query_ms']:.2f} ms a query, {measured['batched_queries_per_s']:,.0f} queries/s in a batch, "
        f"{measured['bytes'] / 1e6:,.1f} MB, built in {measured['build_s']:.1f} s"
    )
