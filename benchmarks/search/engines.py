"""Engines of approximate search: ScaNN by its packages `scann` and `scann-core`, hnswlib and usearch.

300,000 trained vectors x 64 (--million: 1,000,000), recall@100 of 0.95, one thread. The queries are users who were in
none of the data. Each engine builds with all processors, in a process of its own; its settings are swept on the very
queries that compare, and its fastest that reach 0.95, one by one and in batches, take turns with those of the others.
`make scann-core` makes the environment that `--scann-core` names; `pip install -e '.[bench]'` brings hnswlib and
usearch. Then each opens indexes of which a file is cut short or has one byte altered, and what comes of it is counted.
Claim: in batches scann-core answers more queries per second than hnswlib. Goal: one by one at least 0.85 as many. World
and indexes stay in --work. Writes engines.json, or engines_million.json, in benchmarks/search/results; exits with 1
where the claim fails.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import million
from benchmarks.harness.machine import ROOT, verdict, write
from benchmarks.harness.resumable import Store
from serving.bundle.reader import Bundle
from serving.search.exact import ExactIndex

ITEMS, USERS, EVENTS = 300_000, 60_000, 1_500_000
QUERIES, K, TARGET, LEAST = 2_000, 100, 0.95, 0.85
FORMS = ("single", "batch")
# The fastest graphs of a million items; one of few links reaches the target or just misses it.
GRAPHS = ((6, 200), (6, 400), (7, 400), (8, 200), (12, 200))
# The module of each, and its builds.
ENGINES = {
    "scann": ("scann", ["ScannParameters.for_size"]),
    "scann-core": ("scann", ["ScannParameters.for_size"]),
    "hnswlib": ("hnswlib", [f"M={links}, ef_construction={width}" for links, width in GRAPHS]),
    "usearch": ("usearch", ["connectivity=8, expansion_add=200", "connectivity=12, expansion_add=200"]),
}


def main(work: Path, scann_core: str, rounds: int, damages: int, *, large: bool) -> int:
    sizes = (million.ITEMS, million.USERS, million.EVENTS) if large else (ITEMS, USERS, EVENTS)
    work = work / "million" if large else work
    arrays(work, *sizes)
    store = Store(work / "runs")

    def asked(stage: str, engine: str, given: Any) -> Any:
        python = scann_core if engine == "scann-core" else sys.executable
        module, folder = ENGINES[engine][0], work / "engines" / engine
        words = [python, "-m", "benchmarks.search.engine", stage, module, str(folder), json.dumps(given)]
        done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
        return json.loads(done.stdout.splitlines()[-1])

    def kept(stage: str, engine: str, given: Any) -> Any:
        settings = {"stage": stage, "engine": engine, "given": given}
        return store.run(settings, lambda: {"made": asked(stage, engine, given)})["made"]

    builds = {engine: kept("build", engine, names) for engine, (_, names) in ENGINES.items()}
    finalists = {engine: fastest(kept("sweep", engine, names)) for engine, (_, names) in ENGINES.items()}
    turns: dict[str, list[Any]] = {engine: [] for engine in ENGINES}
    for _ in range(rounds):
        for engine, its in turns.items():
            its.append(asked("turn", engine, [finalists[engine][form] for form in FORMS]))
    rates = {
        engine: {
            form: float(np.median([each[place][form] for each in turns[engine]])) for place, form in enumerate(FORMS)
        }
        for engine in ENGINES
    }
    spoilt = {engine: kept("damage", engine, {**finalists[engine]["single"], "damages": damages}) for engine in ENGINES}
    share = {
        form: {engine: round(rates[engine][form] / rates["hnswlib"][form], 3) for engine in ENGINES} for form in FORMS
    }
    claim = "in batches scann-core answers more queries per second than hnswlib"
    goal = f"one by one scann-core answers at least {LEAST} of hnswlib's queries per second"
    result = {
        "claims": {claim: share["batch"]["scann-core"] > 1},
        "goals": {goal: share["single"]["scann-core"] >= LEAST},
        "sizes": {"items": sizes[0], "dimension": 64, "queries": QUERIES, "k": K, "target": TARGET},
        "rounds": rounds,
        "builds": builds,
        "finalists": finalists,
        "rates": rates,
        "of_hnswlib": share,
        "damages": spoilt,
        "turns": turns,
    }
    print(write(__file__, "engines_million" if large else "engines", result))
    return verdict(result)


def arrays(work: Path, items: int, users: int, events: int) -> None:
    """Item vectors, queries and their exact answers, where the engines look for them."""
    folder = work / "engines"
    if (folder / "truth.npy").exists():
        return
    bundle = Bundle.open(million.bundle(work, items, users, events), verify=False)
    queries = million.held_out_vectors(work)[:QUERIES]
    folder.mkdir(exist_ok=True)
    np.save(folder / "vectors.npy", bundle.item_vectors)
    np.save(folder / "queries.npy", queries)
    np.save(folder / "truth.npy", ExactIndex(bundle.recall_vectors).search(queries, K)[0])


def fastest(swept: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The fastest setting that reaches the target, for each form of asking."""
    able = [each for each in swept if each["recall"] >= TARGET]
    return {form: max(able, key=lambda each: each[form]) for form in FORMS}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search.engines", description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="where the world and all indexes stay, 2 GB, or 6")
    parser.add_argument("--million", action="store_true", help="1,000,000 items in place of 300,000")
    parser.add_argument("--scann-core", default=".venv-scann-core/bin/python", help="the Python of that environment")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--damages", type=int, default=100)
    given = parser.parse_args()
    sys.exit(main(given.work.resolve(), given.scann_core, given.rounds, given.damages, large=given.million))
