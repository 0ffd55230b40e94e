"""A small data set and recipe, commands that are stopped on the way, and what makes two runs equal."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import tensorflow as tf

from pipelines.ingest import prepare
from tests.support.paths import PROCESSES, ROOT
from towers.config.recipe import load_config

ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}
Point = tuple[str, str, int]
USERS, GROUPS, SIZE = 66, 3, 11
# The last sections of both recipes.
TRAINING = """
[optimizer]
learning_rate = 0.003
average = 0.6

[train]
epochs = 3
batch_size = 64
checkpoint_steps = 2
metric = "ndcg@5"
"""
# Steps that depend on earlier ones: moments, a sampler that learns, averages. 9 steps an epoch, then 10.
RECIPE = (
    """
[data]
split = "leave_last_out"
refit = true

[features.query]
user_id = { kind = "id", mask_share = 0.3 }
history = { kind = "history", max_length = 5 }

[model]
dimension = 8

[sampler]
name = "learned_unigram"
negatives = 16
"""
    + TRAINING
)
# What else the recipes gowalla and ml-1m are made of, which is read from all events anew when a run goes on.
GRAPH = (
    """
[data]
split = "leave_last_out"
refit = true

[features.query]
user_id = { kind = "id" }
history = { kind = "neighbours", window = "all", weight = 5.0, recency = 32.0, cooccurrence = 6.0 }

[features.candidate]
item_id = { kind = "id" }
audience = { kind = "neighbours", weight = 5.0 }
nearby = { kind = "cooccurrence", weight = 3.0 }

[contrast]
weight = 0.1

[model]
dimension = 8
norm_exponent = "validation"

[loss]
name = "sampled_softmax"
known_positives = 4
impressions = 3

[sampler]
name = "mixed"
parts = [{ name = "in_batch" }, { name = "uniform", negatives = 16 }]
"""
    + TRAINING
    + "recency = 3.0\nbalance = 0.3\n"
)


def make_world(folder: Path) -> Path:
    """Writes `events.csv`, `dataset/`, two recipes. Users of a group take the items of a group, each in an order.

    Before every third one, each is shown an item of another group.
    """
    rng = np.random.default_rng(0)
    rows = [
        (f"u{user}", f"i{GROUPS * item + user % GROUPS}", 1_000 * user + place, 1)
        for user in range(USERS)
        for place, item in enumerate(rng.permutation(SIZE))
    ]
    rows += [
        (f"u{user}", f"i{GROUPS * place + (user + 1) % GROUPS}", 1_000 * user + place, 0)
        for user in range(USERS)
        for place in range(0, SIZE - 2, 3)
    ]
    events = pl.DataFrame(rows, schema=["user_id", "item_id", "timestamp", "weight"], orient="row")
    events.write_csv(folder / "events.csv")
    (folder / "recipe.toml").write_text(RECIPE)
    (folder / "graph.toml").write_text(GRAPH)
    prepare.run(load_config(folder / "recipe.toml").data, folder / "events.csv", folder / "dataset")
    return folder


def training(world: Path, out: Path, recipe: str = "recipe.toml") -> list[str]:
    """The words of the command that trains on that world."""
    return ["train", "--dataset", str(world / "dataset"), "--config", str(world / recipe), "--out", str(out)]


def stopped(
    words: Sequence[str], points: Sequence[Point], by: str = "kill", disk: Path | None = None, keep: Path | None = None
) -> list[dict[str, str]]:
    """Stops a command at one point after the other, then lets it end.

    Args:
        words: of the command.
        points: see `interrupted_run.py`.
        by: `kill`, `term`, `full` or `limit`.
        disk: an empty folder that is a disk of its own meanwhile, of 16 MB.
        keep: gets what lies on that disk at the end.

    Returns:
        Of each process how it `ended`, what it `told`, and `left`, the names on the disk.
    """
    job = {"words": words, "points": points, "by": by, "disk": None if disk is None else str(disk)}
    command = [sys.executable, str(PROCESSES / "interrupted_run.py"), json.dumps(job)]
    if disk is not None:
        # A disk in a name space of its own: it goes away with the process, whatever happens.
        mount = 'mount -t tmpfs -o size=16m tmpfs "$0" && keep="$1" && shift && "$@" && cp -r "$0"/. "$keep"'
        command = ["unshare", "-Urm", "sh", "-c", mount, str(disk), str(keep), *command]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr[-2000:]
    ends: list[dict[str, str]] = json.loads(done.stdout)
    assert ends[-1]["ended"] == "0", ends[-1]["told"]
    return ends


def weights(run: Path) -> dict[str, np.ndarray]:
    reader = tf.train.load_checkpoint(str(run / "checkpoints" / "final"))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def stages(run: Path) -> list[dict[str, Any]]:
    """What the summary says of each stage."""
    told: list[dict[str, Any]] = json.loads((run / "summary.json").read_text())["stages"]
    return told


def history(run: Path) -> list[list[dict[str, float]]]:
    return [[{k: v for k, v in e.items() if not k.endswith("seconds")} for e in s["history"]] for s in stages(run)]


def files(run: Path) -> list[str]:
    """TensorBoard's files, of which each process writes one, left out."""
    return sorted(str(p.relative_to(run)) for p in run.rglob("*") if "tensorboard" not in str(p.relative_to(run)))


def same(run: Path, whole: Path) -> None:
    assert files(run) == files(whole)
    assert history(run) == history(whole)
    one, other = weights(run), weights(whole)
    assert one.keys() == other.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)
