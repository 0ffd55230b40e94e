"""Pretrained vectors and cold starts: what is recalled of items, and for users, without an event.

In: the folder of MovieLens-100k, a working directory. Out: benchmarks/quality/results/cold_start.json, its tables on
    stdout; code 1 where a claim fails.

Data: three synthetic worlds, and MovieLens-100k at five cut-offs in time (`benchmarks.quality.cold_start_data`). Each
    is split by time, and `towers train` refits with the validation events: new means without an event before the test.
Models: `ids` has no vector. `vectors` reads the vectors of items and users beside the ids, which it masks in training,
    and keeps the norms of its item vectors (x = 0). With all of them of length 1 (x = 1) nothing tells a new item from
    another; on MovieLens-100k that model reads no other feature of an item, and masks most of the ids.
Recall@50 is among all items; of the new items, it is that of the targets that are new.
Baselines: popularity; the same by users, who count alike; item-kNN; `content`, the items nearest to the mean of the
    user's items by their pretrained vectors; of new items chance, a random order of the candidates.
Intervals are of a bootstrap over users, paired. All settings were chosen on a world of another seed and on the first
    half of MovieLens-100k, at the cut-offs 0.1 to 0.4.

Claims: with x = 1 at least twice chance of new items, and the whole interval above chance; with x = 0 for new users
    above popularity by users, in the worlds by the whole interval. For the new films they are goals: what is known of
    them are titles, genres and years.
"""

import copy
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness.content import column_of, nearest
from benchmarks.harness.cut_offs import CUTS, prepared, split_at
from benchmarks.harness.machine import verdict, write
from benchmarks.harness.newcomers import NEW, questions
from benchmarks.harness.pool import INTERVAL, estimates
from benchmarks.harness.resumable import Store
from benchmarks.harness.stages import arguments
from benchmarks.quality.cold_start_data import (
    EMBEDDING,
    ITEM_NOISE,
    NUMBERS,
    RANK,
    SIZES,
    SPLIT,
    USER_NOISE,
    films,
    world,
)
from pipelines.dataset.dataset import Dataset
from pipelines.rankers.baselines import baselines_of
from pipelines.rankers.evaluate import Ranker
from pipelines.rankers.ranker import EXACT, KNN, KNOWN, POPULARITY, USERS_ALIKE

K, SEEDS = 50, (0, 1, 2)
IDS, VECTORS, LEVEL = "ids", "vectors, x = 0", "vectors, x = 1"
NORMS = {IDS: 0.0, VECTORS: 0.0, LEVEL: 1.0}
GOALS = f"ml-100k: recall@{K} of new items"
CONTENT, CHANCE = "content", "chance"
BASELINES = (POPULARITY, USERS_ALIKE, KNN, CONTENT)
SLICES = {"all": "recall", "new users": "recall", "new items": NEW}
Recipe = dict[str, Any]
Recipes = tuple[Recipe, Recipe]  # for x = 0, and for x = 1
Run = dict[str, Any]

MODEL: Recipe = {
    "model": {"dimension": 64, "similarity": "cosine", "temperature": 0.2, "prior": "off"},
    "loss": {"name": "sampled_softmax", "correction": 1.0},
}
OF_WORLD: Recipe = MODEL | {
    "data": SPLIT | {"refit": True},
    "optimizer": {"name": "adam", "learning_rate": 0.002},
    "train": {"epochs": 9, "batch_size": 512, "metric": f"recall@{K}", "choose_epoch": False},
    "features": {
        "query": {
            "user_id": {"kind": "id", "mask_share": 0.2},
            "history": {"kind": "history", "window": "others", "item_features": [EMBEDDING]},
            EMBEDDING: {"kind": "vector"},
        },
        "candidate": {"item_id": {"kind": "id", "mask_share": 0.5}, EMBEDDING: {"kind": "vector"}},
    },
}
OF_FILMS: Recipe = MODEL | {
    "model": MODEL["model"] | {"combine": "concat", "candidate_layers": [64]},
    "data": {"refit": True},
    "optimizer": {"name": "adam", "learning_rate": 0.002, "average": 0.99},
    "train": {"epochs": 8, "batch_size": 512, "metric": f"recall@{K}", "balance": 1.0, "choose_epoch": False},
    "features": {
        "query": {
            "user_id": {"kind": "id"},
            "gender": {"kind": "categorical"},
            EMBEDDING: {"kind": "vector"},
        },
        "candidate": {
            "item_id": {"kind": "id", "mask_share": 0.5},
            "audience": {"kind": "neighbours", "weight": 3.0, "mask_share": 0.5},
            EMBEDDING: {"kind": "vector"},
        },
    },
}
OF_NEW_FILMS: Recipe = OF_FILMS | {
    "model": MODEL["model"] | {"temperature": 0.1},
    "loss": {"name": "bsl", "correction": 0.7},
    "features": {
        "query": {"user_id": {"kind": "id"}, "gender": {"kind": "categorical"}},
        "candidate": {"item_id": {"kind": "id", "mask_share": 0.8}, EMBEDDING: {"kind": "vector"}},
    },
}


