"""Do features earn their place? MovieLens-100k at five rolling cut-offs in time: ids, then history, then attributes.

In: the folder with the data, a working directory. Out: benchmarks/quality/results/ml_100k_rolling.json; 1 where a claim
    fails. Goals, which may be missed: over all users, at 10 and at 50, the recipe with its prior and the variant `user
    features`, which has none, are ahead of six baselines of `towers report`, each by the whole interval.

At each cut-off the data set holds the events up to a tenth of all events after it: those are the test, the tenth
before it is validation, and `towers train` refits on both for the epochs that validation chose. What is measured are
the vectors of the exported bundle, by dot product, the user's earlier items masked; a user without a vector is
answered with popular items, as the service does. A question is one user at one cut-off; intervals are of a bootstrap
over users, each with all of their questions, the same draws for every variant (paired).

The validation of one cut-off is the test of the one before it. So all settings were chosen on the events before the
first cut-off: trained on the first 10, 20, 30 and 40 % of all events, validated on the tenth after each.
"""

import copy
import itertools
import sys
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness.cut_offs import CUTS, prepared, split_at
from benchmarks.harness.machine import ROOT, verdict, write
from benchmarks.harness.newcomers import METRICS, NEW, questions
from benchmarks.harness.pool import INTERVAL, estimates
from benchmarks.harness.resumable import Store
from benchmarks.harness.stages import arguments
from pipelines.dataset.dataset import Dataset
from pipelines.evaluation.report_table import TITLES
from pipelines.rankers.baselines import baselines_of
from pipelines.rankers.evaluate import Ranker
from pipelines.rankers.ranker import EASE, EASE_RECENT, EXACT, KNN, KNOWN, POPULARITY, RECENT, USERS_ALIKE

RECIPE = ROOT / "towers" / "recipes" / "ml-100k.toml"
KS = (10, 50)
USERS, ITEMS, WHOLE = "user features", "item features", "recipe"
# The features each has (none named: all), and the settings in which it differs from the recipe, at its own best;
# besides these, ALONE.
VARIANTS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "ids": (
        ("user_id", "item_id"),
        {"train.balance": 0.0, "model.temperature": 0.2, "model.norm_exponent": 1.0},
    ),
    "history": (("user_id", "history", "item_id", "audience"), {"train.balance": 0.0}),
    USERS: ((), {}),
    WHOLE: ((), {}),  # what is in fashion, too
    ITEMS: (  # an item must be recalled without its id and its graph
        ("user_id", "gender", "item_id", "release_year", "genres"),
        {
            "features.candidate.item_id.mask_share": 0.8,
            "features.candidate.release_year": {"kind": "categorical"},
            "features.candidate.genres": {"kind": "multi", "column": "class"},
            "model.norm_exponent": 1.0,
            "loss": {"name": "bsl", "correction": 0.7},
            "train.balance": 1.0,
            "train.epochs": 8,
            "train.choose_epoch": False,
        },
    ),
}
STEPS = (("ids", "history"), ("history", USERS), ("ids", USERS), (USERS, ITEMS), (USERS, WHOLE))
BALANCED = "balanced popularity"  # what the results call `USERS_ALIKE`
BASELINES = (POPULARITY, BALANCED, RECENT, KNN, EASE, EASE_RECENT)
# The variants that are to be ahead of every baseline, and their names in a goal.
AHEAD = {WHOLE: "recipe", USERS: "user features without prior"}
# What is studied are features: nothing but them tells what is in fashion. The recipe as it is does without these two.
ALONE = {"model.prior": "off", "model.norm_exponent": 0.0}
Columns = dict[str, NDArray[np.float64]]


def main(data: Path, work: Path) -> int:
    """Runs what is not in `work` yet, and writes the result."""
    recipe = tomllib.loads(RECIPE.read_text(encoding="utf-8"))
    store = Store(work / "runs")
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in VARIANTS}
    for cut in CUTS:
        dataset = prepared(data, cut, work)
        for name in VARIANTS:
            config = variant(recipe, name)
            config["data"] |= split_at(cut)
            settings = {"dataset": dataset.manifest.fingerprint, "recipe": config}
            runs[name].append(store.run(settings, partial(questions, config, dataset, work, KS, baselines)))
    figures = figures_of(*pooled(runs))
    result = {
        "claims": claims_of(figures),
        "goals": goals_of(figures),
        "figures": figures,
        "trained": {
            f"{cut:g}": {name: {key: runs[name][place][key] for key in ("epochs", "candidates")} for name in VARIANTS}
            for place, cut in enumerate(CUTS)
        },
        "interval": INTERVAL,
        "recipe": RECIPE.read_text(encoding="utf-8"),
        "settings": {name: {"features": kept or "all"} | settings_of(name) for name, (kept, _) in VARIANTS.items()},
    }
    print(write(__file__, "ml_100k_rolling", result))
    return verdict(result)


