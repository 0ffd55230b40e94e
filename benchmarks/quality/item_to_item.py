"""MovieLens 100k item to item: films are alike that share a genre; what held-out films' neighbours are.

First the recipe by its commands. Then every loss of the task at one equal budget, each with the better of two learning
rates, chosen on the validation half; the other half of the held-out films says how good it is. Claims: `claims_of`.
Writes benchmarks/quality/results/similarity.json; exits with 1 where a claim fails.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.machine import ROOT, verdict, write
from benchmarks.harness.stages import Stages, arguments
from pipelines.bundles.run import load_run
from pipelines.evaluation.similarity.neighbours import Asked, Neighbours, Ranked, neighbours
from pipelines.rankers.bootstrap import bootstrap
from pipelines.training import train
from pipelines.training.similarity.labels import HELD_OUT, read_labels
from towers.config.recipe import load_config
from towers.evaluation.encode import embed_all

RECIPE = Path("towers") / "recipes" / "ml-100k-similarity.toml"
FIGURE = "precision@10"
RATES = (0.002, 0.008)
LOSSES: dict[str, tuple[str, ...]] = {
    "full_softmax": ("loss.name=full_softmax",),
    "am_softmax": ("loss.name=am_softmax",),
    "distance_softmax": ("loss.name=distance_softmax",),
    "distance_softmax, adaptive margin": ("loss.name=distance_softmax", 'loss.margin="adaptive"'),
    "triplet, hardest": ("loss.name=triplet", "loss.mining=hardest"),
    "pair": ("loss.name=pair",),
    "circle": ("loss.name=circle",),
}
WITHOUT_CENTRES = ("full_softmax", "distance_softmax, adaptive margin")
BASE = "full_softmax, centres"


def main(data: Path, work: Path) -> int:
    stages = Stages(work, data)
    dataset, run, bundle, report = (str(work / name) for name in ("dataset", "run", "bundle", "report"))
    stages.run("prepare", "--events", str(data), "--format", "recbole", "--config", str(RECIPE), "--out", dataset)
    stages.run("train", "--dataset", dataset, "--config", str(RECIPE), "--out", run)
    stages.run("export", "--run", run, "--out", bundle)
    stages.run("index", "--bundle", bundle)
    stages.run("report", "--bundle", bundle, "--dataset", dataset, "--out", report)
    content = json.loads((Path(report) / "report.json").read_text(encoding="utf-8"))
    started = time.perf_counter()
    losses, measured = compare(Path(dataset), work)
    stages.seconds["losses"] = round(time.perf_counter() - started, 1)
    best = max(losses, key=lambda name: losses[name]["validation"])
    difference = paired(measured[best], measured[BASE])
    claims = claims_of(content)
    result = {
        "claims": claims,
        "metrics": content["metrics"],
        "differences": content["differences"],
        "within_below_between": content["within_below_between"],
        "counts": content["counts"],
        "losses": losses,
        "best_on_validation": best,
        "best_minus_softmax": difference,
        "rates": RATES,
        "seconds": stages.seconds,
        "commands": stages.commands,
        "recipe": (ROOT / RECIPE).read_text(encoding="utf-8"),
    }
    print(write(__file__, "similarity", result))
    for name, row in losses.items():
        print(
            f"{name:45} validation {row['validation']:.4f}, held-out {row['held_out']['value']:.4f} "
            f"({row['held_out']['low']:.4f} to {row['held_out']['high']:.4f}), nearer {row['nearer']['value']:.4f}"
        )
    print(f"{best}, chosen on validation, minus {BASE}: {difference}")
    return verdict(result)


def claims_of(content: dict[str, Any]) -> dict[str, bool]:
    held, trained = content["differences"]["held_out"], content["differences"]["training"]
    return {
        f"held-out films: {FIGURE} above chance": held["exact_minus_chance"][FIGURE]["low"] > 0,
        f"held-out films: {FIGURE} above popularity": held["exact_minus_popularity"][FIGURE]["low"] > 0,
        f"training films: {FIGURE} above item-kNN": trained["exact_minus_item_knn"][FIGURE]["low"] > 0,
        "held-out films: d(within) < d(between) more often than not": content["within_below_between"]["held_out"]["low"]
        > 0.5,
    }


def compare(dataset: Path, work: Path) -> tuple[dict[str, dict[str, Any]], dict[str, Neighbours]]:
    """Every loss against centres and, where it can, against the batch's items: figures, and what they are made of."""
    rows, measured = {}, {}
    for loss, overrides in LOSSES.items():
        for against in ("centres", "items"):
            if against == "items" and loss in WITHOUT_CENTRES:
                continue
            tried = {}
            for rate in RATES:
                out = work / f"{len(rows)}-{rate}"
                settings = (*overrides, f"similarity.against={against}", f"optimizer.learning_rate={rate}")
                stage = train.run(load_config(RECIPE, settings), dataset, out)["stages"][0]
                tried[rate] = (stage["best_metric"], stage["best_epoch"], out)
            rate = max(tried, key=lambda each: tried[each][0])
            validation, epoch, run = tried[rate]
            found = held_out(run)
            name = f"{loss}, {against}"
            measured[name] = found
            rows[name] = {
                "validation": validation,
                "learning_rate": rate,
                "epoch": epoch,
                "held_out": estimate(found.columns[f"exact_{FIGURE}"]),
                "nearer": estimate(found.nearer),
            }
    return rows, measured


def held_out(run: Path) -> Neighbours:
    trained = load_run(run)
    labels = read_labels(trained.config, trained.dataset)
    vectors = embed_all(trained.model.candidate_tower.serve, trained.tables.items)[labels.items]
    nobody = (np.zeros(1, np.int64), np.zeros(0, np.int32))  # no baselines here
    ranked = Ranked(labels, vectors, np.ones(len(vectors), np.bool_), nobody)
    return neighbours(ranked, Asked.of(ranked, HELD_OUT), (10,))


def estimate(values: np.ndarray) -> dict[str, float]:
    return bootstrap(values[:, np.newaxis], ["value"]).estimate("value")


def paired(one: Neighbours, other: Neighbours) -> dict[str, float]:
    columns = np.stack([each.columns[f"exact_{FIGURE}"] for each in (one, other)], axis=1)
    return bootstrap(columns, ["one", "other"]).difference("one", "other")


if __name__ == "__main__":
    with arguments("benchmarks.quality.item_to_item", "ml-100k", __doc__) as (folder, work_directory):
        sys.exit(main(folder, work_directory))
