"""Beauty, the next item: self-attention over the history against published figures, by the command line.

In: one of two sets, a working directory: `beauty/beauty.txt` (one `user item` pair a line, in time order: 54,542 items)
    or `beauty-s3rec/sequences.txt` (one `user item item ...` line a user: 12,101 items).
Out: benchmarks/quality/results/beauty.json or beauty_s3rec.json, with `--categories` or `--teachers` a file of its own
    beside it; 1 where a claim fails.

Leave one out: a user's last item is the test, the one before it validation, which chose epoch and recipe; the model is
trained on the rest alone, while the validation item is part of the history that the test asks with. Full ranking over
the catalogue, the history masked. What is measured are the served vectors, by `towers report`, and once more from the
file itself. `--seeds 3` repeats the training; with `--work` an interrupted run resumes.

`--categories` reads those of the items of `beauty-s3rec`, too (`item_attributes.json`). S3Rec, TIGER and ActionPiece
read as much or more of the items, the models of eSASRec's repository the ids alone.
"""

import argparse
import hashlib
import json
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.machine import ROOT, verdict, write
from benchmarks.harness.resumable import Store
from benchmarks.harness.stages import Stages
from serving.bundle.reader import Bundle

RECIPE = "towers/recipes/beauty.toml"
CATEGORIES = ['features.candidate.attributes={kind="multi"}', 'features.query.history.item_features=["attributes"]']
TAUGHT = ["distillation.dimension=128", "distillation.share=0.8"]  # teachers twice as wide
K = 10


@dataclass(frozen=True)
class Set:
    """A data set: its file, the file's format, the result, the best published figures, what is to be reached, its own
    settings of a training with teachers, and the file of the items' categories, "" without any."""

    file: str
    format: str
    result: str
    published: dict[str, float]
    goal: dict[str, float]
    taught: list[str]
    categories: str = ""


@dataclass(frozen=True)
class Variant:
    """What differs from the recipe: how many teachers it has, and whether an item is also its categories, as a
    candidate and in the history."""

    teachers: int = 0
    categories: bool = False

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that are not the recipe's, as the result has them."""
        changed = {"teachers": self.teachers, "categories": self.categories}
        return {name: value for name, value in changed.items() if value}

    def changes(self, chosen: Set) -> list[str]:
        """The changed settings, as words after `--set`."""
        taught = [f"distillation.models={self.teachers}", *chosen.taught, *TAUGHT]
        return taught * bool(self.teachers) + CATEGORIES * self.categories

    @property
    def suffix(self) -> str:
        """What the name of the result ends with."""
        return "_categories" * self.categories + "_taught" * bool(self.teachers)


SETS = {
    # SASRec with full cross-entropy: Klenitskiy & Vasilev, Turning dross into gold loss, RecSys 2023.
    "beauty": Set(
        "beauty.txt",
        "pairs",
        "beauty",
        {"hit_rate@10": 0.0533, "ndcg@10": 0.0327},
        {"hit_rate@10": 0.0610, "ndcg@10": 0.0370},
        # Fewer negatives, or it would take hours.
        ["train.epochs=16", "train.patience=6", 'sampler.parts=[{name="in_batch"},{name="uniform",negatives=1024}]'],
    ),
    # The best of each in the repository of eSASRec: that model, and SASRec with a sampled softmax.
    "beauty-s3rec": Set(
        "sequences.txt",
        "sequences",
        "beauty_s3rec",
        {"hit_rate@10": 0.0928, "ndcg@10": 0.0531},
        {"hit_rate@10": 0.1000, "ndcg@10": 0.0615},
        # What `towers tune` found on this set's validation events, from ids alone; with patience, for teachers overfit.
        [
            "features.candidate.nearby=",
            "model.norm_exponent=validation",
            "model.prior=validation",
            "loss.correction=0.8",
            'sampler.parts=[{name="in_batch"},{name="uniform",negatives=4096}]',
            "optimizer.learning_rate=0.004",
            "train.batch_size=2048",
            "train.epochs=34",
            "train.patience=8",
        ],
        "item_attributes.json",
    ),
}
MOST_DIFFERENCE = 1e-4  # of the report from the count by hand: scores that tie in float32
USERS = 1_024  # ranked at once


def main(name: str, data: Path, work: Path, seeds: int, variant: Variant) -> int:
    """Trains what is not in `work` yet, and writes the result."""
    store, chosen = Store(work / "runs"), SETS[name]
    recipe = (ROOT / RECIPE).read_text(encoding="utf-8")
    runs = [
        store.run(
            {"set": name, "recipe": recipe, "changes": variant.changes(chosen), "seed": seed},
            lambda: trained(chosen, data, work, seed, variant),  # noqa: B023
        )
        for seed in range(seeds)
    ]
    figures = {
        figure: {"mean": float(np.mean(values)), "spread": float(np.ptp(values)), "seeds": values}
        for figure in chosen.published
        for values in [[run["test"][figure] for run in runs]]
    }
    checks = judged(name, figures, runs)
    result = {**checks, "figures": figures, "published": chosen.published, "runs": runs, "recipe": recipe}
    print(write(__file__, chosen.result + variant.suffix, result | variant.settings))
    for each, figure in figures.items():
        told = f"{each} {figure['mean']:.4f}, spread {figure['spread']:.4f} of {seeds}"
        print(f"{told}; published {chosen.published[each]}")
    return verdict(result)


