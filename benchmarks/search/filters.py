"""Filtered recall at production settings: the share of the exact filtered top 100 that comes back, and what it costs.

A million clustered vectors x 64, a ScaNN index tuned as `towers index` does, and filters that let 50, 10, 1 and 0.1 %
of the items through: independent of the vectors, by cluster (a query's own passes or not), and by a direction of space.
Claims: every filter finds at least 0.98 of the exact filtered answer, and k items where k are eligible. Beside them the
median latency of one query, that of the unfiltered one, and what an item fetched and a row scanned cost. The world and
its index stay in --work. Writes benchmarks/search/results/filters.json; exits with 1 where a claim fails.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from pydantic import TypeAdapter

from benchmarks.harness.clusters import CLUSTERS, DIMENSION, clustered
from benchmarks.harness.machine import verdict, write
from pipelines.bundles.tune_index import tune
from pipelines.rankers.index_curve import recall_against
from serving.search.conditions import Condition
from serving.search.exact import ExactIndex
from serving.search.filter_masks import mask
from serving.search.filtered import GATHERED_SHARE, ROWS_PER_FETCHED, search_filtered
from serving.search.index import Floats
from serving.search.scann import ScannIndex
from serving.search.scann_parameters import ScannParameters

ITEMS = 1_000_000
TUNED_ON, QUERIES, K, TARGET = 1_000, 200, 100, 0.98
SHARES = (0.5, 0.1, 0.01, 0.001)
TIMED = 60


def main(work: Path, dry: bool) -> int:
    vectors, others, queries, attributes = world()
    index = scann(vectors, others, work)
    exact = ExactIndex(vectors)
    truth = exact.search(queries, K)[0]
    plain = {
        "recall": round(recall_against(truth, index.search(queries, K)[0]), 5),
        **latency(lambda query: search_filtered(index, exact, query, K, None), queries),
    }
    print(f"{'no filter':24} {plain}", flush=True)
    filters: dict[str, Any] = {}
    for name, share, condition in conditions(attributes):
        start = time.perf_counter()
        eligible = mask(condition, attributes)
        mask_ms = round(1e3 * (time.perf_counter() - start), 3)
        wanted = exact.search_among(queries, np.flatnonzero(eligible), K)[0]
        found = search_filtered(index, exact, queries, K, None, eligible)[0]
        figures = {
            "selectivity": round(float(eligible.mean()), 5),
            "recall": round(recall_against(wanted, found), 5),
            "fewest_items": int((found >= 0).sum(axis=1).min()),
            "new_mask_ms": mask_ms,
            **latency(
                lambda query, eligible=eligible: search_filtered(index, exact, query, K, None, eligible), queries
            ),
        }
        filters[f"{name}, {share:.1%}"] = figures
        print(f"{f'{name}, {share:.1%}':24} {figures}", flush=True)
    claims = {
        f"{name}: at least {TARGET} of the exact answer": each["recall"] >= TARGET for name, each in filters.items()
    }
    claims |= {f"{name}: {K} items for every query": each["fewest_items"] == K for name, each in filters.items()}
    result = {
        "claims": claims,
        "sizes": {
            "items": ITEMS,
            "dimension": DIMENSION,
            "clusters": CLUSTERS,
            "queries": QUERIES,
            "k": K,
            "timed": TIMED,
        },
        "index": asdict(index.parameters),
        "no_filter": plain,
        "filters": filters,
        "costs": costs(index, exact, queries),
    }
    print(result["costs"])
    if not dry:
        print(write(__file__, "filters", result))
    return verdict(result)


def world() -> tuple[Floats, Floats, Floats, pl.DataFrame]:
    """Item vectors, queries drawn as the items are (to tune on, to measure on), and the columns of the filters."""
    rng = np.random.default_rng(0)
    every, cluster = clustered(rng, ITEMS + TUNED_ON + QUERIES)
    vectors, others, queries = np.split(every, [ITEMS, ITEMS + TUNED_ON])
    columns = {
        "independent": rng.random(ITEMS),
        "cluster": cluster[:ITEMS].astype(np.float64),
        "direction": vectors @ rng.standard_normal(DIMENSION).astype(np.float32),
    }
    return vectors, others, queries, pl.DataFrame(columns)


def conditions(attributes: pl.DataFrame) -> Iterator[tuple[str, float, Condition]]:
    """Each filter by name, the share of the items that it lets through, and its condition."""
    for share in SHARES:
        clusters = np.random.default_rng(1).permutation(CLUSTERS)[: round(CLUSTERS * share)].tolist()
        bound = float(np.quantile(attributes["direction"].to_numpy(), share))
        for column, op, value in (
            ("independent", "lt", share),
            ("cluster", "in", clusters),
            ("direction", "lt", bound),
        ):
            condition = {"column": column, "op": op, "value": value}
            yield column, share, TypeAdapter(Condition).validate_python(condition)


def scann(vectors: Floats, queries: Floats, work: Path) -> ScannIndex:
    """The tuned index, out of `work` where an earlier run left it."""
    directory, parameters = work / "index", work / "parameters.json"
    if not parameters.exists():
        built = ScannIndex.build(vectors)
        built = tune(built, queries, ExactIndex(vectors).search(queries, K)[0], TARGET)[0]
        built.save(directory)
        parameters.write_text(json.dumps(asdict(built.parameters)), encoding="utf-8")
    settings = ScannParameters(**json.loads(parameters.read_text(encoding="utf-8")))
    return ScannIndex.load(directory, vectors, settings)


def latency(search: Callable[[Floats], Any], queries: Floats) -> dict[str, float]:
    """Milliseconds of one query: median and 95th percentile, after three calls for warmth."""
    for row in range(3):
        search(queries[row : row + 1])
    taken = []
    for row in range(TIMED):
        start = time.perf_counter()
        search(queries[row : row + 1])
        taken.append(1e3 * (time.perf_counter() - start))
    return {"p50_ms": round(float(np.median(taken)), 3), "p95_ms": round(float(np.quantile(taken, 0.95)), 3)}


def costs(index: ScannIndex, exact: ExactIndex, queries: Floats) -> dict[str, Any]:
    """Medians of one query: items fetched from the index, rows gathered and scanned, all scanned behind a mask.

    They give the constants of `serving.search.filtered`: rows gathered in the time of one item more from the index, and
    the share of the items beyond which a masked scan is faster.
    """
    every = np.random.default_rng(2).permutation(ITEMS)
    some = {rows: np.sort(every[:rows]) for rows in (5_000, 50_000)}
    half = np.arange(ITEMS) % 2 == 0
    fetched = {k: latency(lambda query, k=k: index.search(query, k), queries)["p50_ms"] for k in (400, 6_400)}
    gathered = {
        count: latency(lambda query, rows=rows: exact.search_among(query, rows, K), queries)["p50_ms"]
        for count, rows in some.items()
    }
    masked = latency(lambda query: exact.search(query, K, None, half), queries)["p50_ms"]
    item_ms, row_ms = ((b - a) / (y - x) for (x, a), (y, b) in (fetched.items(), gathered.items()))
    return {
        "fetched_ms": fetched,
        "gathered_ms": gathered,
        "masked_ms": masked,
        "rows_per_fetched": {"measured": round(item_ms / row_ms, 2), "set": ROWS_PER_FETCHED},
        "gathered_share": {"measured": round(masked / row_ms / ITEMS, 3), "set": GATHERED_SHARE},
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search.filters", description=__doc__)
    parser.add_argument("--work", type=Path, help="a directory that keeps the index; a new one, removed, by default")
    parser.add_argument("--dry", action="store_true", help="print only")
    given = parser.parse_args()
    if given.work is not None:
        given.work.mkdir(parents=True, exist_ok=True)
        sys.exit(main(given.work, given.dry))
    with tempfile.TemporaryDirectory() as directory:
        sys.exit(main(Path(directory), given.dry))
