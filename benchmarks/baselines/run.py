"""The strongest cheap baselines on one data set of `benchmarks.quality`, with its protocol and its figures.

In: the name of the set, the folder of the data, a working directory. Out: results/baselines_SET.json; 1 where a claim
fails.

Popularity; EASE, where the catalogue has at most 13,000 items; GF-CF; iALS, d = 64; where the events have an order
item-kNN that reads it: their settings are chosen on a sample of the validation users, by the figure that also chose the
epochs of our model. item-kNN is as `towers report` tunes it, by recall@20 of at most 2,000 validation users. The
figures are those of every user of the test. All on one thread.
`--work` resumes. `--ours` measures nothing: it only takes the figures of our model anew. `--only` measures one baseline
and puts it beside the committed ones, with a date and a commit of its own.

Claims: our model, as its own benchmark's committed result has it, is above each baseline; above item-kNN in order is a
goal. Popularity and item-kNN, fitted as the `towers report` of that result fitted them, have the figures that they had
there, so both measure alike.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

# Before NumPy is loaded: one thread.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

from benchmarks.baselines.task import SETS, Set, Task, ours, prepared, reported_of
from benchmarks.baselines.tuned import EASE_ITEMS, GF_CF, IALS, Result, baselines
from benchmarks.harness.machine import load, record, verdict, write
from benchmarks.harness.resumable import Store
from pipelines.rankers.ranker import EASE, KNN, ORDERED, POPULARITY

STAMP = ("date", "commit", "dirty", "machine")
MOST_DIFFERENCE = 0.0001  # of popularity and item-kNN from those of the committed report


def main(name: str, data: Path, work: Path, only: str | None) -> int:
    """Measures what is not in `work` yet, all baselines or one of them, and writes the result."""
    chosen = SETS[name]
    dataset = prepared(chosen, data, work)
    task = Task.of(dataset, chosen.figures, refit=chosen.refit)
    found = baselines(task, Store(work / "runs"), only)
    if only is not None:
        committed, own = load(result_of(name)), record()
        found = {**committed["baselines"], only: {**found[only], "measured": {key: own[key] for key in STAMP}}}
        return told(name, {**committed, **beside_ours(chosen, found), "baselines": found})
    items = dataset.manifest.items
    left_out = {} if EASE in found else {EASE: f"{items:,} items, more than {EASE_ITEMS:,}"}
    result = {
        **beside_ours(chosen, found),
        "set": name,
        "chosen_by": f"{chosen.figures[0]} of {len(task.valid.users):,} validation users",
        "fitted_on": list(task.fitted_on),
        "users": len(task.test.users),
        "baselines": found,
        "left_out": left_out,
    }
    return told(name, result)


def renew(name: str) -> int:
    """Puts today's figures of our model beside the committed ones of the baselines, whose date and machine stay."""
    committed = load(result_of(name))
    return told(name, {**committed, **beside_ours(SETS[name], committed["baselines"])})


def beside_ours(chosen: Set, found: dict[str, Result]) -> dict[str, Any]:
    """The claims about the baselines, and the figures of our model that they are about."""
    model, reported = ours(chosen), reported_of(chosen, (POPULARITY, KNN))
    committed = {key: load(chosen.result)[key] for key in ("benchmark", "date", "commit")}
    goals = above({ORDERED: found[ORDERED]}, model) if ORDERED in found else {}
    return {
        "claims": claims_of(found, model, reported),
        **({"goals": goals} if goals else {}),
        "ours": {**committed, "test": model, "reported": reported},
    }


def result_of(name: str) -> str:
    """The name of a set's result."""
    return f"baselines_{name.replace('-', '_')}"


def told(name: str, result: dict[str, Any]) -> int:
    """Writes the result and prints it; the exit code."""
    print(write(__file__, result_of(name), result))
    figures_of = {each: content["test"] for each, content in result["baselines"].items()}
    for baseline, figures in {**figures_of, "ours": result["ours"]["test"]}.items():
        print(f"{baseline:10}", *(f"{figure} {value:.4f}" for figure, value in figures.items()))
    return verdict(result)


def claims_of(
    found: dict[str, Result], model: dict[str, float], reported: dict[str, dict[str, float]]
) -> dict[str, bool]:
    """What the figures must show.

    Args:
        found: the baselines by name.
        model: the figures of our model.
        reported: those of popularity and item-kNN beside it.
    """
    claims = above({name: content for name, content in found.items() if name != ORDERED}, model)
    differences = {
        baseline: max(abs(found[baseline]["as_reported"][figure] - value) for figure, value in figures.items())
        for baseline, figures in reported.items()
    }
    return claims | {
        f"{baseline} within {MOST_DIFFERENCE} of the committed report": difference <= MOST_DIFFERENCE
        for baseline, difference in differences.items()
    }


def above(found: dict[str, Result], model: dict[str, float]) -> dict[str, bool]:
    """Whether each figure of our model is above that of each baseline."""
    return {
        f"{figure}: our model above {baseline}": value > content["test"][figure]
        for baseline, content in found.items()
        for figure, value in model.items()
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.baselines.run", description=__doc__)
    parser.add_argument("name", choices=sorted(SETS), metavar="SET", help=", ".join(sorted(SETS)))
    parser.add_argument("--data", type=Path, default=os.environ.get("TOWERS_DATA"), help="folder that holds the sets")
    parser.add_argument("--work", type=Path, help="keep data set and finished runs here, and go on with them")
    parser.add_argument("--ours", action="store_true", help="keep the committed baselines, renew our model's figures")
    names = (POPULARITY, KNN, ORDERED, EASE, GF_CF, IALS)
    parser.add_argument("--only", choices=names, help="keep the other committed baselines, measure this one")
    given = parser.parse_args()
    if given.ours:
        sys.exit(renew(given.name))
    if given.data is None or not (Path(given.data) / SETS[given.name].events).exists():
        parser.error(f"no {SETS[given.name].events}; name the folder that holds it by --data or TOWERS_DATA")
    with tempfile.TemporaryDirectory() as temporary:
        directory = (given.work or Path(temporary)).resolve()
        directory.mkdir(parents=True, exist_ok=True)
        sys.exit(main(given.name, Path(given.data).resolve(), directory, given.only))
