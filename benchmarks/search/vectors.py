"""Item vectors as float32, float16 and int8: bytes, the recall that rounding costs, and the time of a query.

300,000 trained vectors x 64, k = 100, one thread. One run is exported three times; the index of each searches as many
leaves as float32 needs for a recall@100 of 0.95. The queries are users who were in none of the data. Times are medians
of interleaved rounds. Claims: int8 takes at most 0.3 of float32's bytes and finds at least 0.99 of its items. The world
stays in --work; it is that of `benchmarks.search.engines`. Writes benchmarks/search/results/vectors.json; exits with 1
where a claim fails.
"""

import argparse
import os
import statistics
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import get_args

# Before NumPy is loaded: exact search takes one thread, like ScaNN's.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

from benchmarks.harness import million
from benchmarks.harness.machine import verdict, write
from benchmarks.search.engines import EVENTS, ITEMS, USERS
from benchmarks.search.rates import rate, recall_of
from serving.bundle.reader import Bundle
from serving.search.exact import ExactIndex
from serving.search.index import Floats, Index, Rows
from serving.search.scann import ScannIndex
from serving.search.vector_codes import VectorType

QUERIES, EXACT_QUERIES, K, TARGET = 2_000, 100, 100, 0.95
LEAVES = range(8, 256)
MOST_BYTES, LEAST_FOUND = 0.3, 0.99


def main(work: Path, rounds: int) -> int:
    million.bundle(work, ITEMS, USERS, EVENTS)
    queries = million.held_out_vectors(work)[:QUERIES]
    exact, scann, rows = {}, {}, {}
    for kind in get_args(VectorType):
        folder = work / f"bundle-{kind}"
        million.towers(folder, "export", "--run", work / "run", "--vectors", kind)
        bundle = Bundle.open(folder, verify=False)
        exact[kind] = ExactIndex(bundle.recall_vectors)
        scann[kind] = ScannIndex.build(bundle.recall_vectors)
        files = (folder / name for name in ("item_vectors.npy", "item_scales.npy"))
        rows[kind] = {"bytes": sum(file.stat().st_size for file in files if file.exists())}
    truth = found(exact["float32"], queries)
    leaves = next(
        each for each in LEAVES if recall_of(truth, found(with_leaves(scann["float32"], each), queries)) >= TARGET
    )
    for kind in scann:
        chosen = scann[kind] = with_leaves(scann[kind], leaves)
        rows[kind]["exact_found"] = recall_of(truth, found(exact[kind], queries))
        rows[kind]["scann_found"] = recall_of(truth, found(chosen, queries))
    times: dict[str, dict[str, list[float]]] = {kind: {"scann": [], "exact": []} for kind in rows}
    for _ in range(rounds):
        for kind, its in times.items():
            its["scann"].append(1e6 / rate(partial(found, scann[kind]), queries, 1))
            its["exact"].append(1e3 / rate(partial(found, exact[kind]), queries[:EXACT_QUERIES], 1))
    for kind, its in times.items():
        rows[kind] |= {"scann_us": statistics.median(its["scann"]), "exact_ms": statistics.median(its["exact"])}
    small, whole = rows["int8"], rows["float32"]
    claims = {
        f"int8: at most {MOST_BYTES:g} of float32's bytes": small["bytes"] <= MOST_BYTES * whole["bytes"],
        f"int8: at least {LEAST_FOUND:g} of float32's items": small["exact_found"] >= LEAST_FOUND,
    }
    sizes = {"items": ITEMS, "dimension": 64, "k": K, "queries": len(queries)}
    result = {"claims": claims, "sizes": sizes, "leaves_searched": leaves, "rows": rows}
    print(write(__file__, "vectors", result))
    return verdict(result)


def found(index: Index, queries: Floats) -> Rows:
    return index.search(queries, K)[0]


def with_leaves(index: ScannIndex, leaves: int) -> ScannIndex:
    return index.with_parameters(replace(index.parameters, leaves_searched=leaves))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search.vectors", description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="where the world and the bundles stay, about 1 GB")
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    sys.exit(main(given.work.resolve(), given.rounds))
