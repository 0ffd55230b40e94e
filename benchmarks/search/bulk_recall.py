"""`towers recall` of every user against bare ScaNN: users per second with everything, against the search alone.

A bundle is opened once. Then in turns: `pipelines.bundles.bulk.recall.write_all` (seen items left out, exact scores,
names, Parquet on the disk), and ScaNN's own `search_batched` over the same query vectors with the index's parameters:
as many quantised candidates of as many leaves, nothing left out, nothing rescored, nothing written. ScaNN's call uses
one thread, the command what the machine has; so both are also measured on one core, and against
`search_batched_parallel`.
Claim: for a million items or more, with all processors, at least 0.9 of the rate of `search_batched`. Goals: for fewer
items, where the search is a smaller part of the work, 0.85, and on one processor 0.65. Medians of the rounds. Writes
    benchmarks/search/results/bulk_recall.json; exits with 1 where the claim fails.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
import orjson

from benchmarks.harness.machine import ROOT, verdict, write
from pipelines.bundles.bulk.recall import SEARCH_USERS, write_all
from serving.recall.loading import open_recaller
from serving.search.index import unit_queries
from serving.search.scann import ScannIndex

K = 100
LARGE = 1_000_000  # items
# The least share of the rate of `search_batched`.
CLAIM, SMALL, PINNED = 0.9, 0.85, 0.65
ONE = ", one processor"


def main(bundles: dict[str, Path], rounds: int, dry: bool) -> int:
    figures = {}
    for name, path in bundles.items():
        for processors in (None, 1):
            title = name if processors is None else f"{name}{ONE}"
            # In a process of its own: the number of threads is fixed when libraries are loaded.
            words = ["--one", str(path), "--rounds", str(rounds), *(["--pinned"] if processors else [])]
            environment = os.environ | ({"POLARS_MAX_THREADS": "1"} if processors else {})
            command = [sys.executable, "-m", "benchmarks.search.bulk_recall", *words]
            done = subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE)
            figures[title] = orjson.loads(done.stdout.splitlines()[-1])
            print(title, figures[title], flush=True)
    result = {**judged(figures), "rounds": rounds, "bundles": figures}
    if not dry:
        print(write(__file__, "bulk_recall", result))
    return verdict(result)


def judged(figures: dict[str, Any]) -> dict[str, dict[str, bool]]:
    """The claims, and the goals that may be missed."""
    found: dict[str, dict[str, bool]] = {"claims": {}, "goals": {}}
    for name, each in figures.items():
        kind, least = ("goals", SMALL) if each["items"] < LARGE else ("claims", CLAIM)
        if name.endswith(ONE):
            kind, least = "goals", PINNED
        found[kind][f"{name}: at least {least} of the rate of search_batched"] = each["ratio"] >= least
    return found


def measured(path: Path, rounds: int) -> dict[str, Any]:
    """Users per second of one bundle."""
    recaller = open_recaller(path, verify=False, tower=False)
    index = recaller.index
    assert isinstance(index, ScannIndex), f"{path}: its index is exact; make one: towers index --kind scann"
    searcher, parameters = index._searcher, index.parameters
    bundle = recaller.bundle
    histories = bundle.seen_counts(np.arange(len(bundle.query_vectors)))
    queries, _ = unit_queries(bundle.recall_queries(np.asarray(bundle.query_vectors), histories))
    with tempfile.TemporaryDirectory() as directory:
        calls: dict[str, Callable[[], Any]] = {
            "towers recall": lambda: write_all(recaller, K, Path(directory) / "out.parquet", overwrite=True),
            "search_batched": lambda: searched(searcher.search_batched, queries, parameters),
            "search_batched_parallel": lambda: searched(searcher.search_batched_parallel, queries, parameters),
        }
        seconds: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(rounds):
            for name, call in calls.items():
                start = time.perf_counter()
                call()
                seconds[name].append(time.perf_counter() - start)
    rate = {name: len(queries) / float(np.median(each)) for name, each in seconds.items()}
    return {
        "users": len(queries),
        "items": bundle.manifest.items,
        "k": K,
        "users_per_s": round(rate["towers recall"], 1),
        "bare_users_per_s": round(rate["search_batched"], 1),
        "parallel_users_per_s": round(rate["search_batched_parallel"], 1),
        "ratio": round(rate["towers recall"] / rate["search_batched"], 3),
        "ratio_to_parallel": round(rate["towers recall"] / rate["search_batched_parallel"], 3),
        "seconds": {name: [round(second, 2) for second in each] for name, each in seconds.items()},
    }


def searched(search: Callable[..., Any], queries: Any, parameters: Any) -> None:
    """The search alone, in batches as large as those of the command."""
    for start in range(0, len(queries), SEARCH_USERS):
        part = queries[start : start + SEARCH_USERS]
        search(
            part,
            final_num_neighbors=max(K, parameters.rescored),
            leaves_to_search=parameters.leaves_searched or None,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search.bulk_recall", description=__doc__)
    parser.add_argument("--bundle", action="append", default=[], metavar="NAME=DIR", help="a bundle with a ScaNN index")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dry", action="store_true", help="write no result")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--pinned", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one is not None:
        if given.pinned:
            os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        print(orjson.dumps(measured(given.one, given.rounds)).decode())
        sys.exit(0)
    if not given.bundle or not all("=" in each for each in given.bundle):
        parser.error("--bundle NAME=DIR: name at least one, as gowalla=bundle")
    sys.exit(
        main({n: Path(p).resolve() for n, p in (each.split("=", 1) for each in given.bundle)}, given.rounds, given.dry)
    )
