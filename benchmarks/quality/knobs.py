"""What settings of training do to the default recipe on timed data: each changed alone, paired with the unchanged.

In: the folder with the data, a working directory. Out: benchmarks/quality/results/knobs.json, its Markdown table on
    stdout.

Data: MovieLens-100k at three of the cut-offs of `benchmarks.quality.timed`, the questions pooled, and a synthetic world
    with fashion, smaller than the worlds there. In one working directory both benchmarks share the unchanged runs. It
    claims only that no setting halves a figure: docs/model/recipes.md tells by its table what each is worth.
"""

import argparse
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.cut_offs import CUTS
from benchmarks.harness.machine import verdict, write
from benchmarks.harness.pool import INTERVAL, estimates
from benchmarks.harness.resumable import Store
from benchmarks.quality.timed import (
    RECIPE,
    SAME_USERS,
    SETS,
    cut_offs,
    figures_of,
    locked,
    parser_of,
    refuse_missing,
    reported,
    run_of,
    worlds,
)
from pipelines.dataset.dataset import Dataset
from pipelines.rankers.ranker import EXACT
from towers.config.recipe import load_config

UNCHANGED = "unchanged"
KNOBS: dict[str, tuple[str, ...]] = {
    UNCHANGED: (),
    "data.refit = false": ("data.refit=false",),
    "model.prior = off": ("model.prior=off",),
    "train.balance = 1": ("train.balance=1",),
    "train.recency = 10": ("train.recency=10",),
    "train.recency = 10, balance = 1": ("train.recency=10", "train.balance=1"),
    "loss.correction = 0.5": ("loss.correction=0.5",),
}
FIGURES = ("recall@20", "ndcg@20")
WORLD = {"users": 3_000, "items": 2_500, "events": 150_000, "fashion": 1.0}
SEED = 0  # of the world
CUT_OFFS = [f"{cut:g}" for cut in CUTS[::2]]
Run = dict[str, Any]


def main(data: Path, work: Path, chosen: Sequence[str], names: Sequence[str]) -> int:
    """Runs what is not in `work` yet; writes the result unless only a part was asked for."""
    store = Store(work / "runs")
    with locked(work / "datasets.lock"):
        sets = {
            "ml-100k": {cut: data_set for cut, data_set in cut_offs(data, work).items() if cut in CUT_OFFS},
            "world": worlds((SEED,), work, WORLD),
        }
    figures = {}
    for set_name in chosen:
        places = sets[set_name]
        runs: dict[str, dict[str, Run]] = {name: {} for name in names}
        for place, dataset in places.items():
            for name in names:
                runs[name][place] = run_with(KNOBS[name], dataset, store, work)
        figures[set_name] = compared(runs, SAME_USERS[set_name])
    print(table(figures))
    if set(chosen) != set(SETS) or set(names) != set(KNOBS):
        return 0
    claims = claims_of(figures)
    result = {"claims": claims, "figures": figures, "knobs": KNOBS, "interval": INTERVAL}
    given = {"world": WORLD, "cut_offs": CUT_OFFS, "recipe": RECIPE.read_text(encoding="utf-8")}
    print(write(__file__, "knobs", result | given))
    return verdict(result)


def run_with(overrides: Sequence[str], dataset: Dataset, store: Store, work: Path) -> Run:
    """The finished run of the recipe with overrides, made where it is not in the store."""
    if not overrides:
        run = run_of("default", dataset, store, work)
        return {"user": run["user"], **{figure: run["figures"][EXACT][figure] for figure in FIGURES}}
    recipe = tomllib.loads(RECIPE.read_text(encoding="utf-8"))
    settings = {"recipe": recipe, "overrides": overrides, "dataset": dataset.manifest.fingerprint}
    return store.run(settings, lambda: questions(overrides, dataset, work))


def questions(overrides: Sequence[str], dataset: Dataset, work: Path) -> Run:
    """Trains with overrides: ``user`` ids, and each figure of the model with one entry per test user."""
    _, _, rows = reported(load_config(RECIPE, list(overrides)), dataset, work)
    return {"user": rows["user_id"].to_list(), **figures_of(EXACT, rows, FIGURES)}


def compared(runs: Mapping[str, Mapping[str, Run]], same_users: bool) -> dict[str, Any]:
    """By figure the mean of each knob over the questions of all places, and the difference to the unchanged recipe."""
    users = [
        user if same_users else f"{place}, {user}" for place, run in runs[UNCHANGED].items() for user in run["user"]
    ]
    found = {}
    for figure in FIGURES:
        values = {
            name: np.concatenate([np.asarray(run[figure], np.float64) for run in by_place.values()])
            for name, by_place in runs.items()
        }
        changes = {f"{name} minus {UNCHANGED}": values[name] - values[UNCHANGED] for name in list(values)[1:]}
        found[figure] = estimates(users, values | changes)
    return found


def claims_of(figures: Mapping[str, Mapping[str, Any]]) -> dict[str, bool]:
    """That no setting breaks the training: each keeps at least half of the unchanged recipe's figures."""
    return {
        f"{set_name}, {figure}: every setting keeps at least half": all(
            found[name]["value"] >= found[UNCHANGED]["value"] / 2 for name in KNOBS if name in found
        )
        for set_name, by_figure in figures.items()
        for figure, found in by_figure.items()
    }


def table(figures: Mapping[str, Mapping[str, Any]]) -> str:
    """Markdown: a row for each knob, and for each data set and figure what it changes, with the interval."""
    columns = [(set_name, figure) for set_name, by_figure in figures.items() for figure in by_figure]
    lines = [
        "| setting | " + " | ".join(f"{set_name}, {figure}" for set_name, figure in columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    first = figures[columns[0][0]][columns[0][1]]
    for name in (name for name in KNOBS if name in first):
        cells = []
        for set_name, figure in columns:
            found = figures[set_name][figure]
            if name == UNCHANGED:
                cells.append(f"{found[name]['value']:.4f}")
            else:
                change = found[f"{name} minus {UNCHANGED}"]
                cells.append(f"{change['value']:+.4f} ({change['low']:+.4f} to {change['high']:+.4f})")
        lines.append(f"| {name if name == UNCHANGED else f'`{name}`'} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _arguments() -> argparse.Namespace:
    parser = parser_of("knobs", __doc__)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS), help="only these")
    parser.add_argument("--knobs", nargs="+", choices=KNOBS, default=list(KNOBS), help="only these, and the unchanged")
    given = parser.parse_args()
    refuse_missing(parser, given.data)
    return given


if __name__ == "__main__":
    words = _arguments()
    chosen = [UNCHANGED, *(name for name in words.knobs if name != UNCHANGED)]
    sys.exit(main(words.data, words.work.resolve(), words.sets, chosen))