def judged(name: str, figures: dict[str, Any], runs: list[dict[str, Any]]) -> dict[str, dict[str, bool]]:
    """The claims, and the goals that may be missed."""
    chosen = SETS[name]
    differences = [abs(run["test"][each] - run["by_hand"][each]) for run in runs for each in chosen.published]
    return {
        "claims": {
            **{f"{each} at least {least}": figures[each]["mean"] >= least for each, least in chosen.published.items()},
            f"the report is within {MOST_DIFFERENCE} of a count from the file": max(differences) <= MOST_DIFFERENCE,
        },
        "goals": {
            f"{each} at least {least:.4f}": figures[each]["mean"] >= least for each, least in chosen.goal.items()
        },
    }


def trained(chosen: Set, data: Path, work: Path, seed: int, variant: Variant) -> dict[str, Any]:
    """The figures of one seed; its data set and run are kept in `work`, so that a training of this recipe resumes."""
    settings = [(ROOT / RECIPE).read_text(encoding="utf-8"), *variant.changes(chosen)]
    digest = hashlib.sha256("\n".join(settings).encode()).hexdigest()[:8]
    part = work / f"{chosen.result}{variant.suffix}_{digest}_seed_{seed}"
    part.mkdir(exist_ok=True)
    dataset, run, bundle, report = (str(part / name) for name in ("dataset", "run", "bundle", "report"))
    stages = Stages(part, data)
    config = ("--config", RECIPE)
    if not Path(dataset).exists():
        events = ("--events", str(data / chosen.file), "--format", chosen.format)
        items = ("--items", str(data / chosen.categories)) if variant.categories else ()
        stages.run("prepare", *events, *items, *config, "--out", dataset)
    if not Path(run).exists():
        changes = [word for each in (f"train.seed={seed}", *variant.changes(chosen)) for word in ("--set", each)]
        stages.run("train", "--dataset", dataset, *config, *changes, "--out", run)
    stages.run("export", "--run", run, "--out", bundle, "--overwrite")
    stages.run("report", "--bundle", bundle, "--dataset", dataset, "--out", report, "--overwrite")
    content = json.loads((Path(report) / "report.json").read_text(encoding="utf-8"))
    summary = json.loads((Path(run) / "summary.json").read_text(encoding="utf-8"))
    stage = summary["stages"][0]
    return {
        "test": {name: content["metrics"]["exact"][name]["value"] for name in chosen.published},
        "by_hand": by_hand(data / chosen.file, Bundle.open(Path(bundle))),
        "validation": {key: stage[key] for key in ("metric", "best_metric", "best_epoch", "epochs", "history")},
        "examples": summary["stages"][-1]["examples"],
        "seconds": stages.seconds,
        "commands": stages.commands,
        "metrics": content["metrics"],
        "counts": content["counts"],
    }


def by_hand(file: Path, bundle: Bundle) -> dict[str, float]:
    """The figures from the lines of the file, pairs or sequences, and the bundle's vectors and prior, by formula."""
    taken: dict[str, list[str]] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        user, *items = line.split()
        taken.setdefault(user, []).extend(items)
    hits, gains = [], []
    users = list(taken)
    for begin in range(0, len(users), USERS):
        block = users[begin : begin + USERS]
        vectors = bundle.query_vectors[[bundle.query_rows[user] for user in block]]
        scores = vectors @ np.asarray(bundle.item_vectors).T
        if bundle.item_prior is not None and (prior := bundle.manifest.prior) is not None:
            now, past = np.asarray(bundle.item_prior).T
            lengths = np.array([len(taken[user]) - 1 for user in block])
            scores += np.maximum(prior.now + prior.length * np.log1p(lengths), 0)[:, None] * now - prior.past * past
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
    parser.add_argument("--set", choices=SETS, default="beauty", help="which of the two sets")
    parser.add_argument("--data", type=Path, default=os.environ.get("TOWERS_DATA"), help="folder that holds the set's")
    parser.add_argument("--work", type=Path, help="keep data sets, runs and reports here, and go on with them")
    parser.add_argument("--seeds", type=int, default=1, help="how many trainings")
    parser.add_argument("--teachers", type=int, default=0, help="of `distillation.models`; 0 for none")
    parser.add_argument("--categories", action="store_true", help="an item is also its categories (beauty-s3rec)")
    given = parser.parse_args()
    if given.categories and not SETS[given.set].categories:
        parser.error(f"--categories: {given.set} has none")
    for file in (SETS[given.set].file, *[SETS[given.set].categories] * given.categories):
        if given.data is None or not (Path(given.data) / given.set / file).is_file():
            parser.error(f"no {given.set}/{file}; name the folder that holds it by --data or TOWERS_DATA")
    if given.seeds < 1:
        parser.error(f"--seeds: at least 1; got {given.seeds}")
    folder = (Path(given.data) / given.set).resolve()
    chosen_variant = Variant(given.teachers, given.categories)
    if given.work is not None:
        given.work.mkdir(parents=True, exist_ok=True)
        sys.exit(main(given.set, folder, given.work.resolve(), given.seeds, chosen_variant))
    with tempfile.TemporaryDirectory() as directory:
        sys.exit(main(given.set, folder, Path(directory).resolve(), given.seeds, chosen_variant))
