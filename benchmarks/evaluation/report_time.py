"""The CPU time and memory of `towers report` on Gowalla, against those of its exact top-k alone.

Claims, for every user of a bundle of Gowalla (29,858 users x 40,981 items x 64, lists of 100): the report takes at most
3 times the CPU time of `serving.search.exact` alone for the same lists, with popularity as its only baseline
and without the map, whose projection takes as long for any number of users; with the map and all baselines, fitted and
cached, its process holds less than 2 GB. Threads are fixed to one; CPU time is
user and system, so other work on the machine hardly shows, without the start of Python and the first imports. Each
round is a process of its own; medians. Linux only. Writes benchmarks/evaluation/results/report.json; exits with 1
where a claim fails.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness.machine import ROOT, verdict, write
from benchmarks.harness.process_memory import memory

MOST_TIMES_EXACT, MOST_BYTES, K = 3.0, 2_000_000_000, 100
THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "POLARS_MAX_THREADS")
REPORT, EXACT, TIMES = "report", "exact top-k alone", "times_exact"


def main(bundle: Path, dataset: Path, rounds: int, dry: bool) -> int:
    with tempfile.TemporaryDirectory() as folder:
        whole = one(bundle, dataset, Path(folder), "all")
        runs = [one(bundle, dataset, Path(folder), "popularity") for _ in range(rounds)]
    times = round(median(run[TIMES] for run in runs), 2)
    claims = {
        f"at most {MOST_TIMES_EXACT:g} times the exact top-k alone": times <= MOST_TIMES_EXACT,
        f"below {MOST_BYTES / 1e9:g} GB": whole["peak_bytes"] < MOST_BYTES,
    }
    result = {
        "claims": claims,
        "sizes": whole["sizes"] | {"k": K, "rounds": rounds},
        "processor_seconds": {name: round(median(run["seconds"][name] for run in runs), 2) for name in (REPORT, EXACT)},
        TIMES: times,
        f"{TIMES}_of_rounds": [round(run[TIMES], 2) for run in runs],
        "with_all_baselines": {
            "processor_seconds": round(whole["seconds"][REPORT], 2),
            "peak_bytes": whole["peak_bytes"],
        },
    }
    print(json.dumps(result, indent=2))
    if not dry:
        print(write(__file__, "report", result))
    return verdict(result)


def one(bundle: Path, dataset: Path, folder: Path, baselines: str) -> dict[str, Any]:
    """The figures of one round, in a process of its own."""
    words = [sys.executable, "-m", "benchmarks.evaluation.report_time", "--round", str(folder / "round.json")]
    words += ["--bundle", str(bundle), "--dataset", str(dataset), "--baselines", baselines]
    subprocess.run(words, cwd=ROOT, env=os.environ | dict.fromkeys(THREADS, "1"), check=True, stdout=sys.stderr)
    found: dict[str, Any] = json.loads((folder / "round.json").read_text(encoding="utf-8"))
    return found


def measured(bundle: Path, dataset: Path, out: Path, baselines: str) -> None:
    """Measures a report, and the exact search after it, in this process, and writes the figures to `out`."""
    import numpy as np

    from pipelines.dataset.dataset import Dataset
    from pipelines.dataset.heldout import heldout
    from pipelines.dataset.popularity import Counting
    from pipelines.evaluation import report
    from pipelines.rankers.baselines import Baselines
    from pipelines.rankers.choice import choose
    from pipelines.rankers.fits import Fits, ranker_of
    from pipelines.rankers.ranker import POPULARITY, Served
    from serving.bundle.reader import Bundle
    from serving.recall.loading import open_index
    from serving.search.exact import ExactIndex

    def only_popularity(data: Dataset, splits: Sequence[str], k: int, *, repeats: bool) -> Baselines:
        assert not repeats
        wanted = Counting()
        rankers = {POPULARITY: ranker_of(Fits(data, splits).of(wanted), k)}
        chosen = choose(data)
        choice = replace(chosen, validation={POPULARITY: chosen.validation[POPULARITY]})
        return Baselines(choice, rankers, {POPULARITY: wanted})

    alone = baselines == "popularity"
    if alone:
        report.baselines_of = only_popularity  # type: ignore[attr-defined]
    begin = time.process_time()
    report.run(bundle, dataset, out.parent / "report", maps=() if alone else None, overwrite=True)
    seconds = {REPORT: time.process_time() - begin}
    peak = memory()["VmHWM"]
    opened, data = Bundle.open(bundle), Dataset.open(dataset)
    served, held = Served.match(opened, open_index(opened), data), heldout(data, "test")
    rows = served.query_rows[held.users]
    queries = opened.recall_queries(opened.query_vectors[rows], opened.seen_counts(rows))
    masked = np.split(served.item_rows[held.seen_items], held.seen_offsets[1:-1])
    index = ExactIndex(opened.recall_vectors)
    begin = time.process_time()
    index.search(queries, K, masked)
    seconds[EXACT] = time.process_time() - begin
    found = {
        "seconds": seconds,
        TIMES: seconds[REPORT] / seconds[EXACT],
        "peak_bytes": peak,
        "sizes": {"users": len(held.users), "items": data.manifest.items, "dimension": opened.manifest.dimension},
    }
    out.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evaluation.report_time", description=__doc__)
    parser.add_argument("--bundle", type=Path, required=True, help="of Gowalla, see benchmarks/README.md")
    parser.add_argument(
        "--dataset",
        type=Path,
        required=True,
        help="its data set, of which a report was made before: its baselines are cached",
    )
    parser.add_argument("--rounds", type=int, default=5, help="processes that count")
    parser.add_argument("--dry", action="store_true", help="print only")
    parser.add_argument("--round", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--baselines", choices=("all", "popularity"), default="all", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.round:
        sys.exit(measured(given.bundle, given.dataset, given.round, given.baselines))
    sys.exit(main(given.bundle, given.dataset, given.rounds, given.dry))
