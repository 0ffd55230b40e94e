"""A recipe trained with one change at a time: what each reaches on validation, and the table of that."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.harness.machine import ROOT, load, verdict, write
from benchmarks.harness.pages import with_block
from benchmarks.harness.resumable import Store
from benchmarks.harness.stages import Stages

Row = dict[str, Any]

# What makes `ml-1m.toml` a recipe of single events with sampled negatives, at twice the rate that it had.
EVENTS = (
    "distillation=",
    "model.temperature=0.17",
    "loss.name=sampled_softmax",
    "loss.known_positives=500",
    "sampler.name=mixed",
    'sampler.parts=[{name="in_batch"},{name="uniform",negatives=1024}]',
    "optimizer.name=adam",
    "optimizer.learning_rate=0.001",
    "optimizer.average=0.9995",
    "train.batch_size=1024",
    "train.patience=4",
)


def rows_of(
    stages: Stages, events: Sequence[str], recipe: Path, changes: Mapping[str, Sequence[str]], seeds: int
) -> list[Row]:
    """Trains the recipe with each change and each seed, unless the working directory has that run.

    Args:
        stages: runs the commands; its working directory keeps the data set and what is finished.
        events: the words of `towers prepare` that name the events.
        recipe: its path from the root of the project.
        changes: by what a reader calls them, the settings after `--set`.
        seeds: trainings of each.
    """
    store, dataset = Store(stages.work / "runs"), stages.work / "dataset"
    if not dataset.exists():
        stages.run("prepare", *events, "--config", str(recipe), "--out", str(dataset))
    text, rows = (ROOT / recipe).read_text(encoding="utf-8"), []
    for name, overrides in changes.items():
        runs = [
            store.run(
                {"recipe": text, "overrides": [*overrides], "seed": seed},
                lambda: _trained(stages, dataset, recipe, [*overrides, f"train.seed={seed}"]),  # noqa: B023
            )
            for seed in range(seeds)
        ]
        rows.append({"lever": name, "overrides": [*overrides], "runs": runs, "best": [run["best"] for run in runs]})
    return rows


def with_table(text: str, name: str, metric: str) -> str:
    """The text of a page with a committed result between its marks: each change, beside the first row."""
    values = {row["lever"]: row["best"] for row in load(name)["rows"]}
    first, base = next(iter(values)), mean(next(iter(values.values())))
    each_seed = ", each seed" * (len(values[first]) > 1)
    lines = [f"| lever | {metric} on validation{each_seed} | less that of the first row |", "|---|---|---|"]
    for lever, found in values.items():
        told = " ".join(f"{value:.4f}" for value in found)
        lines.append(f"| {lever} | {told} | {'' if lever == first else f'{mean(found) - base:+.4f}'} |")
    return with_block(text, f"<!-- table: {name} -->\n", "\n".join(lines) + "\n", "<!-- /table -->")


def write_result(file: str, name: str, result: dict[str, Any], page: Path, metric: str) -> int:
    """Writes a result and its table in a page, and says which claims hold; the exit code.

    Args:
        file: of the benchmark.
        name: of the result.
        result: its `claims` and `rows`.
        page: has the marks of the table.
        metric: what the rows measure, for a reader.
    """
    print(write(file, name, result))
    page.write_text(with_table(page.read_text(encoding="utf-8"), name, metric), encoding="utf-8")
    return verdict(result)


def _trained(stages: Stages, dataset: Path, recipe: Path, settings: Sequence[str]) -> dict[str, Any]:
    """Trains; what the run says of its best epoch on validation."""
    run, words = stages.work / "run", [word for each in settings for word in ("--set", each)]
    stages.run("train", "--dataset", str(dataset), "--config", str(recipe), "--out", str(run), "--overwrite", *words)
    stage = json.loads((run / "summary.json").read_text(encoding="utf-8"))["stages"][0]
    seconds = mean(epoch["train_seconds"] for epoch in stage["history"])
    return {
        "best": stage["best_metric"],
        "epoch": stage["best_epoch"],
        "epochs": stage["epochs"],
        "seconds_per_epoch": round(seconds, 2),
    }