def main(data: Path, work: Path) -> int:
    """Runs what is not in `work` yet, and writes the result."""
    store = Store(work / "runs")
    figures, epochs = {}, {}
    for name, places in SETS.items():
        runs: dict[str, list[Run]] = {model: [] for model in NORMS}
        users: list[str] = []
        for place, dataset, recipes in places(data, work):
            for model in NORMS:
                each = recipe_of(model, recipes)
                settings = {"dataset": dataset.manifest.fingerprint, "recipe": each}
                runs[model].append(store.run(settings, partial(questions, each, dataset, work, (K,), baselines)))
            users += [f"{place}{user}" for user in runs[IDS][-1]["user"]]
        figures[name] = figures_of(users, runs)
        epochs[name] = {model: [run["epochs"] for run in each] for model, each in runs.items()}
    claims = claims_of(figures)
    sizes = SIZES | {"numbers": NUMBERS, "item noise": ITEM_NOISE, "user noise": USER_NOISE, "seeds": list(SEEDS)}
    goals = {claim: claims.pop(claim) for claim in list(claims) if claim.startswith(GOALS)}
    result = {
        "claims": claims,
        "goals": goals,
        "figures": figures,
        "epochs": epochs,
        "recipes": {"world": OF_WORLD, "ml-100k": OF_FILMS, f"ml-100k, {LEVEL}": OF_NEW_FILMS},
        "world": sizes,
        "rank": RANK,
        "interval": INTERVAL,
    }
    print(write(__file__, "cold_start", result))
    for name, found in figures.items():
        print(f"\n{name}\n{markdown(found)}")
    return verdict(result)


def worlds(_: Path, work: Path) -> Iterator[tuple[str, Dataset, Recipes]]:
    """Yields each world: what tells its users from those of the others, its data set, the recipes for x = 0 and 1."""
    for seed in SEEDS:
        yield f"seed {seed}, ", world(seed, work), (OF_WORLD, OF_WORLD)


def cut_offs(data: Path, work: Path) -> Iterator[tuple[str, Dataset, Recipes]]:
    """Yields MovieLens-100k at each cut-off, likewise; its users are the same at all of them."""
    folder = films(data, work)
    for cut in CUTS:
        split = {"data": OF_FILMS["data"] | split_at(cut)}
        yield "", prepared(folder, cut, work), (OF_FILMS | split, OF_NEW_FILMS | split)


SETS = {"world": worlds, "ml-100k": cut_offs}


def recipe_of(model: str, recipes: Recipes) -> Recipe:
    """The recipe of a model; `ids` has what the events tell, nothing masked, and no vector."""
    out = copy.deepcopy(recipes[model == LEVEL])
    out["model"]["norm_exponent"] = NORMS[model]
    for features in out["features"].values() if model == IDS else ():
        features.pop(EMBEDDING)
        for each in features.values():
            each.pop("mask_share", None)
            each.pop("item_features", None)
    return out


def baselines(data: Dataset, k: int) -> Mapping[str, Ranker]:
    """Both popularities, item-kNN, and the nearest by the pretrained vectors."""
    made = baselines_of(data, KNOWN, k).rankers
    content = nearest(column_of(data, EMBEDDING), k, made[USERS_ALIKE])
    return {name: made[name] for name in (POPULARITY, USERS_ALIKE, KNN)} | {CONTENT: content}


def figures_of(users: list[str], runs: Mapping[str, list[Run]]) -> dict[str, Any]:
    """By slice of the questions: means, and the differences of each model with vectors and all others, paired."""

    def joined(model: str, key: str) -> NDArray[np.float64]:
        return np.concatenate([np.asarray(run[key], np.float64) for run in runs[model]])

    new = joined(VECTORS, "new")
    chosen = {"all": new >= 0, "new users": joined(VECTORS, "warm") == 0, "new items": new > 0}
    out: dict[str, Any] = {}
    for part, metric in SLICES.items():
        values = {model: joined(model, f"{EXACT} {metric}@{K}") for model in runs}
        values |= {name: joined(VECTORS, f"{name} {metric}@{K}") for name in BASELINES}
        values |= {CHANCE: joined(VECTORS, "chance")} if metric == NEW else {}
        others = [name for name in values if name not in (VECTORS, LEVEL)]
        values |= {f"{one} minus {name}": values[one] - values[name] for one in (VECTORS, LEVEL) for name in others}
        out[part] = estimates(
            np.asarray(users)[chosen[part]], {name: each[chosen[part]] for name, each in values.items()}
        )
    out["new items"]["targets"] = int(new.sum())
    return out


def claims_of(figures: Mapping[str, Mapping[str, Any]]) -> dict[str, bool]:
    """What the figures must show."""
    claims = {}
    for name, found in figures.items():
        new, chance, above = (found["new items"][each] for each in (LEVEL, CHANCE, f"{LEVEL} minus {CHANCE}"))
        ahead = found["new users"][f"{VECTORS} minus {USERS_ALIKE}"]
        claims |= {
            f"{name}: recall@{K} of new items at least twice chance": new["value"] >= 2 * chance["value"],
            f"{name}: recall@{K} of new items above chance by the whole interval": min(
                new["low"] - chance["value"], above["low"]
            )
            > 0,
            f"{name}: recall@{K} for new users above popularity by users": ahead["low" if name == "world" else "value"]
            > 0,
        }
    return claims


def markdown(found: Mapping[str, Any]) -> str:
    """A row for each ranker, a column for each slice."""
    lines = [["", *SLICES], ["---"] * (len(SLICES) + 1)]
    for name in (*BASELINES, CHANCE, *NORMS):
        cells = [found[part].get(name) for part in SLICES]
        lines.append(
            [
                name,
                *(f"{each['value']:.3f} ({each['low']:.3f} to {each['high']:.3f})" if each else "" for each in cells),
            ]
        )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    with arguments("benchmarks.quality.cold_start", "ml-100k", __doc__, resumes=True) as (data, work):
        sys.exit(main(data, work))
