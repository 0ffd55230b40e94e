"""`towers tune` against the hand-made recipe of each public data set, trained and reported alike.

The search knows no trial, but its starts were made from the hand-made recipes, and it takes their `[data]`.

An hour for each, 20 minutes for the small MovieLens-100k. Claims: the found recipe's figure on the test events is at
least 0.97 of the hand-made one's, the search kept its budget within 3 %, and the found recipe trained in at most 15
minutes. Resumes where it stopped (--work). Writes benchmarks/quality/results/tune.json; exits with 1 where a claim
fails.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness.machine import ROOT, write
from benchmarks.harness.resumable import Store
from towers.config.recipe import load_config

LEAST_SHARE, MOST_TRAIN_S, MOST_OVERRUN = 0.97, 900, 1.03


@dataclass(frozen=True)
class Set:
    """A data set: its files below the data's folder, their format, the hand-made recipe, the budget of the search."""

    events: str
    format: str
    recipe: str
    minutes: float = 60.0


SETS = {
    "gowalla": Set("gowalla", "lightgcn", "gowalla-ordered.toml"),
    "ml-1m-split": Set("ml-1m-split", "lightgcn", "ml-1m.toml"),
    "beauty": Set("beauty/beauty.txt", "pairs", "beauty.toml"),
    "ml-100k": Set("ml-100k", "recbole", "ml-100k.toml", minutes=20.0),
}


def main(data: Path, work: Path, names: list[str], budget_minutes: float | None, seed: int) -> int:
    results: dict[str, Any] = {}
    claims: dict[str, bool] = {}
    store = Store(work / "finished")
    for name in names:
        minutes = SETS[name].minutes if budget_minutes is None else budget_minutes
        recipe = ROOT / "towers" / "recipes" / SETS[name].recipe
        settings = {"data": name, "minutes": minutes, "seed": seed, "recipe": recipe.read_text(encoding="utf-8")}
        folder = work / f"{name}-{minutes:g}-{seed}"
        result = store.run(settings, partial(one, data, name, folder, minutes, seed))
        results[name] = {"budget_minutes": minutes, **result}
        claims |= {
            f"{name}: at least {LEAST_SHARE} of the hand-made recipe": result["share"] >= LEAST_SHARE,
            f"{name}: trains in {MOST_TRAIN_S // 60} minutes": result["found"]["train_s"] <= MOST_TRAIN_S,
            f"{name}: budget kept": result["tune_s"] <= 60 * minutes * MOST_OVERRUN,
        }
        print(f"{name}: {result['metric']} found {result['found']['test']:.4f}, hand-made {result['made']['test']:.4f}")
    print(write(__file__, "tune", {"claims": claims, "seed": seed, "sets": results}))
    for claim, holds in claims.items():
        print(f"{'yes' if holds else 'NO '} {claim}")
    return 0 if all(claims.values()) else 1


def one(data: Path, name: str, folder: Path, minutes: float, seed: int) -> dict[str, Any]:
    """Searches, trains both recipes, reports both."""
    chosen, folder = SETS[name], folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    made, found, dataset = ROOT / "towers" / "recipes" / chosen.recipe, folder / "found.toml", folder / "dataset"
    metric = load_config(made).train.metric
    source = ["--events", str(data / chosen.events), "--format", chosen.format]
    towers(dataset, "prepare", *source, "--config", str(made), "--out", str(dataset))
    budget = ["--budget-minutes", f"{minutes:g}", "--seed", str(seed), "--metric", metric]
    towers(found, "tune", "--dataset", str(dataset), *budget, "--out", str(found))
    sides = {
        kind: figures(folder / kind, recipe, dataset, metric) for kind, recipe in (("found", found), ("made", made))
    }
    return {
        "metric": metric,
        **sides,
        "share": sides["found"]["test"] / sides["made"]["test"],
        "tune_s": seconds(found),
        "found_recipe": found.read_text(encoding="utf-8"),
    }


def figures(folder: Path, recipe: Path, dataset: Path, metric: str) -> dict[str, Any]:
    """Trains a recipe and reports its figure on the test events, with the validation's and the seconds of training."""
    folder.mkdir(exist_ok=True)
    run, bundle, report = (folder / each for each in ("run", "bundle", "report"))
    towers(run, "train", "--dataset", str(dataset), "--config", str(recipe), "--out", str(run))
    towers(bundle, "export", "--run", str(run), "--out", str(bundle))
    towers(report, "report", "--bundle", str(bundle), "--dataset", str(dataset), "--out", str(report))
    content = json.loads((report / "report.json").read_text(encoding="utf-8"))
    stages = json.loads((run / "summary.json").read_text(encoding="utf-8"))["stages"]
    return {
        "test": content["metrics"]["exact"][metric]["value"],
        "interval": content["metrics"]["exact"][metric],
        "validation": stages[0]["best_metric"],
        "epochs": [each["epochs"] for each in stages],
        "train_s": seconds(run),
    }


def towers(out: Path, *words: str) -> None:
    """Runs a command unless its output is there; an interrupted one resumes. Keeps the seconds of its processes."""
    if out.exists():
        return
    print(f"$ towers {' '.join(words)}", file=sys.stderr, flush=True)
    begin = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "pipelines", *words], cwd=ROOT, stdout=sys.stderr, check=False)
    timed(out).write_text(repr(seconds(out) + time.monotonic() - begin), encoding="utf-8")
    if done.returncode:
        sys.exit(f"error: towers {words[0]} ended with code {done.returncode}")


def timed(out: Path) -> Path:
    return out.with_name(f"{out.name}.seconds")


def seconds(out: Path) -> float:
    return float(timed(out).read_text(encoding="utf-8")) if timed(out).exists() else 0.0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality.tune", description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("TOWERS_DATA"), help="folder of the data sets")
    parser.add_argument("--work", type=Path, required=True, help="keep everything here, and go on with what is there")
    parser.add_argument("--only", nargs="+", choices=SETS, default=list(SETS), help="of the data sets only these")
    parser.add_argument("--budget-minutes", type=float, help="of every data set; by default that of each")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.data is None:
        parser.error("name the folder of the data sets by --data or TOWERS_DATA")
    sys.exit(main(given.data.resolve(), given.work, given.only, given.budget_minutes, given.seed))
