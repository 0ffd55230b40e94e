"""Beauty, the next item: self-attention over the history against the best published SASRec, by the command line.

In: `beauty/beauty.txt` (one `user item` pair a line, in time order), a working directory. Out:
benchmarks/quality/results/beauty.json; 1 where a claim fails.

Leave one out: a user's last item is the test, the one before it validation, which chose epoch and recipe; the model is
trained on the rest alone, while the validation item is part of the history that the test asks with. Full ranking over
the catalogue, the history masked. What is measured are the served vectors, by `towers report`, and once more from the
file itself. `--seeds 3` repeats the training; with `--work` an interrupted run resumes.
"""

import argparse
import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.machine import ROOT, write
from benchmarks.harness.resumable import Store
from benchmarks.harness.stages import Stages
from serving.bundle.reader import Bundle

RECIPE = "towers/recipes/beauty.toml"
K = 10
# SASRec with full cross-entropy: Klenitskiy & Vasilev, Turning dross into gold loss, RecSys 2023.
PUBLISHED = {"hit_rate@10": 0.0533, "ndcg@10": 0.0327}
MOST_DIFFERENCE = 1e-4  # of the report from the count by hand: scores that tie in float32
USERS = 1_024  # ranked at once


def main(data: Path, work: Path, seeds: int) -> int:
    """Trains what is not in `work` yet, and writes the result."""
    store = Store(work / "runs")
    recipe = (ROOT / RECIPE).read_text(encoding="utf-8")
    runs = [
        store.run({"recipe": recipe, "seed": seed}, lambda: trained(data, work, seed))  # noqa: B023
        for seed in range(seeds)
    ]
    figures = {
        name: {"mean": float(np.mean(values)), "spread": float(np.ptp(values)), "seeds": values}
        for name in PUBLISHED
        for values in [[run["test"][name] for run in runs]]
    }
    differences = [abs(run["test"][name] - run["by_hand"][name]) for run in runs for name in PUBLISHED]
    claims = {
        **{f"{name} at least {least}": figures[name]["mean"] >= least for name, least in PUBLISHED.items()},
        f"the report is within {MOST_DIFFERENCE} of a count from the file": max(differences) <= MOST_DIFFERENCE,
    }
    result = {"claims": claims, "figures": figures, "published": PUBLISHED, "runs": runs, "recipe": recipe}
    print(write(__file__, "beauty", result))
    for name, figure in figures.items():
        print(f"{name} {figure['mean']:.4f}, spread {figure['spread']:.4f} of {seeds}; published {PUBLISHED[name]}")
    for claim, holds in claims.items():
        print(f"{'yes' if holds else 'NO '} {claim}")
    return 0 if all(claims.values()) else 1


def trained(data: Path, work: Path, seed: int) -> dict[str, Any]:
    """The figures of one seed; its data set and run are kept in `work`, so that a training of this recipe resumes."""
    part = work / f"{hashlib.sha256((ROOT / RECIPE).read_bytes()).hexdigest()[:8]}_seed_{seed}"
    part.mkdir(exist_ok=True)
    dataset, run, bundle, report = (str(part / name) for name in ("dataset", "run", "bundle", "report"))
    stages = Stages(part, data)
    config = ("--config", RECIPE)
    if not Path(dataset).exists():
        events = str(data / "beauty.txt")
        stages.run("prepare", "--events", events, "--format", "pairs", *config, "--out", dataset)
    if not Path(run).exists():
        stages.run("train", "--dataset", dataset, *config, "--set", f"train.seed={seed}", "--out", run)
    stages.run("export", "--run", run, "--out", bundle, "--overwrite")
    stages.run("report", "--bundle", bundle, "--dataset", dataset, "--out", report, "--overwrite")
    content = json.loads((Path(report) / "report.json").read_text(encoding="utf-8"))
    summary = json.loads((Path(run) / "summary.json").read_text(encoding="utf-8"))
    stage = summary["stages"][0]
    return {
        "test": {name: content["metrics"]["exact"][name]["value"] for name in PUBLISHED},
        "by_hand": by_hand(data / "beauty.txt", Bundle.open(Path(bundle))),
        "validation": {key: stage[key] for key in ("metric", "best_metric", "best_epoch", "epochs", "history")},
        "examples": stage["examples"],
        "seconds": stages.seconds,
        "commands": stages.commands,
        "metrics": content["metrics"],
        "counts": content["counts"],
    }


def by_hand(file: Path, bundle: Bundle) -> dict[str, float]:
    """The figures from the lines of the file and the vectors of the bundle, as a person would count them."""
    taken: dict[str, list[str]] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        user, item = line.split()
        taken.setdefault(user, []).append(item)
    hits, gains = [], []
    users = list(taken)
    for begin in range(0, len(users), USERS):
        block = users[begin : begin + USERS]
        vectors = bundle.query_vectors[[bundle.query_rows[user] for user in block]]
        scores = vectors @ np.asarray(bundle.item_vectors).T
        for row, user in enumerate(block):
            *earlier, target = taken[user]
            scores[row, [bundle.item_rows[item] for item in earlier if item in bundle.item_rows]] = -np.inf
            place = bundle.item_rows.get(target)
            above = K if place is None else int((scores[row] > scores[row, place]).sum())
            hits.append(above < K)
            gains.append(1 / np.log2(above + 2) if above < K else 0.0)
    return {"hit_rate@10": float(np.mean(hits)), "ndcg@10": float(np.mean(gains))}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality.beauty", description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("TOWERS_DATA"), help="folder that holds beauty/")
    parser.add_argument("--work", type=Path, help="keep data sets, runs and reports here, and go on with them")
    parser.add_argument("--seeds", type=int, default=1, help="how many trainings")
    given = parser.parse_args()
    if given.data is None or not (Path(given.data) / "beauty" / "beauty.txt").is_file():
        parser.error("no beauty/beauty.txt; name the folder that holds beauty/ by --data or TOWERS_DATA")
    folder = (Path(given.data) / "beauty").resolve()
    if given.work is not None:
        given.work.mkdir(parents=True, exist_ok=True)
        sys.exit(main(folder, given.work.resolve(), given.seeds))
    with tempfile.TemporaryDirectory() as directory:
        sys.exit(main(folder, Path(directory).resolve(), given.seeds))