def variant(recipe: dict[str, Any], name: str) -> dict[str, Any]:
    """The recipe with the features and settings of one variant, everything else the same."""
    kept, _ = VARIANTS[name]
    out = copy.deepcopy(recipe)
    for key, value in settings_of(name).items():
        *path, last = key.split(".")
        section = out
        for part in path:
            section = section.setdefault(part, {})
        section[last] = copy.deepcopy(value)
    for side, features in out["features"].items():
        out["features"][side] = {key: value for key, value in features.items() if not kept or key in kept}
    return out


def settings_of(name: str) -> dict[str, Any]:
    """The settings in which a variant differs from the recipe."""
    return ({} if name == WHOLE else ALONE) | VARIANTS[name][1]


def baselines(data: Dataset, k: int) -> dict[str, Ranker]:
    """The baselines of `towers report`, with the settings that it chooses on validation."""
    made = baselines_of(data, KNOWN, k).rankers
    return {name: made[USERS_ALIKE if name == BALANCED else name] for name in BASELINES}


def pooled(runs: dict[str, list[dict[str, Any]]]) -> tuple[list[str], Columns]:
    """The questions of all cut-offs, one after another: the user of each, and columns of what is known of them.

    The columns of figures are ``VARIANT METRIC@K`` and ``BASELINE METRIC@K``.
    """
    first = runs["ids"]  # of every variant the same, but for `chance`, which is that of its candidates

    def joined(cuts: list[dict[str, Any]], key: str) -> NDArray[np.float64]:
        return np.concatenate([np.asarray(cut[key], np.float64) for cut in cuts])

    columns = {key: joined(first, key) for key in ("warm", "new")}
    columns["chance"] = joined(runs[ITEMS], "chance")
    for figure in (f"{metric}@{k}" for metric in METRICS for k in KS):
        columns |= {f"{name} {figure}": joined(cuts, f"{EXACT} {figure}") for name, cuts in runs.items()}
        columns |= {f"{baseline} {figure}": joined(first, f"{baseline} {figure}") for baseline in BASELINES}
    return [user for cut in first for user in cut["user"]], columns


def compared(users: list[str], columns: Columns, chosen: NDArray[np.bool_], figure: str) -> dict[str, Any]:
    """Means over the chosen questions, and differences."""
    names = [*BASELINES, *VARIANTS]
    values = {name: columns[f"{name} {figure}"][chosen] for name in names}
    steps = [*STEPS, *((baseline, name) for baseline in BASELINES for name in VARIANTS)]
    values |= {f"{name} minus {other}": values[name] - values[other] for other, name in steps}
    values |= {"chance": columns["chance"][chosen]} if figure.startswith(NEW) else {}
    return estimates(np.asarray(users)[chosen], values)


def figures_of(users: list[str], columns: Columns) -> dict[str, dict[str, Any]]:
    """By slice and figure; ``new_recall`` over the questions that have a new target."""
    warm = columns["warm"] > 0
    slices = {"all": warm | ~warm, "warm": warm, "cold": ~warm}
    figures: dict[str, dict[str, Any]] = {
        part: {f"recall@{k}": compared(users, columns, chosen, f"recall@{k}") for k in KS}
        for part, chosen in slices.items()
    }
    asked = columns["new"] > 0
    name = f"{NEW}@{max(KS)}"
    figures["new items"] = {"targets": int(columns["new"].sum()), name: compared(users, columns, asked, name)}
    return figures


def claims_of(figures: dict[str, dict[str, Any]]) -> dict[str, bool]:
    """What the figures must show; `above` means by the whole interval."""
    deepest = f"recall@{max(KS)}"
    new = figures["new items"][f"{NEW}@{max(KS)}"]

    def above(part: str, difference: str) -> bool:
        return bool(figures[part][deepest][difference]["low"] > 0)

    return {
        f"{deepest}, warm users: history above ids": above("warm", "history minus ids"),
        f"{deepest}, cold users: user features above history": above("cold", "user features minus history"),
        f"{deepest}, all users: user features above history": above("all", "user features minus history"),
        f"{deepest}, cold users: user features above {BALANCED}": above("cold", f"user features minus {BALANCED}"),
        f"{deepest}, new items: item features above chance": new[ITEMS]["low"] > new["chance"]["high"],
    }


def goals_of(figures: dict[str, dict[str, Any]]) -> dict[str, bool]:
    """What may be missed: over all users, ahead of each baseline by the whole interval."""
    found = {}
    for name, baseline, k in itertools.product(AHEAD, BASELINES, KS):
        difference = figures["all"][f"recall@{k}"][f"{name} minus {baseline}"]
        goal = f"recall@{k}, all users: {AHEAD[name]} above {TITLES.get(baseline, baseline)}"
        found[goal] = bool(difference["low"] > 0)
    return found


if __name__ == "__main__":
    with arguments("benchmarks.quality.rolling", "ml-100k", __doc__, resumes=True) as (data, work):
        sys.exit(main(data, work))
