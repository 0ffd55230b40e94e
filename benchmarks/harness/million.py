"""A trained model of a million items x 64: the bundle that `index`, `bulk_recall` and `worker_memory` measure on.

In: a folder. Out: in it the world of `towers synth`, the bundle that `prepare`, `train` and `export` make of it, and
the vectors of users whom none of them saw. What is there already is not made again.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl

from benchmarks.harness.machine import ROOT
from serving.bundle.reader import Bundle
from serving.search.index import Floats

ITEMS, USERS, EVENTS = 1_000_000, 200_000, 5_000_000
HELD_OUT, LEAST_EVENTS, NEWEST = 4_000, 5, 50
RECIPE = f"""\
[features.query]
history = {{ kind = "history", max_length = {NEWEST} }}

[features.candidate]
item_id = {{ kind = "id" }}
category = {{ kind = "categorical" }}
tags = {{ kind = "multi", max_length = 4 }}
title = {{ kind = "text", max_length = 6 }}

[model]
dimension = 64
similarity = "cosine"
temperature = 0.1

[optimizer]
name = "adagrad"
learning_rate = 0.05

[train]
epochs = 2
batch_size = 4096
validation_users = 2000
"""


def bundle(work: Path, items: int = ITEMS, users: int = USERS, events: int = EVENTS) -> Path:
    """The exported bundle of the world in `work`; made where it is missing."""
    world, held_out, dataset, run, made = (work / name for name in ("world", "held_out", "dataset", "run", "bundle"))
    if not made.exists():
        work.mkdir(parents=True, exist_ok=True)
        (work / "recipe.toml").write_text(RECIPE, encoding="utf-8")
        sizes = {"items": items, "users": users, "events": events}
        towers(world, "synth", *[word for name, size in sizes.items() for word in (f"--{name}", str(size))])
        if not (held_out / "events.parquet").exists():
            set_apart(world / "events.parquet", held_out)
        towers(dataset, "prepare", "--events", held_out / "others.parquet", "--items", world / "items.parquet")
        towers(run, "train", "--dataset", dataset, "--config", work / "recipe.toml")
        towers(made, "export", "--run", run)
    return made


def set_apart(events: Path, out: Path) -> None:
    """Divides the events: `events.parquet` of some users drawn from those with enough events, `others.parquet`."""
    frame = pl.read_parquet(events)
    counts = frame.group_by("user_id").len().filter(pl.col("len") >= LEAST_EVENTS).sort("user_id")
    drawn = counts["user_id"].sample(min(HELD_OUT, counts.height // 10), seed=1)
    out.mkdir(exist_ok=True)
    frame.filter(~pl.col("user_id").is_in(drawn.implode())).write_parquet(out / "others.parquet")
    frame.filter(pl.col("user_id").is_in(drawn.implode())).write_parquet(out / "events.parquet")


def held_out_vectors(work: Path) -> Floats:
    """[B, D] vectors of users in no stage before: what the query tower makes of their events."""
    path = work / "held_out" / "vectors.npy"
    if not path.exists():
        from serving.bundle.encoder import Encoder

        events = pl.read_parquet(work / "held_out" / "events.parquet").sort("user_id", "time", maintain_order=True)
        histories = events.group_by("user_id", maintain_order=True).agg(pl.col("item_id").tail(NEWEST))["item_id"]
        encoder = Encoder.of_queries(Bundle.open(work / "bundle", verify=False))
        requests = [{"history": history} for history in histories.to_list()]
        vectors = np.concatenate([encoder.encode(requests[at : at + 500]) for at in range(0, len(requests), 500)])
        np.save(path, vectors[np.any(vectors != 0, axis=1)])
    return np.load(path)


def towers(out: Path, verb: str, *words: str | Path) -> None:
    """Runs `towers VERB WORDS --out OUT` where `out` is not there; a failure ends the benchmark."""
    if not out.exists():
        command = ["towers", verb, *map(str, words), "--out", str(out)]
        print("$", *command, file=sys.stderr, flush=True)
        done = subprocess.run(
            [sys.executable, "-m", "pipelines", *command[1:]], cwd=ROOT, stdout=sys.stderr, check=False
        )
        if done.returncode:
            sys.exit(f"error: towers {verb} ended with code {done.returncode}")
